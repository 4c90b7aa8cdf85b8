//! `polypath devices`: the devices that a program would see.

use crate::args::Devices;
use crate::error::CliError;
use crate::interfaces;
use crate::text::Columns;
use polypath_ipc::{Client, Hello};
use polypath_topology::{DeviceSpec, GidEntry, MEMBERS_MAX, PortSpec, Selection, Table, devices};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::ExitCode;

/// Lists the devices, starting the broker if none runs.
pub(crate) fn run(arguments: &Devices) -> Result<ExitCode, CliError> {
    let hello = Hello::of_this_process(arguments.device.as_deref().unwrap_or_default());
    let (broker, table) = Client::begin_with_table(&hello)?;
    broker.selection().check(&table)?;
    let text = if arguments.json {
        let mut json = as_json(&table, broker.selection());
        if arguments.all {
            json["interfaces"] = interfaces::as_json(&table, broker.selection());
        }
        format!("{json:#}\n")
    } else {
        let mut text = as_text(&table, broker.selection());
        if arguments.all {
            text += &interfaces::as_text(&table, broker.selection());
        }
        text
    };
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some((what, cure)) = left_out(&table, broker.selection()) {
        eprintln!("polypath: {what}; {cure}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The interfaces that a device lacks because it is limited in their number, and what to do about
/// it.
pub(crate) fn left_out(table: &Table, selection: &Selection) -> Option<(String, String)> {
    let names: Vec<&str> =
        selection.left_out(table).into_iter().map(|port| port.name.as_str()).collect();
    let device = devices(table, selection).into_iter().next().filter(|_| !names.is_empty())?;
    let what = format!(
        "a device has {MEMBERS_MAX} interfaces at most: {} is without {}",
        device.name,
        names.join(", ")
    );
    let form = device.kind.forms.last().unwrap_or(&device.kind.prefix);
    Some((what, format!("name the interfaces that it should have: --device {form}")))
}

fn as_json(table: &Table, selection: &Selection) -> Value {
    let device = |device: DeviceSpec| {
        let gids: Vec<Value> = entries(&device)
            .map(|(port, index, entry)| {
                let gid = std::net::Ipv6Addr::from(entry.gid).to_string();
                let (ip, interface) = (entry.ip, name(table, entry.ifindex));
                json!({
                    "port": port, "index": index, "gid": gid, "address": ip, "interface": interface
                })
            })
            .collect();
        let interfaces: Vec<&str> = device.members().map(|m| name(table, m)).collect();
        json!({
            "name": device.name,
            "kind": device.kind.title,
            "interfaces": interfaces,
            "active_members": live_members(table, &device),
            "mtu": device.roce_mtu(table),
            "node_guid": format!("{:016x}", device.node_guid),
            "gids": gids,
        })
    };
    let devices: Vec<Value> = devices(table, selection).into_iter().map(device).collect();
    json!({ "format": crate::json::FORMAT, "devices": devices })
}

fn as_text(table: &Table, selection: &Selection) -> String {
    let mut text = String::new();
    for device in devices(table, selection) {
        let state = if device.is_active(table) { "active" } else { "down" };
        text += &format!(
            "{}  {}, port {state}, MTU {}, GUID {:016x}\n",
            device.name,
            device.kind.title,
            device.roce_mtu(table),
            device.node_guid
        );
        for (number, port) in device.numbered_ports() {
            if device.ports.len() > 1 {
                let state = if port.is_active(table) { "active" } else { "down" };
                text += &format!("  port {number}  {state}, MTU {}\n", port.roce_mtu(table));
            }
            text += &of_port(table, port);
        }
    }
    text
}

fn of_port(table: &Table, port: &PortSpec) -> String {
    let mut links = Columns::new(["INTERFACE", "LINK", "SPEED"]);
    for interface in port.interfaces(table) {
        let link = if interface.link_up { "up" } else { "down" };
        let speed = interface.rate_mbps(table);
        let speed = speed.map_or_else(|| "-".to_owned(), |speed| format!("{speed} Mbit/s"));
        links.row([interface.name.clone(), link.to_owned(), speed]);
    }
    let mut gids = Columns::new(["GID", "ADDRESS", "INTERFACE"]);
    for (index, entry) in port.entries() {
        let interface = name(table, entry.ifindex).to_owned();
        gids.row([index.to_string(), entry.ip.to_string(), interface]);
    }
    links.render("  ") + &gids.render("  ")
}

/// The GIDs of all ports, with the number of the port and the index in its table.
fn entries(device: &DeviceSpec) -> impl Iterator<Item = (u8, usize, &GidEntry)> {
    device
        .numbered_ports()
        .flat_map(|(number, port)| port.entries().map(move |(index, entry)| (number, index, entry)))
}

fn live_members(table: &Table, device: &DeviceSpec) -> usize {
    let of = |port: &PortSpec| port.interfaces(table).filter(|it| port.carries(table, it)).count();
    device.ports.iter().map(of).sum()
}

fn name(table: &Table, ifindex: u32) -> &str {
    table.port(ifindex).map_or("?", |port| &port.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_topology::Port;

    #[test]
    fn interfaces_without_room_in_the_device_are_named_with_what_to_do() {
        let port = |ifindex: u32| Port::ethernet(ifindex, &format!("eth{ifindex}"));
        let table = Table { ports: (1..=18).map(port).collect(), ..Table::default() };
        let (what, cure) = left_out(&table, &Selection::default()).unwrap();
        assert_eq!(what, "a device has 16 interfaces at most: mp0 is without eth17, eth18");
        assert_eq!(cure, "name the interfaces that it should have: --device mp:eth0+eth1");
        assert_eq!(left_out(&table, &Selection::parse("roce").unwrap()), None);
    }
}
