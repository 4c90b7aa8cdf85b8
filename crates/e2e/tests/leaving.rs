//! Programs leave their host and come back (`polypath move`), and go on by another broker when theirs has
//! ended for good. `make moving` restores them on other hosts.

use std::time::Duration;

use polypath_e2e::{Error, Host, Lab, PATIENT, Running, compile_c, share, until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const MP: Option<&str> = Some("mp");
/// Bytes after which traffic flows for certain.
const FLOWING: u64 = 10_000_000;
/// The reason that `polypath move` gives for leaving a program where it is.
const IMMOBILE: &str = "ids that can't move now";

/// `ib_write_bw` between two hosts, the server first.
fn writes(lab: &Lab, seconds: &str) -> Result<[Running; 2], Error> {
    let words = ["ib_write_bw", "-F", "-D", seconds];
    let server = lab.host(0).verbs(words).device(MP).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let to = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([&to[..]])).device(MP).spawn()?;
    lab.wait_traffic(&[&client], FLOWING, LIMIT)?;
    Ok([server, client])
}

fn succeed(programs: [Running; 2]) -> Result<(), Error> {
    let [server, client] = programs;
    client.finish(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(())
}

/// The numbers of a host's queue pairs.
fn numbers(host: &Host) -> Result<Vec<Value>, Error> {
    Ok(host.queue_pairs()?.iter().map(|qp| qp["qpn"].clone()).collect())
}

/// The process that has a host's queue pairs.
fn process(host: &Host) -> Result<String, Error> {
    let pid = host.status()?["processes"][0]["pid"].as_u64();
    pid.map(|pid| pid.to_string()).ok_or_else(|| Error::Missing("no process".to_owned()))
}

/// Waits until a host has these queue pairs.
fn wait_back(host: &Host, with: &[Value]) -> Result<(), Error> {
    until("the program is back with its queue pairs", LIMIT, || {
        // For a moment there may be no broker.
        Ok(numbers(host).is_ok_and(|now| now == with).then_some(()))
    })
}

#[test]
fn a_program_leaves_its_host_and_comes_back() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let programs = writes(&lab, "15")?;
    for host in [0, 1, 1, 0] {
        let host = lab.host(host);
        let before = numbers(host)?;
        assert!(!before.is_empty(), "a program is there");
        host.polypath(&["move", &process(host)?, "--within", "0"])?;
        wait_back(host, &before)?;
        lab.wait_traffic(&[&programs[1]], FLOWING, LIMIT)?;
    }
    succeed(programs)
}

/// Its two ends have ids of rdma_cm, one of which listens, and threads that wait for their events. Both ends
/// learn that the connection ends.
#[test]
fn programs_leave_with_their_ids_and_come_back() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let server = lab.host(0).verbs(["rping", "-s"]).device(MP).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let to = lab.host(0).ipv4(0);
    let words = ["rping", "-c", "-V", "-C", "50000", "-a", &to];
    let client = lab.host(1).verbs(words).device(MP).spawn()?;
    lab.wait_traffic(&[&client, &server], FLOWING / 20, LIMIT)?;
    for host in [0, 1, 0, 1] {
        let host = lab.host(host);
        let before = numbers(host)?;
        let ids = || Ok::<_, Error>(host.status()?["broker"]["cm_ids"].clone());
        let had = ids()?;
        assert!(!numbers_of(&had).is_empty(), "{had}");
        host.polypath(&["move", &process(host)?, "--within", "0"])?;
        wait_back(host, &before)?;
        until("its ids", LIMIT, || {
            client.expect_alive()?;
            server.expect_alive()?;
            Ok((numbers_of(&ids()?) == numbers_of(&had)).then_some(()))
        })?;
        lab.wait_traffic(&[&client, &server], FLOWING / 20, LIMIT)?;
    }
    client.finish(LIMIT)?.expect_success()?;
    let said = server.finish(LIMIT)?.expect_success()?;
    assert!(said.text().contains("DISCONNECT EVENT"), "{}", said.text());
    Ok(())
}

