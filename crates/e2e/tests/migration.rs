//! Queue pairs with an alternate path migrate between two hosts with two links, without multi-path: by
//! themselves when a path fails, and when their program wants it. A program checks that each operation is
//! executed exactly once.

use polypath_e2e::{Direction, End, Error, Finished, Lab, Running, compile_c};
use std::collections::HashMap;
use std::time::Duration;

/// The time for programs to start, to see a fault, and to end after their work.
const MARGIN: Duration = Duration::from_secs(30);
/// The largest number of labs at a time.
const BUSY: usize = 2;

/// A server and a client that keep an alternate path loaded. Path `n` goes by link `n`.
struct Pair {
    lab: Lab,
    server: Running,
    client: Running,
    /// What `polypath watch` says at both hosts.
    events: [Running; 2],
    /// How many lines of the client with each text were waited for.
    seen: HashMap<&'static str, usize>,
}

impl Pair {
    /// Starts them for at least so many seconds. Each host in `every` makes its queue pair migrate every so
    /// many milliseconds.
    fn start(seconds: u32, every: [Option<u32>; 2]) -> Result<Self, Error> {
        Self::start_on("roce2", seconds, every)
    }

    fn start_on(device: &str, seconds: u32, every: [Option<u32>; 2]) -> Result<Self, Error> {
        let program = compile_c("exact.c")?;
        let lab = Lab::new()?;
        let paths = |host: usize| {
            let mut words = [0, 1].map(|link| lab.host(host).ipv4(link)).to_vec();
            words.extend(every[host].map(|ms| ms.to_string()));
            words
        };
        let words = [program.clone(), "-s".into(), "7000".into()].into_iter().chain(paths(0));
        let server = lab.host(0).verbs(words).device(Some(device)).spawn()?;
        server.wait_tcp_listen(7000, MARGIN)?;
        let words = [program, "-c".into(), lab.host(0).ipv4(1), "7000".into(), seconds.to_string()];
        let words = words.into_iter().chain(paths(1));
        let client = lab.host(1).verbs(words).device(Some(device)).spawn()?;
        client.wait_line("connected", MARGIN)?;
        let events = [lab.host(0).watch(&[])?, lab.host(1).watch(&[])?];
        let mut pair = Self { lab, server, client, events, seen: HashMap::new() };
        pair.expect("apm: armed")?;
        Ok(pair)
    }

    /// Waits for one more line of the client with this text than before, and returns it. Lines with
    /// different texts come in any order, because different threads write them.
    fn expect(&mut self, text: &'static str) -> Result<String, Error> {
        let seen = self.seen.entry(text).or_default();
        let at = *seen;
        *seen += 1;
        let (client, server) = (&self.client, &self.server);
        polypath_e2e::until(text, MARGIN, || {
            client.expect_alive()?;
            server.expect_alive()?;
            let lines = client.lines_from(0).into_iter().map(|line| line.text);
            Ok(lines.filter(|line| line.contains(text)).nth(at))
        })
        .map_err(|error| {
            let (client, server) = (client.text(), server.text());
            let events = self.events.each_ref().map(Running::text);
            Error::Missing(format!(
                "{error}; the client: {client}; the server: {server}; events: {}\n\n{}",
                events[0], events[1]
            ))
        })
    }

    /// Waits for a migration to the path by this link. Returns for how long nothing completed.
    fn migrated(&mut self, link: usize) -> Result<Duration, Error> {
        let to = format!("migrated to {}, nothing completed for ", self.lab.host(1).ipv4(link));
        let line = self.expect("migrated to ")?;
        let ms = line.split(&to).nth(1).and_then(|rest| rest.strip_suffix(" ms"));
        let ms: f64 =
            ms.and_then(|ms| ms.parse().ok()).ok_or_else(|| Error::Missing(line.clone()))?;
        Ok(Duration::from_secs_f64(ms / 1000.0))
    }

    /// Waits for both to end well, and returns how often each has migrated.
    fn finish(self) -> Result<[u32; 2], Error> {
        let limit = MARGIN + Duration::from_secs(60);
        let client = self.client.finish(limit).and_then(Finished::expect_success);
        let server = self.server.finish(MARGIN).and_then(Finished::expect_success);
        let (client, server) = match (client, server) {
            (Ok(client), Ok(server)) => (client, server),
            (client, server) => {
                return Err(Error::Missing(format!("{client:?}\nand the server: {server:?}")));
            }
        };
        let line = |finished: &Finished, what: &str| {
            let lines = finished.lines.iter().rev();
            let line = lines.map(|line| &line.text).find(|text| text.starts_with(what)).cloned();
            line.ok_or_else(|| Error::Missing(format!("no line {what}: {finished:?}")))
        };
        let rounds = "exact: rounds=";
        assert_eq!(line(&client, rounds)?, line(&server, rounds)?, "both count the same rounds");
        let count = |finished: &Finished| {
            let text = line(finished, "apm: migrations=")?;
            Ok(text.rsplit('=').next().and_then(|n| n.parse().ok()).unwrap_or(0))
        };
        Ok([count(&server)?, count(&client)?])
    }
}

