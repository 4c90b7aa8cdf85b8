//! The sending half.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, StreamEnds};

use super::stream::Stream;
use super::streams::Streams;
use super::{PACKET_BYTES, WAITING_MAX, frames};
use crate::media::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal, Tx};

/// When a stream that had no room is tried again, if nothing else happens.
const AGAIN: Duration = Duration::from_micros(500);
/// The most errors that are kept until they are taken.
const ERRORS_MAX: usize = 64;

/// A flow that is open.
#[derive(Clone, Copy, Debug)]
struct Flow {
    ends: StreamEnds,
    tag: u32,
    sent_bytes: u64,
}

/// A stream, and what waits to be written to it: frames, the first of which may be written in part.
#[derive(Debug)]
struct Line {
    stream: Arc<Stream>,
    waiting: Vec<u8>,
    written: usize,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct TcpTx {
    streams: Arc<Streams>,
    version: u32,
    lines: Vec<Line>,
    /// By the handles' indexes, with serial numbers.
    flows: Vec<(u32, Option<Flow>)>,
    queued: Flushed,
    errors: Vec<FlowError>,
    /// When to try a stream again that had no room.
    again_at: Option<Duration>,
}

impl Line {
    fn new(stream: Arc<Stream>) -> Self {
        Self { stream, waiting: Vec::new(), written: 0 }
    }

    /// Queues a packet. Returns false if there is no room for it.
    fn push(&mut self, packet: &[u8]) -> bool {
        let need = frames::HEADER + packet.len();
        if self.waiting.len() - self.written + need > WAITING_MAX {
            return false;
        }
        if self.waiting.len() + need > WAITING_MAX {
            self.waiting.drain(..self.written);
            self.written = 0;
        }
        self.waiting.extend_from_slice(&frames::header(packet.len()));
        self.waiting.extend_from_slice(packet);
        true
    }

    /// Writes what there is room for. Returns whether that was everything.
    fn write(&mut self) -> Result<bool, rustix::io::Errno> {
        while self.written < self.waiting.len() {
            match self.stream.write(&self.waiting[self.written..])? {
                0 => return Ok(false),
                len => self.written += len,
            }
        }
        self.waiting.clear();
        self.written = 0;
        Ok(true)
    }
}

impl TcpTx {
    pub(super) fn new(streams: Arc<Streams>) -> Self {
        let (lines, flows, errors) = (Vec::new(), Vec::new(), Vec::new());
        let queued = Flushed::default();
        Self { streams, version: 0, lines, flows, queued, errors, again_at: None }
    }

    /// Takes new streams, and lets go of those that are over.
    #[cold]
    fn renew(&mut self) {
        self.version = self.streams.version();
        let all = self.streams.all();
        self.lines.retain(|line| all.iter().any(|stream| Arc::ptr_eq(stream, &line.stream)));
        for stream in all {
            if self.lines.iter().all(|line| !Arc::ptr_eq(&line.stream, &stream)) {
                self.lines.push(Line::new(stream));
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

impl Tx for TcpTx {
    fn capabilities(&self) -> Capabilities {
        // A full stream drops packets, so it is not lossless. What TCP's checksum lets through, the links'
        // own checks catch.
        let (ordered, lossless, verified) = (true, false, true);
        Capabilities { name: "tcp", packet_bytes: PACKET_BYTES, ordered, lossless, verified }
    }

    fn carries(&self, address: &PathAddress) -> bool {
        address.kind.is_tcp()
    }

    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        let Some(ends) = StreamEnds::of(address) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let free = self.flows.iter().position(|(_, flow)| flow.is_none());
        let index = free.unwrap_or_else(|| {
            self.flows.push((0, None));
            self.flows.len() - 1
        });
        let place = &mut self.flows[index];
        place.0 = place.0.wrapping_add(1);
        place.1 = Some(Flow { ends, tag, sent_bytes: 0 });
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
        if self.version != self.streams.version() {
            self.renew();
        }
        let Some(&mut Flow { ends, tag, .. }) = self.flow_mut(handle) else { return };
        if !frames::fits(packet.len()) {
            return self.failed(handle, tag, FlowFault::Refused(libc::EMSGSIZE));
        }
        let line = self.lines.iter_mut().find(|l| l.stream.ends == ends && l.stream.works());
        let Some(line) = line else {
            return self.failed(handle, tag, FlowFault::Refused(libc::ENOTCONN));
        };
        if !line.push(packet) {
            return self.failed(handle, tag, FlowFault::Congested(libc::ENOBUFS));
        }
        self.queued.sent += 1;
        self.queued.sent_bytes += packet.len() as u64;
        if let Some(flow) = self.flow_mut(handle) {
            flow.sent_bytes += packet.len() as u64;
        }
    }

    fn has_queued(&self) -> bool {
        self.queued != Flushed::default()
    }

    fn flush(&mut self, now: Duration) -> Flushed {
        self.again_at = None;
        for line in &mut self.lines {
            if line.waiting.is_empty() || !line.stream.works() || !line.stream.is_ours() {
                continue;
            }
            match line.write() {
                Ok(true) => {}
                Ok(false) => self.again_at = Some(now + AGAIN),
                Err(error) => {
                    self.streams.remove(&line.stream, &io::Error::from(error).to_string());
                }
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

    fn next_deadline(&self) -> Option<Duration> {
        self.again_at
    }
}
