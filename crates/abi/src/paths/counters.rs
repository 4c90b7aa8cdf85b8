//! A port's counters, as in `ports/1/counters` (IBTA 16.1.3.5): the packets and bytes that the
//! running processes have sent and received.

use std::fs;
use std::path::Path;

use polypath_ipc::Status;
use polypath_topology::{DeviceSpec, PortSpec, Table};

use super::directories::port_of;

/// Counters that stay zero. Their events do not happen on Ethernet, or are not counted by port
/// (`polypath status` has drops by reason).
const ZERO: [&str; 14] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "port_xmit_wait",
    "symbol_error",
    "multicast_xmit_packets",
];

/// Counters that are filled in.
const COUNTED: [&str; 6] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "unicast_xmit_packets",
    "unicast_rcv_packets",
];

/// The names of all counters.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ZERO.into_iter().chain(COUNTED)
}

/// The values of the counters that are filled in. Bytes are those of the paths over the port's
/// interfaces, in units of four bytes, as in all such counters. Packets are counted by process, so
/// those of a process with several devices, or of a device with several ports, belong to no port.
fn counted(
    device: &DeviceSpec,
    port: &PortSpec,
    table: &Table,
    status: &Status,
) -> [(&'static str, u64); 6] {
    let [mut sent, mut received, mut sent_packets, mut received_packets] = [0_u64; 4];
    for process in &status.processes {
        if !process.devices.contains(&device.name) {
            continue;
        }
        let over = |name: &str| port.interfaces(table).any(|interface| interface.name == name);
        for path in process.paths.iter().filter(|path| over(&path.interface)) {
            sent += path.counters.sent_bytes;
            received += path.counters.received_bytes;
        }
        if device.ports.len() == 1 && process.devices.iter().all(|name| *name == device.name) {
            for lane in &process.lanes {
                sent_packets += lane.counters.sent_packets;
                received_packets += lane.counters.received_packets;
            }
        }
    }
    let values =
        [sent / 4, received / 4, sent_packets, received_packets, sent_packets, received_packets];
    core::array::from_fn(|at| (COUNTED[at], values[at]))
}

/// Writes the counters of all devices into the made-up directory.
pub(super) fn write(root: &Path, devices: &[DeviceSpec], status: &Status) {
    let ports = |device| DeviceSpec::numbered_ports(device).map(move |port| (device, port));
    for (device, (number, port)) in devices.iter().flat_map(ports) {
        let directory = root.join(port_of(&device.name, number)).join("counters");
        for (name, value) in counted(device, port, &status.broker.table, status) {
            // Another process may be writing or reading the same file.
            let draft = directory.join(format!(".{name}-{}", std::process::id()));
            if fs::write(&draft, format!("{value}\n")).is_ok() {
                let _ = fs::rename(&draft, directory.join(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_ipc::status::{BrokerStatus, LaneStatus, PathStatus, ProcessStatus};
    use polypath_topology::{Port, ROCE};

    fn path(interface: &str, sent_bytes: u64) -> PathStatus {
        let mut path = PathStatus {
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, 2].into(),
            kind: "roce".into(),
            interface: interface.into(),
            bond_port: String::new(),
            source_port: 0xc000,
            state: "active".into(),
            window: 65536,
            in_flight: 4096,
            coupled: 0,
            rtt_us: None,
            counters: Default::default(),
            send_errors: Vec::new(),
            last_blackout_us: None,
        };
        path.counters.sent_bytes = sent_bytes;
        path.counters.received_bytes = 2 * sent_bytes;
        path
    }

    #[test]
    fn what_processes_carried_over_a_devices_interfaces_is_summed() {
        let device = |name: &str, members: &[u32]| DeviceSpec {
            name: name.into(),
            kind: ROCE.kind(),
            node_guid: 1,
            index: 1,
            uverbs: 1000,
            ports: vec![PortSpec::new(members.to_vec(), "roce:2".into())],
        };
        let table = Table {
            ports: vec![Port::ethernet(2, "eth0"), Port::ethernet(3, "eth1")],
            ..Table::default()
        };
        let mut lane = LaneStatus::default();
        lane.counters.sent_packets = 5;
        lane.counters.received_packets = 7;
        let process = |devices: &[&str]| ProcessStatus {
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            lanes: vec![lane.clone()],
            paths: vec![path("eth0", 400), path("eth1", 40)],
            ..ProcessStatus::default()
        };
        let status = Status {
            broker: BrokerStatus::default(),
            processes: vec![process(&["roce0", "roce1"]), process(&["roce0"]), process(&["mp0"])],
            silent: Vec::new(),
        };
        let values = |device: &DeviceSpec| {
            counted(device, &device.ports[0], &table, &status).map(|(_, value)| value)
        };
        let of_roce0 = values(&device("roce0", &[2]));
        assert_eq!(of_roce0, [200, 400, 5, 7, 5, 7]);
        assert_eq!(values(&device("roce1", &[3])), [10, 20, 0, 0, 0, 0]);
    }
}
