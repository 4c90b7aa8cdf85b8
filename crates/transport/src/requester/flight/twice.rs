//! What is known of packets that were sent by two paths at once.

use super::{Flight, LOST};

impl Flight {
    /// Whether `seq` was last sent after the time `echo_us`.
    pub(crate) fn was_sent_after(&self, seq: u64, echo_us: u32) -> bool {
        self.slot(seq).is_some_and(|slot| (echo_us.wrapping_sub(slot.sent_us) as i32) < 0)
    }

    /// The bytes that sending those of `n` slots from `seq` on that are lost again would cost.
    pub(crate) fn cost_again(&self, seq: u64, n: u32) -> u32 {
        let slots = (seq..seq + u64::from(n)).filter_map(|seq| self.slot(seq));
        slots.filter(|slot| slot.is(LOST)).map(|slot| u32::from(slot.cost)).sum()
    }
}
