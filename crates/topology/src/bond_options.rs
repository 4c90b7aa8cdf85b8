//! Options of a bond device, with the names of Linux bonding (`Documentation/networking/bonding.rst`).

use std::fmt;
use std::time::Duration;

use crate::bonding::{AffinityRule, Bonding, Policy, Reselect};
use crate::error::SelectionError;
use crate::rules::DELAY_MAX;

/// The options of a bond device, as a user wrote them. What is `None` is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BondOptions {
    /// How the members are used; `balance-rr` if not set, as in Linux.
    pub mode: Option<BondMode>,
    /// The preferred member, under [`BondMode::ActiveBackup`].
    pub primary: Option<String>,
    /// When to return to it.
    pub primary_reselect: Option<Reselect>,
    /// How the member of a queue pair is found, under [`BondMode::BalanceXor`] and [`BondMode::Lacp`].
    pub xmit_hash_policy: Option<HashPolicy>,
    /// The same in our own words: by hash, in turn, or near the creator. Linux has no such option.
    pub affinity: Option<AffinityRule>,
    /// How long a member must answer before it is used again.
    pub updelay: Option<Duration>,
    /// How long a member whose link went down is still used.
    pub downdelay: Option<Duration>,
    /// How many members must have a link for the port to be ACTIVE: 1 to 16, or 0, which means 1.
    pub min_links: Option<u8>,
}

/// How a bond device uses its members (`mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BondMode {
    /// `balance-rr`, 0: each burst by another member.
    #[default]
    BalanceRr,
    /// `active-backup`, 1: one member, and the others take over.
    ActiveBackup,
    /// `balance-xor`, 2: each queue pair by one member.
    BalanceXor,
    /// `broadcast`, 3: everything twice.
    Broadcast,
    /// `802.3ad`, 4: as `balance-xor`, and LACP may exclude members.
    Lacp,
}

impl BondMode {
    /// Whether a member sends from another's addresses: where all members carry data, and the switch knows
    /// them as one link, or has one of its own.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Self::BalanceRr | Self::BalanceXor | Self::Lacp)
    }
}

/// The hash that spreads flows over members (`xmit_hash_policy`). A flow of RDMA is a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashPolicy {
    /// `layer3+4`.
    Layer34,
    /// `encap3+4`, which is the same here, because nothing is encapsulated.
    Encap34,
}

/// The names of modes and their numbers, as Linux takes both.
const MODES: [(&str, &str, BondMode); 5] = [
    ("balance-rr", "0", BondMode::BalanceRr),
    ("active-backup", "1", BondMode::ActiveBackup),
    ("balance-xor", "2", BondMode::BalanceXor),
    ("broadcast", "3", BondMode::Broadcast),
    ("802.3ad", "4", BondMode::Lacp),
];

/// What may be written for `mode`.
const MODE_CURE: &str = "write mode=balance-rr|active-backup|balance-xor|broadcast|802.3ad";

/// Modes of Linux that move addresses from one hardware address to another.
const ADAPTIVE: [&str; 4] = ["balance-tlb", "5", "balance-alb", "6"];

/// Hash policies that give all flows to a peer the same member.
const ONE_LINK_PER_PEER: [&str; 3] = ["layer2", "layer2+3", "vlan+srcmac"];

/// What may be written.
const CURE: &str = "write mode, primary, primary_reselect, xmit_hash_policy, affinity, updelay, downdelay \
                    or min_links, each as option=value";

/// Options of Linux that have nothing to do here, with the reason and the cure.
const WITHOUT_EFFECT: [(&[&str], &str); 5] = [
    (
        &["miimon", "use_carrier"],
        "links are not polled, because the kernel tells of each change at once; leave it out",
    ),
    (
        &["arp_interval", "arp_ip_target", "ns_ip6_target", "arp_validate", "arp_all_targets"],
        "each path is probed anyway, and more often; leave it out",
    ),
    (
        &["lacp_rate", "lacp_active", "ad_select", "ad_actor_sys_prio", "ad_actor_system"],
        "LACP is spoken by `polypath lacp`; give it this option",
    ),
    (
        &["active_slave"],
        "the active member changes with time; name the preferred one with primary=, or move traffic off \
         a member with `polypath path down`",
    ),
    (
        &[
            "fail_over_mac",
            "num_grat_arp",
            "num_unsol_na",
            "peer_notif_delay",
            "resend_igmp",
            "all_slaves_active",
            "lp_interval",
            "packets_per_slave",
            "tlb_dynamic_lb",
        ],
        "members keep addresses of their own, and each burst goes where it arrives first; leave it out",
    ),
];

