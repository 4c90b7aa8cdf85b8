//! Programs that connect by rdma_cm where no UDP passes, or only one way: the messages of the connection
//! managers go by TCP.

use polypath_e2e::{Error, Host, Lab, Options, PATIENT, Program, Running, share, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
const ON: &str = "tcp=on";
const BOTH: [usize; 2] = [0, 1];

fn one_link() -> Result<Lab, Error> {
    Lab::with(Options { links: 1, ..Options::default() })
}

/// Lets no UDP of RoCEv2 into hosts, as a firewall that drops it silently, or, with `out`, out of them, where
/// the sender is told.
fn block_udp(lab: &Lab, hosts: &[usize], direction: &str) -> Result<(), Error> {
    for any in ["0.0.0.0/0", "::/0"] {
        let of = ["src", any, "dst", any, "proto", "udp", "dport", "4791"];
        let tail = ["dir", direction, "action", "block"];
        let words = [&["xfrm", "policy", "add"][..], &of, &tail].concat();
        hosts.iter().try_for_each(|&host| lab.host(host).tool("ip", &words, ""))?;
    }
    Ok(())
}

/// With one interface, the device of several paths has to be asked for.
fn mp(program: Program, settings: &str) -> Program {
    program.env("POLYPATH_DEVICE", "mp").env("POLYPATH_MP", settings)
}

fn counter(host: &Host, name: &str) -> Result<u64, Error> {
    Ok(host.status()?["broker"]["counters"][name].as_u64().unwrap_or(0))
}

/// Runs rping, which checks each message; its server serves one connection after the other.
fn rping_server(lab: &Lab, address: &str, settings: &str) -> Result<Running, Error> {
    let server = lab.host(0).verbs(["rping", "-s", "-P", "-a", address, "-V", "-v", "-S", "5000"]);
    let server = mp(server, settings).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    Ok(server)
}

fn rping(lab: &Lab, address: &str, settings: &str) -> Result<(), Error> {
    let client = ["rping", "-c", "-a", address, "-V", "-v", "-C", "20", "-S", "5000"];
    let client = mp(lab.host(1).verbs(client), settings).run(LIMIT)?.expect_success()?;
    client.expect_line("rdma-ping-19")?;
    Ok(())
}

fn rping_works(blocked: &[usize], direction: &str, settings: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, blocked, direction)?;
    for address in [lab.host(0).ipv4(0), lab.host(0).ipv6(0)] {
        let server = rping_server(&lab, &address, settings)?;
        rping(&lab, &address, settings)?;
        rping(&lab, &address, settings)?;
        server.expect_alive()?;
    }
    for host in BOTH {
        assert!(counter(lab.host(host), "mad_streams_received")? > 0, "host {host}");
        assert_eq!(counter(lab.host(host), "mad_streams_broken")?, 0);
    }
    Ok(())
}

#[test]
fn rping_connects_if_udp_never_passes() -> Result<(), Error> {
    rping_works(&BOTH, "in", "tcp=5000")
}

#[test]
fn rping_connects_if_udp_does_not_reach_the_server() -> Result<(), Error> {
    rping_works(&[0], "in", ON)
}

/// A firewall of the own host says so, and TCP is tried at once.
#[test]
fn rping_connects_if_its_own_host_sends_no_udp() -> Result<(), Error> {
    rping_works(&BOTH, "out", ON)
}

#[test]
fn perftest_connects_by_rdma_cm_if_udp_never_passes() -> Result<(), Error> {
    perftest_works(&BOTH)
}

#[test]
fn perftest_connects_by_rdma_cm_if_udp_does_not_reach_the_server() -> Result<(), Error> {
    perftest_works(&[0])
}

#[test]
fn perftest_connects_by_rdma_cm_if_udp_does_not_reach_the_client() -> Result<(), Error> {
    perftest_works(&[1])
}

fn perftest_works(blocked: &[usize]) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, blocked, "in")?;
    let address = lab.host(0).ipv4(0);
    for words in [&["ib_write_bw", "-R", "-n", "300"][..], &["ib_send_lat", "-R", "-n", "300"]] {
        let server = mp(lab.host(0).verbs(words), ON).spawn()?;
        lab.host(0).wait_cm_listen(&server, 18515, LIMIT)?;
        let client = lab.host(1).verbs(words.iter().copied().chain([&*address]));
        mp(client, ON).run(LIMIT)?.expect_success()?;
        server.finish(LIMIT)?.expect_success()?;
    }
    for host in BOTH {
        assert!(counter(lab.host(host), "mad_streams_received")? > 0, "host {host}");
    }
    Ok(())
}

