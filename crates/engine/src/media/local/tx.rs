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
use crate::media::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal, Tx};

/// A flow that is open.
#[derive(Clone, Copy, Debug)]
struct Flow {
    slot: u8,
    src: IpAddr,
    dst: IpAddr,
    tag: u32,
    sent_bytes: u64,
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
    /// By the handles' indexes, with serial numbers.
    flows: Vec<(u32, Option<Flow>)>,
    queued: Flushed,
    errors: Vec<FlowError>,
}

/// The most errors that are kept until they are taken.
const ERRORS_MAX: usize = 64;

impl LocalTx {
    pub(super) fn new(exchange: Arc<Exchange>) -> Self {
        let (lines, flows, errors) = (Vec::new(), Vec::new(), Vec::new());
        Self { exchange, version: 0, lines, flows, queued: Flushed::default(), errors }
    }

    /// Takes new channels, and lets go of those that are over.
    #[cold]
    fn renew(&mut self) {
        self.version = self.exchange.version();
        self.lines.retain(|line| line.channel.works());
        for channel in self.exchange.all() {
            if channel.works() && self.lines.iter().all(|l| !Arc::ptr_eq(&l.channel, &channel)) {
                let producer = Producer::new(channel.writes);
                self.lines.push(Line { channel, producer, written: false });
            }
        }
    }

    fn flow_mut(&mut self, handle: FlowHandle) -> Option<&mut Flow> {
        let (serial, flow) = self.flows.get_mut(handle.index as usize)?;
        flow.as_mut().filter(|_| *serial == handle.serial)
    }

    fn failed(&mut self, flow: FlowHandle, tag: u32, kind: FlowFault) {
        self.queued.dropped += 1;
        let same = |e: &&mut FlowError| (e.flow, e.kind) == (flow, kind);
        if let Some(error) = self.errors.iter_mut().find(same) {
            error.packets += 1;
        } else if self.errors.len() < ERRORS_MAX {
            self.errors.push(FlowError { flow, tag, kind, packets: 1 });
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
        let flow = Flow { slot, src: address.local, dst: address.remote, tag, sent_bytes: 0 };
        let free = self.flows.iter().position(|(_, flow)| flow.is_none());
        let index = free.unwrap_or_else(|| {
            self.flows.push((0, None));
            self.flows.len() - 1
        });
        let place = &mut self.flows[index];
        place.0 = place.0.wrapping_add(1);
        place.1 = Some(flow);
        Ok(FlowHandle { index: index as u32, serial: place.0 })
    }

    fn close(&mut self, handle: FlowHandle) {
        if self.flow_mut(handle).is_some() {
            self.flows[handle.index as usize].1 = None;
        }
        self.errors.retain(|error| error.flow != handle);
    }

    fn send_packet(&mut self, _now: Duration, handle: FlowHandle, packet: &[u8], seal: Seal) {
        // A packet that is damaged on its way must not arrive as valid.
        if seal == Seal::Wrong {
            return;
        }
        if self.version != self.exchange.version() {
            self.renew();
        }
        let Some(&mut Flow { slot, src, dst, tag, .. }) = self.flow_mut(handle) else { return };
        let line = self.lines.iter_mut().find(|l| l.channel.slot == slot && l.channel.works());
        let Some(line) = line else {
            return self.failed(handle, tag, FlowFault::Refused(libc::ENOTCONN));
        };
        match line.producer.push(&line.channel.memory, src, dst, packet) {
            Ok(true) => {
                line.written = true;
                self.queued.sent += 1;
                self.queued.sent_bytes += packet.len() as u64;
                if let Some(flow) = self.flow_mut(handle) {
                    flow.sent_bytes += packet.len() as u64;
                }
            }
            Ok(false) => self.failed(handle, tag, FlowFault::Congested(libc::ENOBUFS)),
            Err(_) => {
                let channel = line.channel.clone();
                self.exchange.remove(&channel);
                self.failed(handle, tag, FlowFault::Refused(libc::EPROTO));
            }
        }
    }

    fn has_queued(&self) -> bool {
        self.queued != Flushed::default()
    }

    fn flush(&mut self, _now: Duration) -> Flushed {
        for line in self.lines.iter_mut().filter(|line| line.written) {
            line.written = false;
            if line.channel.works() {
                line.channel.ring_if_asleep();
            }
        }
        core::mem::take(&mut self.queued)
    }

    fn take_errors(&mut self) -> Vec<FlowError> {
        core::mem::take(&mut self.errors)
    }

    fn sent_bytes(&self, handle: FlowHandle) -> u64 {
        let open = self.flows.get(handle.index as usize).filter(|open| open.0 == handle.serial);
        open.and_then(|open| open.1.as_ref()).map_or(0, |flow| flow.sent_bytes)
    }
}
