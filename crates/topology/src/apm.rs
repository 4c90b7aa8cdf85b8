//! Automatic path migration: one device over several interfaces, without multi-path. A queue pair has a
//! primary path and an alternate one, each by an interface of its own.

use crate::choice::Choice;
use crate::device::{DeviceKind, DeviceSpec};
use crate::mp::MP;
use crate::provider::Provider;
use crate::table::Table;

/// The provider of `apm0`: the interfaces and the GID table of [`MP`], but plain RoCE v2. Programs, or the
/// connection manager for them, load alternate paths (`IBV_QP_ALT_PATH`).
pub const APM: &dyn Provider = &Apm;

static KIND: DeviceKind = DeviceKind {
    prefix: "apm",
    forms: &["apm", "apm:eth0+eth1"],
    title: "automatic path migration",
    multipath: false,
};

/// The `index` of a program's only apm device.
const INDEX: u32 = 0x0010_0001;

/// The number of its device file.
const UVERBS: u32 = 901;

/// The bit of a GUID that tells apm devices from mp devices.
const OF_KIND: u64 = 0x0100_0000_0000_0000;

#[derive(Debug)]
struct Apm;

impl Provider for Apm {
    fn kind(&self) -> &'static DeviceKind {
        &KIND
    }

    fn suits(&self, _interfaces: usize) -> bool {
        false
    }

    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec> {
        let device = |like: DeviceSpec| DeviceSpec {
            name: "apm0".to_owned(),
            kind: &KIND,
            node_guid: like.node_guid ^ OF_KIND,
            index: INDEX,
            uverbs: UVERBS,
            gid_table: choice.with_prefix(KIND.prefix),
            ..like
        };
        MP.devices(table, choice).into_iter().map(device).collect()
    }

    fn left_out<'a>(&self, table: &'a Table, choice: &Choice) -> Vec<&'a crate::interface::Port> {
        MP.left_out(table, choice)
    }
}
