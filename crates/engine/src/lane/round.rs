//! A round of the lane: receive, run timers that are due, send.

use std::time::Duration;

use crate::clock;
use crate::lane::collect::COLLECT_MAX;
use crate::lane::{State, receive};

/// The number of batches received before queue pairs get a turn to send.
const MAX_BATCHES: usize = 4;

/// The number of packets of a batch after which queue pairs get a turn to send.
const TURN_PACKETS: u32 = 48;

/// The thread that drives the lane for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// A thread that polls a completion queue. It gets completions before more is received, and
    /// acknowledgements may wait until it is back.
    Program,
    /// The lane's thread. Nobody polls for what arrives, so it is acknowledged at once, unless an
    /// answer is about to be posted.
    Lane,
    /// A thread that posts much, and has not polled for a while. What arrives is not what its next post
    /// answers.
    Post,
    /// A thread that receives what has arrived because a queue pair is about to stop.
    Drain,
}

impl State {
    /// Begins a round.
    #[inline]
    pub(super) fn begin(&mut self) -> Duration {
        let now = clock::now();
        self.io.now = now;
        self.core.begin(now);
        now
    }

    /// Whether a program posts and posts, and nobody has received for a while. With many queue pairs, it
    /// posts hundreds of requests between two polls. Meanwhile the windows would stay full, and the peer
    /// would stand still, if nobody read the acknowledgements.
    #[inline]
    pub(super) fn posts_without_polls(&self, now: Duration) -> bool {
        self.collector.waits() && now.saturating_sub(self.received_at) >= COLLECT_MAX
    }

    /// Lets queue pairs send.
    #[inline]
    pub(super) fn transmit(&mut self) {
        self.core.transmit(&mut self.io);
    }

    /// Sends the acknowledgements that are owed.
    #[inline]
    pub(super) fn acknowledge(&mut self) {
        self.answering.acknowledged();
        self.core.acknowledge(&mut self.io);
    }

    /// Notes that a packet was handled. After some, queue pairs send what they now may, and what they owe:
    /// with full windows, or without further requests for data to read, the peers would otherwise stand
    /// still until all that has arrived is handled, and this thread until they have sent again.
    #[inline]
    pub(super) fn handled(&mut self) {
        self.handled += 1;
        if self.handled >= TURN_PACKETS {
            self.handled = 0;
            self.transmit();
            self.acknowledge();
            self.flush();
        }
    }

    /// Sends what is queued.
    #[inline]
    pub(super) fn flush(&mut self) {
        self.io.flush(self.core.paths_mut());
    }

    /// Runs one round: receive, run timers, send, acknowledge. Returns the number of packets received.
    pub(super) fn progress(&mut self, driver: Driver) -> usize {
        let now = self.begin();
        self.prompt.back(now);
        (self.io.completions, self.io.awaited) = (0, false);
        let received = self.receive(driver);
        self.received_at = now;
        if received > 0 && driver != Driver::Post {
            self.collector.received();
        }
        if self.io.exchange.is_some() {
            self.note_channels_over();
        }
        if self.io.streams.is_some() {
            self.note_streams_over();
        }
        let due = self.core.handle_timeouts(&mut self.io);
        self.io.deferrals.run(now);
        let sends = self.io.sender.has_queued() || self.io.sender.is_due(now);
        if received == 0 && !due && self.core.is_idle() && !sends {
            return 0; // There is nothing to do, as in most polls.
        }
        self.transmit();
        self.handled = 0;
        if driver == Driver::Program && self.io.completions > 0 && received > 0 {
            // The acknowledgements are sent in the next round, which is soon. Until then the
            // existing timers are good enough.
            if self.prompt.given(now, self.core.owes_acks()) && !due {
                self.flush();
                return received;
            }
        }
        // A thread that polls for its own WRITE may get the peer's first.
        let may_answer = match driver {
            Driver::Lane => true,
            Driver::Program => self.io.completions == 0,
            Driver::Post | Driver::Drain => false,
        };
        let acks_wait = may_answer
            && self.core.owes_acks()
            && !self.io.awaited
            && self.answering.may_wait(now, received)
            && !self.io.sender.has_queued();
        if !acks_wait {
            self.acknowledge();
        }
        self.flush();
        self.core.set_timers();
        received
    }

    /// Gives up paths whose channel is over.
    fn note_channels_over(&mut self) {
        let Some(exchange) = &self.io.exchange else { return };
        for slot in exchange.take_over() {
            let now = self.core.now();
            self.core.paths_mut().set_channel(now, slot, false);
        }
    }

    /// Gives up paths whose stream is over.
    fn note_streams_over(&mut self) {
        let Some(streams) = &self.io.streams else { return };
        for ends in streams.take_over() {
            let now = self.core.now();
            self.core.paths_mut().set_stream(now, ends, false);
        }
    }

    /// Receives packets. A thread that polls gets completions before more is received.
    fn receive(&mut self, driver: Driver) -> usize {
        let Some(mut receivers) = self.receivers.take() else { return 0 };
        let (now, polls) = (self.core.now(), driver == Driver::Program);
        let mut total = 0;
        if let Some(udp) = &mut receivers.udp
            && (!polls || self.socket_turns.is_due(now))
        {
            total = self.take_in(!polls, |state| {
                (udp.receive(&mut |datagram| receive::datagram(state, datagram)), udp.more())
            });
            self.socket_turns.looked(now, total);
        }
        for medium in &mut receivers.more {
            let got = self.take_in(!polls, |state| {
                let got = medium.receive(now, &mut |packet| receive::datagram(state, packet));
                (got, medium.more())
            });
            if got > 0 {
                self.socket_turns.others(now);
                total += got;
            }
        }
        self.receivers = Some(receivers);
        total
    }

    /// Receives batches of packets while there may be more.
    #[inline]
    fn take_in(
        &mut self,
        all: bool,
        mut batch: impl FnMut(&mut Self) -> (std::io::Result<usize>, bool),
    ) -> usize {
        let mut total = 0;
        for _ in 0..MAX_BATCHES {
            let (got, more) = batch(self);
            match got {
                Ok(0) => break,
                Ok(n) => total += n,
                Err(error) => {
                    self.io.drops.receive_failed += 1;
                    self.io.receive_failed(&error);
                    break;
                }
            }
            if !more || (!all && self.io.completions > 0) {
                break;
            }
        }
        total
    }

    /// The time at which the lane must be entered again.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let core = match self.answering.ack_by() {
            Some(by) => self.core.next_deadline_with_acks_by(by),
            None => self.core.next_deadline(),
        };
        let deferred = self.io.deferrals.next_deadline();
        let sends = self.io.sender.next_deadline();
        let arrives = self.receivers.as_ref().and_then(|receivers| receivers.next_deadline());
        [core, deferred, sends, arrives].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
