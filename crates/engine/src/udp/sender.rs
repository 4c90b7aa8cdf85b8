//! Sending.

use std::io;

use polypath_transport::Burst;

use super::{FlowError, FlowHandle, FlowKey, Flushed};

/// A lane's transmit side.
#[derive(Debug, Default)]
pub struct Sender {}

impl Sender {
    /// A sender without flows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a flow. Flows of one local address, interface and source port share a socket.
    ///
    /// # Errors
    /// The local address is not this host's, [`super::FLOWS_MAX`], [`super::SOCKETS_MAX`], no free port.
    pub fn open(&mut self, key: FlowKey) -> io::Result<FlowHandle> {
        let _ = key;
        Err(super::limit("not yet"))
    }

    /// Closes a flow; what it has queued is flushed first.
    pub fn close(&mut self, flow: FlowHandle) {
        let _ = flow;
    }

    /// The UDP source port that a flow really has.
    pub fn source_port(&self, flow: FlowHandle) -> Option<u16> {
        let _ = flow;
        None
    }

    /// Queues the packets of a burst. The payload is read before [`Sender::flush`] returns; it must be
    /// flushed before the lane's lock is released.
    pub fn queue(&mut self, flow: FlowHandle, burst: &Burst<'_>) {
        let _ = (flow, burst);
    }

    /// Queues one packet, complete but for its ICRC.
    pub fn queue_raw(&mut self, flow: FlowHandle, packet_without_icrc: &[u8]) {
        let _ = (flow, packet_without_icrc);
    }

    /// Sends all that is queued. Nothing is queued afterwards.
    pub fn flush(&mut self) -> Flushed {
        Flushed::default()
    }

    /// What went wrong since the last call, at most one of a kind per flow.
    pub fn take_flow_errors(&mut self) -> Vec<FlowError> {
        Vec::new()
    }
}
