//! The sending half.
//!
//! The frames of a burst are written at once, with their payload where it lies, so that the other end
//! begins to read early. What is small is gathered until the flush, or until it is much. What the kernel
//! has no room for waits here, and then everything that follows is copied behind it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, StreamEnds};
use polypath_transport::{Burst, Unread};
use rustix::io::Errno;

use super::run::{Not, Run};
use super::stream::Stream;
use super::streams::Streams;
use super::{PACKET_BYTES, WAITING_ALL_MAX, WAITING_MAX, WAITING_SURE, frames};
use crate::media::gather::packets;
use crate::media::open_flows::OpenFlows;
use crate::media::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal, Tx};
use crate::memory::Segment;

/// When a stream that had no room is tried again, if nothing else happens.
const AGAIN: Duration = Duration::from_micros(100);
/// So many bytes are written before the flush, while they are in the processor's cache, and so that the other
/// end can begin.
const MUCH: usize = 64 << 10;

/// A stream, and what waits to be written to it: frames, the first of which may be written in part.
#[derive(Debug)]
struct Line {
    stream: Arc<Stream>,
    waiting: Vec<u8>,
    written: usize,
    /// Whether the kernel had no room for something that waits since.
    full: bool,
    /// Whether the kernel may keep the end back.
    kept: bool,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct TcpTx {
    streams: Arc<Streams>,
    version: u32,
    lines: Vec<Line>,
    flows: OpenFlows<StreamEnds>,
    /// The run that is being sent.
    run: Run,
    /// When to try a stream again that had no room.
    again_at: Option<Duration>,
}

impl Line {
    fn new(stream: Arc<Stream>) -> Self {
        Self { stream, waiting: Vec::new(), written: 0, full: false, kept: false }
    }

    /// The bytes that wait.
    fn len(&self) -> usize {
        self.waiting.len() - self.written
    }

    /// Queues a packet, of which `room` bytes may wait. Returns false if there is no room for it.
    fn push(&mut self, packet: &[u8], room: usize) -> bool {
        let need = frames::HEADER + packet.len();
        if self.len() + need > room {
            return false;
        }
        if self.written > self.len().max(MUCH) {
            // Moving the rest costs less than was written since.
            self.waiting.drain(..self.written);
            self.written = 0;
        }
        self.waiting.extend_from_slice(&frames::header(packet.len()));
        self.waiting.extend_from_slice(packet);
        true
    }

    /// Writes what there is room for. Returns whether that was everything.
    fn write(&mut self) -> Result<bool, Errno> {
        if !self.waiting.is_empty() {
            let wrote = self.stream.write(&self.waiting[self.written..])?;
            self.written += wrote;
            self.kept &= wrote == 0;
            self.full = self.written < self.waiting.len();
            if self.full {
                return Ok(false);
            }
            self.waiting.clear();
            self.written = 0;
        }
        Ok(true)
    }

    /// Writes what waits and a run of frames. What there is no room for waits from then on.
    fn write_run(&mut self, run: &mut Run) -> Result<(), Errno> {
        let before = self.len();
        let taken = self.stream.write_pieces(run.list(&self.waiting[self.written..]))?;
        self.kept = true;
        if taken >= before {
            self.waiting.clear();
            self.written = 0;
        } else {
            self.written += taken;
        }
        if taken < before + run.bytes {
            self.full = true;
            if !run.copy_rest(taken.saturating_sub(before), &mut self.waiting) {
                return Err(Errno::FAULT);
            }
        }
        Ok(())
    }

    /// Sends what was queued. Returns whether the kernel took everything.
    fn flush(&mut self) -> Result<bool, Errno> {
        let all = self.write()?;
        if all && self.kept {
            self.kept = false;
            self.stream.push();
        }
        Ok(all)
    }
}

impl TcpTx {
    pub(super) fn new(streams: Arc<Streams>) -> Self {
        let (lines, flows) = (Vec::new(), OpenFlows::new());
        Self { streams, version: 0, lines, flows, run: Run::default(), again_at: None }
    }

