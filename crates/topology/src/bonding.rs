//! How an mp device uses its paths: settings with the names of Linux bonding.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A setting that is not understood. The text says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BondingError {
    /// An item that names no setting.
    #[error("`{0}` is not understood; write {all}", all = all_settings())]
    Item(String),
    /// A value that the setting does not have.
    #[error(
        "`{key}={value}` is not possible; write {key}={values}",
        values = values_of(key).unwrap_or_default()
    )]
    Value {
        /// The setting.
        key: String,
        /// What was written.
        value: String,
    },
    /// `affinity` with another policy.
    #[error("affinity has an effect only with policy=affinity; add that, or remove it")]
    AffinityUnused,
}

/// The settings, and what may be written for each.
const SETTINGS: [(&str, &str); 14] = [
    ("policy", "active-backup|balance|affinity|redundant|efficient"),
    ("affinity", "hash|round-robin|cpu|numa"),
    ("cost", "eth0:10 (0 to 65535, up to 64 interfaces, each once)"),
    ("numa_node", "eth0:1 (0 to 65535, up to 64 interfaces, each once)"),
    ("primary", "eth0"),
    ("primary_reselect", "always|better|failure"),
    ("updelay", "MS"),
    ("downdelay", "MS"),
    ("hold", "SECONDS (1 to 86400)"),
    ("rendezvous", "ADDRESS"),
    ("ecn", "on|off"),
    ("ports", "NUMBER (1 to 8)"),
    ("local", "on|off"),
    ("tcp", "on|off|PORT"),
];

fn values_of(key: &str) -> Option<&'static str> {
    SETTINGS.iter().find(|(setting, _)| *setting == key).map(|(_, values)| *values)
}

fn all_settings() -> String {
    SETTINGS.map(|(key, values)| format!("{key}={values}")).join(", ")
}

/// What stands in place of an interface for paths through shared memory.
pub const LOCAL: &str = "local";

/// What stands in place of an interface for paths over TCP streams.
pub const TCP: &str = "tcp";

/// Whether peers on the same host are reached through shared memory if nothing is said of it.
pub const LOCAL_DEFAULT: bool = true;

/// Whether peers are reached by TCP streams if nothing is said of it.
pub const TCP_DEFAULT: Tcp = Tcp::Off;

/// The port of TCP streams with `tcp=on`: the number that RoCEv2 has of UDP.
const TCP_PORT: u16 = 4791;

/// The most interfaces whose cost, or NUMA node, can be set.
pub(crate) const INTERFACES_MAX: usize = 64;

/// The longest hold time.
const HOLD_MAX: Duration = Duration::from_secs(86_400);
/// The most source ports that a pair of addresses can get.
pub(crate) const PORTS_MAX: u8 = 8;

/// Settings of the mp device. What is `None` is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bonding {
    /// How the paths to a peer are used.
    pub policy: Option<Policy>,
    /// How the path of a queue pair is found under [`Policy::Affinity`]; `None` for other policies.
    pub affinity: Option<AffinityRule>,
    /// What interfaces cost, by name, and at most 64 of them: under [`Policy::Efficient`] the
    /// cheapest come first.
    pub costs: Vec<(String, u16)>,
    /// The NUMA nodes of interfaces, by name, and at most 64 of them: for those that do not know theirs, as a
    /// container's do not.
    pub numa_nodes: Vec<(String, u16)>,
    /// The name of the preferred interface.
    pub primary: Option<String>,
    /// When to return to it.
    pub reselect: Option<Reselect>,
    /// How long a path must answer before it is used again.
    pub updelay: Option<Duration>,
    /// How long a path whose link went down is still used.
    pub downdelay: Option<Duration>,
    /// How long queue pairs wait for a path if none to their peer lives: whole seconds, 1 to 86,400.
    pub hold: Option<Duration>,
    /// The address of a host by which ends find each other that have both moved.
    pub rendezvous: Option<IpAddr>,
    /// Whether routers and switches may mark the packets of paths instead of dropping them (RFC 3168).
    pub ecn: Option<bool>,
    /// How many UDP source ports each pair of addresses gets, each of which makes a path: 1 to 8.
    pub ports: Option<u8>,
    /// Whether peers on the same host are reached through shared memory, too.
    pub local: Option<bool>,
    /// Whether peers are reached by TCP streams, too, when nothing else passes.
    pub tcp: Option<Tcp>,
}

