//! The flows that a medium over connections has open, and what became of their packets.

use super::{FlowError, FlowFault, FlowHandle, Flushed};

/// The most errors that are kept until they are taken.
const ERRORS_MAX: usize = 64;

/// A flow that is open. `E` names the ends between which its packets go.
#[derive(Clone, Copy, Debug)]
struct Open<E> {
    ends: E,
    tag: u32,
    sent_bytes: u64,
}

/// The open flows of a medium.
#[derive(Debug)]
pub(crate) struct OpenFlows<E> {
    /// By the handles' indexes, with serial numbers.
    flows: Vec<(u32, Option<Open<E>>)>,
    queued: Flushed,
    errors: Vec<FlowError>,
}

impl<E: Copy> OpenFlows<E> {
    pub(crate) fn new() -> Self {
        Self { flows: Vec::new(), queued: Flushed::default(), errors: Vec::new() }
    }

    pub(crate) fn open(&mut self, ends: E, tag: u32) -> FlowHandle {
        let free = self.flows.iter().position(|(_, flow)| flow.is_none());
        let index = free.unwrap_or_else(|| {
            self.flows.push((0, None));
            self.flows.len() - 1
        });
        let place = &mut self.flows[index];
        place.0 = place.0.wrapping_add(1);
        place.1 = Some(Open { ends, tag, sent_bytes: 0 });
        FlowHandle { index: index as u32, serial: place.0 }
    }

    pub(crate) fn close(&mut self, handle: FlowHandle) {
        if self.get(handle).is_some() {
            self.flows[handle.index as usize].1 = None;
        }
        self.errors.retain(|error| error.flow != handle);
    }

    fn get(&self, handle: FlowHandle) -> Option<&Open<E>> {
        let (serial, flow) = self.flows.get(handle.index as usize)?;
        flow.as_ref().filter(|_| *serial == handle.serial)
    }

    /// The ends of a flow; `None` if it is not open.
    pub(crate) fn ends(&self, handle: FlowHandle) -> Option<E> {
        self.get(handle).map(|flow| flow.ends)
    }

    /// Counts a packet of an open flow that was taken.
    pub(crate) fn sent(&mut self, handle: FlowHandle, bytes: usize) {
        self.all_sent(handle, 1, bytes);
    }

    /// Counts packets of an open flow that were taken; `bytes` of all of them.
    pub(crate) fn all_sent(&mut self, handle: FlowHandle, packets: u32, bytes: usize) {
        self.queued.sent += packets;
        self.queued.sent_bytes += bytes as u64;
        if let Some((_, Some(flow))) = self.flows.get_mut(handle.index as usize) {
            flow.sent_bytes += bytes as u64;
        }
    }

    /// Counts a packet of an open flow that was not.
    pub(crate) fn failed(&mut self, handle: FlowHandle, kind: FlowFault) {
        self.all_failed(handle, 1, kind);
    }

    /// Counts packets of an open flow that were not taken.
    pub(crate) fn all_failed(&mut self, handle: FlowHandle, packets: u32, kind: FlowFault) {
        self.queued.dropped += packets;
        let Some(tag) = self.get(handle).map(|flow| flow.tag) else { return };
        let same = |e: &&mut FlowError| (e.flow, e.kind) == (handle, kind);
        if let Some(error) = self.errors.iter_mut().find(same) {
            error.packets += packets;
        } else if self.errors.len() < ERRORS_MAX {
            self.errors.push(FlowError { flow: handle, tag, kind, packets });
        }
    }

    pub(crate) fn has_queued(&self) -> bool {
        self.queued != Flushed::default()
    }

    /// What was taken and dropped since the last call.
    pub(crate) fn take_queued(&mut self) -> Flushed {
        core::mem::take(&mut self.queued)
    }

    pub(crate) fn take_errors(&mut self) -> Vec<FlowError> {
        core::mem::take(&mut self.errors)
    }

    /// The bytes that were sent by a flow; 0 if it is not open.
    pub(crate) fn sent_bytes(&self, handle: FlowHandle) -> u64 {
        self.get(handle).map_or(0, |flow| flow.sent_bytes)
    }
}
