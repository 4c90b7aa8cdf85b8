//! Paths over TCP: unmodified programs whose UDP is blocked while they run or from the start, strangers at
//! the port, and streams that end.

use polypath_e2e::{
    Error, Finished, Host, Lab, Options, PATIENT, Program, Running, compile_c, pass, share, until,
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const ON: &str = "tcp=on";
/// Seconds in which a program that is to be interrupted works at the longest.
const LONGEST: &str = "600";

fn one_link() -> Result<Lab, Error> {
    Lab::with(Options { links: 1, ..Options::default() })
}

/// Lets no UDP of RoCEv2 into the hosts, as a firewall that drops it silently, or lets it in again.
fn block_udp(lab: &Lab, blocked: bool) -> Result<(), Error> {
    let change = if blocked { "add" } else { "delete" };
    let tail: &[&str] = if blocked { &["dir", "in", "action", "block"] } else { &["dir", "in"] };
    for any in ["0.0.0.0/0", "::/0"] {
        let of = ["src", any, "dst", any, "proto", "udp", "dport", "4791"];
        let words = [&["xfrm", "policy", change][..], &of, tail].concat();
        (0..2).try_for_each(|host| lab.host(host).tool("ip", &words, ""))?;
    }
    Ok(())
}

/// The paths of the processes of a host: kind, state, and the bytes that were sent.
fn paths(host: &Host) -> Result<Vec<(String, String, u64)>, Error> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let path = |path: &serde_json::Value| {
        (text(&path["kind"]), text(&path["state"]), path["sent_bytes"].as_u64().unwrap_or(0))
    };
    Ok(host.paths()?.iter().map(path).collect())
}

/// Waits until the programs of both hosts use paths of this kind.
fn wait_kind(lab: &Lab, programs: [&Running; 2], kind: &str) -> Result<(), Error> {
    until(&format!("both programs to use paths of kind {kind}"), LIMIT, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        for host in 0..2 {
            let active = paths(lab.host(host))?.into_iter().filter(|path| path.1 == "active");
            let kinds: Vec<_> = active.map(|path| path.0).collect();
            if kinds.is_empty() || kinds.iter().any(|other| other != kind) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

fn tcp_bytes(host: &Host) -> Result<u64, Error> {
    Ok(paths(host)?.iter().filter(|path| path.0 == "tcp").map(|path| path.2).sum())
}

/// Waits until some more has gone by TCP.
fn wait_tcp_traffic(lab: &Lab, bytes: u64, programs: [&Running; 2]) -> Result<(), Error> {
    let before = tcp_bytes(lab.host(1))?;
    until("traffic by TCP", LIMIT, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        Ok((tcp_bytes(lab.host(1))? > before + bytes).then_some(()))
    })
}

/// Waits until both hosts have a path over TCP that stands by.
fn wait_standby(lab: &Lab, programs: [&Running; 2]) -> Result<(), Error> {
    until("paths over TCP that stand by", LIMIT, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        let stands_by = |host| -> Result<bool, Error> {
            let paths = paths(lab.host(host))?;
            Ok(paths.iter().any(|path| path.0 == "tcp" && path.1 == "standby"))
        };
        Ok((stands_by(0)? && stands_by(1)?).then_some(()))
    })
}

/// Whether the broker of a host listens on this port.
fn listens(host: &Host, port: u16) -> Result<bool, Error> {
    let table = host.program(["cat", "/proc/net/tcp6"]).run(LIMIT)?.expect_success()?;
    let listening = format!(":{port:04X} 00000000000000000000000000000000:0000 0A");
    Ok(table.text().contains(&listening))
}

fn broker_counter(host: &Host, name: &str) -> Result<u64, Error> {
    Ok(host.status()?["broker"]["counters"][name].as_u64().unwrap_or(0))
}

/// Fails if a host's broker waits for what happens to descriptors that it has closed. Such a one is open in
/// another process, and would wake the broker with each packet, or all the time.
fn broker_waits_for_its_own(host: &Host) -> Result<(), Error> {
    let status = host.status()?;
    let pid = &status["broker"]["pid"];
    let read = |path: String| {
        let read =
            std::fs::read_dir(&path).map_err(|error| Error::Missing(format!("{path}: {error}")));
        Ok::<Vec<_>, Error>(read?.flatten().map(|entry| entry.path()).collect())
    };
    let open = read(format!("/proc/{pid}/fd"))?;
    let names: Vec<_> = open.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let texts = read(format!("/proc/{pid}/fdinfo"))?;
    let texts: Vec<_> =
        texts.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let mut watched: Vec<&str> =
        lines.filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()).collect();
    watched.sort_unstable();
    let twice = watched.windows(2).any(|pair| pair[0] == pair[1]);
    let closed = watched.iter().any(|fd| !names.contains(fd));
    assert!(!watched.is_empty() && !twice && !closed, "open {names:?}, watched {watched:?}");
    Ok(())
}