/// Whether peers are reached by TCP streams, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tcp {
    /// They are not.
    Off,
    /// They are, by this port at both ends; it is not 0.
    Port(u16),
}

impl Tcp {
    /// The port; `None` if TCP is not used.
    #[must_use]
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Off => None,
            Self::Port(port) => Some(port),
        }
    }
}

impl FromStr for Tcp {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "on" => Ok(Self::Port(TCP_PORT)),
            "off" => Ok(Self::Off),
            port => port.parse().ok().filter(|port| *port > 0).map(Self::Port).ok_or(()),
        }
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Port(TCP_PORT) => f.write_str("on"),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

/// How the paths to a peer are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// One carries the data, and the others take over when it fails.
    ActiveBackup,
    /// All carry data.
    Balance,
    /// All carry data, and each queue pair keeps to one of them.
    Affinity,
    /// Everything is sent by two of them.
    Redundant,
    /// The fewest and cheapest ones that carry the demand; the others are only probed.
    Efficient,
}

/// How the path that a queue pair keeps to is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AffinityRule {
    /// By a hash of the queue pair's number.
    Hash,
    /// Queue pairs get the paths in turn.
    RoundRobin,
    /// By the processor of the thread that creates it: an interface of the processor's NUMA node.
    Cpu,
    /// By the NUMA node of that processor: the interface there that has the fewest queue pairs.
    Numa,
}

impl AffinityRule {
    /// Whether a queue pair gets its interface when it is created, and keeps its number there.
    #[must_use]
    pub fn gives_home(self) -> bool {
        matches!(self, Self::Cpu | Self::Numa)
    }
}

/// When to return to the primary (`primary_reselect` of Linux bonding).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reselect {
    /// As soon as it works again.
    Always,
    /// If its link is faster.
    Better,
    /// When the active path fails.
    Failure,
}

/// Gives an enumeration the words that users write for it.
macro_rules! words {
    ($type:ident: $($variant:ident $word:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($word => Ok(Self::$variant),)+ _ => Err(()) }
            }
        }
    };
}

words!(
    Policy: ActiveBackup "active-backup", Balance "balance", Affinity "affinity", Redundant "redundant",
    Efficient "efficient"
);
words!(AffinityRule: Hash "hash", RoundRobin "round-robin", Cpu "cpu", Numa "numa");
words!(Reselect: Always "always", Better "better", Failure "failure");

/// Reads the address of a rendezvous: one that a single host may have anywhere.
fn rendezvous(text: &str) -> Result<IpAddr, ()> {
    let address: IpAddr = text.parse().map_err(drop)?;
    let here = match address {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let somewhere = !here && !address.is_unspecified() && !address.is_multicast();
    if somewhere && !address.is_loopback() { Ok(address) } else { Err(()) }
}

/// Reads a hold time.
fn hold(text: &str) -> Result<Duration, ()> {
    let seconds = text.parse().map_err(drop)?;
    if (1..=HOLD_MAX.as_secs()).contains(&seconds) {
        Ok(Duration::from_secs(seconds))
    } else {
        Err(())
    }
}

/// Reads `on` or `off`.
fn on(text: &str) -> Result<bool, ()> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(()),
    }
}

/// Adds the number of an interface to a list, written as `eth0:10`.
fn add_interface(list: &mut Vec<(String, u16)>, value: &str) -> Result<(), ()> {
    let (name, number) = value.rsplit_once(':').ok_or(())?;
    let number = number.parse().map_err(drop)?;
    let known = list.iter().any(|(other, _)| other == name);
    if name.is_empty() || known || list.len() == INTERFACES_MAX {
        return Err(());
    }
    list.push((name.to_owned(), number));
    Ok(())
}

