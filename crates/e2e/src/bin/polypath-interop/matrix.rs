//! Runs pairs of programs in every setting: which side is the server, IPv4 or IPv6, which MTU.

use crate::Problem;
use crate::cases::{Meeting, PAIRS, Pair, Ready};
use crate::peer;
use polypath_e2e::guest::Guest;
use polypath_e2e::{Host, Lab};
use std::fmt;
use std::time::{Duration, Instant};

/// The path MTUs of the IBTA in bytes, largest first, because a small interface loses its IPv6
/// addresses.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// An interface MTU that all path MTUs fit into.
const JUMBO: u32 = 9000;
/// The smallest interface MTU with IPv6 (RFC 8200, section 5).
const IPV6_MTU_MIN: u32 = 1280;
/// The longest time that a program may take on the emulated processor.
const LIMIT: Duration = Duration::from_secs(20);
/// The same with losses, because connecting is retried for seconds.
const LIMIT_FAULTS: Duration = Duration::from_secs(60);
/// The time beyond a program's limit within which the guest reports that it was killed.
const GRACE: Duration = Duration::from_secs(20);

/// The status of a program that `timeout` killed in the guest.
const KILLED: i32 = 128 + 9;
/// Kills the server, and its process group, which `timeout` leads.
const KILL_SERVER: &str = "kill -9 -$(cat /tmp/server) $(cat /tmp/server) 2> /dev/null; true";
/// With losses: the longest time that a server of rxe may take to end after our client has ended.
///
/// If our last acknowledgement was lost, the program that could repeat it is gone. rxe asks for it with
/// every retry, and takes a retry count of 7, which the pingpongs set, for no limit.
const FORSAKEN: Duration = Duration::from_secs(10);
/// Writes the number of DREPs that rxe's connection manager has received, which our side sends for each DREQ.
const DREPS: &str = "cat /sys/class/infiniband/rxe0/ports/1/cm_rx_msgs/drep";
/// What our program says of the same: with a retry count of 7, it asks seven times (`ibv_wc_status_str`).
const RETRIES_USED_UP: &str = "transport retry counter exceeded";
/// The number of attempts of a pair that ends in this way, and only in this way.
const ATTEMPTS_FORSAKEN: u32 = 5;
/// The number of attempts of programs over UC and UD, which lose messages when the emulated processor
/// has to wait for a real one and drops packets. Programs of other services have one attempt.
const ATTEMPTS_UNRELIABLE: u32 = 2;
/// The path MTUs of a sample.
const MTUS_SAMPLE: [u32; 2] = [4096, 1024];

/// The side that is the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// rxe is the client, Polypath the server.
    RxeToOurs,
    /// Polypath is the client, rxe the server.
    OursToRxe,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RxeToOurs => "rxe to Polypath",
            Self::OursToRxe => "Polypath to rxe",
        })
    }
}

/// The version of IP that carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The setting of a run, without its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) direction: Direction,
    pub(crate) ip: Ip,
    /// Path MTU in bytes.
    pub(crate) mtu: u32,
    /// Polypath's device, as `polypath run --device` takes it.
    pub(crate) device: &'static str,
    /// Whether packets are lost and reordered.
    pub(crate) faults: bool,
}

impl Setting {
    /// Whether packets are lost and the pair sends them again. Its last acknowledgement may be one.
    fn mends_losses(self, pair: &Pair) -> bool {
        self.faults && pair.is_reliable()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, ip, mtu, device, faults } = self;
        let faults = if *faults { ", losses" } else { "" };
        write!(f, "{direction}, {ip}, MTU {mtu}, {device}{faults}")
    }
}

/// The reason for another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// One program succeeded with losses and ended, and the other one waits for an acknowledgement that was
    /// lost: rxe's for ever, ours until its retries are used up. Or it waits for the end of the connection:
    /// Linux does not repeat a DREQ whose program has ended.
    Forsaken,
    /// UC or UD, which do not send again what an emulated processor has dropped.
    Unreliable,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forsaken => {
                "the last acknowledgement or DREQ was lost, and its program had ended"
            }
            Self::Unreliable => "an unreliable service lost a packet",
        })
    }
}

/// The outcome of a run: what was wrong, if anything.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) pair: &'static Pair,
    pub(crate) setting: Setting,
    pub(crate) took: Duration,
    pub(crate) failure: Option<String>,
    /// The reasons why earlier attempts do not count, and what was wrong with them.
    pub(crate) earlier: Vec<(Cause, String)>,
}

/// The MTU that the interfaces need for a run.
fn interface_mtu(meeting: Meeting, path_mtu: u32) -> u32 {
    match (meeting, path_mtu) {
        (Meeting::ByHand, _) | (_, 4096) => JUMBO,
        (_, 2048) => 2200,
        (_, 1024) => 1500,
        (_, mtu) => mtu + 120,
    }
}

