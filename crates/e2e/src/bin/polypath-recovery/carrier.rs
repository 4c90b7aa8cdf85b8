//! What carries the traffic.

use crate::scene::Scene;
use polypath_e2e::{Error, Host, Lab, Meeting, Transfer, Words, until};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// The time for paths to be ready, by far.
const LIMIT: Duration = Duration::from_secs(60);

/// What carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Balance,
    ActiveBackup,
    Bond,
    Apm,
    Tcp,
    Mptcp,
}

/// iperf3, which is as unmodified as perftest.
const IPERF: Words = Words {
    server: "iperf3 -s -1",
    client: "iperf3 -c {server} -t 3600",
    meeting: Meeting::ByHand(5201),
};
/// The same with the sockets of Multipath TCP.
const IPERF_MPTCP: Words = Words {
    server: "mptcpize run iperf3 -s -1",
    client: "mptcpize run iperf3 -c {server} -t 3600",
    meeting: Meeting::ByHand(5201),
};

impl Carrier {
    pub(crate) const ALL: [Self; 6] =
        [Self::Balance, Self::ActiveBackup, Self::Bond, Self::Apm, Self::Mptcp, Self::Tcp];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Balance => "mp, balance",
            Self::ActiveBackup => "mp, active-backup",
            Self::Bond => "bond, balance-rr",
            Self::Apm => "APM",
            Self::Tcp => "TCP",
            Self::Mptcp => "MPTCP",
        }
    }

    /// Whether it has a part in a scene: APM knows two ports.
    pub(crate) fn plays(self, scene: Scene) -> bool {
        self != Self::Apm || scene.rates().len() == 2
    }

    /// Why this machine can't run it, if so.
    pub(crate) fn missing(self) -> Option<String> {
        let lacks = |found: bool, what: &str| (!found).then(|| what.to_owned());
        let there = |program: &str| Path::new("/usr/bin").join(program).exists();
        match self {
            Self::Tcp => lacks(there("iperf3"), "iperf3 is not installed"),
            Self::Mptcp => Self::Tcp
                .missing()
                .or_else(|| {
                    let kernel = Path::new("/proc/sys/net/mptcp/enabled").exists();
                    lacks(kernel, "this kernel has no MPTCP")
                })
                .or_else(|| lacks(there("mptcpize"), "mptcpize is not installed")),
            _ => None,
        }
    }

    /// The device, and a name and a value of the environment.
    fn polypath(self, links: usize) -> Option<(String, [&'static str; 2])> {
        let members = (0..links).map(|link| format!("eth{link}")).collect::<Vec<_>>().join("+");
        Some(match self {
            Self::Balance => ("mp".to_owned(), ["POLYPATH_MP", "policy=balance"]),
            Self::ActiveBackup => ("mp".to_owned(), ["POLYPATH_MP", "policy=active-backup"]),
            Self::Bond => (format!("bond:{members},mode=balance-rr"), ["POLYPATH_MP", "hold=15"]),
            Self::Apm => ("roce2".to_owned(), ["POLYPATH_APM", "on"]),
            Self::Tcp | Self::Mptcp => return None,
        })
    }

    /// Starts a transfer from host 1 to host 0 over so many links, and waits until it is ready to lose one.
    pub(crate) fn start(self, lab: &Lab, links: usize) -> Result<Transfer, Error> {
        let hosts = [lab.host(0), lab.host(1)];
        let moved = || Ok(lab.received_bytes_of(0)?.iter().sum());
        let Some((device, [name, value])) = self.polypath(links) else {
            let words = if self == Self::Mptcp { IPERF_MPTCP } else { IPERF };
            if self == Self::Mptcp {
                join_links(lab, links)?;
            }
            let run = |host: &Host, line: &str| host.program(line.split_whitespace()).spawn();
            return Transfer::start(hosts, words, run, moved);
        };
        let run = |host: &Host, line: &str| {
            host.verbs(line.split_whitespace()).device(Some(&device)).env(name, value).spawn()
        };
        let transfer = Transfer::start(hosts, Words::WRITE, run, moved)?;
        let ready = |host: &&Host| match self {
            Self::Apm => host.is_armed(),
            _ => host.live_paths() >= links,
        };
        until(&format!("{} to have all its paths", self.name()), LIMIT, || {
            transfer.expect_alive()?;
            Ok(hosts.iter().all(ready).then_some(()))
        })?;
        Ok(transfer)
    }
}

/// Lets Multipath TCP use all links: host 0 announces its other addresses, and host 1 connects to them.
fn join_links(lab: &Lab, links: usize) -> Result<(), Error> {
    let limits = "limits set subflow 8 add_addr_accepted 8\n";
    let mut announced = limits.to_owned();
    for link in 1..links {
        writeln!(announced, "endpoint add {} dev eth{link} signal", lab.host(0).ipv4(link)).ok();
    }
    for (host, commands) in [(0, announced.as_str()), (1, limits)] {
        for command in commands.lines() {
            let words: Vec<&str> = ["mptcp"].into_iter().chain(command.split(' ')).collect();
            lab.host(host).tool("ip", &words, "")?;
        }
    }
    Ok(())
}
