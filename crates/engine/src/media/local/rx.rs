//! The receiving half.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polypath_paths::PathKind;

use super::PACKET_BYTES;
use super::channel::Channel;
use super::exchange::Exchange;
use super::ring::{Broken, Consumer};
use crate::media::{Received, Rx};

/// The most packets of one channel that are handed out at a time.
const BATCH: usize = 32;
/// The number of calls in vain after which the ends of channels are looked for although the lane did not
/// sleep: a program that polls all the time would not notice the end of the other process otherwise.
const VAIN_MAX: u32 = 4096;

/// A channel, and the end of its ring that this half owns.
#[derive(Debug)]
struct Line {
    channel: Arc<Channel>,
    consumer: Consumer,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct LocalRx {
    exchange: Arc<Exchange>,
    version: u32,
    lines: Vec<Line>,
    /// The packet that is being handed out.
    packet: Box<[u8; PACKET_BYTES]>,
    more: bool,
    vain: u32,
}

impl LocalRx {
    pub(super) fn new(exchange: Arc<Exchange>) -> Self {
        let packet = Box::new([0; PACKET_BYTES]);
        Self { exchange, version: 0, lines: Vec::new(), packet, more: false, vain: 0 }
    }

    #[cold]
    fn renew(&mut self) {
        self.version = self.exchange.version();
        for channel in self.exchange.all().iter() {
            if self.lines.iter().all(|line| !Arc::ptr_eq(&line.channel, channel)) {
                let channel = channel.clone();
                let consumer = Consumer::new(channel.reads);
                self.lines.push(Line { channel, consumer });
            }
        }
    }

    /// Lets go of channels that are over. Returns whether one of them was broken.
    #[cold]
    fn sweep(&mut self) {
        let Self { lines, exchange, .. } = self;
        lines.retain(|line| {
            let stays = line.channel.works();
            if !stays {
                exchange.remove(&line.channel, "it is over");
            }
            stays
        });
    }
}

impl Line {
    /// Hands out packets.
    fn receive(
        &mut self,
        packet: &mut [u8; PACKET_BYTES],
        f: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, Broken> {
        let Self { channel, consumer } = self;
        let kind = PathKind::Local { slot: channel.slot };
        for n in 0..BATCH {
            let Some((src, dst, len)) = consumer.pop(&channel.memory, packet)? else {
                return Ok(n);
            };
            channel.head.store(consumer.head(), Ordering::Relaxed);
            consumer.tell(&channel.memory);
            f(&Received { kind, ..Received::verified(src, dst, &packet[..len]) });
        }
        Ok(BATCH)
    }
}

impl Rx for LocalRx {
    fn receive(&mut self, _now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        if self.version != self.exchange.version() {
            self.renew();
        }
        let (mut total, mut over, mut broken) = (0, false, false);
        self.more = false;
        for line in &mut self.lines {
            if !line.channel.memory.is_ours() {
                continue; // This is a child, and the channel its parent's.
            }
            // What a process wrote before it ended still counts.
            let works = line.channel.works();
            match line.receive(&mut self.packet, f) {
                Ok(got) => {
                    total += got;
                    self.more |= got == BATCH;
                    over |= !works && got == 0;
                }
                Err(Broken) => {
                    line.channel.end();
                    (over, broken) = (true, true);
                }
            }
        }
        if total > 0 {
            self.vain = 0;
        } else if !self.lines.is_empty() {
            self.vain += 1;
            if self.vain == VAIN_MAX {
                self.vain = 0;
                self.lines
                    .iter()
                    .filter(|l| l.channel.works())
                    .for_each(|l| l.channel.look_for_end());
            }
        }
        if over && !self.more {
            self.sweep();
        }
        // The error is counted, and told once.
        if broken { Err(io::Error::from_raw_os_error(libc::EPROTO)) } else { Ok(total) }
    }

    fn more(&self) -> bool {
        self.more
    }

    fn wait_on(&self) -> RawFd {
        self.exchange.fd()
    }
}