    /// The stream of an open flow, which may be used.
    fn line(&mut self, handle: FlowHandle) -> Option<usize> {
        if self.version != self.streams.version() {
            self.renew();
        }
        let ends = self.flows.ends(handle)?;
        self.lines.iter().position(|l| l.stream.ends == ends && l.stream.works())
    }

    /// How many bytes may wait for a stream.
    fn room(&self, at: usize) -> usize {
        room(self.lines[at].len(), || self.lines.iter().map(Line::len).sum())
    }

    /// Sends a burst from where its payload lies. Returns false if it has to be copied.
    fn send_run(&mut self, handle: FlowHandle, burst: &Burst<'_, Segment>) -> Result<bool, Unread> {
        let Some(at) = self.line(handle) else { return Ok(false) };
        let room = self.room(at);
        let line = &mut self.lines[at];
        // It may have room again.
        if !line.stream.is_ours() || (line.full && line.write() != Ok(true)) {
            return Ok(false);
        }
        let made = self.run.make(burst);
        if made == Err(Not::Suitable) || line.len() + self.run.bytes > room {
            return Ok(false);
        }
        let (packets, bytes) = (self.run.packets, self.run.packet_bytes);
        let result = if packets == 0 { Ok(()) } else { line.write_run(&mut self.run) };
        self.flows.all_sent(handle, packets, bytes);
        if let Err(error) = result {
            self.streams.remove(&self.lines[at].stream, &io::Error::from(error).to_string());
        }
        match made {
            Ok(()) => Ok(true),
            Err(_) => Err(Unread { sent: packets }),
        }
    }

    /// Takes new streams, and lets go of those that are over.
    #[cold]
    fn renew(&mut self) {
        self.version = self.streams.version();
        self.streams.follow(&mut self.lines, |line| &line.stream, Line::new);
    }
}

/// How many bytes may wait for a stream for which `own` do, while `all` do for all of the lane.
fn room(own: usize, all: impl FnOnce() -> usize) -> usize {
    if own + MUCH < WAITING_SURE {
        return WAITING_SURE;
    }
    let others = all() - own;
    WAITING_ALL_MAX.saturating_sub(others).clamp(WAITING_SURE, WAITING_MAX)
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
        if self.flows.ends(handle).is_none() {
            return;
        }
        if !frames::fits(packet.len()) {
            return self.flows.failed(handle, FlowFault::Refused(libc::EMSGSIZE));
        }
        let Some(at) = self.line(handle) else {
            return self.flows.failed(handle, FlowFault::Refused(libc::ENOTCONN));
        };
        let room = self.room(at);
        let line = &mut self.lines[at];
        if !line.push(packet, room) {
            return self.flows.failed(handle, FlowFault::Congested(libc::ENOBUFS));
        }
        if !line.full && line.len() >= MUCH && line.stream.is_ours() {
            // An error comes again in the flush.
            let _ = line.write();
        }
        self.flows.sent(handle, packet.len());
    }

    fn send(
        &mut self,
        now: Duration,
        handle: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        if self.send_run(handle, burst)? {
            return Ok(());
        }
        packets(burst, |_, packet, seal| self.send_packet(now, handle, packet, seal))
    }

    fn has_queued(&self) -> bool {
        self.flows.has_queued()
    }

    fn flush(&mut self, now: Duration) -> Flushed {
        if self.version != self.streams.version() {
            self.renew();
        }
        self.again_at = None;
        for line in &mut self.lines {
            if line.waiting.is_empty() && !line.kept {
                continue;
            }
            if !line.stream.works() || !line.stream.is_ours() {
                continue;
            }
            match line.flush() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_room_for_much_only_while_others_do_not() {
        assert_eq!(room(0, || unreachable!()), WAITING_SURE);
        assert_eq!(room(WAITING_SURE, || WAITING_SURE), WAITING_MAX);
        assert_eq!(room(WAITING_SURE, || WAITING_ALL_MAX), WAITING_SURE);
        assert_eq!(room(WAITING_MAX, || 2 * WAITING_ALL_MAX), WAITING_SURE);
        let left = WAITING_SURE + 5000;
        assert_eq!(room(WAITING_SURE, || WAITING_ALL_MAX - 5000), left);
    }
}