/// With one interface, the device of several paths has to be asked for.
fn mp(program: Program, settings: &str) -> Program {
    program.env("POLYPATH_DEVICE", "mp").env("POLYPATH_MP", settings)
}

/// Starts the program that checks each addition, message, write and read, at both ends.
fn exact(lab: &Lab, settings: &str) -> Result<[Running; 2], Error> {
    let program = compile_c("exact.c")?;
    let server = mp(lab.host(0).verbs([&program, "-s", "7000"]), settings).spawn()?;
    server.wait_tcp_listen(7000, LIMIT)?;
    let client = lab.host(1).verbs([&program, "-c", &lab.host(0).ipv4(0), "7000", LONGEST]);
    let client = mp(client, settings).spawn()?;
    client.wait_line("connected", LIMIT)?;
    Ok([server, client])
}

/// Ends the programs, which both count the same rounds.
fn end_exact([server, client]: [Running; 2]) -> Result<(), Error> {
    client.signal(libc::SIGINT);
    let client = client.finish(LIMIT)?.expect_success()?;
    let server = server.finish(LIMIT)?.expect_success()?;
    let last = |finished: &Finished| finished.lines.last().map(|line| line.text.clone());
    assert_eq!(last(&client), last(&server), "both count the same rounds");
    Ok(())
}

#[test]
fn nothing_is_lost_when_udp_is_blocked_and_passes_again() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    let programs = exact(&lab, ON)?;
    let both = [&programs[0], &programs[1]];
    wait_standby(&lab, both)?;
    wait_kind(&lab, both, "roce")?;
    for _ in 0..2 {
        block_udp(&lab, true)?;
        wait_kind(&lab, both, "tcp")?;
        wait_tcp_traffic(&lab, 100_000, both)?;
        block_udp(&lab, false)?;
        wait_kind(&lab, both, "roce")?;
    }
    // What either end takes down by hand is in use at neither, and is there again afterwards.
    lab.host(0).polypath(&["path", "down", "tcp"])?;
    until("no path over TCP to stand by", LIMIT, || {
        let up = |path: &(String, String, u64)| path.0 == "tcp" && path.1 != "down";
        Ok((!paths(lab.host(0))?.iter().any(up)).then_some(()))
    })?;
    lab.host(0).polypath(&["path", "up", "tcp"])?;
    wait_standby(&lab, both)?;
    block_udp(&lab, true)?;
    wait_kind(&lab, both, "tcp")?;
    block_udp(&lab, false)?;
    end_exact(programs)
}

#[test]
fn programs_connect_and_work_if_udp_never_passes() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, true)?;
    let programs = exact(&lab, "tcp=5000")?;
    let both = [&programs[0], &programs[1]];
    wait_kind(&lab, both, "tcp")?;
    wait_tcp_traffic(&lab, 100_000, both)?;
    assert!(listens(lab.host(0), 5000)? && !listens(lab.host(0), 4791)?);
    (0..2).try_for_each(|host| broker_waits_for_its_own(lab.host(host)))?;
    // A program that is stopped harms neither itself nor the stream.
    programs[0].signal(libc::SIGSTOP);
    pass(Duration::from_millis(500));
    programs[0].signal(libc::SIGCONT);
    wait_tcp_traffic(&lab, 100_000, both)?;
    end_exact(programs)?;
    for words in [
        &["ib_write_bw", "-n", "300"][..],
        &["ib_read_bw", "-n", "300"],
        &["ib_send_lat", "-n", "300"],
    ] {
        let server = mp(lab.host(0).verbs(words), ON).spawn()?;
        server.wait_tcp_listen(18515, LIMIT)?;
        let address = lab.host(0).ipv4(0);
        let client = lab.host(1).verbs(words.iter().copied().chain([&*address]));
        mp(client, ON).run(LIMIT)?.expect_success()?;
        server.finish(LIMIT)?.expect_success()?;
    }
    Ok(())
}

#[test]
fn rping_verifies_its_data_over_tcp() -> Result<(), Error> {
    let lab = one_link()?;
    rping_goes_on_over_tcp(&lab, &lab.host(0).ipv4(0))
}

