//! Rules of how mp devices use their paths, and which of them a process follows.
//!
//! A [`Rule`] says settings of the processes, peers or queue pairs in its [`RuleScope`]. Rules come from
//! commands and from the configuration file. The broker keeps them in its [`Table`](crate::Table), so each
//! process has them from its start, and is told when they change. [`InForce`] says what follows for one
//! process.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bonding::{AffinityRule, Bonding, Policy};
use crate::subnet::Subnet;

/// The largest number of rules that commands may set, and as many that the configuration file may have.
pub const RULES_MAX: usize = 24;

/// The longest program name in bytes. The kernel keeps no more of it (`TASK_COMM_LEN` − 1).
pub const PROGRAM_MAX: usize = 15;

/// The longest name of a device in bytes: enough for two interfaces with long names.
pub const DEVICE_MAX: usize = 34;

/// The longest `updelay` and `downdelay` of a rule.
pub const DELAY_MAX: Duration = Duration::from_secs(3600);

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The scope of the rule.
    pub scope: RuleScope,
    /// What it sets there.
    pub settings: Bonding,
    /// The place that the rule comes from.
    pub source: RuleSource,
}

/// The scope of a rule. What is `None` is not restricted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleScope {
    /// One queue pair, by its number, which no two processes have at a time. Then `process` says only when
    /// the rule ends.
    pub queue_pair: Option<u32>,
    /// The peers with an address in this subnet.
    pub peer: Option<Subnet>,
    /// One process, by its number.
    pub process: Option<u32>,
    /// The processes of the program with this name, as `ps -o comm` shows it: at most 15 bytes.
    pub program: Option<String>,
    /// The mp or bond device of this name (`mp0`, `bond0`), or of this selection (`mp:eth0+eth1`).
    pub device: Option<String>,
}

/// The place that a rule comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleSource {
    /// A command.
    Command,
    /// This line of the configuration file.
    File {
        /// Counted from 1.
        line: u32,
    },
}

impl RuleScope {
    /// How narrow it is: queue pairs before peers, these by their prefixes, then processes, programs, and
    /// devices.
    fn rank(&self) -> (bool, Option<u8>, bool, bool, bool) {
        let Self { queue_pair, peer, process, program, device } = self;
        let prefix = peer.map(|subnet| subnet.prefix_len);
        (queue_pair.is_some(), prefix, process.is_some(), program.is_some(), device.is_some())
    }

    /// Whether some of it is in a process.
    fn has(&self, process: &Process<'_>) -> bool {
        let Self { queue_pair, peer: _, process: pid, program, device } = self;
        pid.is_none_or(|pid| pid == process.pid || queue_pair.is_some())
            && program.as_deref().is_none_or(|program| program == process.program)
            && device.as_ref().is_none_or(|device| process.devices.contains(device))
    }
}

impl fmt::Display for RuleScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue_pair, peer, process, program, device } = self;
        let parts = [
            queue_pair.map(|qpn| format!("queue pair {qpn:#08x}")),
            peer.map(|subnet| format!("peer {subnet}")),
            process.map(|pid| format!("process {pid}")),
            program.as_ref().map(|name| format!("program {name}")),
            device.as_ref().map(|name| format!("device {name}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "everything" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// The properties of a process that rules may name.
#[derive(Debug, Clone, Copy)]
pub struct Process<'a> {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub program: &'a str,
    /// The names of its mp and bond devices, and that of the selection.
    pub devices: &'a [String],
    /// What its selection of devices sets ([`Selection::settings`](crate::Selection::settings)).
    pub selected: &'a Bonding,
    /// What follows from the bonds of the kernel's below its devices
    /// ([`Selection::settings_below`](crate::Selection::settings_below)).
    pub below: &'a Bonding,
}

/// A policy with its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChoice {
    /// The policy.
    pub policy: Policy,
    /// How the path of a queue pair is found under [`Policy::Affinity`]; `None` means by hash.
    pub affinity: Option<AffinityRule>,
}

impl PolicyChoice {
    /// What users get who set nothing: the bandwidth of all paths.
    pub const DEFAULT: Self = Self { policy: Policy::Balance, affinity: None };

    /// What users get who only name an interface to prefer: under bonding's name for it, `primary`, one
    /// interface carries the data while it works.
    const WITH_PRIMARY: Self = Self { policy: Policy::ActiveBackup, affinity: None };

    fn of(settings: &Bonding) -> Option<Self> {
        Some(Self { policy: settings.policy?, affinity: settings.affinity })
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, affinity } = *self;
        Bonding { policy: Some(policy), affinity, ..Bonding::default() }.fmt(f)
    }
}

