//! The flight as bytes: sequence numbers, and which of them have an answer.

use core::time::Duration;

use super::super::micros;
use super::super::on_path::OnPaths;
use super::{AGAIN, ANSWERED, END, Flight, LOST, Slot};
use crate::frozen::Writer;
use polypath_types::PathId;

/// Stands for the path that they were sent by, which is gone.
const NO_PATH: PathId = PathId(u32::MAX);

impl Flight {
    /// A flight that was frozen: what was in flight from `una` on is lost. `slots` says whether
    /// each has an answer, and what it is charged with when it is sent again.
    pub(crate) fn thawed(una: u64, slots: &[(u8, u16)], now: Duration) -> Self {
        let sent_us = micros(now);
        let slot = |&(flags, cost): &(u8, u16)| Slot {
            path: NO_PATH,
            order: 0,
            sent_us,
            cost,
            flags: flags & (ANSWERED | END) | LOST | AGAIN,
        };
        let mut paths = OnPaths::default();
        paths.meet(NO_PATH, now);
        // Everything that was sent by it has the first place in its order.
        paths.on(NO_PATH).order = 1;
        Self {
            paths,
            slots: slots.iter().map(slot).collect(),
            lost: slots.len() as u32,
            unanswered: slots.iter().filter(|(flags, _)| flags & END != 0).count() as u32,
            ..Self::new(una)
        }
    }

    /// Writes down the oldest sequence number and, for each in flight, whether it has an answer.
    pub(crate) fn freeze(&self, out: &mut Writer) {
        out.u64(self.una);
        out.count(self.slots.len());
        for slot in &self.slots {
            out.u8(slot.flags & (ANSWERED | END));
        }
    }
}
