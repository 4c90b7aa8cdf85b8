//! The packets in flight: one slot per sequence number between the oldest unacknowledged one and
//! the next new one, for all paths together.
//!
//! A slot holds 16 bytes and is touched twice per packet: when it is sent and when it is done. Code
//! that finds a packet lost (NAK, selective acknowledgement, timer, death of a path) marks its
//! slot; the transmitter looks for marked slots first. Go-back-N for a plain peer is "mark all";
//! selective repeat for a multi-path peer is "mark those that were overtaken".
//!
//! Every packet is charged to its path exactly while it is neither done, sacked, nor lost
//! ([`Paths::sent`](crate::Paths::sent)), unless it was sent by two paths: those are charged by the host.
//!
//! Thousands of packets may be in flight, and every acknowledgement reports gaps until they are
//! filled. So what is known to have arrived beyond the oldest gap is kept as ranges
//! ([`Flight::beyond`]): what an acknowledgement repeats costs one look-up per block, however long
//! the block is, and a search for gaps steps over the ranges. No packet is checked twice for having
//! been overtaken: each path knows the order in which packets were sent on it.

mod answers;
mod check;
mod frozen;
mod overtaken;
mod probes;
mod twice;
mod unheard;

use core::time::Duration;
use std::collections::VecDeque;

use smallvec::SmallVec;

use super::on_path::{GUARD_UNMEASURED_US, OnPath, OnPaths};
use super::tally::Tally;
use crate::PACKET_COST;
use crate::host::Host;
use crate::ranges::{Range, Ranges};
use polypath_types::PathId;

/// The number of slots for which memory stays allocated when nothing is in flight.
const SLOTS_KEPT: usize = 256;
/// The number of runs of a path for which memory stays allocated when nothing is in flight.
const RUNS_KEPT: usize = 16;

/// Acknowledged, or its answer has arrived.
const DONE: u8 = 1;
/// To be sent again.
const LOST: u8 = 1 << 1;
/// Sent more than once: its round trip can't be measured (Karn).
const AGAIN: u8 = 1 << 2;
/// An acknowledgement is not enough: it is part of the answer to a READ or atomic.
pub(crate) const ANSWERED: u8 = 1 << 3;
/// The last sequence number of a READ or atomic request.
pub(crate) const END: u8 = 1 << 4;
/// Selectively acknowledged: the peer has it but has not executed it, and may still ask for it
/// again.
const SACKED: u8 = 1 << 5;
/// Last sent by two paths at once. The host charges both of them, so the slot charges none
/// ([`Paths::sent_twice`](crate::Paths::sent_twice)).
pub(crate) const TWICE: u8 = 1 << 6;
/// The peer has told that it has this request, which it has not executed.
const HEARD: u8 = 1 << 7;

#[derive(Clone, Copy, Debug)]
struct Slot {
    path: PathId,
    /// Its place in the order of sending on its path.
    order: u32,
    /// When it was last sent, in microseconds, wrapping.
    sent_us: u32,
    /// Bytes charged to the path.
    cost: u16,
    flags: u8,
}

impl Slot {
    #[inline]
    fn is(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// The bytes that it charges its path with while it is on its way.
    #[inline]
    fn charge(&self) -> u32 {
        if self.is(TWICE) { 0 } else { u32::from(self.cost) }
    }
}

/// The slots.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    slots: VecDeque<Slot>,
    /// Sequence number of the first slot: the oldest that is not done.
    una: u64,
    /// Everything before it that needs no answer is done.
    acked_to: u64,
    /// One past the highest slot that is done.
    done_to: u64,
    /// No slot before it is lost.
    lost_from: u64,
    lost: u32,
    /// The number of slots that are charged.
    charged: u32,
    /// The number of slots that are [`SACKED`].
    sacked: u32,
    /// The number of READ and atomic requests that wait for their answer.
    unanswered: u32,
    /// What is known of each path.
    paths: OnPaths,
    /// What has arrived beyond the oldest gap: sacked or done. Some slots that are done may be
    /// missing here.
    beyond: Ranges,
    /// Whether the peer has told of a request for the first time since this was last looked at.
    heard: bool,
}