/// Every run whose pair and setting, as they are reported, contain `only`, from large to small MTUs, so
/// that the MTU of the interfaces changes as seldom as possible.
///
/// The programs of perftest, which are many and alike in this respect, are not run with most
/// combinations of MTU and IPv6.
///
/// A `sample` has all programs, but only two path MTUs.
pub(crate) fn plan(only: &str, sample: bool) -> Vec<(u32, &'static Pair, Setting)> {
    let mut runs = Vec::new();
    for pair in PAIRS {
        let mut add = |ip, mtu, device, faults| {
            let interface = interface_mtu(pair.meeting, mtu);
            if ip == Ip::V6 && (pair.ipv4_only || interface < IPV6_MTU_MIN) {
                return;
            }
            for direction in [Direction::RxeToOurs, Direction::OursToRxe] {
                runs.push((interface, pair, Setting { direction, ip, mtu, device, faults }));
            }
        };
        let perftest = pair.name.starts_with("ib_");
        for &mtu in if sample { &MTUS_SAMPLE[..] } else { &MTUS[..] } {
            let manager = pair.meeting == Meeting::Manager;
            if !(perftest && manager && matches!(mtu, 2048 | 512)) {
                add(Ip::V4, mtu, "roce", false);
            }
            if !perftest || mtu == 1024 {
                add(Ip::V6, mtu, "roce", false);
            }
        }
        if pair.faults {
            add(Ip::V4, 1024, "roce", true);
            add(Ip::V6, 1024, "roce", true);
            // A multi-path device also has to work with a peer that does not support multi-path.
            add(Ip::V4, 4096, "mp:eth0", false);
        }
    }
    runs.retain(|(_, pair, setting)| format!("{}, {setting}", pair.name).contains(only));
    runs.sort_by_key(|(interface, _, setting)| (std::cmp::Reverse(*interface), setting.faults));
    runs
}

/// Both sides, and the present settings of their interfaces.
#[derive(Debug)]
pub(crate) struct Sides<'lab> {
    lab: &'lab Lab,
    pub(crate) guest: Guest,
    mtu: u32,
    faults: bool,
}

impl<'lab> Sides<'lab> {
    pub(crate) fn new(lab: &'lab Lab, guest: Guest) -> Self {
        Self { lab, guest, mtu: JUMBO, faults: false }
    }

