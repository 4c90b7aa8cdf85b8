//! Interfaces whose MTU is too small for a device or its queue pairs, so that packets leave in
//! fragments.

use super::Finding;
use polypath_ipc::status::{ProcessStatus, QpStatus};
use polypath_topology::{OVERHEAD, Port, Table, roce_mtu};
use std::collections::BTreeSet;

/// The cure for what this host cannot see: the MTU on the way to another host.
const TRY: &str = "`polypath ping HOST` shows what size of packet gets through";

/// The members of a device that carry less than its active MTU. These have no link, because members
/// without a link do not count for the active MTU.
pub(super) fn members(device: &str, active_mtu: u32, ports: &[&Port]) -> Vec<Finding> {
    let small = ports.iter().filter(|port| roce_mtu(port.mtu) < active_mtu);
    small
        .map(|port| {
            Finding::warning(
                format!(
                    "{} has an MTU of {}, too small for the active MTU of {device}, {active_mtu}: once \
                     it has a link, packets of existing connections leave through it in fragments",
                    port.name, port.mtu
                ),
                raise(port, active_mtu),
            )
        })
        .collect()
}

/// The interfaces that carry less than the path MTU of queue pairs that use them, or may use them
/// after a fail-over.
pub(super) fn queue_pairs(table: &Table, processes: &[ProcessStatus]) -> Vec<Finding> {
    table.ports.iter().filter_map(|port| interface(port, processes)).collect()
}

fn interface(port: &Port, processes: &[ProcessStatus]) -> Option<Finding> {
    let carried = roce_mtu(port.mtu);
    let mut largest = 0;
    let mut programs = BTreeSet::new();
    for process in processes {
        for qp in process.qps.iter().filter(|qp| qp.path_mtu > carried) {
            if uses(qp, process, &port.name) {
                largest = largest.max(qp.path_mtu);
                programs.insert(format!("{}, pid {}", process.program, process.pid));
            }
        }
    }
    let programs = programs.into_iter().collect::<Vec<_>>().join("; ");
    (largest > 0).then(|| {
        Finding::warning(
            format!(
                "{} has an MTU of {}, too small for queue pairs with a path MTU of {largest} \
                 ({programs}): their packets leave in fragments, which adapters do not take",
                port.name, port.mtu
            ),
            format!("{}; or connect anew", raise(port, largest)),
        )
    })
}

/// Whether a queue pair sends through an interface, or may do so after a fail-over.
fn uses(qp: &QpStatus, process: &ProcessStatus, name: &str) -> bool {
    let active = qp.active_path.rsplit_once('@').is_some_and(|(_, interface)| interface == name);
    active || qp.multipath && process.paths.iter().any(|path| path.interface == name)
}

fn raise(port: &Port, path_mtu: u32) -> String {
    format!("ip link set {} mtu {} (here and at the peer); {TRY}", port.name, path_mtu + OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::example;

    fn port(name: &str, mtu: u32) -> Port {
        Port { name: name.to_owned(), mtu, ..example().broker.table.ports[0].clone() }
    }

    #[test]
    fn a_member_below_the_active_mtu_is_named_with_its_cure() {
        let (large, small) = (port("eth0", 9000), port("eth1", 1500));
        let found = members("mp0", 4096, &[&large, &small]);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.starts_with("eth1 has an MTU of 1500"), "{}", found[0].what);
        assert!(found[0].cure.starts_with("ip link set eth1 mtu 4200 "), "{}", found[0].cure);
        assert!(found[0].cure.contains("polypath ping HOST"), "{}", found[0].cure);
        assert_eq!(members("mp0", 1024, &[&large, &small]), []);
    }

    #[test]
    fn an_mtu_below_the_path_mtu_of_queue_pairs_is_found_on_each_interface_they_may_use() {
        let mut status = example();
        let process = &mut status.processes[0];
        process.qps[0].path_mtu = 4096;
        let mut other = process.paths[0].clone();
        other.interface = "eth1".into();
        process.paths.push(other);
        let table = |mtus: [u32; 3]| Table {
            ports: ["eth0", "eth1", "eth2"]
                .into_iter()
                .zip(mtus)
                .map(|(n, m)| port(n, m))
                .collect(),
            ..Table::default()
        };
        let names = |mtus, processes: &[ProcessStatus]| -> Vec<String> {
            let found = queue_pairs(&table(mtus), processes);
            found.iter().map(|f| f.what.split(' ').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(names([4200; 3], &status.processes), [""; 0]);
        assert_eq!(names([1500; 3], &status.processes), ["eth0", "eth1"], "eth2 has no path");
        let found = queue_pairs(&table([1500, 9000, 9000]), &status.processes);
        assert!(found[0].what.contains("(rping, pid 8)"), "{}", found[0].what);
        // A queue pair without multi-path stays on its path.
        status.processes[0].qps[0].multipath = false;
        assert_eq!(names([1500; 3], &status.processes), ["eth0"]);
    }
}
