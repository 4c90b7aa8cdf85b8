//! The requester as bytes. What is in flight is written as the sequence numbers that are to be sent
//! again.

use core::time::Duration;

use super::cover::FlushCover;
use super::flight::{ANSWERED, END, Flight};
use super::timers::Timers;
use super::{Requester, SEQ_BASE};
use crate::PACKET_COST;
use crate::common::Core;
use crate::frozen::{Reader, ThawError, Writer};
use crate::host::Host;
use crate::sq::SendQueue;
use polypath_types::QpState;

/// No sequence number gets this large: a queue pair that sends a packet each nanosecond would need
/// two years.
const SEQ_MAX: u64 = 1 << 56;

impl Requester {
    /// Writes the requester; the host gets back what is charged.
    pub(crate) fn freeze<H: Host>(&mut self, now: Duration, out: &mut Writer, host: &mut H) {
        out.u32(self.msg);
        out.u32(self.recv);
        out.option(self.progress, Writer::u32);
        let (twice, known) = self.flush_cover.parts();
        out.flag(twice);
        out.flag(known);
        self.timers.freeze(now, out);
        out.flag(self.flight.waits() || self.waits_on);
        self.sq.freeze(out);
        self.flight.freeze(out);
        let next = self.flight.next();
        self.flight.clear(next, host);
    }

    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(
        core: &Core,
        now: Duration,
        from: &mut Reader<'_>,
    ) -> Result<Self, ThawError> {
        let (msg, recv) = (from.u32()?, from.u32()?);
        let progress = from.option(Reader::u32)?;
        let flush_cover = FlushCover::of(from.flag()?, from.flag()?);
        let timers = Timers::thaw(&core.attr, now, from)?;
        let waits = from.flag()?;
        let sq = SendQueue::thaw(core, progress, from)?;
        let una = from.u64()?;
        from.ensure((SEQ_BASE..SEQ_MAX).contains(&una), "a sequence number is out of range")?;
        let in_flight = from.count(core.in_flight_max as usize, "too many packets in flight")?;
        let sends = matches!(core.attr.state, QpState::Rts | QpState::Sqd);
        let idle = in_flight == 0 && sq.sent_len() == 0 && progress.is_none();
        from.ensure(sends || idle, "packets are in flight in a state that sends none")?;
        let mut slots = Vec::with_capacity(in_flight);
        for seq in (una..).take(in_flight) {
            let flags = from.u8()?;
            let at = sq.find(seq, progress.is_some());
            let wqe = at.and_then(|at| sq.get(at));
            let wqe = wqe.ok_or_else(|| from.wrong("a packet belongs to no work request"))?;
            let answered = if wqe.is_answered() { ANSWERED } else { 0 };
            let last = wqe.is_answered() && seq + 1 == wqe.end();
            from.ensure(flags & !END == answered, "a packet's flags are not its request's")?;
            from.ensure(flags & answered != 0 || flags == 0, "what has no answer does not end")?;
            from.ensure(!last || flags & END != 0, "a request does not end")?;
            let k = (seq - wqe.first) as u32;
            let cost = wqe.packet_len(k, core.attr.path_mtu) + PACKET_COST;
            slots.push((flags, cost as u16));
        }
        let flight = Flight::thawed(una, &slots, now);
        let has_failing = sq.iter().any(|wqe| wqe.failed.is_some());
        let begun = sq.sent_len() > 0 || progress.is_some();
        from.ensure(begun || flight.is_empty(), "packets are in flight that nobody sent")?;
        Ok(Self {
            sq,
            flight,
            timers,
            progress,
            msg,
            recv,
            has_failing,
            // The first packets may go by a new path, so the window does not count.
            urgent: true,
            ready: true,
            waits_on: waits,
            flush_cover,
            ..Self::new()
        })
    }
}
