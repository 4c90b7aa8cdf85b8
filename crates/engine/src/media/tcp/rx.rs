//! The receiving half.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::StreamEnds;

use super::frames::{self, Broken, HEADER};
use super::stream::Stream;
use super::streams::Streams;
use crate::media::{Received, Rx};

/// The bytes of one stream that are read at a time. The longest packet fits.
const ROOM: usize = 128 << 10;
/// The most packets of one stream that are handed out at a time.
const BATCH: usize = 64;
/// A stream by which nothing came for so long is looked at only once in a while, because each look is a
/// system call, and a program that polls has other paths to look at.
const RECENT: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_micros(20);

/// A stream, and what has arrived by it.
#[derive(Debug)]
struct Line {
    stream: Arc<Stream>,
    room: Box<[u8]>,
    /// The bytes that have arrived and were not handed out.
    from: usize,
    to: usize,
    heard_at: Duration,
    looked_at: Duration,
    /// Whether the last look found all that there was.
    drained: bool,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct TcpRx {
    streams: Arc<Streams>,
    version: u32,
    lines: Vec<Line>,
    more: bool,
}

/// What came of a look.
enum Got {
    Packets(usize),
    /// Nothing will come any more, and why.
    End(String),
    Broken,
}

impl TcpRx {
    pub(super) fn new(streams: Arc<Streams>) -> Self {
        Self { streams, version: 0, lines: Vec::new(), more: false }
    }

    /// Takes new streams, and lets go of those that were replaced or given up by the other half.
    #[cold]
    fn renew(&mut self) {
        self.version = self.streams.version();
        self.streams.follow(&mut self.lines, |line| &line.stream, Line::new);
    }
}

impl Line {
    fn new(stream: Arc<Stream>) -> Self {
        let (never, room) = (Duration::ZERO, vec![0; ROOM].into_boxed_slice());
        Self { stream, room, from: 0, to: 0, heard_at: never, looked_at: never, drained: true }
    }

    /// Whether it is time to look.
    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard_at) < RECENT || now.saturating_sub(self.looked_at) >= SELDOM
    }

    /// Reads what has arrived, and hands packets out.
    fn receive(&mut self, now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> Got {
        self.looked_at = now;
        match self.hand_out(f) {
            Ok(0) => {}
            Ok(got) => return Got::Packets(got),
            Err(Broken) => return Got::Broken,
        }
        // Less than a packet is left.
        self.room.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        match self.stream.read(&mut self.room[self.to..]) {
            Ok(None) => {
                self.drained = true;
                return Got::Packets(0);
            }
            Ok(Some(0)) => return Got::End("the other end has closed it".to_owned()),
            Ok(Some(len)) => {
                self.to += len;
                self.drained = self.to < self.room.len();
            }
            Err(error) => return Got::End(io::Error::from(error).to_string()),
        }
        self.heard_at = now;
        self.hand_out(f).map_or(Got::Broken, Got::Packets)
    }

    /// Hands out packets that are there as a whole.
    fn hand_out(&mut self, f: &mut dyn FnMut(&Received<'_>)) -> Result<usize, Broken> {
        let StreamEnds { local, remote, .. } = self.stream.ends;
        let kind = self.stream.ends.kind();
        for n in 0..BATCH {
            let bytes = &self.room[self.from..self.to];
            let Some(len) = frames::first(bytes)? else { return Ok(n) };
            let packet = &bytes[HEADER..HEADER + len];
            self.from += HEADER + len;
            f(&Received { kind, ..Received::verified(remote, local, packet) });
        }
        Ok(BATCH)
    }

    /// Whether a whole packet is left.
    fn has_packet(&self) -> bool {
        frames::first(&self.room[self.from..self.to]) != Ok(None)
    }
}

impl Rx for TcpRx {
    fn receive(&mut self, now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        if self.version != self.streams.version() {
            self.renew();
        }
        let (mut total, mut broken) = (0, false);
        self.more = false;
        for line in &mut self.lines {
            if !line.stream.works() || !(line.has_packet() || line.is_due(now)) {
                continue;
            }
            if !line.stream.is_ours() {
                continue; // This is a child, and the stream its parent's.
            }
            match line.receive(now, f) {
                Got::Packets(got) => {
                    total += got;
                    self.more |= got > 0 && (!line.drained || line.has_packet());
                }
                Got::End(why) => self.streams.remove(&line.stream, &why),
                Got::Broken => {
                    self.streams.remove(&line.stream, "what comes by it is no packet");
                    broken = true;
                }
            }
        }
        // The error is counted, and told once.
        if broken { Err(io::Error::from_raw_os_error(libc::EPROTO)) } else { Ok(total) }
    }

    fn more(&self) -> bool {
        self.more
    }

    fn wait_on(&self) -> RawFd {
        self.streams.fd()
    }

    fn next_deadline(&self) -> Option<Duration> {
        // Packets that were left in the room do not make the socket readable.
        self.lines.iter().any(Line::has_packet).then_some(Duration::ZERO)
    }
}