impl BondOptions {
    /// Parses `option=value` joined by commas. `members` are the interfaces that the user named; none if
    /// the device stands on all of them.
    ///
    /// # Errors
    /// [`SelectionError::Option`] with the first option that can't be followed, and what to write instead.
    pub(crate) fn parse(text: &str, members: &[String]) -> Result<Self, SelectionError> {
        let mut options = Self::default();
        for item in text.split(',').map(str::trim) {
            let wrong = |cure: String| SelectionError::option(item, cure);
            let Some((name, value)) = item.split_once('=') else {
                return Err(wrong(CURE.to_owned()));
            };
            options.set(name, value).map_err(wrong)?;
        }
        options.check(members)?;
        Ok(options)
    }

    /// Sets one option. An error is the text that says what to write instead.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let delay = || {
            let delay = value.parse().ok().map(Duration::from_millis);
            let cure = || format!("write {name}=MS, at most {}", DELAY_MAX.as_millis());
            delay.filter(|delay| *delay <= DELAY_MAX).ok_or_else(cure)
        };
        match name {
            "mode" => self.mode = Some(mode(value)?),
            "primary" => self.primary = Some(value.to_owned()),
            "primary_reselect" => {
                let cure = |()| "write primary_reselect=always|better|failure".to_owned();
                self.primary_reselect = Some(value.parse().map_err(cure)?);
            }
            "xmit_hash_policy" => self.xmit_hash_policy = Some(hash_policy(value)?),
            "affinity" => {
                let cure = |()| "write affinity=hash|round-robin|cpu|numa".to_owned();
                self.affinity = Some(value.parse().map_err(cure)?);
            }
            "updelay" => self.updelay = Some(delay()?),
            "downdelay" => self.downdelay = Some(delay()?),
            "min_links" => {
                let number = value.parse().ok().filter(|number| usize::from(*number) <= MEMBERS);
                self.min_links = Some(number.ok_or("write min_links=0 to 16")?);
            }
            _ => {
                let unused = WITHOUT_EFFECT.iter().find(|(names, _)| names.contains(&name));
                return Err(unused.map_or(CURE, |(_, cure)| cure).to_owned());
            }
        }
        Ok(())
    }

    /// Checks that the options fit to each other and to the members.
    fn check(&self, members: &[String]) -> Result<(), SelectionError> {
        let mode = self.mode();
        let hashes = matches!(mode, BondMode::BalanceXor | BondMode::Lacp);
        let refuse = |option: String, cure: &str| Err(SelectionError::option(&option, cure.into()));
        if let Some(primary) = &self.primary {
            if mode != BondMode::ActiveBackup {
                let cure = "only mode=active-backup has a primary; add that, or remove it";
                return refuse(format!("primary={primary}"), cure);
            }
            if !members.is_empty() && !members.contains(primary) {
                let cure = format!("name one of the members: {}", members.join(", "));
                return refuse(format!("primary={primary}"), &cure);
            }
        }
        if let (Some(when), None) = (self.primary_reselect, &self.primary) {
            let cure =
                "it says when to return to the primary; name that with primary=, or remove it";
            return refuse(format!("primary_reselect={when}"), cure);
        }
        let cure = "only mode=balance-xor and mode=802.3ad hash; add one of them, or remove it";
        match (self.xmit_hash_policy, self.affinity) {
            (Some(policy), _) if !hashes => refuse(format!("xmit_hash_policy={policy}"), cure),
            (_, Some(rule)) if !hashes => refuse(format!("affinity={rule}"), cure),
            (Some(policy), Some(rule)) if rule != AffinityRule::Hash => refuse(
                format!("xmit_hash_policy={policy}"),
                &format!("affinity={rule} does not hash; remove one of the two"),
            ),
            _ => Ok(()),
        }
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> BondMode {
        self.mode.unwrap_or_default()
    }

    /// How the paths to a peer are used.
    #[must_use]
    pub fn settings(&self) -> Bonding {
        let (policy, affinity) = match self.mode() {
            BondMode::BalanceRr => (Policy::Balance, None),
            BondMode::ActiveBackup => (Policy::ActiveBackup, None),
            BondMode::BalanceXor | BondMode::Lacp => {
                (Policy::Affinity, Some(self.affinity.unwrap_or(AffinityRule::Hash)))
            }
            BondMode::Broadcast => (Policy::Redundant, None),
        };
        Bonding {
            policy: Some(policy),
            affinity,
            primary: self.primary.clone(),
            reselect: self.primary_reselect,
            updelay: self.updelay,
            downdelay: self.downdelay,
            ..Bonding::default()
        }
    }
}

/// The largest number of members, as of `min_links`.
const MEMBERS: usize = crate::device::MEMBERS_MAX;

fn mode(value: &str) -> Result<BondMode, String> {
    if ADAPTIVE.contains(&value) {
        return Err("Polypath has no adaptive modes, because they take over hardware addresses; write \
                    mode=balance-xor (each queue pair keeps to one member) or mode=balance-rr (each \
                    queue pair uses all members)"
            .to_owned());
    }
    let found = MODES.iter().find(|(name, number, _)| [*name, *number].contains(&value));
    found.map(|(.., mode)| *mode).ok_or_else(|| MODE_CURE.to_owned())
}

