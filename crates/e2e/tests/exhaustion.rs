//! Uses all of a resource and one more: the documented error comes, memory stays bounded, and
//! everything is freed when it is destroyed or its process is killed. The programs are C programs with
//! unmodified verbs.

use polypath_e2e::{Error, Finished, Host, Lab, Options, Running, compile_c, pass, until};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The limit for programs that do a lot on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const ROCE: Option<&str> = Some("roce");

fn lab() -> Result<Lab, Error> {
    Lab::with(Options { links: 1, ..Options::default() })
}

/// The number in the last `name=NUMBER` of a program's output.
fn number(text: &str, name: &str) -> Result<i64, Error> {
    let wanted = format!("{name}=");
    let words = text.split_whitespace();
    let found = words.filter_map(|word| word.strip_prefix(&wanted)?.parse().ok()).next_back();
    found.ok_or_else(|| Error::Missing(format!("no {name} in:\n{text}")))
}

/// Fails unless `name` in the output is at most `most`.
fn at_most(finished: &Finished, name: &str, most: i64) -> Result<i64, Error> {
    let value = number(&finished.text(), name)?;
    assert!(value <= most, "{name} is {value}, more than {most}:\n{}", finished.text());
    Ok(value)
}

/// The resident memory of a process in KiB.
fn resident_kib(pid: u64) -> Result<i64, Error> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text =
        std::fs::read_to_string(&path).map_err(|e| Error::os(path.display().to_string(), e))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| Error::Missing(format!("no VmRSS in {}", path.display())))
}

fn broker_pid(host: &Host) -> Result<u64, Error> {
    let status = host.status()?;
    let pid = status["broker"]["pid"].as_u64();
    pid.ok_or_else(|| Error::Missing(format!("no broker: {status}")))
}

/// Waits until the broker has no client, slot or id any more.
fn nothing_left(host: &Host) -> Result<(), Error> {
    until("the broker to have forgotten the dead", Duration::from_secs(20), || {
        let status = host.status()?;
        if status["broker"].is_null() {
            // The broker was idle and has ended.
            return Ok(Some(()));
        }
        let len = |what: &str| status["broker"][what].as_array().map_or(usize::MAX, Vec::len);
        let processes = status["processes"].as_array().map_or(usize::MAX, Vec::len);
        let gone = len("clients") == 0 && len("slots") == 0 && len("cm_ids") == 0 && processes == 0;
        Ok(gone.then_some(()))
    })
}

/// Kills a program, as a crash would end it.
fn kill(program: Running) -> Result<(), Error> {
    program.signal(libc::SIGKILL);
    program.finish(LIMIT).map(drop)
}

#[test]
fn ten_thousand_queue_pairs_and_a_hundred_thousand_regions_leave_no_memory_behind()
-> Result<(), Error> {
    let lab = lab()?;
    let words = [&compile_c("exhaust.c")?, "objects", "10000", "100000"];
    let done = lab.host(0).verbs(words).device(ROCE).run(LIMIT)?.expect_success()?;
    // About 70 MiB: 3.5 KiB for a queue pair of 16 + 16 entries, and 0.3 KiB for a region.
    at_most(&done, "resident-full", 128 << 10)?;
    // It would take 25 s if the end of each queue pair searched all regions.
    at_most(&done, "destroyed-ms", 10_000)?;
    let once = number(&done.text(), "resident-once")?;
    at_most(&done, "resident-twice", once + 2048)?;
    nothing_left(lab.host(0))
}

#[test]
fn one_queue_pair_more_than_the_device_has_is_enomem() -> Result<(), Error> {
    let lab = lab()?;
    let words = [&compile_c("exhaust.c")?, "qps"];
    lab.host(0).verbs(words).device(ROCE).run(LIMIT)?.expect_success()?;
    nothing_left(lab.host(0))
}

/// `man 3 ibv_poll_cq`, `man 3 ibv_get_async_event`.
#[test]
fn an_overrun_completion_queue_is_told_and_ends_its_queue_pair() -> Result<(), Error> {
    let lab = lab()?;
    let words = [&compile_c("exhaust.c")?, "overrun"];
    for device in [ROCE, None] {
        lab.host(0).verbs(words).device(device).run(LIMIT)?.expect_success()?;
    }
    Ok(())
}

#[test]
fn a_killed_process_leaves_nothing_in_the_broker() -> Result<(), Error> {
    let lab = lab()?;
    let host = lab.host(0);
    let words = [&compile_c("exhaust.c")?, "hold", "10000", "10000"];
    let mut before = None;
    for _ in 0..3 {
        let holder = host.verbs(words).device(ROCE).spawn()?;
        holder.wait_line("holding", LIMIT)?;
        let status = host.status()?;
        let qps = status["processes"][0]["qps"].as_array().map_or(0, Vec::len);
        assert_eq!(qps, 10_000, "all of them are told of");
        kill(holder)?;
        nothing_left(host)?;
        let resident = resident_kib(broker_pid(host)?)?;
        let first = *before.get_or_insert(resident);
        assert!(resident <= first + 4096, "the broker grew from {first} to {resident} KiB");
    }
    Ok(())
}

