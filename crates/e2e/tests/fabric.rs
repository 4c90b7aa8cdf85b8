//! Unmodified programs over a fabric that chooses one of several ways by the UDP source port. Which port
//! leads which way is not known, so the tests look which ways carry data.

use polypath_e2e::{Error, Fabric, PATIENT, Program, Running, share, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Fewer bytes than this by a way are probes and answers, not the program's data.
const DATA_LEAST: u64 = 4 << 20;

const EIGHT_PORTS: &str = "policy=balance,ports=8";

/// Two programs that run until they are killed.
struct Programs {
    fabric: Fabric,
    server: Running,
    client: Running,
}

impl Programs {
    /// Starts a program of perftest, whose data goes to host 0, or comes from there if it READs.
    fn perftest(ways: usize, words: &[&str], settings: &str) -> Result<Self, Error> {
        let mp = |program: Program| program.device(Some("mp")).env("POLYPATH_MP", settings);
        Self::start(ways, words, mp)
    }

    /// The same on a device that knows nothing of several paths.
    fn plain(ways: usize, words: &[&str]) -> Result<Self, Error> {
        Self::start(ways, words, |program| program.device(Some("roce")))
    }

    fn start(ways: usize, words: &[&str], by: impl Fn(Program) -> Program) -> Result<Self, Error> {
        let fabric = Fabric::new(ways)?;
        let words = [words, &["--run_infinitely"]].concat();
        let server = by(fabric.host(0).verbs(&words)).spawn()?;
        server.wait_tcp_listen(18515, LIMIT)?;
        let meet = fabric.address(0);
        let client = by(fabric.host(1).verbs([&words[..], &[&meet]].concat())).spawn()?;
        Ok(Self { fabric, server, client })
    }

    fn alive(&self) -> Result<(), Error> {
        self.client.expect_alive()?;
        self.server.expect_alive()
    }

    /// Waits until `enough` is content with the bytes that each way has carried since now.
    fn wait(
        &self,
        what: &str,
        limit: Duration,
        enough: impl Fn(&[u64]) -> bool,
    ) -> Result<Vec<u64>, Error> {
        let before = self.fabric.carried()?;
        until(what, limit, || {
            self.alive()?;
            let now = self.fabric.carried()?;
            let more: Vec<u64> =
                now.iter().zip(&before).map(|(now, before)| now - before).collect();
            Ok(enough(&more).then_some(more))
        })
    }

    /// The way that carries most.
    fn busiest(&self) -> Result<usize, Error> {
        let much = |more: &[u64]| more.iter().any(|bytes| *bytes > DATA_LEAST);
        let more = self.wait("data by some way", LIMIT, much)?;
        Ok((0..more.len()).max_by_key(|way| more[*way]).unwrap_or(0))
    }

    /// The busiest way falls silent, data goes by another one, and goes on when the way is mended. (When data
    /// uses the mended way again is a matter of answers that come in time, which a busy machine does not
    /// promise: crates/paths/tests/scenarios/ports.rs has it in virtual time.)
    fn leave_a_silent_way(&self) -> Result<(), Error> {
        let way = self.busiest()?;
        self.fabric.silence(way)?;
        self.wait("data by another way", LIMIT, |more| {
            more.iter().enumerate().any(|(other, bytes)| other != way && *bytes > DATA_LEAST)
        })?;
        self.fabric.heal(way)?;
        self.wait("data", LIMIT, |more| more.iter().any(|bytes| *bytes > DATA_LEAST))?;
        self.alive()
    }
}

/// All of eight ports lead one of four ways about once in 16384 times.
fn several_ways_carry_data(program: &[&str]) -> Result<(), Error> {
    let _share = share(PATIENT);
    let programs = Programs::perftest(4, program, EIGHT_PORTS)?;
    let several = |more: &[u64]| more.iter().filter(|bytes| **bytes > DATA_LEAST).count() > 1;
    // The server's answers come the other way, so that both directions are looked at.
    programs.wait("data by several ways", LIMIT, several)?;
    let status = programs.fabric.host(1).status()?;
    let paths = status["processes"][0]["paths"].as_array().cloned().unwrap_or_default();
    let mut ports: Vec<u64> =
        paths.iter().filter_map(|path| path["source_port"].as_u64()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!((paths.len(), ports.len()), (8, 8), "{status}");
    programs.alive()
}

#[test]
fn writes_use_several_ways() -> Result<(), Error> {
    several_ways_carry_data(&["ib_write_bw"])
}

/// Host 1 serves: the data of READs goes to host 0 from there.
#[test]
fn reads_use_several_ways() -> Result<(), Error> {
    let _share = share(PATIENT);
    let fabric = Fabric::new(4)?;
    let words = ["ib_read_bw", "--run_infinitely"];
    let serve = fabric.host(1).verbs(words).device(Some("mp")).env("POLYPATH_MP", EIGHT_PORTS);
    let server = serve.spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = fabric.address(1);
    let client = fabric.host(0).verbs([&words[..], &[&meet]].concat()).device(Some("mp"));
    let client = client.env("POLYPATH_MP", EIGHT_PORTS).spawn()?;
    let programs = Programs { fabric, server, client };
    let several = |more: &[u64]| more.iter().filter(|bytes| **bytes > DATA_LEAST).count() > 1;
    programs.wait("data by several ways", LIMIT, several)?;
    Ok(())
}

#[test]
fn one_of_several_ports_leaves_a_silent_way() -> Result<(), Error> {
    let _share = share(PATIENT);
    Programs::perftest(2, &["ib_write_bw"], "policy=balance,ports=4")?.leave_a_silent_way()
}

/// The only path of a peer finds another way before its queue pairs are given up.
#[test]
fn the_only_path_leaves_a_silent_way() -> Result<(), Error> {
    let _share = share(PATIENT);
    Programs::perftest(4, &["ib_write_bw"], "ports=1")?.leave_a_silent_way()
}

#[test]
fn atomics_go_on_when_a_way_falls_silent() -> Result<(), Error> {
    let _share = share(PATIENT);
    let programs = Programs::perftest(2, &["ib_atomic_bw"], EIGHT_PORTS)?;
    let way = programs.busiest()?;
    programs.fabric.silence(way)?;
    programs.wait("atomics by the other way", LIMIT, |more| more[1 - way] > DATA_LEAST)?;
    Ok(())
}

/// The ends compare what they receive with what they expect. (Not `rping`, which posts whether or not its
/// requests have completed, and finds its send queue full when acknowledgements are lost for some ms.)
#[test]
fn nothing_is_corrupted_when_ways_fall_silent_in_turn() -> Result<(), Error> {
    let _share = share(PATIENT);
    let fabric = Fabric::new(2)?;
    let meet = fabric.address(0);
    let options = ["-S", "65536", "-C", "10000000", "-I", "1", "-T", "v"];
    let server = [&["rstream", "-b", &meet], &options[..]].concat();
    let server = fabric.host(0).verbs(server).device(Some("mp"));
    let server = server.env("POLYPATH_MP", EIGHT_PORTS).spawn()?;
    fabric.host(0).wait_cm_listen(&server, 7471, LIMIT)?;
    let client = [&["rstream", "-s", &meet], &options[..]].concat();
    let client = fabric.host(1).verbs(client).device(Some("mp"));
    let client = client.env("POLYPATH_MP", EIGHT_PORTS).spawn()?;
    let programs = Programs { fabric, server, client };
    // The connection manager has one port, so nobody connects by a silent way.
    programs.busiest()?;
    for _ in 0..2 {
        for way in 0..2 {
            programs.fabric.silence(way)?;
            programs.wait("data by the other way", LIMIT, |more| more[1 - way] > DATA_LEAST)?;
            programs.fabric.heal(way)?;
        }
    }
    programs.alive()
}

/// Plain RoCE has no probes: the ends find another way by what is not acknowledged, and by what is asked
/// again.
fn plain_ends_leave_silent_ways(program: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    // The longest time before retries run out, because a busy machine may keep an end from answering.
    let programs = Programs::plain(2, &[program, "-u", "18"])?;
    let much = |more: &[u64]| more.iter().any(|bytes| *bytes > DATA_LEAST);
    programs.wait("data", LIMIT, much)?;
    // One of them is the way of the data or of its acknowledgements; they may be the same.
    for _ in 0..2 {
        for way in 0..2 {
            programs.fabric.silence(way)?;
            programs.wait("data by the other way", LIMIT, |more| more[1 - way] > DATA_LEAST)?;
            programs.fabric.heal(way)?;
        }
    }
    programs.alive()
}

#[test]
fn plain_writes_leave_silent_ways() -> Result<(), Error> {
    plain_ends_leave_silent_ways("ib_write_bw")
}

#[test]
fn plain_sends_leave_silent_ways() -> Result<(), Error> {
    plain_ends_leave_silent_ways("ib_send_bw")
}

/// What the connection managers send again leaves by another source port.
#[test]
fn connections_are_made_while_a_way_is_silent() -> Result<(), Error> {
    let _share = share(PATIENT);
    let fabric = Fabric::new(2)?;
    let meet = fabric.address(0);
    let server = fabric.host(0).verbs(["rping", "-s", "-P", "-a", &meet]).device(Some("roce"));
    let server = server.spawn()?;
    fabric.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    // One of them is the way of requests, or that of answers.
    for way in 0..2 {
        fabric.silence(way)?;
        let client = fabric.host(1).verbs(["rping", "-c", "-a", &meet, "-C", "3"]);
        let finished = client.device(Some("roce")).run(Duration::from_secs(120))?;
        finished.expect_success()?;
        fabric.heal(way)?;
    }
    server.expect_alive()
}