/// Whatever of its ids is under way when it is asked to leave, none is lost.
#[test]
fn a_server_leaves_while_clients_come_and_go() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let (host, to) = (lab.host(0), lab.host(0).ipv4(0));
    let server = host.verbs(["rping", "-s", "-P", "-a", &to]).device(MP).spawn()?;
    host.wait_cm_listen(&server, 7174, LIMIT)?;
    // A client that comes while the server is away may be refused.
    let clients =
        "n=0; while [ $n -lt 50 ]; do rping -c -C 3 -a $0 && n=$((n + 1)) && echo served; done";
    let clients = lab.host(1).verbs(["sh", "-c", clients, &to]).device(MP).spawn()?;
    let served = |least: usize| {
        until("clients that are served", LIMIT, || {
            server.expect_alive()?;
            let served = clients.text().matches("served").count();
            Ok((served >= least).then_some(()))
        })
    };
    let pid = server.id().to_string();
    for times in 1..=4 {
        served(10 * times)?;
        until("the server leaves", LIMIT, || {
            // It is refused while a connection is being made or ended.
            let left = host.command(&["move", &pid, "--within", "0"])?.run(LIMIT)?;
            Ok(left.expect_success().is_ok().then_some(()))
        })?;
    }
    clients.finish(LIMIT)?.expect_success()?;
    server.expect_alive()?;
    let said = server.text();
    assert!(!said.contains("are lost"), "{said}");
    Ok(())
}

/// 400 connections of one event channel, and the id that listens.
#[test]
fn a_server_of_many_connections_leaves_with_all_of_them() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("crowd.c")?;
    let lab = Lab::new()?;
    let host = lab.host(0);
    let server = host.verbs([&*program, "serve", "7000", "400"]).device(MP).spawn()?;
    server.wait_line("listening", LIMIT)?;
    let words = [&*program, "connect", &host.ipv4(0), "7000", "400"];
    let client = lab.host(1).verbs(words).device(MP).spawn()?;
    client.wait_line("resident-after", LIMIT)?;
    server.wait_line("resident-after", LIMIT)?;
    let had = host.status()?["broker"]["cm_ids"].clone();
    host.polypath(&["move", &server.id().to_string(), "--within", "0"])?;
    until("its ids", LIMIT, || {
        server.expect_alive()?;
        client.expect_alive()?;
        let has = host.status()?["broker"]["cm_ids"].clone();
        Ok((numbers_of(&has) == numbers_of(&had)).then_some(()))
    })?;
    assert!(!server.text().contains("are lost"), "{}", server.text());
    Ok(())
}

/// Its id is in the group again when it is back, and its queue pair.
#[test]
fn a_member_of_a_group_leaves_and_comes_back_as_a_member() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let mckey = |host: usize, more: &str| {
        let own = lab.host(host).ipv4(0);
        let words = ["mckey", "-m", "239.1.2.3", "-b", &own, "-C", "5"];
        let words = words.into_iter().chain(more.split_whitespace());
        lab.host(host).verbs(words).device(MP).spawn()
    };
    let member = mckey(0, "")?;
    member.wait_line("receiving data transfers", LIMIT)?;
    let before = numbers(lab.host(0))?;
    for _ in 0..2 {
        lab.host(0).polypath(&["move", &member.id().to_string(), "--within", "0"])?;
        wait_back(lab.host(0), &before)?;
    }
    mckey(1, "-s")?.finish(LIMIT)?.expect_success()?;
    let said = member.finish(LIMIT)?.expect_success()?;
    assert!(!said.text().contains("are lost"), "{}", said.text());
    Ok(())
}

/// The numbers and states of ids, and their queue pairs.
fn numbers_of(ids: &Value) -> Vec<[Value; 3]> {
    let ids = ids.as_array().into_iter().flatten();
    ids.map(|id| ["id", "state", "qpn"].map(|key| id[key].clone())).collect()
}

#[test]
fn who_is_away_has_nothing_of_its_host_and_no_longer_than_was_said() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let programs = writes(&lab, "15")?;
    let host = lab.host(1);
    let (before, pid) = (numbers(host)?, process(host)?);
    host.polypath(&["move", &pid, "--within", "2"])?;
    let status = host.status()?;
    assert_eq!(status["broker"]["slots"], Value::Array(Vec::new()), "its slots are given back");
    let sockets = sockets_of(&pid)?;
    assert_eq!(sockets.len(), 2, "one of perftest, one that nothing is sent to: {sockets:?}");
    wait_back(host, &before)?;
    lab.wait_traffic(&[&programs[1]], FLOWING, LIMIT)?;
    succeed(programs)
}

