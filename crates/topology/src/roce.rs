//! Plain RoCE v2: a device for each interface.

use crate::choice::Choice;
use crate::device::{DeviceKind, DeviceSpec, PortSpec};
use crate::gids::eui64;
use crate::interface::Port;
use crate::provider::Provider;
use crate::table::Table;

/// The provider of `roceN`: one interface, RoCE v2.
pub const ROCE: &dyn Provider = &Roce;

static KIND: DeviceKind = DeviceKind {
    prefix: "roce",
    forms: &["roce", "roce:eth0"],
    title: "RoCE v2",
    multipath: false,
};

/// The base of the `index` of devices, to which the interface's index is added.
const INDEX: u32 = 0x0020_0000;

/// The base of the number of device files: that of `roceN` is `uverbs` and this number plus N.
const UVERBS: u32 = 1000;

#[derive(Debug)]
struct Roce;

impl Provider for Roce {
    fn kind(&self) -> &'static DeviceKind {
        &KIND
    }

    fn suits(&self, interfaces: usize) -> bool {
        interfaces < 2
    }

    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec> {
        let given = table.ports.iter().filter_map(|port| port.device_number).max();
        let mut next = given.map_or(0, |n| n.saturating_add(1));
        let mut number = |port: &Port| {
            port.device_number.unwrap_or_else(|| {
                next = next.saturating_add(1);
                next - 1
            })
        };
        choice.ports(table).into_iter().map(|port| device(port, number(port))).collect()
    }

    /// A table belongs to one interface, whoever chose it.
    fn shares_gid_tables(&self, _choice: &Choice) -> bool {
        true
    }
}

fn device(port: &Port, number: u16) -> DeviceSpec {
    DeviceSpec {
        name: format!("roce{number}"),
        kind: &KIND,
        node_guid: eui64(port.mac),
        index: INDEX.saturating_add(port.ifindex),
        uverbs: UVERBS + u32::from(number),
        ports: vec![self::port(port)],
    }
}

/// A port over one interface. Its GID table belongs to the interface, whichever device shows it.
pub(crate) fn port(port: &Port) -> PortSpec {
    PortSpec::new(vec![port.ifindex], format!("roce:{}", port.ifindex))
}