    pub(crate) fn host(&self) -> &'lab Host {
        self.lab.host(0)
    }

    /// Runs a pair in a setting, with interfaces of this MTU.
    pub(crate) fn run(
        &mut self,
        interface_mtu: u32,
        pair: &'static Pair,
        setting: Setting,
    ) -> Result<Outcome, Problem> {
        self.prepare(interface_mtu, setting.faults)?;
        let start = Instant::now();
        let mut earlier = Vec::new();
        let failure = loop {
            let Err(problem) = self.attempt(pair, setting) else { break None };
            let (cause, most) = match problem {
                Problem::Forsaken(_) => (Cause::Forsaken, ATTEMPTS_FORSAKEN),
                _ if !pair.is_reliable() => (Cause::Unreliable, ATTEMPTS_UNRELIABLE),
                _ => break Some(problem.to_string()),
            };
            let before = earlier.iter().filter(|(c, _)| *c == cause).count() as u32;
            if before + 1 >= most {
                break Some(problem.to_string());
            }
            earlier.push((cause, problem.to_string()));
        };
        Ok(Outcome { pair, setting, took: start.elapsed(), failure, earlier })
    }

    fn attempt(&mut self, pair: &Pair, setting: Setting) -> Result<(), Problem> {
        let limit = if setting.faults { LIMIT_FAULTS } else { LIMIT };
        match setting.direction {
            Direction::RxeToOurs => self.rxe_to_ours(pair, setting, limit),
            Direction::OursToRxe => self.ours_to_rxe(pair, setting, limit),
        }
    }

    fn prepare(&mut self, mtu: u32, faults: bool) -> Result<(), Problem> {
        if mtu != self.mtu {
            self.guest.run(&format!("set_mtu {mtu}"))?;
            let commands = format!("link set eth0 mtu {mtu}\n");
            self.host().tool("ip", &["-batch", "-"], &commands)?;
            self.mtu = mtu;
        }
        if faults != self.faults {
            self.guest.run(if faults { "faults_on" } else { "faults_off" })?;
            self.faults = faults;
        }
        Ok(())
    }

    /// What rxe says of how many ends of connections our side has acknowledged.
    fn ends_seen(&mut self) -> Result<String, Problem> {
        self.guest.client.run(DREPS, GRACE)?.success(DREPS)
    }

    fn rxe_to_ours(
        &mut self,
        pair: &Pair,
        setting: Setting,
        limit: Duration,
    ) -> Result<(), Problem> {
        let server = fill(pair.server, setting);
        let host = self.host();
        let server = host.verbs(server.split_whitespace()).device(Some(setting.device)).spawn()?;
        match pair.ready {
            Ready::Tcp(port) => server.wait_tcp_listen(port, LIMIT)?,
            Ready::Manager(port) => host.wait_cm_listen(&server, port, LIMIT)?,
            Ready::Line(text) => drop(server.wait_line(text, LIMIT)?),
        }
        let client = fill(pair.client, setting);
        let command = format!("timeout -s KILL {} {client}", limit.as_secs());
        let may_lose_its_end = setting.mends_losses(pair) && pair.meeting == Meeting::Manager;
        let ends_seen = if may_lose_its_end { Some(self.ends_seen()?) } else { None };
        let answer = self.guest.client.run(&command, limit + GRACE)?;
        let with_server = |problem: String| {
            Problem::Failed(format!("{problem}\nthe server wrote:\n{}", server.text()))
        };
        if setting.mends_losses(pair) && answer.status == KILLED {
            // As with a server of rxe ([`FORSAKEN`]), our server's last acknowledgement may be lost,
            // and no program is left to repeat it.
            let said = server.text();
            let ended = server.finish(FORSAKEN).and_then(polypath_e2e::Finished::expect_success);
            return match ended {
                Ok(_) => Err(Problem::Forsaken(client)),
                Err(error) => Err(Problem::Failed(format!(
                    "{client} did not end, and the server failed: {error}\nthe server wrote:\n{said}"
                ))),
            };
        }
        let text = answer.success(&client).map_err(|e| with_server(e.to_string()))?;
        if !text.contains(pair.expect) {
            let problem = format!("{client} did not write {:?}\n{text}", pair.expect);
            return Err(with_server(problem));
        }
        let ended = match server.finish(limit) {
            // The connection's end was not seen here, and nobody is left to repeat it.
            Err(polypath_e2e::Error::Timeout { .. })
                if may_lose_its_end && Some(self.ends_seen()?) == ends_seen =>
            {
                return Err(Problem::Forsaken(fill(pair.server, setting)));
            }
            ended => ended?,
        };
        if setting.mends_losses(pair) && ended.text().contains(RETRIES_USED_UP) {
            return Err(Problem::Forsaken(fill(pair.server, setting)));
        }
        ended.expect_success()?;
        Ok(())
    }

    fn ours_to_rxe(
        &mut self,
        pair: &Pair,
        setting: Setting,
        limit: Duration,
    ) -> Result<(), Problem> {
        let server = fill(pair.server, setting);
        // Both programs may take their limits one after the other.
        let seconds = 2 * limit.as_secs();
        self.guest.server.start(&format!(
            "timeout -s KILL {seconds} stdbuf -oL {server} & echo $! > /tmp/server; wait $!"
        ))?;
        let client = self.served_by_rxe(pair, setting, limit);
        if client.is_err() {
            self.guest.run(KILL_SERVER)?;
        }
        let may_wait_for_ever = client.is_ok() && setting.faults;
        let patience = if may_wait_for_ever { FORSAKEN } else { limit + GRACE };
        let mut answer = self.guest.server.finish(patience);
        if client.is_ok() && answer.is_err() {
            self.guest.run(KILL_SERVER)?;
            answer = self.guest.server.finish(GRACE);
            if may_wait_for_ever && answer.is_ok() {
                return Err(Problem::Forsaken(server));
            }
        }
        match (client, answer) {
            (Ok(()), Ok(answer)) => answer.success(&server).map(drop),
            (Ok(()), Err(problem)) => Err(problem),
            (Err(problem), Ok(answer))
                if setting.mends_losses(pair)
                    && answer.status == 0
                    && problem.to_string().contains(RETRIES_USED_UP) =>
            {
                Err(Problem::Forsaken(fill(pair.client, setting)))
            }
            (Err(problem), Ok(answer)) => {
                let text = format!("{problem}\nthe server wrote:\n{}", answer.text);
                Err(Problem::Failed(text))
            }
            (Err(problem), Err(other)) => Err(Problem::Failed(format!("{problem}\nand {other}"))),
        }
    }

    fn served_by_rxe(
        &mut self,
        pair: &Pair,
        setting: Setting,
        limit: Duration,
    ) -> Result<(), Problem> {
        match pair.ready {
            Ready::Tcp(port) => drop(self.guest.run(&format!("wait_tcp {port}"))?),
            Ready::Manager(port) => drop(self.guest.run(&format!("wait_cm {port}"))?),
            Ready::Line(text) => self.guest.server.wait_line(text, LIMIT)?,
        }
        let client = fill(pair.client, setting);
        let client = self.host().verbs(client.split_whitespace()).device(Some(setting.device));
        client.run(limit)?.expect_success()?.expect_line(pair.expect)?;
        Ok(())
    }
}

/// Puts the values of a setting into a command line, in the place of their names.
fn fill(command: &str, setting: Setting) -> String {
    let (ours, ours6) = ("10.0.0.1", "fd00::1");
    let (server, client, server6, client6) = match setting.direction {
        Direction::RxeToOurs => (ours, peer::IPV4, ours6, peer::IPV6),
        Direction::OursToRxe => (peer::IPV4, ours, peer::IPV6, ours6),
    };
    let by_ip = |v4, v6| if setting.ip == Ip::V4 { v4 } else { v6 };
    command
        .replace("{host}", server)
        .replace("{server}", by_ip(server, server6))
        .replace("{client}", by_ip(client, client6))
        .replace("{gid}", by_ip("1", "2"))
        .replace("{group}", by_ip("239.1.1.1", "ff0e::1:1"))
        .replace("{mtu}", &setting.mtu.to_string())
}
