//! Plain RoCE v2 with several ports: one device with a port for each interface.
//!
//! Programs that migrate queue pairs from port to port (automatic path migration) look for another port
//! of the same device, which devices of one interface do not have.

use crate::choice::Choice;
use crate::device::{DeviceKind, DeviceSpec, MEMBERS_MAX, PortSpec};
use crate::interface::Port;
use crate::mp::guid;
use crate::provider::Provider;
use crate::roce;
use crate::table::Table;

/// The provider of `roce2_0`: several interfaces, each a port of its own.
pub const ROCE2: &dyn Provider = &MultiPort;

static KIND: DeviceKind = DeviceKind {
    prefix: "roce2",
    forms: &["roce2", "roce2:eth0+eth1"],
    title: "RoCE v2, a port per interface",
    multipath: false,
};

/// The `index` of a program's only such device.
const INDEX: u32 = 0x0018_0000;

/// The number of its device file.
const UVERBS: u32 = 910;

/// The bit of a GUID that tells the device from others of the same host.
const OF_KIND: u64 = 0x0100_0000_0000_0000;

#[derive(Debug)]
struct MultiPort;

impl Provider for MultiPort {
    fn kind(&self) -> &'static DeviceKind {
        &KIND
    }

    /// The number of a port is the place of its interface among those that were named. An interface that
    /// is missing leaves a port without any, so that the others keep their numbers.
    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec> {
        let mut interfaces = choice.ports(table);
        interfaces.truncate(MEMBERS_MAX);
        let Some(first) = interfaces.first() else { return Vec::new() };
        let of = |port: Option<&Port>| port.map_or_else(PortSpec::default, roce::port);
        let ports = if choice.interfaces.is_empty() {
            interfaces.iter().map(|port| roce::port(port)).collect()
        } else {
            choice.interfaces.iter().map(|name| of(table.port_by_name(name))).collect()
        };
        vec![DeviceSpec {
            name: "roce2_0".to_owned(),
            kind: &KIND,
            node_guid: guid(table, choice, first, OF_KIND),
            index: INDEX,
            uverbs: UVERBS,
            ports,
        }]
    }

    fn left_out<'a>(&self, table: &'a Table, choice: &Choice) -> Vec<&'a Port> {
        choice.beyond_room(table)
    }

    /// The tables belong to single interfaces.
    fn shares_gid_tables(&self, _choice: &Choice) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gids::tests::port;
    use crate::selection::{Selection, devices};

    #[test]
    fn each_interface_is_a_port_with_its_own_gids() {
        let ports = vec![port(2, "eth0", &["10.0.0.1"]), port(3, "eth1", &["10.0.1.1"])];
        let table = Table { ports, ..Table::default() };
        let selection = Selection::parse("roce2:eth1+eth0").unwrap();
        let [device] = &devices(&table, &selection)[..] else { panic!("one device") };
        assert_eq!(device.members().collect::<Vec<_>>(), [3, 2]);
        let address = |number| device.port(number).map(|port| port.gids[1].ip.to_string());
        assert_eq!(address(1).as_deref(), Some("10.0.1.1"));
        assert_eq!(address(2).as_deref(), Some("10.0.0.1"));
        assert_eq!((address(0), address(3)), (None, None));
        let keys: Vec<String> =
            selection.gid_tables(&table).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["roce:3", "roce:2"], "those of the roce devices");

        let table = Table { ports: vec![port(2, "eth0", &["10.0.0.1"])], ..Table::default() };
        let device = &devices(&table, &selection)[0];
        assert_eq!(device.ports.len(), 2);
        assert_eq!(device.port(2).map(|port| port.members.clone()), Some(vec![2]));
        assert!(!device.ports[0].is_active(&table) && device.ports[0].gids.is_empty());
        assert_eq!(selection.gid_tables(&table).len(), 1);
    }
}
