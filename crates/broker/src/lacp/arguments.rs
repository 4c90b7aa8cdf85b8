//! The arguments of `polypath lacp`, with the names of Linux bonding's options.

use std::path::PathBuf;

use clap::ArgAction;
use polypath_lacp::{AdSelect, Config, LacpRate, Mac};
use polypath_topology::{BOND, Choice};

/// The arguments of `polypath lacp`.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct LacpArguments {
    /// The interfaces: eth0+eth1
    #[arg(value_name = "INTERFACES", value_parser = interfaces)]
    pub interfaces: Interfaces,
    /// How often the partner should speak: slow (every 30 s) or fast (every second)
    #[arg(long = "lacp_rate", value_name = "RATE", default_value = "slow", value_parser = rate)]
    pub lacp_rate: LacpRate,
    /// Whether to speak without being spoken to: on or off
    #[arg(long = "lacp_active", value_name = "ON|OFF", default_value = "on")]
    #[arg(value_parser = on, action = ArgAction::Set)]
    pub lacp_active: bool,
    /// How the active aggregator is chosen: stable, bandwidth or count
    #[arg(long = "ad_select", value_name = "HOW", default_value = "stable", value_parser = select)]
    pub ad_select: AdSelect,
    /// How many interfaces must distribute for a carrier
    #[arg(long = "min_links", value_name = "N", default_value = "0")]
    pub min_links: u16,
    /// The priority of this system, 1 to 65535; lower has precedence
    #[arg(long = "ad_actor_sys_prio", value_name = "N", default_value = "65535")]
    pub ad_actor_sys_prio: u16,
    /// The address of this system; that of the first interface if not given
    #[arg(long = "ad_actor_system", value_name = "MAC", value_parser = mac)]
    pub ad_actor_system: Option<Mac>,
    /// The administrator's part of the keys, 0 to 1023
    #[arg(long = "ad_user_port_key", value_name = "N", default_value = "0")]
    pub ad_user_port_key: u16,
    /// Whether collecting and distributing begin together: on or off
    #[arg(long = "coupled_control", value_name = "ON|OFF", default_value = "on")]
    #[arg(value_parser = on, action = ArgAction::Set)]
    pub coupled_control: bool,
    /// Whether an interface without a partner must not carry traffic: on or off
    #[arg(long = "lacp_strict", value_name = "ON|OFF", default_value = "off")]
    #[arg(value_parser = on, action = ArgAction::Set)]
    pub lacp_strict: bool,
    /// Let the interfaces share the IPv4 addresses and the hardware address of the first, as those of a bond
    #[arg(long = "share-address")]
    pub share_address: bool,
    /// Keep the states in this file, in the form of /proc/net/bonding
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
}

/// Names of interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interfaces(pub Vec<String>);

fn interfaces(text: &str) -> Result<Interfaces, String> {
    let choice = Choice::of_interfaces(BOND.kind(), text);
    let choice = choice.map_err(|_| "write names of interfaces joined by +, such as eth0+eth1")?;
    Ok(Interfaces(choice.interfaces))
}

fn rate(text: &str) -> Result<LacpRate, String> {
    match text {
        "slow" | "0" => Ok(LacpRate::Slow),
        "fast" | "1" => Ok(LacpRate::Fast),
        _ => Err("write slow or fast".to_owned()),
    }
}

fn on(text: &str) -> Result<bool, String> {
    match text {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

fn select(text: &str) -> Result<AdSelect, String> {
    match text {
        "stable" | "0" => Ok(AdSelect::Stable),
        "bandwidth" | "1" => Ok(AdSelect::Bandwidth),
        "count" | "2" => Ok(AdSelect::Count),
        _ => Err("write stable, bandwidth or count".to_owned()),
    }
}

fn mac(text: &str) -> Result<Mac, String> {
    let advice = || "write an address such as 02:00:00:00:00:01".to_owned();
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(advice)
}

impl LacpArguments {
    /// The actor's options. `system` is the address of the first interface.
    pub(super) fn config(&self, system: Mac) -> Config {
        Config {
            lacp_rate: self.lacp_rate,
            lacp_active: self.lacp_active,
            ad_select: self.ad_select,
            min_links: self.min_links,
            ad_actor_sys_prio: self.ad_actor_sys_prio,
            ad_actor_system: self.ad_actor_system.unwrap_or(system),
            ad_user_port_key: self.ad_user_port_key,
            coupled_control: self.coupled_control,
            lacp_strict: self.lacp_strict,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: LacpArguments,
    }

    fn parse(text: &str) -> Result<LacpArguments, String> {
        let words = ["lacp"].into_iter().chain(text.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.arguments)
    }

    #[test]
    fn options_are_named_and_defaulted_as_those_of_linux() {
        let system = [2, 0, 0, 0, 0, 1];
        assert_eq!(parse("eth0+eth1").unwrap().config(system), Config::new(system));
        let all = "eth0 --lacp_rate fast --lacp_active off --ad_select count --min_links 2 \
                   --ad_actor_sys_prio 1 --ad_actor_system 02:00:00:00:00:0a --ad_user_port_key 3 \
                   --coupled_control off --lacp_strict on";
        let config = parse(all).unwrap().config(system);
        let expected = Config {
            lacp_rate: LacpRate::Fast,
            lacp_active: false,
            ad_select: AdSelect::Count,
            min_links: 2,
            ad_actor_sys_prio: 1,
            ad_actor_system: [2, 0, 0, 0, 0, 10],
            ad_user_port_key: 3,
            coupled_control: false,
            lacp_strict: true,
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn what_is_wrong_is_refused_with_what_to_write() {
        for (text, says) in [
            ("eth0++eth1", "such as eth0+eth1"),
            ("eth0 --lacp_rate quick", "slow or fast"),
            ("eth0 --lacp_active maybe", "on or off"),
            ("eth0 --ad_select first", "stable, bandwidth or count"),
            ("eth0 --ad_actor_system 02:00", "such as 02:00:00:00:00:01"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
