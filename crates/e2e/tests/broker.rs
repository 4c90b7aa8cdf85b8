//! The broker is killed while programs run. None of them notices, link events still arrive, connections end
//! properly, and new programs can start.

use polypath_e2e::{End, Error, Finished, Host, Lab, failovers, pass, until};
use std::time::Duration;

/// The limit for anything that must happen.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a link stays down.
const AWAY: Duration = Duration::from_secs(1);
/// The running time in seconds of the program that runs all the time.
const SECONDS: &str = "10";
/// The number of bytes after which traffic flows for certain.
const FLOWING: u64 = 10_000_000;

fn broker(host: &Host) -> Result<u64, Error> {
    let status = host.status()?;
    let pid = status["broker"]["pid"].as_u64();
    pid.ok_or_else(|| Error::Missing("no broker's process id".to_owned()))
}

/// Kills a host's broker. Returns when another has taken its place and all programs are connected to
/// it.
fn kill_broker(host: &Host) -> Result<(), Error> {
    let (killed, programs) = (broker(host)?, processes(host)?);
    host.program(["kill", "-KILL", &killed.to_string()]).run(LIMIT)?.expect_success()?;
    until("another broker, and the programs connected to it", LIMIT, || {
        // There may be none for a moment.
        let there = broker(host).is_ok_and(|pid| pid != killed);
        Ok((there && processes(host)? == programs).then_some(()))
    })
}

/// The number of processes that report to the broker.
fn processes(host: &Host) -> Result<usize, Error> {
    Ok(host.status()?["processes"].as_array().map_or(0, Vec::len))
}

/// Whether no program has given a path up.
fn all_paths_live(host: &Host) -> Result<bool, Error> {
    let status = host.status()?;
    let processes = status["processes"].as_array().into_iter().flatten();
    let mut paths = processes.filter_map(|process| process["paths"].as_array()).flatten();
    Ok(paths.all(|path| path["state"] != "dead"))
}

#[test]
fn programs_outlive_a_killed_broker() -> Result<(), Error> {
    let lab = Lab::new()?;
    let words = ["ib_write_bw", "-D", SECONDS];
    let server = lab.host(0).verbs(words).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(1);
    let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()])).spawn()?;
    lab.wait_traffic(&[&client], FLOWING, LIMIT)?;
    for host in [0, 1, 0] {
        kill_broker(lab.host(host))?;
    }
    // The new broker reports link events, so the fail-over's reason is not missing answers. The other
    // end sees no link go down and has nothing to report.
    lab.link_down(0, End::Of(1))?;
    pass(AWAY);
    lab.link_up(0)?;
    let mut seen = Vec::new();
    until("a fail-over because of the link", LIMIT, || {
        client.expect_alive()?;
        seen = failovers(lab.host(1))?;
        Ok(seen.iter().any(|f| f.reason.contains("link")).then_some(()))
    })
    .map_err(|error| Error::Missing(format!("{error}; seen: {seen:?}")))?;
    // A program that starts before the link carries packets fails, rightly: the carrier comes before
    // the switch forwards, and a lost first ARP request takes a second.
    until("the link to carry packets again", LIMIT, || {
        client.expect_alive()?;
        Ok(all_paths_live(lab.host(1))?.then_some(()))
    })?;
    // A program that starts now gets what the running ones do not have.
    let second = ["ibv_rc_pingpong", "-g", "1", "-p", "19000", "-c"];
    let listener = lab.host(0).verbs(second).spawn()?;
    listener.wait_tcp_listen(19000, LIMIT)?;
    let other = lab.host(1).verbs(second.into_iter().chain([meet.as_str()])).run(LIMIT)?;
    other.expect_success()?;
    listener.finish(LIMIT).and_then(Finished::expect_success)?;
    client.finish(LIMIT).and_then(Finished::expect_success)?;
    server.finish(LIMIT).and_then(Finished::expect_success)?;
    for host in [0, 1] {
        until("slots given back", LIMIT, || {
            let slots = lab.host(host).status()?["broker"]["slots"].as_array().map_or(0, Vec::len);
            Ok((slots == 0).then_some(()))
        })?;
    }
    Ok(())
}

/// The connection managers of programs are killed, while one that has opened no device yet listens, and
/// while a connection is in use.
#[test]
fn rdma_cm_outlives_killed_brokers() -> Result<(), Error> {
    let lab = Lab::new()?;
    for device in ["mp", "roce"] {
        let server = lab.host(0).verbs(["rping", "-s"]).device(Some(device)).spawn()?;
        wait_for_ids(lab.host(0), 1)?;
        kill_broker(lab.host(0))?;
        wait_for_ids(lab.host(0), 1)?;
        let words = ["rping", "-c", "-V", "-a", &lab.host(0).ipv4(0)];
        let client = lab.host(1).verbs(words).device(Some(device)).spawn()?;
        for host in [0, 1, 1, 0] {
            lab.wait_traffic(&[&client, &server], 100_000, LIMIT)?;
            kill_broker(lab.host(host))?;
            wait_for_ids(lab.host(host), 2 - host)?;
        }
        lab.wait_traffic(&[&client, &server], 100_000, LIMIT)?;
        // The client's new broker tells the server's new broker.
        client.signal(libc::SIGKILL);
        client.finish(LIMIT)?;
        let served = server.finish(LIMIT)?;
        assert!(served.text().contains("DISCONNECT EVENT"), "{}", served.text());
    }
    Ok(())
}

/// Waits until a host's broker has so many ids of rdma_cm.
fn wait_for_ids(host: &Host, count: usize) -> Result<(), Error> {
    until("the ids of rdma_cm", LIMIT, || {
        let status = host.status()?;
        let ids = status["broker"]["cm_ids"].as_array().map_or(0, Vec::len);
        Ok((ids == count).then_some(()))
    })
}

/// It serves other programs as well.
#[test]
fn a_broker_does_not_keep_the_limits_of_the_program_that_started_it() -> Result<(), Error> {
    let lab = Lab::new()?;
    let host = lab.host(0);
    let limited = "ulimit -S -t 100; ulimit -S -f 1000; exec nice -n 7 taskset 1 ibv_devinfo";
    host.verbs(["sh", "-c", limited]).run(LIMIT)?.expect_success()?;
    let pid = broker(host)?;
    let of = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        std::fs::read_to_string(&path).map_err(|error| Error::Missing(format!("{path}: {error}")))
    };
    let limits = of("limits")?;
    for limit in ["Max cpu time", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(limit)).unwrap_or_default();
        assert_eq!(line.split_whitespace().nth(3), Some("unlimited"), "{line}");
    }
    let niceness = of("stat")?;
    let niceness = niceness.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(16));
    assert_eq!(niceness, Some("0"));
    let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let processors = |status: &str| {
        let mut lines = status.lines();
        lines.find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned)
    };
    assert_eq!(processors(&of("status")?), processors(&own));
    Ok(())
}

/// The program hears of it, and does not start another one.
#[test]
fn a_broker_that_is_ended_on_purpose_stays_away() -> Result<(), Error> {
    let lab = Lab::new()?;
    let host = lab.host(0);
    let server = host.verbs(["rping", "-s"]).device(Some("roce")).spawn()?;
    wait_for_ids(host, 1)?;
    host.command(&["broker", "--shutdown", "--force"])?.run(LIMIT)?.expect_success()?;
    let said = server.finish(LIMIT)?;
    assert!(said.text().contains("No such device"), "{}", said.text());
    assert!(broker(host).is_err(), "somebody has started a broker");
    Ok(())
}
