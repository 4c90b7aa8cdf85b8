//! The systems that are compared, and a transfer over one of them.

use polypath_e2e::{Error, Host, Lab, Transfer, Words, until};
use std::time::Duration;

/// The time for programs to start and for paths to be ready, by far.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
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
        match self {
            Self::Apm => host.is_armed(),
            Self::Bond | Self::Mp => host.live_paths() >= 2,
        }
    }
}

/// A transfer over one of the systems.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) system: System,
    pub(crate) transfer: Transfer,
}

/// Starts a program between two hosts with so many links, and waits until it transfers, which `moved` says.
pub(crate) fn start(
    system: System,
    hosts: [&Host; 2],
    links: usize,
    ports: bool,
    words: Words,
    moved: impl Fn() -> Result<u64, Error>,
) -> Result<Over, Error> {
    let (name, value) = system.setting(ports);
    let run = |host: &Host, line: &str| {
        let program = host.verbs(line.split_whitespace()).device(Some(system.device(links)));
        program.env(name, value).spawn()
    };
    Ok(Over { system, transfer: Transfer::start(hosts, words, run, moved)? })
}

/// All bytes that both hosts of a lab have received.
pub(crate) fn received(lab: &Lab) -> Result<u64, Error> {
    Ok(lab.received_bytes()?.iter().flatten().sum())
}

impl Over {
    /// Fails if an end has ended.
    pub(crate) fn expect_alive(&self) -> Result<(), Error> {
        self.transfer.expect_alive()
    }

    /// Waits until both hosts can lose a path.
    pub(crate) fn wait_ready(&self, hosts: [&Host; 2]) -> Result<(), Error> {
        until(&format!("{} to have two paths", self.system.name()), LIMIT, || {
            self.expect_alive()?;
            Ok(hosts.iter().all(|host| self.system.is_ready(host)).then_some(()))
        })
    }
}
