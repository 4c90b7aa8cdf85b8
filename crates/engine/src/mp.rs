//! What the path manager is told: settings and addresses.

use polypath_ipc::{PathSelector, Selection, Table, devices};
use polypath_paths::{Config as PathConfig, DownRule, LocalAddress, Primary, PrimaryReselect};

use crate::config::{Config, Reselect};

/// Settings of a lane's path manager.
pub(crate) fn settings(config: &Config, table: &Table, receive_buffer: u32) -> PathConfig {
    let bonding = &config.bonding;
    let defaults = PathConfig::default();
    let primary = bonding
        .primary
        .as_deref()
        .and_then(|name| {
            let port = table.port_by_name(name);
            if port.is_none() {
                crate::log::line(&format!(
                    "POLYPATH_MP: there is no interface `{name}` to be the primary; \
                     `polypath devices` lists those there are"
                ));
            }
            port
        })
        .map(|port| Primary::Interface(port.ifindex));
    PathConfig {
        primary: primary.or(defaults.primary),
        primary_reselect: match bonding.reselect {
            Some(Reselect::Always) => PrimaryReselect::Always,
            Some(Reselect::Better) => PrimaryReselect::Better,
            Some(Reselect::Failure) => PrimaryReselect::Failure,
            None => defaults.primary_reselect,
        },
        updelay: bonding.updelay.unwrap_or(defaults.updelay),
        downdelay: bonding.downdelay.unwrap_or(defaults.downdelay),
        // The kernel accounts about two bytes for each byte of payload.
        receive_window: receive_buffer / 2,
        ..defaults
    }
}

/// The addresses of the interfaces that this process's devices stand on.
pub(crate) fn local_addresses(table: &Table, selection: &Selection) -> Vec<LocalAddress> {
    let members: Vec<u32> = devices(table, selection).into_iter().flat_map(|d| d.members).collect();
    let mut list = Vec::new();
    for port in &table.ports {
        let member = members.contains(&port.ifindex);
        for address in port.addresses.iter().filter(|a| !a.tentative) {
            list.push(LocalAddress {
                ip: address.ip,
                prefix_len: address.prefix_len,
                ifindex: port.ifindex,
                link_up: port.link_up,
                usable: member
                    && !table.down.iter().any(|s| s.covers_local(&port.name, address.ip)),
                speed_mbps: port.speed_mbps.unwrap_or(0),
            });
        }
    }
    list
}

/// Single paths that were taken down by hand.
pub(crate) fn down_rules(table: &Table) -> Vec<DownRule> {
    let rule = |selector: &PathSelector| match *selector {
        PathSelector::Interface(_) => None,
        PathSelector::Address(ip) => Some(DownRule { local: None, remote: Some(ip) }),
        PathSelector::Pair(from, to) => Some(DownRule { local: Some(from), remote: Some(to) }),
    };
    table.down.iter().filter_map(rule).collect()
}