fn sockets_of(pid: &str) -> Result<Vec<String>, Error> {
    let failed = |e| Error::os("looking at a program's descriptors", e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(failed)? {
        let target = std::fs::read_link(entry.map_err(failed)?.path());
        let target = target.map(|target| target.display().to_string()).unwrap_or_default();
        found.extend(target.starts_with("socket:").then_some(target));
    }
    Ok(found)
}

#[test]
fn who_can_not_leave_is_told_why() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    // Nothing runs on the other host that could answer its request.
    let words = ["rping", "-c", "-C", "1", "-a", &lab.host(1).ipv4(0)];
    let waits = lab.host(0).verbs(words).device(MP).spawn()?;
    until("an id", LIMIT, || {
        waits.expect_alive()?;
        let ids = lab.host(0).status()?["broker"]["cm_ids"].as_array().map_or(0, Vec::len);
        Ok((ids > 0).then_some(()))
    })?;
    let pid = waits.id().to_string();
    until("what can not leave", LIMIT, || {
        // Until it has asked for a connection, it could.
        waits.expect_alive()?;
        let refused = lab.host(0).command(&["move", &pid, "--within", "0"])?.run(LIMIT)?;
        Ok(refused.text().contains(IMMOBILE).then_some(()))
    })?;
    waits.expect_alive()?;
    let nobody = lab.host(0).command(&["move", "1"])?.run(LIMIT)?;
    assert!(nobody.text().contains("uses no device here"), "{}", nobody.text());
    Ok(())
}

/// Its host says that it has ended, so nobody waits a day for a path to it.
#[test]
fn who_writes_to_a_program_that_is_killed_does_not_wait_for_a_path() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let run = |host: usize, words: &[&str]| {
        let words = ["ib_write_bw", "-F", "--run_infinitely"].iter().chain(words);
        lab.host(host).verbs(words).device(MP).env("POLYPATH_MP", "hold=86400").spawn()
    };
    let server = run(0, &[])?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let client = run(1, &[&lab.host(0).ipv4(0)])?;
    lab.wait_traffic(&[&client], FLOWING, LIMIT)?;
    server.signal(libc::SIGKILL);
    let ended = client.finish(LIMIT)?;
    assert!(ended.text().contains("Failed status 12"), "{}", ended.text());
    let told = lab.host(0).status()?["broker"]["counters"]["endings_told"].as_u64();
    assert!(told.is_some_and(|told| told > 0), "{told:?}");
    Ok(())
}

/// Kills the broker of a host and the process that would take its place.
fn kill_both(host: &Host) -> Result<(), Error> {
    let pid = host.status()?["broker"]["pid"].to_string();
    let same_network = ["--ns", &pid, "--nslist", "net"];
    let kill = |name: &str| {
        let words = ["pkill", "-KILL"].into_iter().chain(same_network).chain(["-x", name]);
        host.program(words).run(LIMIT)
    };
    kill("polypath-keeper")?.expect_success()?;
    host.program(["kill", "-KILL", &pid]).run(LIMIT)?.expect_success()?;
    Ok(())
}

#[test]
fn programs_outlive_the_end_of_their_broker() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let programs = writes(&lab, "25")?;
    let host = lab.host(1);
    let before = numbers(host)?;
    kill_both(host)?;
    // The program starts another one.
    wait_back(host, &before)?;
    lab.wait_traffic(&[&programs[1]], FLOWING, LIMIT)?;
    host.polypath(&["broker", "--shutdown", "--force"])?;
    // Somebody wants the broker to be gone, so it does not.
    until("no broker", LIMIT, || {
        // While it ends, it gives no answer.
        let gone = host.status().is_ok_and(|status| status["broker"].is_null());
        Ok(gone.then_some(()))
    })?;
    let _broker = host.command(&["broker"])?.spawn()?;
    wait_back(host, &before)?;
    lab.wait_traffic(&[&programs[1]], FLOWING, LIMIT)?;
    succeed(programs)
}