impl Bonding {
    /// Parses `key=value` joined by commas; delays are in milliseconds. A policy may stand without its key.
    ///
    /// # Errors
    /// [`BondingError::Item`] or [`BondingError::Value`] with the first item that is wrong; that of
    /// [`check`](Self::check).
    pub fn parse(text: &str) -> Result<Self, BondingError> {
        let mut bonding = Self::default();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or(("policy", item));
            bonding.set(key, value).map_err(|()| match values_of(key) {
                Some(_) if item.contains('=') => {
                    BondingError::Value { key: key.to_owned(), value: value.to_owned() }
                }
                _ => BondingError::Item(item.to_owned()),
            })?;
        }
        bonding.check()?;
        Ok(bonding)
    }

    /// Sets the setting of this key to what a user wrote.
    ///
    /// # Errors
    /// The key is not known, or has no such value.
    #[expect(clippy::result_unit_err, reason = "the caller knows what was wrong, and where")]
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ()> {
        let ms = || value.parse().map(Duration::from_millis).map_err(drop);
        match key {
            "policy" => self.policy = Some(value.parse()?),
            "affinity" => self.affinity = Some(value.parse()?),
            "cost" => add_interface(&mut self.costs, value)?,
            "numa_node" => add_interface(&mut self.numa_nodes, value)?,
            "primary" if !value.is_empty() => self.primary = Some(value.to_owned()),
            "primary_reselect" => self.reselect = Some(value.parse()?),
            "updelay" => self.updelay = Some(ms()?),
            "downdelay" => self.downdelay = Some(ms()?),
            "hold" => self.hold = Some(hold(value)?),
            "rendezvous" => self.rendezvous = Some(rendezvous(value)?),
            "ecn" => self.ecn = Some(on(value)?),
            "local" => self.local = Some(on(value)?),
            "tcp" => self.tcp = Some(value.parse()?),
            "ports" => {
                let ports = value.parse().ok().filter(|ports| (1..=PORTS_MAX).contains(ports));
                self.ports = Some(ports.ok_or(())?);
            }
            _ => return Err(()),
        }
        Ok(())
    }

    /// Checks that settings that belong together are there.
    ///
    /// # Errors
    /// [`BondingError::AffinityUnused`].
    pub fn check(&self) -> Result<(), BondingError> {
        if self.affinity.is_some() && self.policy != Some(Policy::Affinity) {
            return Err(BondingError::AffinityUnused);
        }
        Ok(())
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether something is set that all peers of a device have in common.
    #[must_use]
    pub fn is_of_device(&self) -> bool {
        let Self {
            policy: _,
            affinity: _,
            costs,
            numa_nodes,
            primary,
            reselect,
            updelay,
            downdelay,
            hold,
            rendezvous,
            ecn,
            ports,
            local,
            tcp,
        } = self;
        !costs.is_empty()
            || !numa_nodes.is_empty()
            || primary.is_some()
            || reselect.is_some()
            || updelay.is_some()
            || downdelay.is_some()
            || hold.is_some()
            || rendezvous.is_some()
            || ecn.is_some()
            || ports.is_some()
            || local.is_some()
            || tcp.is_some()
    }

    /// Adds the settings of `other`, which go before its own. The rule of affinity goes with its policy. The
    /// costs go together, too, and so do the NUMA nodes.
    pub fn prefer(&mut self, other: &Self) {
        if other.policy.is_some() {
            (self.policy, self.affinity) = (other.policy, other.affinity);
        }
        if !other.costs.is_empty() {
            self.costs.clone_from(&other.costs);
        }
        if !other.numa_nodes.is_empty() {
            self.numa_nodes.clone_from(&other.numa_nodes);
        }
        self.primary = other.primary.clone().or_else(|| self.primary.take());
        self.reselect = other.reselect.or(self.reselect);
        self.updelay = other.updelay.or(self.updelay);
        self.downdelay = other.downdelay.or(self.downdelay);
        self.hold = other.hold.or(self.hold);
        self.rendezvous = other.rendezvous.or(self.rendezvous);
        self.ecn = other.ecn.or(self.ecn);
        self.ports = other.ports.or(self.ports);
        self.local = other.local.or(self.local);
        self.tcp = other.tcp.or(self.tcp);
    }

    /// The problem with an interface that is named, given the interfaces of the mp device; `None` if there
    /// is none.
    #[must_use]
    pub fn interface_problem(&self, members: &[&str]) -> Option<String> {
        let primary = self.primary.as_deref().map(|name| ("the primary", name));
        let costs = self.costs.iter().map(|(name, _)| ("the cost of", name.as_str()));
        let nodes = self.numa_nodes.iter().map(|(name, _)| ("the NUMA node of", name.as_str()));
        let mut named = primary.into_iter().chain(costs).chain(nodes);
        let (what, name) = named.find(|(_, name)| !members.contains(name))?;
        Some(format!(
            "{what} `{name}` is ignored, because that is not an interface of the mp device \
             (the device has: {})",
            members.join(", ")
        ))
    }
}