#[test]
fn rping_verifies_its_data_over_tcp_and_ipv6() -> Result<(), Error> {
    let lab = one_link()?;
    rping_goes_on_over_tcp(&lab, &lab.host(0).ipv6(0))
}

fn rping_goes_on_over_tcp(lab: &Lab, address: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let words = ["-a", address, "-V", "-v", "-S", "9000"];
    let rping = |host: usize, role| {
        let words = ["rping", role].into_iter().chain(words);
        mp(lab.host(host).verbs(words), ON).spawn()
    };
    let server = rping(0, "-s")?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let client = rping(1, "-c")?;
    client.wait_line("rdma-ping-9", LIMIT)?;
    wait_standby(lab, [&server, &client])?;
    block_udp(lab, true)?;
    wait_kind(lab, [&server, &client], "tcp")?;
    wait_tcp_traffic(lab, 1 << 20, [&server, &client])?;
    for program in [&client, &server] {
        let text = program.text();
        assert!(!text.contains("data mismatch") && !text.contains("failed"), "{text}");
    }
    Ok(())
}

/// They are refused and counted, and the programs do not notice.
#[test]
fn strangers_at_the_port_are_refused() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    let programs = exact(&lab, ON)?;
    let both = [&programs[0], &programs[1]];
    wait_standby(&lab, both)?;
    block_udp(&lab, true)?;
    wait_kind(&lab, both, "tcp")?;
    let address = lab.host(0).ipv4(0);
    let refused = || broker_counter(lab.host(0), "streams_refused");
    let before = refused()?;
    // The last one is a preamble for each slot, with an opening that proves nothing.
    let calls = [
        "printf 'GET / HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3",
        "printf 'PPTS\\001' >&3; exec 3>&-",
        "cat <&3",
    ];
    for call in calls {
        let script = format!("exec 3<>/dev/tcp/{address}/4791; {call}; true");
        lab.host(1).program(["bash", "-c", &script]).run(LIMIT)?.expect_success()?;
    }
    until("the strangers to be counted", LIMIT, || Ok((refused()? >= before + 3).then_some(())))?;
    let script = format!(
        "for slot in $(seq 1 254); do exec 3<>/dev/tcp/{address}/4791; \
         printf \"PPTS\\\\x01\\\\x$(printf %02x $slot)\\\\x01\\\\0\\\\0\\\\x0c\\\\0\\\\0aaaabbbbcccc\" >&3; \
         cat <&3; exec 3>&-; done; true"
    );
    lab.host(1).program(["bash", "-c", &script]).run(LIMIT)?.expect_success()?;
    until("all but one to be counted", LIMIT, || Ok((refused()? >= before + 256).then_some(())))?;
    wait_kind(&lab, both, "tcp")?;
    wait_tcp_traffic(&lab, 100_000, both)?;
    block_udp(&lab, false)?;
    end_exact(programs)
}

/// Nothing but the setting brings it about, and both must want it.
#[test]
fn nobody_listens_and_nothing_goes_by_tcp_unless_both_want_it() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    let programs = exact(&lab, "tcp=off")?;
    assert!(!listens(lab.host(0), 4791)? && !listens(lab.host(1), 4791)?);
    end_exact(programs)?;
    let words = ["ib_write_bw", "-D", "2"];
    let server = mp(lab.host(0).verbs(words), ON).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([&*address]));
    let client = mp(client, "ports=1").spawn()?;
    wait_kind(&lab, [&server, &client], "roce")?;
    for host in 0..2 {
        assert!(paths(lab.host(host))?.iter().all(|path| path.0 == "roce"));
    }
    assert!(listens(lab.host(0), 4791)? && !listens(lab.host(1), 4791)?);
    client.finish(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    until("the port to be closed", LIMIT, || Ok((!listens(lab.host(0), 4791)?).then_some(())))
}

/// The other program gets an error in the end, and other programs are not disturbed.
#[test]
fn a_program_that_is_killed_harms_nobody() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, true)?;
    let programs = exact(&lab, ON)?;
    let both = [&programs[0], &programs[1]];
    wait_kind(&lab, both, "tcp")?;
    let words = ["ib_write_bw", "--run_infinitely"];
    let server = mp(lab.host(0).verbs(words), ON).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client = mp(lab.host(1).verbs(words.into_iter().chain([&*address])), ON).spawn()?;
    wait_tcp_traffic(&lab, 8 << 20, [&server, &client])?;
    server.signal(libc::SIGKILL);
    server.finish(LIMIT)?;
    assert!(client.finish(LIMIT)?.expect_success().is_err());
    wait_tcp_traffic(&lab, 100_000, both)?;
    end_exact(programs)
}
