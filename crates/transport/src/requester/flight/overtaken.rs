//! Finds packets that were overtaken on their path.
//!
//! Each path knows what was sent on it, in that order ([`OnPath::sent`]). Packets that have been
//! overtaken come first there, so the search ends at the first one that was not, and looks at
//! nothing twice.

use super::{ANSWERED, DONE, Flight, LOST, SACKED, Slot};
use crate::requester::on_path::OnPath;
use crate::requester::tally::Tally;
use polypath_types::PathId;

/// The list of runs may be this much longer than the slots are many before useless runs are
/// removed.
const RUNS_SPARE: usize = 16;

impl Flight {
    /// Marks as lost what was overtaken on its path by too many packets that arrived. One is too
    /// many if the packets of a path are to stay `in_order`.
    pub(crate) fn lose_overtaken(&mut self, in_order: bool, tally: &mut Tally) {
        if self.una >= self.done_to {
            return;
        }
        for at in 0..self.paths.len() {
            self.lose_overtaken_on(at, in_order, tally);
        }
    }

    fn lose_overtaken_on(&mut self, at: usize, in_order: bool, tally: &mut Tally) {
        let on = self.paths.at(at);
        let path = on.path;
        let threshold = if in_order { 1 } else { on.reordering };
        let mut sent = core::mem::take(&mut on.sent);
        let mut i = 0;
        while let Some(run) = sent.get_mut(i) {
            run.skip(self.una.saturating_sub(run.seq));
            let mut settled = true;
            while run.len > 0 {
                let (seq, order) = (run.seq, run.order);
                if !self.is_on(path, seq, order) {
                    run.skip(self.after_arrived(seq) - seq);
                    continue;
                }
                settled = false;
                if !self.paths.at(at).has_overtaken(order, threshold) {
                    break;
                }
                if seq >= self.done_to {
                    settled = true;
                    break;
                }
                self.lose((seq - self.una) as usize, tally);
                settled = true;
                run.skip(1);
            }
            if !settled {
                break;
            }
            if i == 0 && sent.front().is_some_and(|run| run.len == 0) {
                sent.pop_front();
            } else {
                i += 1;
            }
        }
        self.paths.at(at).sent = sent;
    }

    /// Whether `seq` is on its way by `path`, and was last sent at place `order`.
    fn is_on(&self, path: PathId, seq: u64, order: u32) -> bool {
        self.slot(seq)
            .is_some_and(|s| s.order == order && s.path == path && !s.is(DONE | SACKED | LOST))
    }

    /// The first sequence number after `seq`; if `seq` has arrived, the first after its whole run.
    fn after_arrived(&self, seq: u64) -> u64 {
        match self.slot(seq) {
            Some(slot) if slot.is(DONE | SACKED) => self.after(seq),
            _ => seq + 1,
        }
    }

    /// The first packet, in the order of sending, that is on its way by a path.
    pub(crate) fn oldest_on(&self, path: PathId) -> Option<u64> {
        let runs = self.paths.get(path)?.sent.iter();
        runs.flat_map(|run| {
            (0..run.len).map(|n| (run.seq + u64::from(n), run.order.wrapping_add(n)))
        })
        .find(|(seq, order)| self.is_on(path, *seq, *order))
        .map(|(seq, _)| seq)
    }

    /// Removes runs that are of no use any more, because they must not pile up while the oldest
    /// packets are sent in vain.
    pub(super) fn thin_out(&mut self, path: PathId) {
        let most = 2 * self.slots.len() + RUNS_SPARE;
        let Some(on) = self.paths.get_mut(path) else { return };
        if on.sent.len() <= most {
            return;
        }
        let mut sent = core::mem::take(&mut on.sent);
        sent.retain(|run| self.has_use(path, run.seq, run.order, run.len));
        if let Some(on) = self.paths.get_mut(path) {
            on.sent = sent;
        }
    }

    fn has_use(&self, path: PathId, seq: u64, order: u32, len: u32) -> bool {
        (0..len).any(|n| self.is_on(path, seq + u64::from(n), order.wrapping_add(n)))
    }

    /// # Errors
    /// What is kept about the paths does not match the slots.
    pub(super) fn check_paths(&self) -> Result<(), String> {
        for slot in &self.slots {
            if self.paths.get(slot.path).is_none() {
                return Err(format!("nothing is known of the path of {slot:?}"));
            }
        }
        for on in self.paths.iter() {
            self.check_path(on)?;
        }
        Ok(())
    }

    fn check_path(&self, on: &OnPath) -> Result<(), String> {
        let live = |s: &&Slot| s.path == on.path && !s.is(DONE | LOST | SACKED);
        let charged = self.slots.iter().filter(live).count();
        if charged != on.charged as usize {
            return Err(format!("{:?}: {} count, {charged} are on their way", on.path, on.charged));
        }
        let prompt = self.slots.iter().filter(live).filter(|s| !s.is(ANSWERED)).count();
        if prompt != on.prompt as usize {
            return Err(format!("{:?}: {} count as prompt, {prompt} are", on.path, on.prompt));
        }
        if on.newest.wrapping_sub(on.order) as i32 >= 0 {
            return Err(format!("{:?}: {} has arrived before it was sent", on.path, on.newest));
        }
        let known = on.sent.iter().map(|run| {
            let packets = (0..run.len).map(|n| (run.seq + u64::from(n), run.order.wrapping_add(n)));
            packets.filter(|(seq, order)| self.is_on(on.path, *seq, *order)).count()
        });
        let known: usize = known.sum();
        if known != charged {
            return Err(format!("{:?}: {known} of {charged} packets stand in its order", on.path));
        }
        Ok(())
    }
}