impl Flight {
    /// An empty flight; the next new packet has the sequence number `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self {
            slots: VecDeque::new(),
            una: next,
            acked_to: next,
            done_to: next,
            lost_from: next,
            lost: 0,
            charged: 0,
            sacked: 0,
            unanswered: 0,
            paths: OnPaths::default(),
            beyond: Ranges::default(),
            heard: false,
        }
    }

    /// The oldest sequence number that is not done.
    #[inline]
    pub(crate) fn una(&self) -> u64 {
        self.una
    }

    /// The next new sequence number.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.una + self.slots.len() as u64
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of packets that may still be sent if `limit` may be in flight.
    #[inline]
    pub(crate) fn room(&self, limit: u32) -> u32 {
        limit.saturating_sub(self.slots.len() as u32)
    }

    /// The number of packets that are on their way, as far as is known.
    #[inline]
    pub(crate) fn charged(&self) -> u32 {
        self.charged
    }

    /// The number of packets that are on their way by a path, as far as is known.
    #[inline]
    pub(crate) fn charged_on(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |on| on.charged)
    }

    /// Whether the peer has to answer next, so that timers run.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.charged > 0 || self.sacked > 0
    }

    /// The number of READ and atomic requests that wait for their answer.
    #[inline]
    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    #[inline]
    fn slot(&self, seq: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(seq.checked_sub(self.una)?).ok()?)
    }

    /// The path of the oldest packet, and whether it needs an answer.
    pub(crate) fn oldest(&self) -> Option<(PathId, bool)> {
        self.slots.front().map(|s| (s.path, s.is(ANSWERED)))
    }

    /// Whether `seq` still waits for an answer.
    #[inline]
    pub(crate) fn awaits_answer(&self, seq: u64) -> bool {
        self.slot(seq).is_some_and(|s| s.is(ANSWERED) && !s.is(DONE))
    }

    /// The path of `seq` and when it was sent, if it was sent only once.
    #[inline]
    pub(crate) fn sent_once_at(&self, seq: u64) -> Option<(PathId, u32)> {
        self.slot(seq).filter(|s| !s.is(AGAIN)).map(|s| (s.path, s.sent_us))
    }

    /// Whether `seq` was sent again so recently that a complaint about it may be about the first
    /// time.
    #[inline]
    pub(crate) fn just_resent(&self, seq: u64, now_us: u32) -> bool {
        self.slot(seq).is_some_and(|s| s.is(AGAIN) && self.is_younger(s, now_us, 1))
    }

    /// Whether it was sent less than so many round trips of its path ago.
    fn is_younger(&self, slot: &Slot, now_us: u32, round_trips: u32) -> bool {
        let guard_us = self.paths.get(slot.path).map_or(0, OnPath::guard_us);
        now_us.wrapping_sub(slot.sent_us) < guard_us.saturating_mul(round_trips)
    }

    /// For how long after a packet was sent again a complaint may be about the first time.
    pub(super) fn guard(&self, path: PathId) -> Duration {
        let guard_us = self.paths.get(path).map_or(GUARD_UNMEASURED_US, OnPath::guard_us);
        Duration::from_micros(guard_us.into())
    }

    /// The round trip of a path in microseconds, if one was measured.
    pub(super) fn rtt_us(&self, path: PathId) -> Option<u32> {
        self.paths.get(path)?.rtt_us()
    }

    /// What is known of each path.
    #[inline]
    pub(super) fn paths_mut(&mut self) -> &mut OnPaths {
        &mut self.paths
    }

    /// The next new packet (or the request for it) is sent. Returns the bytes to charge.
    #[inline]
    pub(crate) fn push(&mut self, path: PathId, len: u32, flags: u8, now_us: u32) -> u32 {
        let cost = len + PACKET_COST;
        let seq = self.next();
        let order = self.paths.on(path).push(seq, flags & ANSWERED == 0);
        self.slots.push_back(Slot { path, order, sent_us: now_us, cost: cost as u16, flags });
        self.charged += 1;
        self.unanswered += u32::from(flags & END != 0);
        cost
    }

    /// The peer has received all before `to`. Those that need an answer stay.
    #[inline]
    pub(crate) fn acknowledge(&mut self, to: u64, tally: &mut Tally) {
        let to = to.min(self.next());
        let from = self.acked_to.max(self.una);
        for seq in from..to {
            let at = (seq - self.una) as usize;
            if !self.slots[at].is(ANSWERED) {
                self.finish(at, tally);
            }
        }
        if from < to && self.slots.front().is_some_and(|s| !s.is(DONE)) {
            self.note_beyond(from..to); // The front waits for an answer.
        }
        self.acked_to = self.acked_to.max(to);
    }

    /// Adds those of `range` that are done to the ranges.
    #[cold]
    fn note_beyond(&mut self, range: Range) {
        for seq in range {
            if self.slot(seq).is_some_and(|s| s.is(DONE)) {
                self.beyond.insert(seq..seq + 1, |_| {});
            }
        }
    }

    /// The peer has acknowledged the sequence numbers whose bits are set in `bits` (lowest first),
    /// counted from `from`.
    pub(crate) fn acknowledge_selected(&mut self, from: u64, mut bits: u64, tally: &mut Tally) {
        let mut at = from;
        while bits != 0 {
            let gap = bits.trailing_zeros();
            bits >>= gap;
            let run = bits.trailing_ones();
            at += u64::from(gap);
            self.sack(at..at + u64::from(run), tally);
            at += u64::from(run);
            bits = bits.checked_shr(run).unwrap_or(0);
        }
    }

    /// The peer has selectively acknowledged all of `range` that is in flight.
    pub(crate) fn sack(&mut self, range: Range, tally: &mut Tally) {
        let range = range.start.max(self.una)..range.end.min(self.next());
        if range.is_empty() {
            return;
        }
        let mut beyond = core::mem::take(&mut self.beyond);
        let mut unanswered: SmallVec<[u64; 4]> = SmallVec::new();
        beyond.insert(range, |fresh| {
            for seq in fresh {
                let at = (seq - self.una) as usize;
                if self.slots[at].is(DONE | SACKED) {
                    continue;
                }
                if self.slots[at].is(ANSWERED) {
                    // The peer has the request; whether the answer arrives is still open.
                    unanswered.push(seq);
                    continue;
                }
                self.arrived(at, tally);
                self.slots[at].flags |= SACKED;
                self.sacked += 1;
            }
        });
        for seq in unanswered {
            beyond.remove(seq);
            self.hear(seq);
        }
        self.beyond = beyond;
    }

    /// The answer to `seq` has arrived.
    #[inline]
    pub(crate) fn answer(&mut self, seq: u64, tally: &mut Tally) {
        if seq >= self.una && seq < self.next() {
            self.finish((seq - self.una) as usize, tally);
            if seq != self.una {
                self.beyond.insert(seq..seq + 1, |_| {});
            }
        }
    }

    #[inline]
    fn finish(&mut self, at: usize, tally: &mut Tally) {
        let slot = &mut self.slots[at];
        if slot.is(DONE) {
            return;
        }
        if slot.is(SACKED) {
            slot.flags &= !SACKED;
            self.sacked -= 1;
        } else {
            self.arrived(at, tally);
        }
        self.slots[at].flags |= DONE;
    }

    /// A packet that was on its way, or taken to be lost, has arrived.
    #[inline]
    fn arrived(&mut self, at: usize, tally: &mut Tally) {
        let slot = &mut self.slots[at];
        let on = self.paths.on(slot.path);
        if slot.is(LOST) {
            // It was declared lost too early: nothing is charged any more.
            slot.flags &= !LOST;
            self.lost -= 1;
        } else {
            self.charged -= 1;
            on.uncharge(!slot.is(ANSWERED));
            tally.add(slot.path, slot.charge());
        }
        self.done_to = self.done_to.max(self.una + at as u64 + 1);
        if slot.is(TWICE) && !tally.tells_of(slot.path, slot.sent_us) {
            // Its copy may have arrived. So this says nothing of the packets sent before it by its path.
            return;
        }
        if let Some((from, echo)) = tally.echo.filter(|_| slot.is(AGAIN)) {
            if from != slot.path {
                return; // Either copy may have arrived.
            }
            let late = (echo.wrapping_sub(slot.sent_us) as i32) < 0;
            on.was_late(late);
            if late {
                // The first one was late, not lost. When the second one arrives is unknown.
                return;
            }
        }
        on.arrived(slot.order);
    }

    /// Removes what is done at the front. Returns whether there was anything.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        let before = self.una;
        while let Some(slot) = self.slots.front() {
            if !slot.is(DONE) {
                break;
            }
            self.unanswered -= u32::from(slot.is(END));
            self.slots.pop_front();
            self.una += 1;
        }
        if self.una == before {
            return false;
        }
        if !self.beyond.is_empty() {
            self.beyond.trim(self.una);
        }
        if self.slots.is_empty() {
            self.tidy();
        }
        true
    }

    /// Nothing is in flight: frees memory, except for an amount that is often used.
    #[inline]
    fn tidy(&mut self) {
        for on in self.paths.iter_mut() {
            on.sent.clear();
            if on.sent.capacity() > RUNS_KEPT {
                on.sent = VecDeque::new();
            }
        }
        if self.slots.capacity() > SLOTS_KEPT {
            self.slots.shrink_to(SLOTS_KEPT);
        }
    }

    #[inline]
    fn lose(&mut self, at: usize, tally: &mut Tally) {
        let seq = self.una + at as u64;
        let slot = &mut self.slots[at];
        if slot.is(DONE | LOST | SACKED) {
            return;
        }
        slot.flags |= LOST;
        self.lost += 1;
        self.charged -= 1;
        self.paths.on(slot.path).uncharge(!slot.is(ANSWERED));
        tally.add(slot.path, slot.charge());
        self.lost_from = self.lost_from.min(seq);
    }

    /// Marks `seq` as lost even if it is sacked, because the peer may have dropped it since.
    pub(crate) fn lose_even_sacked(&mut self, seq: u64, tally: &mut Tally) {
        if self.slot(seq).is_none() {
            return;
        }
        let at = (seq - self.una) as usize;
        let slot = &mut self.slots[at];
        if slot.is(SACKED) {
            slot.flags = slot.flags & !SACKED | LOST;
            self.beyond.remove(seq);
            self.sacked -= 1;
            self.lost += 1;
            self.lost_from = self.lost_from.min(seq);
        } else {
            self.lose(at, tally);
        }
    }

    /// Marks all as lost, even those that are sacked.
    pub(crate) fn lose_all(&mut self, tally: &mut Tally) {
        self.beyond.clear();
        for seq in self.una..self.next() {
            self.lose_even_sacked(seq, tally);
        }
    }

    /// Marks all from `from` up to before `to` as lost, except those that are sacked.
    pub(crate) fn lose_range(&mut self, from: u64, to: u64, tally: &mut Tally) {
        for seq in from.max(self.una)..to.min(self.next()) {
            self.lose((seq - self.una) as usize, tally);
        }
    }

    /// Marks as lost what was sent by a path within a range, except what is sacked and what was sent less
    /// than `age_us` ago.
    pub(super) fn lose_range_on(
        &mut self,
        path: PathId,
        range: core::ops::Range<u64>,
        now_us: u32,
        age_us: u32,
        tally: &mut Tally,
    ) {
        for seq in range.start.max(self.una)..range.end.min(self.next()) {
            let at = (seq - self.una) as usize;
            let slot = &self.slots[at];
            if slot.path == path && now_us.wrapping_sub(slot.sent_us) >= age_us {
                self.lose(at, tally);
            }
        }
    }

    /// Whether something that is not done was last sent on a path for which `path` is true.
    pub(crate) fn uses(&self, path: impl Fn(PathId) -> bool) -> bool {
        self.slots.iter().any(|slot| !slot.is(DONE) && path(slot.path))
    }

    /// Marks as lost what was sent on paths for which `path` is true.
    pub(crate) fn lose_on(&mut self, path: impl Fn(PathId) -> bool, tally: &mut Tally) {
        for at in 0..self.slots.len() {
            if path(self.slots[at].path) {
                self.lose(at, tally);
            }
        }
    }

    /// The sequence number after `seq` and after everything that has arrived in one run with it.
    fn after(&self, seq: u64) -> u64 {
        self.beyond.containing(seq).map_or(seq + 1, |r| r.end)
    }

    /// Whether something is to be sent again.
    #[inline]
    pub(crate) fn any_lost(&self) -> bool {
        self.lost > 0
    }

    /// The first run of lost slots of one kind: its first sequence number and its length, at most
    /// `most`. It never goes beyond the request that an answer belongs to.
    pub(crate) fn lost_run(&mut self, most: u32) -> Option<(u64, u32)> {
        if self.lost == 0 {
            return None;
        }
        let mut seq = self.lost_from.max(self.una);
        while !self.slot(seq)?.is(LOST) {
            seq = self.after(seq);
        }
        self.lost_from = seq;
        let mut n = 0;
        while n < most {
            let Some(slot) = self.slot(seq + u64::from(n)) else { break };
            if !slot.is(LOST) {
                break;
            }
            n += 1;
            if slot.is(END) {
                break;
            }
        }
        Some((seq, n))
    }

    /// Sends those of `n` slots from `seq` on that are lost again, by two paths if `twice` is [`TWICE`] and
    /// not 0. Returns the bytes to charge.
    pub(crate) fn resend(&mut self, seq: u64, n: u32, path: PathId, twice: u8, now_us: u32) -> u32 {
        let mut cost = 0;
        for seq in seq..seq + u64::from(n) {
            let at = (seq - self.una) as usize;
            let slot = &mut self.slots[at];
            if !slot.is(LOST) {
                continue;
            }
            slot.flags = slot.flags & !(LOST | TWICE | HEARD) | AGAIN | twice;
            slot.path = path;
            slot.order = self.paths.on(path).push(seq, !slot.is(ANSWERED));
            slot.sent_us = now_us;
            cost += u32::from(slot.cost);
            self.lost -= 1;
            self.charged += 1;
        }
        self.paths.probe_sent(seq, path);
        self.thin_out(path);
        cost
    }

    /// Gives up everything in flight; the next new packet has the sequence number `next`.
    pub(crate) fn clear<H: Host>(&mut self, next: u64, host: &mut H) {
        let mut tally = Tally::default();
        self.lose_all(&mut tally);
        tally.lost(false, host);
        *self = Self::new(next);
    }
}

#[cfg(test)]
mod tests;