fn hash_policy(value: &str) -> Result<HashPolicy, String> {
    match value {
        "layer3+4" => Ok(HashPolicy::Layer34),
        "encap3+4" => Ok(HashPolicy::Encap34),
        _ if ONE_LINK_PER_PEER.contains(&value) => {
            Err("it sends everything to a peer by one member; write xmit_hash_policy=layer3+4"
                .into())
        }
        _ => Err("write xmit_hash_policy=layer3+4|encap3+4".to_owned()),
    }
}

impl fmt::Display for BondMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MODES.iter().find(|(.., mode)| mode == self).map_or("", |(name, ..)| name))
    }
}

impl fmt::Display for HashPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Layer34 => "layer3+4",
            Self::Encap34 => "encap3+4",
        })
    }
}

impl fmt::Display for BondOptions {
    /// Writes what is parsed again, without the default of what was not set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |delay: Duration| delay.as_millis();
        let items = [
            self.mode.map(|mode| format!("mode={mode}")),
            self.primary.as_ref().map(|name| format!("primary={name}")),
            self.primary_reselect.map(|when| format!("primary_reselect={when}")),
            self.xmit_hash_policy.map(|policy| format!("xmit_hash_policy={policy}")),
            self.affinity.map(|rule| format!("affinity={rule}")),
            self.updelay.map(|delay| format!("updelay={}", ms(delay))),
            self.downdelay.map(|delay| format!("downdelay={}", ms(delay))),
            self.min_links.map(|number| format!("min_links={number}")),
        ];
        f.write_str(&items.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BondOptions, String> {
        let members = ["eth0", "eth1"].map(str::to_owned);
        BondOptions::parse(text, &members).map_err(|error| error.to_string())
    }

    #[test]
    fn each_mode_is_a_policy() {
        let policy = |text: &str| parse(text).unwrap().settings().to_string();
        for (mode, expected) in [
            ("0", "balance"),
            ("balance-rr", "balance"),
            ("1", "active-backup"),
            ("active-backup", "active-backup"),
            ("2", "affinity,affinity=hash"),
            ("balance-xor", "affinity,affinity=hash"),
            ("broadcast", "redundant"),
            ("802.3ad", "affinity,affinity=hash"),
            ("802.3ad,affinity=round-robin", "affinity,affinity=round-robin"),
            (
                "1,primary=eth1,primary_reselect=better,updelay=5,downdelay=6",
                "active-backup,primary=eth1,primary_reselect=better,updelay=5,downdelay=6",
            ),
        ] {
            assert_eq!(policy(&format!("mode={mode}")), expected);
        }
        assert_eq!(
            BondOptions::default().settings().to_string(),
            "balance",
            "the default of Linux"
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "mode=active-backup,primary=eth1,primary_reselect=failure,updelay=200,downdelay=0",
            "mode=802.3ad,xmit_hash_policy=layer3+4,min_links=2",
            "mode=balance-xor,xmit_hash_policy=encap3+4,affinity=hash",
            "min_links=0",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("mode=4").unwrap().to_string(), "mode=802.3ad");
    }

    #[test]
    fn an_option_that_can_not_be_followed_is_named_with_the_cure() {
        for (text, says) in [
            ("mode=fast", "`mode=fast`"),
            ("mode=fast", "balance-rr|active-backup|balance-xor|broadcast|802.3ad"),
            ("mode=balance-alb", "write mode=balance-xor"),
            ("mode=5", "or mode=balance-rr"),
            ("mode=802.3ad,miimon=100", "`miimon=100`"),
            ("miimon=100", "leave it out"),
            ("lacp_rate=fast", "`polypath lacp`"),
            ("arp_interval=100", "each path is probed"),
            ("active_slave=eth0", "primary="),
            ("fail_over_mac=active", "addresses of their own"),
            ("mode=2,xmit_hash_policy=layer2", "write xmit_hash_policy=layer3+4"),
            ("mode=2,xmit_hash_policy=layer5", "layer3+4|encap3+4"),
            ("mode=1,xmit_hash_policy=layer3+4", "only mode=balance-xor and mode=802.3ad hash"),
            ("affinity=hash", "only mode=balance-xor"),
            ("mode=2,xmit_hash_policy=layer3+4,affinity=round-robin", "remove one of the two"),
            ("primary=eth0", "only mode=active-backup"),
            ("mode=1,primary=eth7", "one of the members: eth0, eth1"),
            ("mode=1,primary_reselect=always", "name that with primary="),
            ("mode=1,primary=eth0,primary_reselect=x", "always|better|failure"),
            ("updelay=soon", "updelay=MS"),
            ("downdelay=3600001", "at most 3600000"),
            ("min_links=17", "0 to 16"),
            ("nonsense=1", "mode, primary, primary_reselect"),
            ("mode", "each as option=value"),
            ("mode=1,", "each as option=value"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
