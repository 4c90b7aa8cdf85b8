//! Unmodified programs migrate between plain RoCE paths (automatic path migration), because the connection
//! managers of both ends agree on an alternate path, load it, and renew it after each migration.

use std::time::{Duration, Instant};

use polypath_e2e::{
    Direction, End, Error, Host, Lab, PATIENT, PERFTEST_CLOCK, Running, Scratch, compile_c, share,
    until,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// More packets than it takes to connect.
const WORK: u64 = 2000;

/// The queue pairs of a program that are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All that are connected.
    All,
    /// The one that carries the most: others may be idle, and who sends nothing does not notice silence.
    Busiest,
}

/// The packets that a queue pair has sent and received.
fn carried(qp: &Value) -> u64 {
    let count = |counter: &str| qp["counters"][counter].as_u64().unwrap_or(0);
    count("sent_packets") + count("received_packets")
}

/// Waits until both hosts have a queue pair at work: perftest's first one only compares notes, and its
/// second one is connected later.
fn wait_work(lab: &Lab, programs: &[Running; 2]) -> Result<(), Error> {
    until("work", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        for host in 0..2 {
            let busiest = queue_pairs(lab.host(host), Which::Busiest)?;
            if busiest.first().map_or(0, carried) < WORK {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// The connected queue pairs of a host.
fn queue_pairs(host: &Host, which: Which) -> Result<Vec<Value>, Error> {
    // A status that does not come in time says nothing: whoever asks asks again.
    let mut qps = host.queue_pairs().unwrap_or_default();
    qps.retain(|qp| qp["state"] == "RTS");
    if which == Which::Busiest {
        qps.sort_by_key(|qp| std::cmp::Reverse(carried(qp)));
        qps.truncate(1);
    }
    Ok(qps)
}

/// Unmodified programs that connect by rdma_cm.
const RPING: &[&str] = &["rping", "-V", "-S", "3000"];
const WRITE: &[&str] = &["ib_write_bw", "-R", "--run_infinitely"];
const READ: &[&str] = &["ib_read_bw", "-R", "--run_infinitely"];
const ATOMIC: &[&str] = &["ib_atomic_bw", "-R", "--run_infinitely"];

/// Starts a program on both hosts. Their connection is over link 0, with an alternate path over link 1.
fn start(lab: &Lab, device: &str, words: &[&str]) -> Result<[Running; 2], Error> {
    start_with(lab, device, words, "on")
}

/// The same with another `POLYPATH_APM` at the client.
fn start_with(
    lab: &Lab,
    device: &str,
    words: &[&str],
    client: &str,
) -> Result<[Running; 2], Error> {
    let run = |host: usize, words: Vec<&str>| {
        let apm = if host == 1 { client } else { "on" };
        lab.host(host).verbs(words).device(Some(device)).env("POLYPATH_APM", apm).spawn()
    };
    let meet = lab.host(0).ipv4(0);
    let is_rping = words[0] == "rping";
    let roles: [&[&str]; 2] =
        if is_rping { [&["-s", "-a", &meet], &["-c", "-a", &meet]] } else { [&[], &[&meet]] };
    let server = run(0, [words, roles[0]].concat())?;
    lab.host(0).wait_cm_listen(&server, if is_rping { 7174 } else { 18515 }, LIMIT)?;
    Ok([server, run(1, [words, roles[1]].concat())?])
}

/// Starts a program on both hosts, and waits until it is at work.
///
/// perftest's client connects twice, and its server listens anew in between. A client that is quicker is
/// rejected and ends, which says nothing of migration.
fn start_working(device: &str, words: &[&str]) -> Result<(Lab, [Running; 2]), Error> {
    start_working_with(device, words, "on")
}

/// The same with another `POLYPATH_APM` at the client.
fn start_working_with(
    device: &str,
    words: &[&str],
    client: &str,
) -> Result<(Lab, [Running; 2]), Error> {
    for _ in 0..5 {
        let lab = Lab::new()?;
        let programs = start_with(&lab, device, words, client)?;
        match wait_work(&lab, &programs) {
            Err(_) if programs[1].text().contains("RDMA_CM_EVENT_REJECTED") => {}
            at_work => return at_work.map(|()| (lab, programs)),
        }
    }
    Err(Error::Missing(format!("the client of {words:?} was rejected five times")))
}

/// Waits until all queue pairs of both hosts use link `link`, and are ready to migrate to the other one.
fn wait_armed(lab: &Lab, programs: &[Running; 2], which: Which, link: usize) -> Result<(), Error> {
    let other = format!("@eth{}", 1 - link);
    wait_all(lab, programs, which, link, |qp| {
        let migration = &qp["migration"];
        migration["state"] == "ARMED"
            && migration["alternate"].as_str().is_some_and(|path| path.ends_with(&other))
    })
}

/// Waits until all queue pairs of both hosts use link `link`, and are as they are wanted.
fn wait_all(
    lab: &Lab,
    programs: &[Running; 2],
    which: Which,
    link: usize,
    wanted: impl Fn(&Value) -> bool,
) -> Result<(), Error> {
    let by = format!("@eth{link}");
    let fits = |qp: &Value| {
        qp["active_path"].as_str().is_some_and(|path| path.ends_with(&by)) && wanted(qp)
    };
    until(&format!("queue pairs on link {link}"), LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        for host in 0..2 {
            let qps = queue_pairs(lab.host(host), which)?;
            if qps.is_empty() || !qps.iter().all(fits) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// Waits until both hosts have received something more.
fn wait_more(lab: &Lab, programs: &[Running; 2]) -> Result<(), Error> {
    let before = lab.received_bytes()?.map(|links| links.iter().sum::<u64>());
    until("more traffic", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        let now = lab.received_bytes()?.map(|links| links.iter().sum::<u64>());
        Ok((0..2).all(|host| now[host] > before[host] + 10_000).then_some(()))
    })
}

/// perftest measures the processor's clock for each of its reports, and ends if that fails because the
/// machine is busy. This says nothing of migration.
fn gave_up(programs: &[Running; 2]) -> bool {
    programs.iter().any(|program| program.text().contains(PERFTEST_CLOCK))
}

/// Hits the path in use again and again, and mends it after both ends have left it.
fn survive(
    words: &[&str],
    device: &str,
    which: Which,
    rounds: usize,
    hit: impl Fn(&Lab, usize, usize) -> Result<(), Error>,
    mend: impl Fn(&Lab, usize, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut round = 0;
    while round < rounds {
        let (lab, programs) = start_working(device, words)?;
        let began = round;
        let mut one_round = || {
            let (migrated, link) = (round - began, (round - began) % 2);
            wait_armed(&lab, &programs, which, link)?;
            wait_more(&lab, &programs)?;
            hit(&lab, round, link)?;
            wait_all(&lab, &programs, which, 1 - link, |qp| {
                qp["migration"]["count"].as_u64().is_some_and(|count| count > migrated as u64)
            })?;
            mend(&lab, round, link)?;
            round += 1;
            Ok(round < rounds)
        };
        let end = loop {
            match one_round() {
                Ok(true) => {}
                Ok(false) => break wait_more(&lab, &programs),
                Err(error) => break Err(error),
            }
        };
        match end {
            Err(_) if gave_up(&programs) => {
                println!("{words:?}: in round {round}, perftest could not measure the clock");
                continue;
            }
            Err(error) => {
                for host in 0..2 {
                    let status = lab.host(host).polypath(&["status"]).map(|status| status.text());
                    println!(
                        "{words:?}, round {round}, host {host}: {}",
                        status.unwrap_or_default()
                    );
                }
                return Err(error);
            }
            Ok(()) => {}
        }
        for program in programs {
            assert!(!program.text().contains("mismatch"), "{}", program.text());
            program.signal(libc::SIGINT);
            program.finish(LIMIT)?;
        }
    }
    Ok(())
}

#[test]
fn programs_go_on_when_the_link_in_use_goes_down() -> Result<(), Error> {
    let _share = share(PATIENT);
    for (words, device) in
        [(RPING, "roce"), (RPING, "roce2"), (WRITE, "roce2"), (READ, "roce"), (ATOMIC, "roce2")]
    {
        let end = |round| if round < 2 { End::Both } else { End::Of(round % 2) };
        let hit = |lab: &Lab, round, link| lab.link_down(link, end(round));
        survive(words, device, Which::All, 4, hit, |lab, _, link| lab.link_up(link))?;
    }
    Ok(())
}

/// On multi-path devices, the path set moves the traffic; its programs hear of it as with plain ones,
/// because the connection managers load an alternate path, and leave the rest to the set.
#[test]
fn programs_on_multi_path_devices_are_armed_and_hear_of_each_link() -> Result<(), Error> {
    let _share = share(PATIENT);
    let end = |round| if round < 2 { End::Both } else { End::Of(round % 2) };
    let hit = |lab: &Lab, round, link| lab.link_down(link, end(round));
    survive(RPING, "mp", Which::All, 4, hit, |lab, _, link| lab.link_up(link))
}

#[test]
fn programs_go_on_when_the_path_in_use_is_silent() -> Result<(), Error> {
    let _share = share(PATIENT);
    for words in [RPING, WRITE, READ, ATOMIC] {
        let hit = |lab: &Lab, _, link| lab.cut(link, Direction::Both);
        survive(words, "roce2", Which::Busiest, 2, hit, |lab, _, link| lab.heal(link))?;
    }
    Ok(())
}

#[test]
fn programs_go_on_when_an_address_is_removed() -> Result<(), Error> {
    let _share = share(PATIENT);
    for words in [RPING, WRITE, READ, ATOMIC] {
        let hit = |lab: &Lab, round: usize, link| lab.host(round / 2).remove_addresses(link);
        let mend = |lab: &Lab, round: usize, link| lab.host(round / 2).add_addresses(link);
        survive(words, "roce2", Which::All, 4, hit, mend)?;
    }
    Ok(())
}

/// What happens to the path in use.
#[derive(Clone, Copy, Debug)]
enum Failure {
    LinkDown(End),
    Silence(Direction),
    /// The host with this number loses its addresses of the link.
    AddressRemoved(usize),
}

/// Two of each kind of failure follow each other, so that each link gets each of them.
const FAILURES: [Failure; 8] = [
    Failure::LinkDown(End::Both),
    Failure::Silence(Direction::Both),
    Failure::AddressRemoved(0),
    Failure::LinkDown(End::Of(0)),
    Failure::Silence(Direction::From(0)),
    Failure::AddressRemoved(1),
    Failure::LinkDown(End::Of(1)),
    Failure::Silence(Direction::From(1)),
];

impl Failure {
    fn of(round: usize) -> Self {
        FAILURES[round / 2 % FAILURES.len()]
    }

    fn hit(self, lab: &Lab, link: usize) -> Result<(), Error> {
        match self {
            Self::LinkDown(end) => lab.link_down(link, end),
            Self::Silence(direction) => lab.cut(link, direction),
            Self::AddressRemoved(host) => lab.host(host).remove_addresses(link),
        }
    }

    fn mend(self, lab: &Lab, link: usize) -> Result<(), Error> {
        match self {
            Self::LinkDown(_) => lab.link_up(link),
            Self::Silence(_) => lab.heal(link),
            Self::AddressRemoved(host) => lab.host(host).add_addresses(link),
        }
    }
}

/// Each failure at either side in turn: POLYPATH_MIGRATIONS of them, or one round.
fn survive_one_failure_after_another(words: &[&str], which: Which) -> Result<(), Error> {
    let _share = share(PATIENT);
    let rounds = std::env::var("POLYPATH_MIGRATIONS").ok();
    let rounds = rounds.map_or(2 * FAILURES.len(), |n| n.parse().expect("a number of migrations"));
    let began = Instant::now();
    let hit = |lab: &Lab, round, link| Failure::of(round).hit(lab, link);
    let mend = |lab: &Lab, round, link| Failure::of(round).mend(lab, link);
    survive(words, "roce2", which, rounds, hit, mend)?;
    println!("{words:?}: {rounds} migrations in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

#[test]
fn rping_survives_one_failure_after_another() -> Result<(), Error> {
    survive_one_failure_after_another(RPING, Which::All)
}

#[test]
fn writes_survive_one_failure_after_another() -> Result<(), Error> {
    survive_one_failure_after_another(WRITE, Which::Busiest)
}

#[test]
fn reads_survive_one_failure_after_another() -> Result<(), Error> {
    survive_one_failure_after_another(READ, Which::Busiest)
}

#[test]
fn atomics_survive_one_failure_after_another() -> Result<(), Error> {
    survive_one_failure_after_another(ATOMIC, Which::Busiest)
}

/// Waits until the client's queue pairs are spread over its two links, at most one apart.
fn wait_even(lab: &Lab, programs: &[Running; 2]) -> Result<(), Error> {
    until("queue pairs on both links alike", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        let qps = queue_pairs(lab.host(1), Which::All)?;
        let on = |link: &str| {
            let by =
                |qp: &&Value| qp["active_path"].as_str().is_some_and(|path| path.ends_with(link));
            qps.iter().filter(by).count()
        };
        let (first, second) = (on("@eth0"), on("@eth1"));
        Ok((first + second >= 4 && first.abs_diff(second) <= 1).then_some(()))
    })
}

/// All connections begin by link 0. They are spread, brought together by a failure, and spread again.
#[test]
fn connections_are_spread_over_the_ports() -> Result<(), Error> {
    let _share = share(PATIENT);
    let words = &["ib_write_bw", "-R", "-q", "4", "--run_infinitely"];
    let (lab, programs) = start_working_with("roce2", words, "balance=1")?;
    wait_even(&lab, &programs)?;
    lab.link_down(1, End::Both)?;
    wait_all(&lab, &programs, Which::All, 0, |_| true)?;
    lab.link_up(1)?;
    wait_even(&lab, &programs)?;
    wait_more(&lab, &programs)?;
    for program in programs {
        program.signal(libc::SIGINT);
        program.finish(LIMIT)?;
    }
    Ok(())
}

/// A program of its own asks for migration in each of the ways that there are, right and wrong ones.
#[test]
fn each_way_to_ask_for_migration_works() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("options.c")?;
    for how in ["id", "ib", "function", "path"] {
        let lab = Lab::new()?;
        let addresses = [0, 1].map(|host| [0, 1].map(|link| lab.host(host).ipv4(link)));
        let run = |host: usize, words: &[&str]| {
            let words = [&[program.as_str()], words].concat();
            lab.host(host).verbs(words).device(Some("roce2")).spawn()
        };
        let server = run(0, &["-s", &addresses[0][0]])?;
        lab.host(0).wait_cm_listen(&server, 7172, LIMIT)?;
        let client = run(1, &["-c", &addresses[0][0], how, &addresses[1][1], &addresses[0][1]])?;
        let client = client.finish(LIMIT)?.expect_success()?.text();
        assert!(client.contains("armed, alternate port 2"), "{how}: {client}");
        let server = server.finish(LIMIT)?.expect_success()?.text();
        assert!(server.contains("options: done"), "{how}: {server}");
    }
    Ok(())
}

/// Wireshark's names of what is looked at, one line for each packet.
fn decode(host: &Host, file: &str, fields: &[&str]) -> Result<Vec<String>, Error> {
    let mut words = vec!["tshark", "-r", file, "-T", "fields", "-E", "separator=,"];
    words.extend(fields.iter().flat_map(|field| ["-e", field]));
    let finished = host.program(words).spawn()?.finish(LIMIT)?.expect_success()?;
    let lines = finished.lines.into_iter().map(|line| line.text);
    // Other lines say that root is running it, or which plugin was found.
    Ok(lines.filter(|line| line.starts_with("10.") || line.starts_with("0x")).collect())
}

/// The passive end's second port comes up after the connection: it suggests the address (SAP, SPR), the
/// active end loads the path (LAP, APR), and when the first link goes down, the traffic takes it. Wireshark
/// sees it all.
#[test]
fn a_port_that_comes_up_at_the_passive_end_is_suggested_loaded_and_used() -> Result<(), Error> {
    let _share = share(PATIENT);
    let (lab, scratch) = (Lab::new()?, Scratch::new("apm")?);
    lab.host(0).remove_addresses(1)?;
    let file = |name: &str| scratch.path(name).to_string_lossy().into_owned();
    let (messages, traffic) = (file("messages.pcapng"), file("traffic.pcapng"));
    // Packets for queue pair 1.
    let filter = "udp dst port 4791 and udp[12:4] & 0x00ffffff = 1";
    let words = ["dumpcap", "-i", "any", "-f", filter, "-w", &messages];
    let capture = lab.host(1).program(words).spawn()?;
    capture.wait_line("File: ", LIMIT)?;
    let programs = start(&lab, "roce2", RPING)?;
    wait_work(&lab, &programs)?;
    lab.host(0).add_addresses(1)?;
    wait_armed(&lab, &programs, Which::All, 0)?;
    lab.link_down(0, End::Both)?;
    wait_all(&lab, &programs, Which::All, 1, |_| true)?;
    let words = ["dumpcap", "-i", "eth1", "-f", "udp dst port 4791", "-c", "200", "-w", &traffic];
    lab.host(1).program(words).spawn()?.finish(LIMIT)?.expect_success()?;

    // What the kernel has captured reaches the file a little later; so it is read until all is there.
    // While it grows, its last packet may be cut short, which is an error of tshark.
    let steps = ["10.0.0.1,0x001b", "10.0.0.2,0x001c", "10.0.0.2,0x0019", "10.0.0.1,0x001a"];
    until("SAP, SPR, LAP and APR in this order", LIMIT, || {
        let ids = decode(lab.host(1), &messages, &["ip.src", "infiniband.mad.attributeid"]);
        let ids = ids.unwrap_or_default();
        let mut rest = ids.iter();
        Ok(steps.iter().all(|step| rest.any(|line| line == step)).then_some(()))
    })?;
    capture.signal(libc::SIGINT);
    capture.finish(LIMIT)?;
    let fields = ["ip.src", "ip.dst", "infiniband.bth.opcode"];
    let packets = decode(lab.host(1), &traffic, &fields)?;
    // SENDs, WRITEs, READs and their answers of reliable connections.
    let data = packets.iter().filter(|line| {
        let opcode = line.rsplit(',').next().and_then(|number| number.parse().ok());
        opcode.is_some_and(|opcode: u8| opcode <= 0x16)
    });
    for way in ["10.1.0.1,10.1.0.2,", "10.1.0.2,10.1.0.1,"] {
        assert!(data.clone().any(|line| line.starts_with(way)), "{way}: {packets:?}");
    }
    for program in programs {
        assert!(!program.text().contains("mismatch"), "{}", program.text());
        program.signal(libc::SIGINT);
        program.finish(LIMIT)?;
    }
    Ok(())
}