/// The other end of a program that is killed is told.
#[test]
fn a_program_that_is_killed_disconnects_by_tcp() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, &BOTH, "in")?;
    let address = lab.host(0).ipv4(0);
    let server = lab.host(0).verbs(["rping", "-s", "-a", &address, "-v"]);
    let server = mp(server, ON).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let client = lab.host(1).verbs(["rping", "-c", "-a", &address, "-v"]);
    let client = mp(client, ON).spawn()?;
    client.wait_line("rdma-ping-9", LIMIT)?;
    client.signal(libc::SIGKILL);
    client.finish(LIMIT)?;
    server.finish(LIMIT)?.expect_line("DISCONNECT EVENT")?;
    Ok(())
}

/// Without the setting at both ends, a request is repeated by UDP, as to any peer that does not answer. (The
/// error after the last repetition, a minute later, is not waited for.)
#[test]
fn nothing_connects_unless_both_want_tcp() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, &BOTH, "in")?;
    let address = lab.host(0).ipv4(0);
    let server = rping_server(&lab, &address, "tcp=off")?;
    let client = |settings| {
        let client = ["rping", "-c", "-a", &address, "-C", "1"];
        mp(lab.host(1).verbs(client), settings).spawn()
    };
    // By then, the third repetition of each is under way, at which TCP would have been tried whatever was
    // known of the host.
    let clients = [client("tcp=off")?, client(ON)?];
    until("repetitions", LIMIT, || {
        clients.iter().try_for_each(Running::expect_alive)?;
        Ok((counter(lab.host(1), "cm_mads_retried")? >= 6).then_some(()))
    })?;
    for host in BOTH {
        assert_eq!(counter(lab.host(host), "mad_streams_opened")?, 0, "host {host}");
        assert_eq!(counter(lab.host(host), "mad_streams_accepted")?, 0, "host {host}");
    }
    for client in clients {
        client.signal(libc::SIGKILL);
        client.finish(LIMIT)?;
    }
    server.expect_alive()
}

/// Where UDP passes, nothing is different.
#[test]
fn no_message_goes_by_tcp_where_udp_passes() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    let address = lab.host(0).ipv4(0);
    let server = rping_server(&lab, &address, ON)?;
    rping(&lab, &address, ON)?;
    server.expect_alive()?;
    for host in BOTH {
        for name in ["mad_streams_opened", "mad_streams_accepted", "mad_streams_sent"] {
            assert_eq!(counter(lab.host(host), name)?, 0, "{name} of host {host}");
        }
    }
    Ok(())
}

/// Whoever sends something else loses the stream, and nobody else does.
#[test]
fn strangers_lose_their_streams_and_nothing_else() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = one_link()?;
    block_udp(&lab, &BOTH, "in")?;
    let address = lab.host(0).ipv4(0);
    let server = rping_server(&lab, &address, ON)?;
    rping(&lab, &address, ON)?;
    let names = ["streams_refused", "mad_streams_broken", "mad_streams_accepted"];
    let counters = || -> Result<Vec<u64>, Error> {
        names.iter().map(|name| counter(lab.host(0), name)).collect()
    };
    let before = counters()?;
    // An opening that is no message, and streams that begin with a DREQ of a connection that there is not,
    // and go on with nonsense: the end of each is seen by who sent it.
    let script = format!(
        "import socket, struct\n\
         def call(opening, more):\n\
         \x20   s = socket.create_connection(('{address}', 4791))\n\
         \x20   s.sendall(b'PPTS' + bytes([1, 0, 0, 0]) + struct.pack('>HH', len(opening), 0)\n\
         \x20             + opening + more)\n\
         \x20   s.settimeout(60)\n\
         \x20   while s.recv(4096): pass\n\
         bth = bytes([0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0])\n\
         deth = struct.pack('>II', 0x80010000, 1)\n\
         mad = bytes([1, 7, 2, 3]) + bytes(4) + struct.pack('>QHHIII', 9, 0x15, 0, 0, 77, 88)\n\
         mad += bytes(256 - len(mad))\n\
         call(bytes(276), b'')\n\
         for _ in range(9): call(bth + deth + mad, b'GET / HTTP/1.1\\r\\n')\n\
         call(bth + deth + mad, bytes([1, 20, 0, 0]) + bytes(276))\n"
    );
    lab.host(1).program(["python3", "-c", &script]).run(LIMIT)?.expect_success()?;
    until("the strangers to be counted", LIMIT, || {
        let now = counters()?;
        let grown: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        Ok((grown == [1, 10, 10]).then_some(()))
    })?;
    rping(&lab, &address, ON)?;
    server.expect_alive()
}
