//! Multi-path: one device over several interfaces.

use crate::choice::Choice;
use crate::device::{DeviceKind, DeviceSpec, MEMBERS_MAX, PortSpec};
use crate::gids::eui64;
use crate::interface::Port;
use crate::provider::Provider;
use crate::table::Table;

/// The provider of `mp0`: several interfaces, multi-path with peers that support it. Its GUID is made
/// from [`Table::guid`] and the chosen interfaces' names, so that it stays when interfaces come and go.
pub const MP: &dyn Provider = &Mp;

static KIND: DeviceKind = DeviceKind {
    prefix: "mp",
    forms: &["mp", "mp:eth0+eth1"],
    title: "multi-path",
    multipath: true,
};

/// The `index` of a program's only mp device.
const INDEX: u32 = 0x0010_0000;

/// The number of its device file.
const UVERBS: u32 = 900;

/// Bits of a GUID that tell mp devices of one host from each other, and the one that tells them from the
/// devices of single interfaces.
const OF_CHOICE: u64 = 0xff_ffff;
const OF_KIND: u64 = 0x0200_0000_0000_0000;

/// The GUID of a device over several interfaces. `kind` tells it from devices of other kinds.
pub(crate) fn guid(table: &Table, choice: &Choice, first: &Port, kind: u64) -> u64 {
    let host = table.guid.unwrap_or_else(|| eui64(first.mac));
    // FNV-1a; it is 0 for no choice.
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let choice = choice.text.bytes().fold(0, mix);
    host ^ kind ^ (choice & OF_CHOICE)
}

#[derive(Debug)]
struct Mp;

impl Provider for Mp {
    fn kind(&self) -> &'static DeviceKind {
        &KIND
    }

    fn suits(&self, interfaces: usize) -> bool {
        interfaces >= 2
    }

    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec> {
        let mut ports = choice.ports(table);
        ports.truncate(MEMBERS_MAX);
        let Some(first) = ports.first() else { return Vec::new() };
        vec![DeviceSpec {
            name: "mp0".to_owned(),
            kind: &KIND,
            node_guid: guid(table, choice, first, OF_KIND),
            index: INDEX,
            uverbs: UVERBS,
            ports: vec![PortSpec::new(
                ports.iter().map(|port| port.ifindex).collect(),
                choice.with_prefix(KIND.prefix),
            )],
        }]
    }

    fn left_out<'a>(&self, table: &'a Table, choice: &Choice) -> Vec<&'a Port> {
        choice.beyond_room(table)
    }
}
