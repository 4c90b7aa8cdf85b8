//! The systems that are compared, and a transfer over one of them.

use polypath_e2e::{Error, Host, Lab, Running, until};
use serde_json::Value;
use std::time::Duration;

/// The time for programs to start and for paths to be ready, by far.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// How often a program is started that is rejected: perftest's client connects twice, and its server listens
/// anew in between.
const ATTEMPTS: usize = 5;

/// One of the systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Apm,
    Bond,
    Mp,
}

impl System {
    pub(crate) const ALL: [Self; 3] = [Self::Apm, Self::Bond, Self::Mp];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apm => "APM",
            Self::Bond => "bond",
            Self::Mp => "MP-RDMA",
        }
    }

    /// Its device on a host with so many links, as `polypath run --device` takes it.
    pub(crate) fn device(self, links: usize) -> &'static str {
        match (self, links) {
            (Self::Apm, 1) => "roce",
            (Self::Apm, _) => "roce2",
            (Self::Bond, 1) => "bond:eth0,mode=balance-rr",
            (Self::Bond, _) => "bond:eth0+eth1,mode=balance-rr",
            (Self::Mp, _) => "mp",
        }
    }

    /// What else it needs: a name and a value of the environment.
    pub(crate) fn setting(self, ports: bool) -> (&'static str, &'static str) {
        match (self, ports) {
            (Self::Apm, _) => ("POLYPATH_APM", "on"),
            (Self::Bond, true) => ("POLYPATH_MP", "ports=8"),
            (Self::Bond, false) => ("POLYPATH_MP", "hold=15"),
            (Self::Mp, true) => ("POLYPATH_MP", "policy=balance,ports=8"),
            (Self::Mp, false) => ("POLYPATH_MP", "policy=balance"),
        }
    }

    /// Whether a host's connections can lose a path now: they have another one.
    fn is_ready(self, host: &Host) -> bool {
        // A status that does not come in time says nothing: whoever asks asks again.
        match self {
            Self::Apm => {
                let mut qps = host.queue_pairs().unwrap_or_default();
                qps.retain(|qp| qp["state"] == "RTS");
                !qps.is_empty() && qps.iter().all(|qp| qp["migration"]["state"] == "ARMED")
            }
            Self::Bond | Self::Mp => {
                let live = |path: &&Value| path["state"] == "active" || path["state"] == "standby";
                host.paths().unwrap_or_default().iter().filter(live).count() >= 2
            }
        }
    }
}

/// A program at both ends.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) system: System,
    pub(crate) server: Running,
    pub(crate) client: Running,
}

/// How a program's ends find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// By rdma_cm, on this port.
    Manager(u16),
    /// By a TCP connection, on this port.
    ByHand(u16),
}

/// A program that runs until it is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    pub(crate) meeting: Meeting,
}

/// The program that is measured.
pub(crate) const WRITE: Words = Words {
    server: "ib_write_bw -R --run_infinitely",
    client: "ib_write_bw -R --run_infinitely {server}",
    meeting: Meeting::Manager(18515),
};

/// Starts a program between two hosts with so many links, and waits until it transfers, which `moved` says.
pub(crate) fn start(
    system: System,
    hosts: [&Host; 2],
    links: usize,
    ports: bool,
    words: Words,
    moved: impl Fn() -> Result<u64, Error>,
) -> Result<Transfer, Error> {
    let (name, value) = system.setting(ports);
    let run = |host: &Host, line: &str| {
        let line = line.replace("{server}", &hosts[0].ipv4(0));
        let program = host.verbs(line.split_whitespace()).device(Some(system.device(links)));
        program.env(name, value).spawn()
    };
    for _ in 0..ATTEMPTS {
        let server = run(hosts[0], words.server)?;
        match words.meeting {
            Meeting::Manager(port) => hosts[0].wait_cm_listen(&server, port, LIMIT)?,
            Meeting::ByHand(port) => server.wait_tcp_listen(port, LIMIT)?,
        }
        let client = run(hosts[1], words.client)?;
        let before = moved()?;
        let transfers = until("a transfer", LIMIT, || {
            client.expect_alive()?;
            Ok((moved()? > before + (1 << 20)).then_some(()))
        });
        match transfers {
            Err(_) if client.text().contains("REJECTED") => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(Transfer { system, server, client }),
        }
    }
    Err(Error::Missing(format!("the client of {words:?} was rejected {ATTEMPTS} times")))
}

/// All bytes that both hosts of a lab have received.
pub(crate) fn received(lab: &Lab) -> Result<u64, Error> {
    Ok(lab.received_bytes()?.iter().flatten().sum())
}

impl Transfer {
    /// Fails if an end has ended.
    pub(crate) fn expect_alive(&self) -> Result<(), Error> {
        self.server.expect_alive()?;
        self.client.expect_alive()
    }

    /// Waits until both hosts can lose a path.
    pub(crate) fn wait_ready(&self, hosts: [&Host; 2]) -> Result<(), Error> {
        until(&format!("{} to have two paths", self.system.name()), LIMIT, || {
            self.expect_alive()?;
            Ok(hosts.iter().all(|host| self.system.is_ready(host)).then_some(()))
        })
    }
}
