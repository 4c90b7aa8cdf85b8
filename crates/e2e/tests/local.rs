//! Two processes on one host that share memory: unmodified programs, the end of one of them, and paths
//! that go away and come back under traffic.

use polypath_e2e::{Error, Finished, Host, Lab, PATIENT, Running, compile_c, pass, share, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Seconds in which a program that is to be interrupted works at the longest.
const LONGEST: &str = "600";

/// The paths of the processes of a host: kind, state, and the bytes that were sent.
fn paths(host: &Host) -> Result<Vec<(String, String, u64)>, Error> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let path = |path: &serde_json::Value| {
        (text(&path["kind"]), text(&path["state"]), path["sent_bytes"].as_u64().unwrap_or(0))
    };
    Ok(host.paths()?.iter().map(path).collect())
}

/// Waits until both programs use shared memory and nothing else, or not at all. Without it, they use all
/// their other paths.
fn wait_local(host: &Host, programs: [&Running; 2], used: bool) -> Result<(), Error> {
    let what =
        if used { "both programs to share memory" } else { "neither program to share memory" };
    until(what, LIMIT, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        let active = paths(host)?.into_iter().filter(|(_, state, _)| state == "active");
        let (local, others): (Vec<_>, Vec<_>) = active.partition(|path| path.0 == "local");
        let so = if used {
            local.len() == 2 && others.is_empty()
        } else {
            local.is_empty() && others.len() >= 2
        };
        Ok(so.then_some(()))
    })
}

/// The bytes that were sent by shared memory.
fn local_bytes(host: &Host) -> Result<u64, Error> {
    Ok(paths(host)?.iter().filter(|path| path.0 == "local").map(|path| path.2).sum())
}

/// Waits until some megabytes more have gone through shared memory.
fn wait_local_traffic(host: &Host, programs: [&Running; 2]) -> Result<(), Error> {
    let before = local_bytes(host)?;
    until("traffic through shared memory", LIMIT, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        Ok((local_bytes(host)? > before + (1 << 20)).then_some(()))
    })
}

/// Starts a perftest program on both ends of one host.
fn perftest(lab: &Lab, words: &[&str]) -> Result<[Running; 2], Error> {
    let host = lab.host(0);
    let start = |address: Option<&str>| host.verbs(words.iter().copied().chain(address)).spawn();
    let server = start(None)?;
    server.wait_tcp_listen(18515, LIMIT)?;
    Ok([server, start(Some(&host.ipv4(0)))?])
}

fn finish([server, client]: [Running; 2]) -> Result<[Finished; 2], Error> {
    let client = client.finish(LIMIT)?.expect_success()?;
    Ok([server.finish(LIMIT)?.expect_success()?, client])
}

#[test]
fn programs_run_unmodified() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    for words in [
        &["ib_send_lat", "-s", "8"][..],
        // Not ib_send_lat: with -e it takes any event for that of its send, and reads a completion that it
        // did not get, if the answer comes before the acknowledgement, as when the first path changes.
        &["ib_send_bw", "-n", "500", "-e"],
        &["ib_write_bw", "-n", "500"],
        &["ib_read_bw", "-n", "500"],
        &["ib_atomic_lat", "-n", "300"],
    ] {
        finish(perftest(&lab, words)?)?;
    }
    Ok(())
}

#[test]
fn rping_verifies_its_data() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let host = lab.host(0);
    let address = host.ipv4(0);
    let words = ["-a", &address, "-V", "-v", "-S", "9000"];
    let rping = |role| {
        let words = ["rping", role].into_iter().chain(words);
        host.verbs(words).spawn()
    };
    let server = rping("-s")?;
    host.wait_cm_listen(&server, 7174, LIMIT)?;
    let client = rping("-c")?;
    client.wait_line("rdma-ping-9", LIMIT)?;
    wait_local(host, [&server, &client], true)?;
    wait_local_traffic(host, [&server, &client])?;
    for program in [&client, &server] {
        let text = program.text();
        assert!(!text.contains("data mismatch") && !text.contains("failed"), "{text}");
    }
    Ok(())
}

/// Each addition, message, write and read is checked while the shared memory is taken away and given back.
#[test]
fn nothing_is_lost_when_paths_change_under_traffic() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("exact.c")?;
    let lab = Lab::new()?;
    let host = lab.host(0);
    let server = host.verbs([&program, "-s", "7000"]).spawn()?;
    server.wait_tcp_listen(7000, LIMIT)?;
    let client = host.verbs([&program, "-c", &host.ipv4(0), "7000", LONGEST]);
    let client = client.spawn()?;
    client.wait_line("connected", LIMIT)?;
    let both = [&server, &client];
    wait_local(host, both, true)?;
    for change in [["path", "local"], ["mp", "policy"]] {
        for used in [false, true] {
            let words = match (change, used) {
                (["path", _], false) => ["path", "down", "local"],
                (["path", _], true) => ["path", "up", "local"],
                (_, false) => ["mp", "policy", "local=off"],
                (_, true) => ["mp", "policy", "local=on"],
            };
            host.polypath(&words)?.expect_success()?;
            wait_local(host, both, used)?;
        }
    }
    // A process that is stopped is silent on all paths, so none of them dies.
    server.signal(libc::SIGSTOP);
    pass(Duration::from_millis(500));
    server.signal(libc::SIGCONT);
    wait_local(host, both, true)?;
    client.signal(libc::SIGINT);
    let [server, client] = finish([server, client])?;
    let last = |finished: &Finished| finished.lines.last().map(|line| line.text.clone());
    assert_eq!(last(&client), last(&server), "both count the same rounds");
    Ok(())
}

/// The other program gets an error in the end, the broker and other programs are not disturbed, and new
/// programs share memory again.
#[test]
fn a_program_that_is_killed_harms_nobody() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let host = lab.host(0);
    for killed in 0..2 {
        let both = perftest(&lab, &["ib_write_bw", "--run_infinitely"])?;
        wait_local(host, [&both[0], &both[1]], true)?;
        wait_local_traffic(host, [&both[0], &both[1]])?;
        both[killed].signal(libc::SIGKILL);
        let [server, client] = both;
        let (dead, other) = if killed == 0 { (server, client) } else { (client, server) };
        dead.finish(LIMIT)?;
        if killed == 0 {
            // Its requests fail, after the time in which paths may come back.
            let finished = other.finish(LIMIT)?;
            assert!(finished.expect_success().is_err());
        } else {
            other.signal(libc::SIGKILL);
            other.finish(LIMIT)?;
        }
    }
    let both = perftest(&lab, &["ib_write_bw", "-D", "3"])?;
    wait_local(host, [&both[0], &both[1]], true)?;
    finish(both).map(drop)
}

/// One that says no is enough.
#[test]
fn memory_is_shared_only_if_both_want_it() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let host = lab.host(0);
    let words = ["ib_write_bw", "-D", "2"];
    let server = host.verbs(words).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let address = host.ipv4(0);
    let client = host.verbs(words.into_iter().chain([&*address]));
    let client = client.env("POLYPATH_MP", "local=off").spawn()?;
    let both = [&server, &client];
    wait_local(host, both, false)?;
    assert_eq!(local_bytes(host)?, 0);
    finish([server, client]).map(drop)
}