/// The place that what is in force comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A command.
    Command,
    /// `POLYPATH_MP` in the environment of the process.
    Environment,
    /// The mode of its bond device.
    Device,
    /// This line of the configuration file.
    File(u32),
    /// The mode of the kernel's bond below its device.
    KernelBond,
    /// Nothing was set.
    Default,
}

impl From<RuleSource> for Origin {
    fn from(source: RuleSource) -> Self {
        match source {
            RuleSource::Command => Self::Command,
            RuleSource::File { line } => Self::File(line),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command => f.write_str("command"),
            Self::Environment => f.write_str("POLYPATH_MP"),
            Self::Device => f.write_str("the device's mode"),
            Self::File(line) => write!(f, "configuration file, line {line}"),
            Self::KernelBond => f.write_str("the kernel's bond"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What a process follows. A command goes before the options of a bond device, these before `POLYPATH_MP`,
/// that before the configuration file, and that before what follows from a bond of the kernel's. Of two
/// rules of the same source, the narrower one goes first ([`RuleScope`]'s fields, in their order). Each
/// setting is found by itself, but the policy and its rule together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// What is set for the process, apart from single peers and queue pairs.
    pub settings: Bonding,
    /// The policy, unless something is said of the peer or the queue pair.
    pub policy: (PolicyChoice, Origin),
    /// The policies of some peers. The first subnet that has a peer's address counts.
    pub peers: Vec<(Subnet, PolicyChoice, Origin)>,
    /// The policies of some queue pairs, by their numbers.
    pub queue_pairs: BTreeMap<u32, (PolicyChoice, Origin)>,
}

impl InForce {
    /// What a process with this `POLYPATH_MP` follows.
    #[must_use]
    pub fn of(rules: &[Rule], environment: &Bonding, process: &Process<'_>) -> Self {
        let mut rules: Vec<&Rule> = rules.iter().filter(|rule| rule.scope.has(process)).collect();
        // Of two equal scopes the later rule goes first.
        rules.reverse();
        rules.sort_by_key(|rule| core::cmp::Reverse(rule.scope.rank()));
        let from = |command: bool| {
            let fits = move |rule: &&&Rule| (rule.source == RuleSource::Command) == command;
            rules.iter().filter(fits).copied()
        };
        let of_process =
            |rule: &&Rule| rule.scope.queue_pair.is_none() && rule.scope.peer.is_none();
        let mut settings = Bonding::default();
        let mut policy = (PolicyChoice::DEFAULT, Origin::Default);
        let mut prefer = |more: &Bonding, origin: Origin| {
            settings.prefer(more);
            policy = PolicyChoice::of(more).map_or(policy, |choice| (choice, origin));
        };
        // The weakest comes first, and is overwritten by stronger ones.
        let weakest_first =
            |command| from(command).filter(of_process).collect::<Vec<_>>().into_iter().rev();
        prefer(process.below, Origin::KernelBond);
        weakest_first(false).for_each(|rule| prefer(&rule.settings, rule.source.into()));
        prefer(environment, Origin::Environment);
        prefer(process.selected, Origin::Device);
        weakest_first(true).for_each(|rule| prefer(&rule.settings, rule.source.into()));
        if policy.1 == Origin::Default && settings.primary.is_some() {
            policy.0 = PolicyChoice::WITH_PRIMARY;
        }
        let of_peers = |command| {
            from(command).filter(|rule| rule.scope.queue_pair.is_none()).filter_map(|rule| {
                Some((rule.scope.peer?, PolicyChoice::of(&rule.settings)?, rule.source.into()))
            })
        };
        let mut peers: Vec<_> = of_peers(true).collect();
        if !matches!(policy.1, Origin::Command | Origin::Environment | Origin::Device) {
            peers.extend(of_peers(false));
        }
        let own = |rule: &Rule| {
            let choice = PolicyChoice::of(&rule.settings)?;
            Some((rule.scope.queue_pair?, (choice, rule.source.into())))
        };
        let queue_pairs = rules.iter().rev().filter_map(|rule| own(rule)).collect();
        Self { settings, policy, peers, queue_pairs }
    }

    /// The policy of a peer with this address.
    #[must_use]
    pub fn of_peer(&self, remote: IpAddr) -> (PolicyChoice, Origin) {
        let own = self.peers.iter().find(|(subnet, ..)| subnet.contains(remote));
        own.map_or(self.policy, |(_, choice, origin)| (*choice, *origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> RuleScope {
        let mut scope = RuleScope::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once(':').unwrap();
            match key {
                "qp" => scope.queue_pair = Some(value.parse().unwrap()),
                "peer" => scope.peer = Some(value.parse().unwrap()),
                "pid" => scope.process = Some(value.parse().unwrap()),
                "program" => scope.program = Some(value.to_owned()),
                "device" => scope.device = Some(value.to_owned()),
                _ => panic!("{word}"),
            }
        }
        scope
    }

    fn rule(source: RuleSource, at: &str, settings: &str) -> Rule {
        Rule { scope: scope(at), settings: Bonding::parse(settings).unwrap(), source }
    }

    fn command(at: &str, settings: &str) -> Rule {
        rule(RuleSource::Command, at, settings)
    }

    fn file(line: u32, at: &str, settings: &str) -> Rule {
        rule(RuleSource::File { line }, at, settings)
    }

    fn in_force(rules: &[Rule], environment: &str) -> InForce {
        of_selected(rules, environment, "")
    }

    fn of_selected(rules: &[Rule], environment: &str, selected: &str) -> InForce {
        let devices = ["mp0".to_owned(), "mp:eth0+eth1".to_owned()];
        let selected = Bonding::parse(selected).unwrap();
        let below = &Bonding::default();
        let (devices, selected) = (&devices, &selected);
        let process = Process { pid: 7, program: "rping", devices, selected, below };
        InForce::of(rules, &Bonding::parse(environment).unwrap(), &process)
    }

    fn of_peer(force: &InForce, remote: &str) -> String {
        let (choice, origin) = force.of_peer(remote.parse().unwrap());
        format!("{choice} ({origin})")
    }

    #[test]
    fn whatever_is_said_goes_before_what_follows_from_a_bond_of_the_kernels() {
        let below = &Bonding::parse("balance,ports=2").unwrap();
        let selected = &Bonding::default();
        let process = Process { pid: 7, program: "rping", devices: &[], selected, below };
        let of = |rules: &[Rule], environment| {
            let force = InForce::of(rules, &Bonding::parse(environment).unwrap(), &process);
            (of_peer(&force, "10.0.1.1"), force.settings.ports)
        };
        let kernel = "balance (the kernel's bond)".to_owned();
        assert_eq!(of(&[], ""), (kernel.clone(), Some(2)));
        assert_eq!(of(&[], "ports=8"), (kernel, Some(8)));
        let from_file = "affinity (configuration file, line 3)".to_owned();
        assert_eq!(of(&[file(3, "", "affinity")], ""), (from_file, Some(2)));
    }

    #[test]
    fn a_command_goes_before_the_environment_and_that_before_the_file() {
        let file = file(3, "", "affinity,updelay=1");
        let command = command("", "active-backup");
        let policy =
            |rules: &[Rule], environment| of_peer(&in_force(rules, environment), "10.0.1.1");
        assert_eq!(policy(&[], ""), "balance (default)");
        let from_file = "affinity (configuration file, line 3)";
        assert_eq!(policy(std::slice::from_ref(&file), ""), from_file);
        assert_eq!(policy(std::slice::from_ref(&file), "balance"), "balance (POLYPATH_MP)");
        let all = in_force(&[command, file], "balance,downdelay=2,updelay=3");
        assert_eq!(of_peer(&all, "10.0.1.1"), "active-backup (command)");
        assert_eq!(all.settings.to_string(), "active-backup,updelay=3,downdelay=2");
    }

    #[test]
    fn who_only_names_a_primary_interface_has_its_data_there() {
        let policy =
            |rules: &[Rule], environment| of_peer(&in_force(rules, environment), "10.0.1.1");
        assert_eq!(policy(&[], "primary=eth1"), "active-backup (default)");
        assert_eq!(policy(&[], "primary=eth1,policy=balance"), "balance (POLYPATH_MP)");
        let file = file(3, "", "balance");
        assert_eq!(policy(&[file], "primary=eth1"), "balance (configuration file, line 3)");
    }

    #[test]
    fn the_mode_of_a_device_goes_before_the_environment_and_after_a_command() {
        let rules = [file(1, "peer:10.0.1.0/24", "balance"), file(2, "", "downdelay=7")];
        let all = of_selected(&rules, "redundant,updelay=3", "affinity,affinity=hash");
        assert_eq!(of_peer(&all, "10.0.1.1"), "affinity,affinity=hash (the device's mode)");
        assert_eq!(all.settings.to_string(), "affinity,affinity=hash,updelay=3,downdelay=7");
        let all = of_selected(&[command("peer:10.0.1.0/24", "balance")], "", "affinity");
        assert_eq!(of_peer(&all, "10.0.1.1"), "balance (command)");
        assert_eq!(of_peer(&all, "10.0.2.1"), "affinity (the device's mode)");
    }

    #[test]
    fn of_one_source_the_narrower_scope_goes_first() {
        let rules = [
            command("peer:10.0.1.0/24", "balance"),
            command("peer:10.0.1.7", "affinity"),
            command("pid:7", "active-backup"),
            command("pid:8", "affinity,affinity=hash"),
            command("peer:10.0.1.0/24 pid:7", "affinity,affinity=round-robin"),
            command("peer:10.0.3.0/24 program:other", "balance"),
            command("", "balance"),
        ];
        let force = in_force(&rules, "");
        for (remote, policy) in [
            ("10.0.1.7", "affinity"),
            ("10.0.1.8", "affinity,affinity=round-robin"),
            ("10.0.2.1", "active-backup"),
            ("10.0.3.1", "active-backup"),
        ] {
            assert_eq!(of_peer(&force, remote), format!("{policy} (command)"), "{remote}");
        }
        // The order in which they were set does not matter.
        let reversed: Vec<Rule> = rules.iter().rev().cloned().collect();
        assert_eq!(in_force(&reversed, ""), force);
        let ranks = ["device:mp0", "program:rping", "pid:7"];
        for pair in ranks.windows(2) {
            let rules = [command(pair[1], "balance"), command(pair[0], "affinity")];
            assert_eq!(of_peer(&in_force(&rules, ""), "10.0.1.1"), "balance (command)", "{pair:?}");
        }
    }

    #[test]
    fn the_files_rules_for_peers_do_not_count_once_something_stronger_names_a_policy() {
        let rules = [file(1, "peer:10.0.1.0/24", "balance"), file(2, "", "affinity")];
        let force = in_force(&rules, "updelay=1");
        assert_eq!(of_peer(&force, "10.0.1.1"), "balance (configuration file, line 1)");
        assert_eq!(of_peer(&force, "fd00::1"), "affinity (configuration file, line 2)");
        assert_eq!(
            of_peer(&in_force(&rules, "active-backup"), "10.0.1.1"),
            "active-backup (POLYPATH_MP)"
        );
        let own = [&rules[..], &[command("peer:10.0.1.1", "affinity")]].concat();
        let force = in_force(&own, "");
        assert_eq!(of_peer(&force, "10.0.1.1"), "affinity (command)");
        assert_eq!(of_peer(&force, "10.0.1.2"), "balance (configuration file, line 1)");
    }

    #[test]
    fn the_rule_of_a_queue_pair_is_apart_from_the_others() {
        // A process may know itself by another number than the broker does.
        let rules = [command("qp:17 pid:8", "balance"), command("pid:8", "affinity")];
        let force = in_force(&rules, "");
        let own: Vec<(u32, Policy)> =
            force.queue_pairs.iter().map(|(qpn, (choice, _))| (*qpn, choice.policy)).collect();
        assert_eq!(own, [(17, Policy::Balance)]);
        assert_eq!(force.policy, (PolicyChoice::DEFAULT, Origin::Default));
    }

    #[test]
    fn a_device_is_named_by_its_name_or_its_selection() {
        for (device, follows) in [("mp0", true), ("mp:eth0+eth1", true), ("mp:eth0+eth2", false)] {
            let force = in_force(&[command(&format!("device:{device}"), "balance")], "");
            assert_eq!(force.policy.1 == Origin::Command, follows, "{device}");
        }
    }

    #[test]
    fn a_scope_is_said_in_words() {
        assert_eq!(scope("").to_string(), "everything");
        let all = scope("qp:65553 peer:10.0.1.0/24 pid:7 program:a device:mp0").to_string();
        let said = "queue pair 0x010011, peer 10.0.1.0/24, process 7, program a, device mp0";
        assert_eq!(all, said);
    }
}
