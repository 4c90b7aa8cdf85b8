//! The sending half.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, PathKind};

use super::PACKET_BYTES;
use super::channel::Channel;
use super::exchange::Exchange;
use super::ring::Producer;
use crate::media::open_flows::OpenFlows;
use crate::media::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal, Tx};

/// Where the packets of a flow go.
#[derive(Clone, Copy, Debug)]
struct Flow {
    slot: u8,
    src: IpAddr,
    dst: IpAddr,
}

/// A channel, and the end of its ring that this half owns.
#[derive(Debug)]
struct Line {
    channel: Arc<Channel>,
    producer: Producer,
    /// Whether something was written since the other lane was last looked at.
    written: bool,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct LocalTx {
    exchange: Arc<Exchange>,
    version: u32,
    lines: Vec<Line>,
    flows: OpenFlows<Flow>,
}

impl LocalTx {
    pub(super) fn new(exchange: Arc<Exchange>) -> Self {
        Self { exchange, version: 0, lines: Vec::new(), flows: OpenFlows::new() }
    }

    /// Takes new channels, and lets go of those that are over.
    #[cold]
    fn renew(&mut self) {
        self.version = self.exchange.version();
        self.lines.retain(|line| line.channel.works());
        for channel in self.exchange.all().iter() {
            if channel.works() && self.lines.iter().all(|l| !Arc::ptr_eq(&l.channel, channel)) {
                let channel = channel.clone();
                let producer = Producer::new(channel.writes);
                self.lines.push(Line { channel, producer, written: false });
            }
        }
    }
}

impl Tx for LocalTx {
    fn capabilities(&self) -> Capabilities {
        // A full ring drops packets, so it is not lossless.
        let (ordered, lossless, verified) = (true, false, true);
        Capabilities { name: "local", packet_bytes: PACKET_BYTES, ordered, lossless, verified }
    }

    fn carries(&self, address: &PathAddress) -> bool {
        matches!(address.kind, PathKind::Local { .. })
    }

    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        let PathKind::Local { slot } = address.kind else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let flow = Flow { slot, src: address.local, dst: address.remote };
        Ok(self.flows.open(flow, tag))
    }

    fn close(&mut self, handle: FlowHandle) {
        self.flows.close(handle);
    }

    fn send_packet(&mut self, _now: Duration, handle: FlowHandle, packet: &[u8], seal: Seal) {
        // A packet that is damaged on its way must not arrive as valid.
        if seal == Seal::Wrong {
            return;
        }
        if self.version != self.exchange.version() {
            self.renew();
        }
        let Some(Flow { slot, src, dst }) = self.flows.ends(handle) else { return };
        let line = self.lines.iter_mut().find(|l| l.channel.slot == slot && l.channel.works());
        let Some(line) = line else {
            return self.flows.failed(handle, FlowFault::Refused(libc::ENOTCONN));
        };
        match line.producer.push(&line.channel.memory, src, dst, packet) {
            Ok(true) => {
                line.written = true;
                self.flows.sent(handle, packet.len());
            }
            Ok(false) => self.flows.failed(handle, FlowFault::Congested(libc::ENOBUFS)),
            Err(_) => {
                let channel = line.channel.clone();
                self.exchange.remove(&channel, "its ring is broken");
                self.flows.failed(handle, FlowFault::Refused(libc::EPROTO));
            }
        }
    }

    fn has_queued(&self) -> bool {
        self.flows.has_queued()
    }

    fn flush(&mut self, _now: Duration) -> Flushed {
        for line in self.lines.iter_mut().filter(|line| line.written) {
            line.written = false;
            if line.channel.works() {
                line.channel.ring_if_asleep();
            }
        }
        self.flows.take_queued()
    }

    fn take_errors(&mut self) -> Vec<FlowError> {
        self.flows.take_errors()
    }

    fn sent_bytes(&self, handle: FlowHandle) -> u64 {
        self.flows.sent_bytes(handle)
    }
}
