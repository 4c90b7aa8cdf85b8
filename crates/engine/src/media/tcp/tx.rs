//! The sending half.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, StreamEnds};

use super::stream::Stream;
use super::streams::Streams;
use super::{PACKET_BYTES, WAITING_MAX, frames};
use crate::media::open_flows::OpenFlows;
use crate::media::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal, Tx};

/// When a stream that had no room is tried again, if nothing else happens.
const AGAIN: Duration = Duration::from_micros(500);
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
    flows: OpenFlows<StreamEnds>,
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
        let (lines, flows) = (Vec::new(), OpenFlows::new());
        Self { streams, version: 0, lines, flows, again_at: None }
    }

    /// Takes new streams, and lets go of those that are over.
    #[cold]
    fn renew(&mut self) {
        self.version = self.streams.version();
        self.streams.follow(&mut self.lines, |line| &line.stream, Line::new);
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
        Ok(self.flows.open(ends, tag))
    }

    fn close(&mut self, handle: FlowHandle) {
        self.flows.close(handle);
    }

    fn send_packet(&mut self, _now: Duration, handle: FlowHandle, packet: &[u8], seal: Seal) {
        // A packet that is damaged on its way must not arrive as valid.
        if seal == Seal::Wrong {
            return;
        }
        if self.version != self.streams.version() {
            self.renew();
        }
        let Some(ends) = self.flows.ends(handle) else { return };
        if !frames::fits(packet.len()) {
            return self.flows.failed(handle, FlowFault::Refused(libc::EMSGSIZE));
        }
        let line = self.lines.iter_mut().find(|l| l.stream.ends == ends && l.stream.works());
        let Some(line) = line else {
            return self.flows.failed(handle, FlowFault::Refused(libc::ENOTCONN));
        };
        if !line.push(packet) {
            return self.flows.failed(handle, FlowFault::Congested(libc::ENOBUFS));
        }
        self.flows.sent(handle, packet.len());
    }

    fn has_queued(&self) -> bool {
        self.flows.has_queued()
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
        self.flows.take_queued()
    }

    fn take_errors(&mut self) -> Vec<FlowError> {
        self.flows.take_errors()
    }

    fn sent_bytes(&self, handle: FlowHandle) -> u64 {
        self.flows.sent_bytes(handle)
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.again_at
    }
}