/// Hits the path in use again and again, and mends it before it is needed.
fn flap(
    rounds: usize,
    hit: impl Fn(&Lab, usize) -> Result<(), Error>,
    mend: impl Fn(&Lab, usize) -> Result<(), Error>,
) -> Result<Vec<Duration>, Error> {
    let _share = polypath_e2e::share(BUSY);
    let mut pair = Pair::start(60, [None; 2])?;
    let mut blackouts = Vec::new();
    for round in 0..rounds {
        let link = round % 2;
        hit(&pair.lab, link)?;
        blackouts.push(pair.migrated(1 - link)?);
        mend(&pair.lab, link)?;
        pair.expect("apm: armed")?;
    }
    blackouts.sort_unstable();
    println!("blackouts: {blackouts:?}");
    Ok(blackouts)
}

#[test]
fn a_link_that_loses_its_carrier_is_left() -> Result<(), Error> {
    flap(8, |lab, link| lab.link_down(link, End::Both), Lab::link_up).map(drop)
}

/// The other host sees only silence, and is told.
#[test]
fn a_link_that_one_host_has_lost_is_left_by_both() -> Result<(), Error> {
    for host in 0..2 {
        let hit = |lab: &Lab, link| lab.link_down(link, End::Of(host));
        flap(4, hit, Lab::link_up)?;
    }
    Ok(())
}

#[test]
fn a_link_that_falls_silent_is_left() -> Result<(), Error> {
    flap(4, |lab, link| lab.cut(link, Direction::Both), Lab::heal).map(drop)
}

#[test]
fn an_address_that_is_removed_is_left() -> Result<(), Error> {
    for host in 0..2 {
        let hit = |lab: &Lab, link| lab.host(host).remove_addresses(link);
        flap(2, hit, |lab: &Lab, link| lab.host(host).add_addresses(link))?;
    }
    Ok(())
}

/// The example of the "RDMA Aware Networks Programming User Manual": it names another port for the address
/// vector in use.
#[test]
fn the_classic_program_migrates_to_another_port() -> Result<(), Error> {
    let _share = polypath_e2e::share(BUSY);
    let program = compile_c("classic.c")?;
    let lab = Lab::new()?;
    let meet = lab.host(0).ipv4(0);
    let run = |host: usize, role: &str| {
        lab.host(host).verbs([&program, role, &meet]).device(Some("roce2")).spawn()
    };
    let server = run(0, "-s")?;
    lab.host(0).wait_cm_listen(&server, 7471, MARGIN)?;
    let client = run(1, "-c")?;
    let limit = MARGIN + MARGIN;
    let programs = [client.finish(limit), server.finish(limit)];
    for finished in programs {
        let text = finished?.expect_success()?.text();
        for line in ["alternate port: 2", "event: path migrated", "state: MIGRATED, port 2", "done"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
    Ok(())
}

#[test]
fn each_change_of_the_migration_state_has_the_errno_of_the_table() -> Result<(), Error> {
    let _share = polypath_e2e::share(BUSY);
    let program = compile_c("transitions.c")?;
    let lab = Lab::new()?;
    let addresses = [0, 1].map(|link| lab.host(0).ipv4(link));
    let words = [&program, &addresses[0], &addresses[1]];
    let finished =
        lab.host(0).verbs(words).device(Some("roce2")).spawn()?.finish(MARGIN + MARGIN)?;
    let text = finished.expect_success()?.text();
    assert!(text.contains(" wrong=0"), "{text}");
    Ok(())
}

#[test]
fn either_program_or_both_may_migrate_as_often_as_they_like() -> Result<(), Error> {
    let _share = polypath_e2e::share(BUSY);
    for every in [[None, Some(3)], [Some(3), None], [Some(3), Some(4)]] {
        let counts = Pair::start(4, every)?.finish()?;
        println!("{every:?}: {counts:?} migrations");
        assert!(counts.iter().all(|count| *count > 20), "{every:?}: {counts:?}");
    }
    Ok(())
}

/// With multi-path peers each end moves what it sends, and the path set works on meanwhile.
#[test]
fn either_program_moves_its_queue_pair_on_a_multi_path_device() -> Result<(), Error> {
    let _share = polypath_e2e::share(BUSY);
    for every in [[None, Some(3)], [Some(3), Some(4)]] {
        let counts = Pair::start_on("mp", 4, every)?.finish()?;
        println!("{every:?}: {counts:?} migrations");
        let moved = |(count, every): (&u32, &Option<u32>)| every.is_none() || *count > 20;
        assert!(counts.iter().zip(&every).all(moved), "{every:?}: {counts:?}");
    }
    Ok(())
}