/// A program that does not poll, post receives or read events: each kind of work ends as the manual
/// says.
#[test]
fn a_peer_that_never_reads_costs_nobody_memory() -> Result<(), Error> {
    let lab = lab()?;
    let program = compile_c("mute.c")?;
    let server = lab.host(0).verbs([&program, "-s", "7000"]).device(ROCE).spawn()?;
    server.wait_tcp_listen(7000, LIMIT)?;
    let client = [&program, "-c", &lab.host(0).ipv4(0), "7000"];
    let client = lab.host(1).verbs(client).device(ROCE).run(LIMIT)?.expect_success()?;
    let server = server.finish(LIMIT)?.expect_success()?;
    for side in [&client, &server] {
        let before = number(&side.text(), "resident-before")?;
        at_most(side, "resident-after", before + 4096)?;
    }
    // As many arrive as receives were posted; the rest was dropped.
    assert_eq!(number(&server.text(), "datagrams")?, 64);
    Ok(())
}

/// A stopped process does not answer, and its socket's buffer fills.
#[test]
fn a_stopped_peer_is_a_retry_error() -> Result<(), Error> {
    let lab = lab()?;
    let server = lab.host(0).verbs(["ib_write_bw", "-D", "60"]).device(ROCE).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let words = ["ib_write_bw", "-D", "60", &lab.host(0).ipv4(0)];
    let client = lab.host(1).verbs(words).device(ROCE).spawn()?;
    until("traffic", LIMIT, || {
        client.expect_alive()?;
        Ok((lab.received_bytes()?[0][0] > 10_000_000).then_some(()))
    })?;
    let before = resident_kib(client.id().into())?;
    server.signal(libc::SIGSTOP);
    client.wait_line("status 12", LIMIT)?; // IBV_WC_RETRY_EXC_ERR
    let after = resident_kib(client.id().into()).unwrap_or(before);
    assert!(after <= before + 4096, "the client grew from {before} to {after} KiB");
    kill(server)
}

/// `cmtime` measures each step of a thousand connections at once.
#[test]
fn cmtime_makes_a_thousand_connections() -> Result<(), Error> {
    let lab = lab()?;
    let server = lab.host(0).verbs(["cmtime"]).device(ROCE).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7471, LIMIT)?;
    let words = ["cmtime", "-s", &lab.host(0).ipv4(0), "-c", "1000"];
    let client = lab.host(1).verbs(words).device(ROCE).run(LIMIT)?.expect_success()?;
    client.expect_line("connect")?;
    kill(server)?;
    nothing_left(lab.host(0))
}

/// Runs a client and returns what became of its connections.
fn storm(lab: &Lab, mode: &str, port: &str, count: &str) -> Result<Finished, Error> {
    let words = [&compile_c("storm.c")?, mode, &lab.host(0).ipv4(0), port, count, "100"];
    lab.host(1).verbs(words).device(ROCE).run(LIMIT)?.expect_success()
}

fn storm_server(lab: &Lab, mode: &str, port: &str) -> Result<Running, Error> {
    storm_server_on(lab, 0, mode, port)
}

fn storm_server_on(lab: &Lab, host: usize, mode: &str, port: &str) -> Result<Running, Error> {
    let words = [&compile_c("storm.c")?, mode, port];
    let server = lab.host(host).verbs(words).device(ROCE).spawn()?;
    server.wait_line("listening", LIMIT)?;
    Ok(server)
}

/// Queue pairs between two processes over four paths, which do nothing.
const CROWD: i64 = 1000;
/// For which time their packets are counted.
const COUNTED: Duration = Duration::from_secs(5);

/// The packets of path management that the processes of a host have sent.
fn control_sent(host: &Host) -> Result<u64, Error> {
    let status = host.status()?;
    let processes = status["processes"].as_array().into_iter().flatten();
    let lanes = processes.filter_map(|process| process["lanes"].as_array()).flatten();
    Ok(lanes.filter_map(|lane| lane["control_sent"].as_u64()).sum())
}

