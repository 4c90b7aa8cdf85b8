//! A device for tests and for the docs: it has protection domains, and no other objects.
//!
//! `docs/extend/device.md` explains it and quotes this file.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use polypath_topology::{
    Choice, DeviceKind, DeviceSpec, Port, PortSpec, Provider, SelectionError, Table, gids,
};
use polypath_verbs::{
    AsyncEvent, Context, DeviceAttr, DeviceInfo, Error, GidEntry, PortAttr, Result,
};

use crate::driver::Driver;
use crate::engine_inner::EngineInner;
use crate::error::os_error;
use crate::notify::{NoticeQueue, lock};
use crate::{clock, device, port};

/// The kind.
static TOY: DeviceKind =
    DeviceKind { prefix: "toy", forms: &["toy:eth0"], title: "toy", multipath: false };

/// `toyN` stands on the interface with index N, as the user named it.
#[derive(Debug)]
struct ToyProvider;

impl Provider for ToyProvider {
    fn kind(&self) -> &'static DeviceKind {
        &TOY
    }

    fn parse(&self, text: &str) -> core::result::Result<Choice, SelectionError> {
        let choice = Choice::of_interfaces(&TOY, text)?;
        match choice.interfaces.len() {
            1 => Ok(choice),
            _ => Err(SelectionError::form(&choice.with_prefix(TOY.prefix), [&TOY])),
        }
    }

    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec> {
        let device = |port: &Port| DeviceSpec {
            name: format!("toy{}", port.ifindex),
            kind: &TOY,
            node_guid: gids::eui64(port.mac),
            index: 0x0030_0000 + port.ifindex,
            uverbs: 2_000_000 + port.ifindex,
            ports: vec![PortSpec::new(vec![port.ifindex], format!("toy:{}", port.ifindex))],
        };
        choice.ports(table).into_iter().map(device).collect()
    }
}

/// Opens the devices. The engine has it in its list.
#[derive(Debug)]
pub(crate) struct ToyDriver;

impl Driver for ToyDriver {
    fn kind(&self) -> &'static DeviceKind {
        &TOY
    }

    fn open(
        &self,
        engine: &Arc<EngineInner>,
        info: &DeviceInfo,
        spec: DeviceSpec,
    ) -> Result<Arc<dyn Context>> {
        let events = NoticeQueue::new().map_err(|error| os_error(&error))?;
        let (info, table) = (info.clone(), engine.table());
        Ok(Arc::new(Toy { info, spec, table, events, pds: Mutex::default() }))
    }
}

/// An open device.
#[derive(Debug)]
struct Toy {
    info: DeviceInfo,
    spec: DeviceSpec,
    /// The interfaces as they were when it was opened.
    table: Arc<Table>,
    events: NoticeQueue<AsyncEvent>,
    /// Protection domains.
    pds: Mutex<BTreeSet<u32>>,
}

impl Context for Toy {
    fn attributes(&self) -> DeviceAttr {
        DeviceAttr { max_pd: 2, max_qp: 0, ..device::attributes(&self.info, 1) }
    }

    fn query_port(&self, port: u8) -> Result<PortAttr> {
        Ok(port::attributes(port::of(&self.spec, port)?, &self.table, (0, 0)))
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        port::of(&self.spec, port)?;
        Ok(self.gid_table().into_iter().find(|entry| entry.index == index))
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        port::gids(&self.spec)
    }

    fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    fn take_async_event(&self) -> Option<AsyncEvent> {
        self.events.take()
    }

    fn clock_ns(&self) -> u64 {
        clock::realtime_ns(clock::now())
    }

    fn alloc_pd(&self) -> Result<u32> {
        let mut pds = lock(&self.pds);
        let Some(free) = (1..=2).find(|pd| !pds.contains(pd)) else {
            return Err(Error::no_memory("a toy has two protection domains: deallocate one first"));
        };
        pds.insert(free);
        Ok(free)
    }

    fn dealloc_pd(&self, pd: u32) -> Result<()> {
        let known = lock(&self.pds).remove(&pd);
        if known { Ok(()) } else { Err(Error::invalid("no such protection domain")) }
    }
}

#[cfg(test)]
mod tests {
    use polypath_topology::Selection;

    use super::*;
    use crate::devices;
    use crate::lane::Lane;

    fn selection(text: &str) -> core::result::Result<Selection, SelectionError> {
        Selection::parse_among(&[&ToyProvider], text)
    }

    #[test]
    fn a_toy_stands_on_the_interface_named_and_has_protection_domains() {
        let lane = Lane::still(9).unwrap();
        let engine = EngineInner::alone(crate::fuzz::table(), selection("toy:eth1").unwrap(), lane);
        let toys = devices::all(&engine);
        assert_eq!(toys.len(), 1);
        assert_eq!(toys[0].info().name, "toy3");
        let toy = toys[0].open().unwrap();
        assert_eq!(toy.gid(1, 1).unwrap().unwrap().ip, crate::fuzz::ip(1, 0));
        let first = toy.alloc_pd().unwrap();
        toy.alloc_pd().unwrap();
        assert_eq!(toy.alloc_pd().unwrap_err().errno, libc::ENOMEM);
        toy.dealloc_pd(first).unwrap();
        assert_eq!(toy.alloc_pd().unwrap(), first);
        // What it does not implement, it lacks.
        let lacking = toy.create_channel().unwrap_err();
        assert_eq!(lacking.errno, libc::EOPNOTSUPP);
        assert_eq!(lacking.reason, "this device has no completion channels");
    }

    #[test]
    fn a_wrong_choice_of_toys_is_refused_with_what_to_write() {
        let error = selection("toy:eth0+eth1").unwrap_err().to_string();
        let cure = "write toy:eth0, with the names of your interfaces";
        assert!(error.ends_with(cure), "{error}");
    }
}
