//! The state that the objects of an open device share: its memory, its protection domains, its
//! events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use polypath_topology::{DeviceSpec, PortSpec, Selection, Table};
use polypath_verbs::{AsyncEvent, AsyncKind, DeviceInfo, Element, Error, Result};

use crate::device;
use crate::dm_table::DmTable;
use crate::drive::Drive;
use crate::error::os_error;
use crate::events::Raise;
use crate::limits::{MAX_AH, MAX_CQ, MAX_SRQ};
use crate::memory::MemoryTable;
use crate::notify::{NoticeQueue, lock};
use crate::quota::Quota;

/// Counters of packets for queue pairs of a context that were dropped for wrong keys.
#[derive(Debug, Default)]
pub(crate) struct KeyViolations {
    /// Datagrams with a wrong Q_Key (`qkey_viol_cntr`).
    pub(crate) qkey: AtomicU64,
    /// Packets with a wrong P_Key (`bad_pkey_cntr`).
    pub(crate) pkey: AtomicU64,
}

/// The state that all objects of a context share.
#[derive(Debug)]
pub(crate) struct ContextInner {
    /// The lanes of its engine.
    pub(crate) lanes: Arc<dyn Drive>,
    pub(crate) info: DeviceInfo,
    spec: RwLock<Arc<DeviceSpec>>,
    pub(crate) memory: MemoryTable,
    pub(crate) dm: DmTable,
    pub(crate) events: NoticeQueue<AsyncEvent>,
    /// The number of users of each protection domain.
    pub(crate) pds: Mutex<HashMap<u32, u32>>,
    pub(crate) next_srq: AtomicU32,
    pub(crate) cqs: Arc<Quota>,
    pub(crate) srqs: Arc<Quota>,
    pub(crate) ahs: Arc<Quota>,
    pub(crate) violations: KeyViolations,
    /// Whether the program was told that the device is gone.
    gone: AtomicBool,
}

impl ContextInner {
    /// Creates a context of a device, without objects.
    ///
    /// # Errors
    /// The system's error, if it has no file descriptor left.
    pub(crate) fn new(
        lanes: Arc<dyn Drive>,
        info: &DeviceInfo,
        spec: DeviceSpec,
    ) -> Result<Arc<Self>> {
        let events = NoticeQueue::new().map_err(|e| os_error(&e))?;
        Ok(Arc::new(Self {
            lanes,
            info: info.clone(),
            spec: RwLock::new(Arc::new(spec)),
            memory: MemoryTable::new(),
            dm: DmTable::default(),
            events,
            pds: Mutex::default(),
            next_srq: AtomicU32::new(1),
            cqs: Quota::new(MAX_CQ, "completion queues"),
            srqs: Quota::new(MAX_SRQ, "shared receive queues"),
            ahs: Quota::new(MAX_AH, "address handles"),
            violations: KeyViolations::default(),
            gone: AtomicBool::new(false),
        }))
    }

    /// The device in its current state: members and GIDs.
    pub(crate) fn spec(&self) -> Arc<DeviceSpec> {
        self.spec.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// A reference to itself, in the form that the objects of the context use.
    pub(crate) fn owner(self: &Arc<Self>) -> Weak<dyn Raise> {
        let weak: Weak<Self> = Arc::downgrade(self);
        weak
    }

    /// Drops the undelivered events of an object that is gone.
    pub(crate) fn forget_events(&self, element: Element) {
        self.events.forget(|e| e.element == element);
    }

    pub(crate) fn use_pd(&self, pd: u32) -> Result<()> {
        match lock(&self.pds).get_mut(&pd) {
            Some(users) => {
                *users += 1;
                Ok(())
            }
            None => Err(Error::invalid("no such protection domain in this context")),
        }
    }

    /// Checks that a protection domain exists, without keeping it alive.
    pub(crate) fn check_pd(&self, pd: u32) -> Result<()> {
        self.use_pd(pd)?;
        self.release_pd(pd);
        Ok(())
    }

    pub(crate) fn release_pd(&self, pd: u32) {
        if let Some(users) = lock(&self.pds).get_mut(&pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// Deregisters all memory, for good.
    pub(crate) fn close_memory(&self) {
        for pd in self.memory.close(|| self.lanes.barrier()) {
            self.release_pd(pd);
        }
    }

    /// Handles the end of the engine, and with it of the device: the program is told the same as
    /// when a device is removed.
    pub(crate) fn engine_closed(&self, table: &Table) {
        self.close_memory();
        self.tell_gone(table);
    }

    /// Tells the program that the device is gone. As with the kernel, the port goes first, and then
    /// the device, for good.
    fn tell_gone(&self, table: &Table) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            let spec = self.spec();
            let active = spec.numbered_ports().filter(|(_, port)| port.is_active(table));
            for (number, _) in active {
                self.raise(AsyncEvent { kind: AsyncKind::PortErr, element: Element::Port(number) });
            }
            self.raise(AsyncEvent { kind: AsyncKind::DeviceFatal, element: Element::Device });
        }
    }

    /// Handles a change of interfaces or addresses: updates the GIDs, and raises the events that
    /// hardware would raise.
    pub(crate) fn table_changed(&self, old: &Table, new: &Table, selection: &Selection) {
        let Some(spec) = device::find(new, selection, &self.info.name) else {
            self.tell_gone(old);
            return;
        };
        let before = core::mem::replace(
            &mut *self.spec.write().unwrap_or_else(std::sync::PoisonError::into_inner),
            Arc::new(spec.clone()),
        );
        for (number, port) in spec.numbered_ports() {
            let none = PortSpec::default();
            let before = before.port(number).unwrap_or(&none);
            let element = Element::Port(number);
            let (was, is) = (before.is_active(old), port.is_active(new));
            if was != is {
                let kind = if is { AsyncKind::PortActive } else { AsyncKind::PortErr };
                self.raise(AsyncEvent { kind, element });
            } else if is && before.speed_mbps(old) != port.speed_mbps(new) {
                self.raise(AsyncEvent { kind: AsyncKind::DeviceSpeedChange, element });
            }
            if before.gids != port.gids {
                self.raise(AsyncEvent { kind: AsyncKind::GidChange, element });
            }
        }
    }
}

impl Raise for ContextInner {
    fn raise(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    fn forget(&self, element: Element) {
        self.forget_events(element);
    }

    fn release_pd(&self, pd: u32) {
        Self::release_pd(self, pd);
    }
}