/// Paths belong to two processes and not to their queue pairs, so a thousand of these that do nothing cost
/// memory, and no packets beyond those of one.
#[test]
fn a_thousand_idle_queue_pairs_over_four_paths_take_little_memory_and_the_probes_of_one()
-> Result<(), Error> {
    let links = 4;
    let lab = Lab::with(Options { links, ..Options::default() })?;
    let (program, count) = (compile_c("crowd.c")?, CROWD.to_string());
    let server =
        lab.host(0).verbs([&program, "serve", "7000", &count]).device(Some("mp")).spawn()?;
    server.wait_line("listening", LIMIT)?;
    let words = [&program, "connect", &lab.host(0).ipv4(0), "7000", &count];
    let client = lab.host(1).verbs(words).device(Some("mp")).spawn()?;
    for (end, number_of_host) in [(&client, 1), (&server, 0)] {
        end.wait_line("resident-after", LIMIT)?;
        let text = end.text();
        let grown = number(&text, "resident-after")? - number(&text, "resident-before")?;
        eprintln!("host {number_of_host}: {grown} KiB for {CROWD} queue pairs");
        // What the core, the library and librdmacm have of a connected queue pair.
        assert!(grown <= 16 * CROWD, "{grown} KiB for {CROWD} queue pairs:\n{text}");
        until("all paths", LIMIT, || {
            end.expect_alive()?;
            Ok((lab.host(number_of_host).live_paths() >= links).then_some(()))
        })?;
    }
    let hosts = [lab.host(0), lab.host(1)];
    let (before, start) = ([control_sent(hosts[0])?, control_sent(hosts[1])?], Instant::now());
    pass(COUNTED);
    for (host, before) in hosts.into_iter().zip(before) {
        let (sent, seconds) = (control_sent(host)? - before, start.elapsed().as_secs_f64());
        let rate = sent as f64 / seconds;
        eprintln!("{rate:.1} packets of path management a second");
        // Probes and answers of four paths. A queue pair that had its own would add as many.
        assert!(sent > 0 && rate <= 16.0 * links as f64, "{rate} a second");
    }
    kill(client)?;
    kill(server)
}

/// So often may the brokers need more memory than before, until it counts as a leak.
const ROUNDS: usize = 6;

/// Makes, refuses and ends thousands of connections, and waits until the server's broker has forgotten them.
fn round_of_five_thousand(lab: &Lab) -> Result<(), Error> {
    let made = storm(lab, "connect", "7001", "5000")?;
    assert_eq!(number(&made.text(), "established")?, 5000, "{}", made.text());
    let refused = storm(lab, "connect", "7002", "5000")?;
    assert_eq!(number(&refused.text(), "refused")?, 5000, "by the program");
    let refused = storm(lab, "connect", "7003", "1000")?;
    assert_eq!(number(&refused.text(), "refused")?, 1000, "nobody listens");
    storm(lab, "abort", "7001", "5000")?;
    until("all but the listeners to be forgotten", LIMIT, || {
        let ids = lab.host(0).status()?["broker"]["cm_ids"].as_array().map_or(0, Vec::len);
        Ok((ids == 2).then_some(()))
    })
}

#[test]
fn five_thousand_connections_of_each_kind_leave_only_the_listeners() -> Result<(), Error> {
    let lab = lab()?;
    let accept = storm_server(&lab, "accept", "7001")?;
    let reject = storm_server(&lab, "reject", "7002")?;
    // This keeps the client's broker running. Otherwise it would end between two clients if this took
    // long.
    let _idle = storm_server_on(&lab, 1, "deaf", "7009")?;
    let brokers = [broker_pid(lab.host(0))?, broker_pid(lab.host(1))?];
    let resident = || -> Result<[i64; 2], Error> {
        Ok([resident_kib(brokers[0])?, resident_kib(brokers[1])?])
    };
    round_of_five_thousand(&lab)?;
    let mut before = resident()?;
    let mut grew = Vec::new();
    // How many connections are there at once differs from round to round, and the allocator keeps what
    // the largest round took. So a round may need more than those before it, but not each one: what is
    // lost with a connection is lost in every round. A round has 16,000 connections.
    for _ in 0..ROUNDS {
        round_of_five_thousand(&lab)?;
        let after = resident()?;
        // The limits of `CmConfig` keep the broker below this in any case.
        assert!(after.into_iter().all(|kib| kib <= 64 << 10), "brokers have {after:?} KiB");
        if before.into_iter().zip(after).all(|(before, after)| after <= before + 1024) {
            grew.clear();
            break;
        }
        grew.push((before, after));
        before = after;
    }
    assert!(grew.is_empty(), "in every round a broker grew, from and to (KiB): {grew:?}");
    kill(accept)?;
    kill(reject)?;
    nothing_left(lab.host(0))
}

#[test]
fn a_listener_that_never_reads_is_bounded_and_its_death_frees_all() -> Result<(), Error> {
    let lab = lab()?;
    let deaf = storm_server(&lab, "deaf", "7001")?;
    let broker = broker_pid(lab.host(0))?;
    let before = resident_kib(broker)?;
    storm(&lab, "abort", "7001", "20000")?;
    // These connections wait for an answer that nobody gives, and the test ends them.
    let words = [&compile_c("storm.c")?, "connect", &lab.host(0).ipv4(0), "7001", "3000", "3000"];
    let waiting = lab.host(1).verbs(words).device(ROCE).spawn()?;
    until("the backlog to be full", LIMIT, || {
        waiting.expect_alive()?;
        Ok((dropped_requests(lab.host(0))? > 0).then_some(()))
    })?;
    let after = resident_kib(broker)?;
    assert!(after <= before + (32 << 10), "the broker grew from {before} to {after} KiB");
    kill(waiting)?;
    nothing_left(lab.host(1))?;
    kill(deaf)?;
    nothing_left(lab.host(0))
}

fn dropped_requests(host: &Host) -> Result<u64, Error> {
    let status = host.status()?;
    Ok(status["broker"]["counters"]["cm_requests_dropped"].as_u64().unwrap_or(0))
}
