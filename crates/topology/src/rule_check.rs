//! Checks rules before they are followed.

use crate::bonding::{Bonding, BondingError, INTERFACES_MAX, PORTS_MAX};
use crate::registry::PROVIDERS;
use crate::rules::{DELAY_MAX, DEVICE_MAX, PROGRAM_MAX, Rule, RuleScope};

/// The longest name of an interface in bytes (`IFNAMSIZ` − 1).
const INTERFACE_MAX: usize = 15;

/// A rule that cannot be followed. The text says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// It sets nothing.
    #[error(
        "it sets nothing: add policy=active-backup|balance|affinity|redundant|efficient, or another \
         setting"
    )]
    Empty,
    /// Settings of a device for some of its peers or queue pairs.
    #[error(
        "cost, numa_node, primary, primary_reselect, updelay, downdelay, hold, rendezvous, ecn, ports, local \
         and tcp are the same for all peers of a device: set them without naming a peer or a queue pair"
    )]
    OfDevice,
    /// A delay that is too long.
    #[error("updelay and downdelay are at most {} ms", DELAY_MAX.as_millis())]
    Delay,
    /// A number of source ports that there can't be.
    #[error("ports is a number from 1 to {PORTS_MAX}")]
    Ports,
    /// Costs or NUMA nodes of more interfaces than there may be.
    #[error("it has the costs or NUMA nodes of more than {INTERFACES_MAX} interfaces: remove some")]
    Interfaces,
    /// A name that nothing can have.
    #[error("`{name}` is no name of {what}: {write}")]
    Name {
        /// What it was to name.
        what: &'static str,
        /// The name.
        name: String,
        /// A valid one.
        write: &'static str,
    },
    /// Settings that do not belong together.
    #[error(transparent)]
    Bonding(#[from] BondingError),
}

impl Rule {
    /// Checks that the rule can be followed.
    ///
    /// # Errors
    /// It cannot; the text says why.
    pub fn check(&self) -> Result<(), RuleError> {
        let RuleScope { queue_pair, peer, program, device, .. } = &self.scope;
        self.settings.check()?;
        if self.settings.is_empty() {
            return Err(RuleError::Empty);
        }
        if (queue_pair.is_some() || peer.is_some()) && self.settings.is_of_device() {
            return Err(RuleError::OfDevice);
        }
        if self.settings.updelay.max(self.settings.downdelay) > Some(DELAY_MAX) {
            return Err(RuleError::Delay);
        }
        if self.settings.ports.is_some_and(|ports| !(1..=PORTS_MAX).contains(&ports)) {
            return Err(RuleError::Ports);
        }
        let check = |what, name: &Option<String>, max, write| match name {
            Some(name)
                if name.is_empty() || name.len() > max || name.contains(char::is_control) =>
            {
                let name = name.chars().take(80).flat_map(char::escape_debug).collect();
                Err(RuleError::Name { what, name, write })
            }
            _ => Ok(()),
        };
        check(
            "a program",
            program,
            PROGRAM_MAX,
            "write what `ps -o comm` shows, at most 15 bytes",
        )?;
        check("an mp or bond device", device, DEVICE_MAX, "write mp0, mp:eth0+eth1 or bond0")?;
        let Bonding { costs, numa_nodes, .. } = &self.settings;
        if costs.len().max(numa_nodes.len()) > INTERFACES_MAX {
            return Err(RuleError::Interfaces);
        }
        // What is joined by commas could not be told apart.
        let odd = |c: char| c.is_whitespace() || matches!(c, ',' | '/' | ':');
        let listed = costs.iter().chain(numa_nodes).map(|(name, _)| name);
        for name in self.settings.primary.iter().chain(listed) {
            let (what, write) = ("an interface", "write one such as eth0");
            check(what, &Some(name.clone()), INTERFACE_MAX, write)?;
            if name.contains(odd) {
                return Err(RuleError::Name { what, name: name.clone(), write });
            }
        }
        if let Some(name) = device.as_ref().filter(|name| !is_mp(name)) {
            let write = "write mp0, mp:eth0+eth1 or bond0, because other devices use one path only";
            return Err(RuleError::Name {
                what: "an mp or bond device",
                name: name.clone(),
                write,
            });
        }
        Ok(())
    }
}

/// Whether a device of this name may be multi-path.
fn is_mp(name: &str) -> bool {
    let rest = PROVIDERS
        .iter()
        .filter(|provider| provider.kind().multipath)
        .find_map(|provider| name.strip_prefix(provider.kind().prefix));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c == ':' || c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bonding::Bonding;
    use crate::rules::RuleSource;

    fn check(at: &str, settings: &str) -> Result<(), RuleError> {
        let mut scope = RuleScope::default();
        match at.split_once('=') {
            Some(("qp", qpn)) => scope.queue_pair = Some(qpn.parse().unwrap()),
            Some(("peer", subnet)) => scope.peer = Some(subnet.parse().unwrap()),
            Some(("program", name)) => scope.program = Some(name.to_owned()),
            Some(("device", name)) => scope.device = Some(name.to_owned()),
            _ => assert_eq!(at, ""),
        }
        let settings = Bonding::parse(settings).unwrap();
        Rule { scope, settings, source: RuleSource::Command }.check()
    }

    #[test]
    fn a_rule_that_cannot_be_followed_is_refused_with_advice() {
        for (at, settings) in [
            ("", "balance"),
            ("device=mp0", "primary=eth0"),
            ("device=bond0", "balance"),
            ("peer=::/0", "affinity"),
        ] {
            assert_eq!(check(at, settings), Ok(()));
        }
        assert_eq!(check("", ""), Err(RuleError::Empty));
        for at in ["peer=10.0.0.0/8", "qp=17"] {
            assert_eq!(check(at, "balance,updelay=1"), Err(RuleError::OfDevice));
        }
        for (at, settings, says) in [
            ("device=roce0", "balance", "write mp0, mp:eth0+eth1 or bond0, because"),
            ("device=mpx", "balance", "write mp0"),
            ("program=a-name-of-sixteen", "balance", "at most 15 bytes"),
            ("", "primary=a b", "such as eth0"),
            ("program=a\nb", "balance", "`a\\nb` is no name of a program"),
            ("", "updelay=3600001", "at most 3600000 ms"),
            ("", "primary=an-interface-name-too-long", "such as eth0"),
        ] {
            let error = check(at, settings).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