impl fmt::Display for Bonding {
    /// Writes what [`Bonding::parse`] reads, the policy first and without its key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_millis().to_string();
        let listed = |key: &str, list: &[(String, u16)]| {
            let items = list.iter().map(|(name, number)| format!("{key}={name}:{number}"));
            Some(items.collect::<Vec<_>>().join(",")).filter(|items| !items.is_empty())
        };
        let items = [
            self.policy.map(|policy| policy.to_string()),
            self.affinity.map(|rule| format!("affinity={rule}")),
            listed("cost", &self.costs),
            listed("numa_node", &self.numa_nodes),
            self.primary.as_ref().map(|name| format!("primary={name}")),
            self.reselect.map(|when| format!("primary_reselect={when}")),
            self.updelay.map(|time| format!("updelay={}", ms(time))),
            self.downdelay.map(|time| format!("downdelay={}", ms(time))),
            self.hold.map(|time| format!("hold={}", time.as_secs())),
            self.rendezvous.map(|address| format!("rendezvous={address}")),
            self.ecn.map(|on| format!("ecn={}", if on { "on" } else { "off" })),
            self.ports.map(|ports| format!("ports={ports}")),
            self.local.map(|on| format!("local={}", if on { "on" } else { "off" })),
            self.tcp.map(|tcp| format!("tcp={tcp}")),
        ];
        f.write_str(&items.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_names_of_linux_bonding() {
        let b = Bonding::parse("primary=eth1, primary_reselect=failure,updelay=200").unwrap();
        assert_eq!(b.primary.as_deref(), Some("eth1"));
        assert_eq!(b.reselect, Some(Reselect::Failure));
        assert_eq!(b.updelay, Some(Duration::from_millis(200)));
        assert_eq!(b.policy, None);
        let policy = |text| Bonding::parse(text).map(|b| b.policy);
        assert_eq!(policy("policy=balance"), Ok(Some(Policy::Balance)));
        assert_eq!(policy("balance"), Ok(Some(Policy::Balance)));
        assert_eq!(policy("policy=active-backup"), Ok(Some(Policy::ActiveBackup)));
        assert_eq!(policy("policy=affinity"), Ok(Some(Policy::Affinity)));
        assert_eq!(policy("policy=redundant"), Ok(Some(Policy::Redundant)));
        assert_eq!(policy("efficient,cost=eth0:3"), Ok(Some(Policy::Efficient)));
        let rule = |text| Bonding::parse(text).map(|b| b.affinity);
        assert_eq!(rule("policy=affinity"), Ok(None));
        assert_eq!(rule("policy=affinity,affinity=hash"), Ok(Some(AffinityRule::Hash)));
        let turns = "affinity=round-robin,policy=affinity";
        assert_eq!(rule(turns), Ok(Some(AffinityRule::RoundRobin)));
        assert_eq!(rule("affinity,affinity=numa"), Ok(Some(AffinityRule::Numa)));
        assert_eq!(rule("affinity,affinity=cpu"), Ok(Some(AffinityRule::Cpu)));
        for unused in ["affinity=hash", "policy=balance,affinity=hash"] {
            assert_eq!(rule(unused), Err(BondingError::AffinityUnused));
        }
        for wrong in [
            "updelay=soon",
            "primry=eth1",
            "primary=",
            "primary_reselect=never",
            "policy=x",
            "affinity=random",
            "numa_node=eth0",
            "numa_node=eth0:-1",
            "ecn=yes",
            "hold=0",
            "hold=86401",
            "rendezvous=node7",
            "rendezvous=fe80::1",
            "rendezvous=0.0.0.0",
            "rendezvous=239.1.2.3",
            "rendezvous=127.0.0.1",
            "ports=0",
            "ports=9",
            "x",
            "local=maybe",
            "tcp=0",
            "tcp=65536",
            "tcp=yes",
        ] {
            let error = Bonding::parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{wrong}` ")), "{error}");
            let key = wrong.split('=').next().unwrap();
            match values_of(key) {
                // The values of the setting that is meant, and nothing else.
                Some(values) if wrong != key => {
                    assert!(error.ends_with(&format!("write {key}={values}")), "{error}");
                }
                _ => {
                    let says = "|redundant|efficient, affinity=hash|round-robin|cpu|numa, cost=";
                    assert!(error.contains(says) && error.contains("updelay=MS"), "{error}");
                }
            }
        }
        for (key, _) in SETTINGS {
            assert!(Bonding::default().set(key, "").is_err(), "{key}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let all = "affinity,affinity=hash,primary=e,primary_reselect=better,updelay=1,\
                   downdelay=2,hold=3,rendezvous=10.0.0.7,ecn=on";
        let costs =
            "efficient,cost=a:1,cost=b:20,numa_node=a:0,numa_node=b:1,primary=a,local=on,tcp=on";
        for text in [
            "tcp=off",
            "tcp=5000",
            all,
            costs,
            "balance",
            "downdelay=0",
            "ecn=off",
            "balance,ports=8",
            "",
        ] {
            assert_eq!(Bonding::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_rule_of_affinity_goes_with_its_policy() {
        let parse = |text| Bonding::parse(text).unwrap();
        let mut own = parse("affinity,affinity=hash,updelay=1");
        own.prefer(&parse("downdelay=2"));
        assert_eq!(own.to_string(), "affinity,affinity=hash,updelay=1,downdelay=2");
        own.prefer(&parse("balance,updelay=3"));
        assert_eq!(own.to_string(), "balance,updelay=3,downdelay=2");
        own.prefer(&parse("ports=4"));
        own.prefer(&parse("updelay=4"));
        assert_eq!(own.to_string(), "balance,updelay=4,downdelay=2,ports=4");
        assert!(parse("ports=1").is_of_device());
        assert!(own.is_of_device() && !parse("affinity,affinity=hash").is_of_device());
    }

    #[test]
    fn an_interface_that_the_device_does_not_stand_on_is_a_problem() {
        for text in ["primary=eth7", "policy=efficient,primary=eth0,cost=eth1:2,cost=eth7:3"] {
            let bonding = Bonding::parse(text).unwrap();
            let said = bonding.interface_problem(&["eth0", "eth1"]).unwrap();
            assert!(said.contains("`eth7`") && said.contains("eth0, eth1"), "{said}");
            assert_eq!(bonding.interface_problem(&["eth0", "eth1", "eth7"]), None);
        }
        assert_eq!(Bonding::default().interface_problem(&[]), None);
    }

    #[test]
    fn costs_are_numbers_of_interfaces() {
        let mut b = Bonding::parse("cost=eth0:10,cost=eth0.5:0").unwrap();
        assert_eq!(b.costs, [("eth0".to_owned(), 10), ("eth0.5".to_owned(), 0)]);
        assert!(b.is_of_device() && !b.is_empty());
        b.prefer(&Bonding::parse("efficient").unwrap());
        assert_eq!(b.costs.len(), 2);
        b.prefer(&Bonding::parse("cost=eth1:1").unwrap());
        assert_eq!(b.costs, [("eth1".to_owned(), 1)]);
        for wrong in ["cost=eth0", "cost=:1", "cost=eth0:-1", "cost=eth0:65536", "cost=eth0:"] {
            let (key, value) = wrong.split_once('=').unwrap();
            let (key, value) = (key.to_owned(), value.to_owned());
            assert_eq!(Bonding::parse(wrong), Err(BondingError::Value { key, value }));
        }
        let twice = Bonding::parse("cost=eth0:1,cost=eth0:2").unwrap_err().to_string();
        assert!(
            twice.starts_with("`cost=eth0:2` is not possible; write cost=eth0:10 ("),
            "{twice}"
        );
    }
}
