//! The answers to READs: which packets belong to one, and which have to be asked for again.

use super::{AGAIN, ANSWERED, DONE, END, Flight, SACKED, TWICE};
use crate::requester::tally::Tally;
use polypath_types::PathId;

/// The answer that comes by one path is missed after this many of its round trips, whatever acknowledgements
/// come by another one meanwhile. A long answer takes longer than the packet that was measured.
const MISSED_AFTER: u32 = 3;

impl Flight {
    /// One past the last packet of the answer that packet `seq` is part of; one past `seq` if it needs
    /// none.
    pub(in crate::requester) fn answer_end(&self, seq: u64) -> u64 {
        let is = |seq: u64, flag| self.slot(seq).is_some_and(|slot| slot.is(flag));
        let mut last = seq;
        while is(last, ANSWERED) && !is(last, END) && last + 1 < self.next() {
            last += 1;
        }
        last + 1
    }

    /// Marks as lost the answers before `to` that have not come, except those asked for again a moment
    /// ago, or after the packet whose acknowledgement reports the loss: it may have waited in a queue. The
    /// acknowledgement came by `from`. It overtakes the answers of longer paths, so it says little of what
    /// another path brings, and nothing of what was sent by two paths if `from` is not the first of them.
    pub(crate) fn lose_answers(
        &mut self,
        to: u64,
        from: PathId,
        now_us: u32,
        only_resent_are_guarded: bool,
        tally: &mut Tally,
    ) {
        let to = to.min(self.next());
        let told_by = to.checked_sub(1).and_then(|seq| self.slot(seq)).map(|s| (s.path, s.order));
        let mut seq = self.una;
        while seq < to {
            let at = (seq - self.una) as usize;
            let slot = &self.slots[at];
            let asked_later = told_by.is_some_and(|(path, order)| {
                path == slot.path && (slot.order.wrapping_sub(order) as i32) > 0
            });
            if slot.is(DONE | SACKED) {
                seq = self.after(seq);
                continue;
            }
            let guarded = slot.is(AGAIN) || !only_resent_are_guarded;
            let elsewhere = slot.path != from && !only_resent_are_guarded;
            let round_trips = if elsewhere { MISSED_AFTER } else { 1 };
            let spared = guarded && (asked_later || self.is_younger(slot, now_us, round_trips))
                || slot.is(TWICE) && slot.path != from;
            if slot.is(ANSWERED) && !spared {
                self.lose(at, tally);
            }
            seq += 1;
        }
    }

    /// How much of a READ to ask for again from the lost `seq` on, where a run of `run` is lost.
    ///
    /// A responder that knows the request accepts any part of it. One that has never seen it takes
    /// the first request it sees for the whole, so that it has to be asked for all.
    pub(crate) fn request_again(
        &mut self,
        seq: u64,
        run: u32,
        selective: bool,
        tally: &mut Tally,
    ) -> u32 {
        let mut n = 0;
        let mut known = false;
        while let Some(slot) = self.slot(seq + u64::from(n)) {
            n += 1;
            known |= slot.is(DONE);
            if slot.is(END) {
                break;
            }
        }
        if known && selective {
            return run;
        }
        self.lose_range(seq, seq + u64::from(n), tally);
        n
    }
}
