//! `polypath devices --all`: every interface, and why a device stands on it or not.

use crate::text::Columns;
use polypath_topology::{Port, Selection, Table, devices, links_of};
use serde_json::{Value, json};

/// What an interface is to the devices of a selection.
struct Role<'a> {
    port: &'a Port,
    /// The devices that stand on it.
    devices: Vec<String>,
    /// What is to be said of it, in order.
    remarks: Vec<String>,
}

fn roles<'a>(table: &'a Table, selection: &Selection) -> Vec<Role<'a>> {
    let all = devices(table, selection);
    let role = |port: &'a Port| {
        let over = all.iter().filter(|device| device.members().any(|it| it == port.ifindex));
        let devices: Vec<String> = over.map(|device| device.name.clone()).collect();
        let mut remarks = Vec::new();
        remarks.extend(bond(port, table));
        remarks.extend(slave(port, table));
        remarks.extend(port.lacp.map(|distributes| {
            let state = if distributes { "distributing" } else { "kept out" };
            format!("LACP: {state}")
        }));
        if devices.is_empty() && remarks.is_empty() {
            remarks.push(why_not(port).to_owned());
        }
        Role { port, devices, remarks }
    };
    table.ports.iter().map(role).collect()
}

/// The mode of a bond of the kernel's, and how many of its ports carry traffic.
fn bond(port: &Port, table: &Table) -> Option<String> {
    let bond = port.bond?;
    let below = links_of(table, port.ifindex);
    let carries = |link: &&&Port| link.slave.is_some_and(|slave| slave.usable);
    let usable = below.iter().filter(carries).count();
    let names: Vec<&str> = below.iter().map(|link| link.name.as_str()).collect();
    let hash = bond.hash_policy_name().map(|policy| format!(", {policy}")).unwrap_or_default();
    let mode = bond.mode_name();
    Some(format!("{mode}{hash}: {usable} of {} carry: {}", below.len(), names.join(", ")))
}

fn slave(port: &Port, table: &Table) -> Option<String> {
    let slave = port.slave?;
    let master = table.port(slave.master).map_or("a bond", |master| master.name.as_str());
    let state = if slave.usable { "carries traffic" } else { "carries none" };
    Some(format!("port of {master}, {state}"))
}

fn why_not(port: &Port) -> &'static str {
    match port {
        Port { enslaved: true, .. } => "port of a bridge",
        Port { loopback: true, .. } => "loopback: used if it is named, or alone",
        Port { ethernet: false, .. } => "not Ethernet",
        Port { uplink: false, .. } => "does not lead out of this host: used if it is named",
        _ => "used if it is named",
    }
}

pub(crate) fn as_text(table: &Table, selection: &Selection) -> String {
    let mut columns = Columns::new(["INTERFACE", "LINK", "SPEED", "DEVICE", "REMARKS"]);
    for Role { port, devices, remarks } in roles(table, selection) {
        let speed =
            port.rate_mbps(table).map_or_else(|| "-".to_owned(), |speed| format!("{speed} Mbit/s"));
        let link = if port.link_up { "up" } else { "down" };
        let devices = if devices.is_empty() { "-".to_owned() } else { devices.join(", ") };
        columns.row([port.name.clone(), link.to_owned(), speed, devices, remarks.join("; ")]);
    }
    format!("all interfaces\n{}", columns.render("  "))
}

pub(crate) fn as_json(table: &Table, selection: &Selection) -> Value {
    let one = |Role { port, devices, remarks }: Role<'_>| {
        json!({
            "name": port.name,
            "link_up": port.link_up,
            "speed_mbps": port.rate_mbps(table),
            "devices": devices,
            "bond_mode": port.bond.map(|bond| bond.mode_name()),
            "xmit_hash_policy": port.bond.and_then(|bond| bond.hash_policy_name()),
            "master": port.slave.and_then(|slave| table.port(slave.master)).map(|it| &it.name),
            "usable": port.slave.map(|slave| slave.usable),
            "lacp": port.lacp,
            "remarks": remarks,
        })
    };
    roles(table, selection).into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use polypath_topology::{KernelBond, KernelSlave};

    use super::*;

    #[test]
    fn ports_of_bonds_are_listed_with_what_they_are() {
        let slave = |ifindex, usable| Port {
            enslaved: true,
            slave: Some(KernelSlave { master: 9, usable, place: 0 }),
            ..Port::ethernet(ifindex, &format!("eth{ifindex}"))
        };
        let bond = Port {
            bond: Some(KernelBond { mode: Some(4), xmit_hash_policy: 1 }),
            ..Port::ethernet(9, "bond0")
        };
        let lone = Port { lacp: Some(false), ..Port::ethernet(10, "eth10") };
        let docker = Port { uplink: false, ..Port::ethernet(11, "docker0") };
        let ports = vec![slave(2, true), slave(3, false), bond, lone, docker];
        let table = Table { ports, ..Table::default() };
        let text = as_text(&table, &Selection::default());
        for (name, says) in [
            ("eth2", "-       port of bond0, carries traffic"),
            ("eth3", "port of bond0, carries none"),
            ("bond0", "bond0   802.3ad, layer3+4: 1 of 2 carry: eth2, eth3"),
            ("eth10", "-       LACP: kept out"),
            ("docker0", "does not lead out"),
        ] {
            let found =
                text.lines().any(|line| line.contains(&format!("{name} ")) && line.contains(says));
            assert!(found, "{name}: {says} in {text}");
        }
        let json = as_json(&table, &Selection::default());
        assert_eq!(json[0]["master"], "bond0");
        assert_eq!((&json[1]["usable"], &json[3]["lacp"]), (&json!(false), &json!(false)));
        assert_eq!(json[2]["xmit_hash_policy"], "layer3+4");
    }
}
