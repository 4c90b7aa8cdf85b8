//! The sending half.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, PathKind};
use polypath_transport::{Burst, Unread};
use polypath_wire::{Headers, MAX_HEADERS_LEN};

use super::PACKET_BYTES;
use super::channel::Channel;
use super::exchange::Exchange;
use super::ring::{Broken, Producer};
use crate::media::open_flows::OpenFlows;
use crate::media::payload::{Cursor, Piece};
use crate::media::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal, Tx};
use crate::memory::Segment;

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

/// The fault of packets that find no room in the ring.
const FULL: FlowFault = FlowFault::Congested(libc::ENOBUFS);

/// Why packets are not in the ring.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// There is no room.
    Full,
    /// The other end broke the ring.
    Broken,
    /// Their payload can't be read.
    Unread,
}

impl From<Broken> for Stop {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

impl Line {
    /// Writes the next packet of a burst. Returns its length in bytes.
    #[inline]
    fn write(
        &mut self,
        flow: &Flow,
        headers: &Headers,
        payload: usize,
        cursor: &mut Cursor<'_>,
    ) -> Result<usize, Stop> {
        let Self { channel, producer, written } = self;
        let memory = &channel.memory;
        let mut head = [0; MAX_HEADERS_LEN];
        let from = headers.emit(&mut head);
        let pad = usize::from(headers.bth.pad);
        let len = from + payload + pad;
        let room = producer.room(memory, flow.src, flow.dst, len)?.ok_or(Stop::Full)?;
        memory.write(room.at, &head[..from]);
        let mut at = room.at + from;
        let read = cursor.each(payload, |piece| match piece {
            Piece::Bytes(bytes) => {
                memory.write(at, bytes);
                at += bytes.len();
                true
            }
            Piece::Memory(segment) => {
                let read = memory.write_segment(at, segment);
                at += segment.bytes();
                read
            }
        });
        if !read {
            return Err(Stop::Unread);
        }
        memory.write(room.at + from + payload, &[0; 3][..pad]);
        producer.tell(memory, room);
        *written = true;
        Ok(len)
    }
}

impl LocalTx {
    /// The line of an open flow. If there is none, this many packets of the flow have failed.
    #[inline]
    fn line(&mut self, handle: FlowHandle, packets: u32) -> Option<(Flow, &mut Line)> {
        if self.version != self.exchange.version() {
            self.renew();
        }
        let flow = self.flows.ends(handle)?;
        let Self { lines, flows, .. } = self;
        let line = lines.iter_mut().find(|l| l.channel.slot == flow.slot && l.channel.works());
        if line.is_none() {
            flows.all_failed(handle, packets, FlowFault::Refused(libc::ENOTCONN));
        }
        line.map(|line| (flow, line))
    }

    /// Counts packets that found their ring broken, and gives the channel up.
    #[cold]
    fn broken(&mut self, handle: FlowHandle, packets: u32) {
        if let Some(Flow { slot, .. }) = self.flows.ends(handle)
            && let Some(line) = self.lines.iter().find(|line| line.channel.slot == slot)
        {
            let channel = line.channel.clone();
            self.exchange.remove(&channel, "its ring is broken");
        }
        self.flows.all_failed(handle, packets, FlowFault::Refused(libc::EPROTO));
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
        let Some((Flow { src, dst, .. }, line)) = self.line(handle, 1) else { return };
        let Line { channel, producer, written } = line;
        match producer.push(&channel.memory, src, dst, packet) {
            Ok(true) => {
                *written = true;
                self.flows.sent(handle, packet.len());
            }
            Ok(false) => self.flows.failed(handle, FULL),
            Err(Broken) => self.broken(handle, 1),
        }
    }

    /// Writes headers and payload straight into the ring.
    fn send(
        &mut self,
        _now: Duration,
        handle: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        let Some((flow, line)) = self.line(handle, burst.packets) else { return Ok(()) };
        let mut cursor = Cursor::new(&burst.payload);
        let (mut sent, mut bytes, mut stop) = (0, 0, None);
        while sent < burst.packets && stop.is_none() {
            match line.write(&flow, &burst.headers(sent), burst.range(sent).len(), &mut cursor) {
                Ok(len) => (sent, bytes) = (sent + 1, bytes + len),
                Err(why) => stop = Some(why),
            }
        }
        self.flows.all_sent(handle, sent, bytes);
        let left = burst.packets - sent;
        match stop {
            None => {}
            // What did not fit is lost, as are packets that a queue has no room for.
            Some(Stop::Full) => self.flows.all_failed(handle, left, FULL),
            Some(Stop::Broken) => self.broken(handle, left),
            Some(Stop::Unread) => return Err(Unread { sent }),
        }
        Ok(())
    }

    fn has_queued(&self) -> bool {
        self.flows.has_queued()
    }

    fn flush(&mut self, _now: Duration) -> Flushed {
        // What is over is let go, also if nothing is sent any more.
        if self.version != self.exchange.version() {
            self.renew();
        }
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
