//! The order in which a broker gives out slots for the first time. It is random, so that programs of two
//! hosts seldom have the same slot, and each can move to the other's host. Also, a new broker does not
//! begin with QPNs to which its predecessor's peers still send.

use polypath_ipc::SLOT_MAX;

const COUNT: usize = SLOT_MAX as usize;

/// All slots in an order that follows from a seed.
#[derive(Debug, Clone)]
pub(crate) struct SlotOrder {
    seed: u32,
    slots: [u8; COUNT],
    /// Where each slot is in `slots`; nothing is at 0.
    places: [u8; COUNT + 1],
}

impl SlotOrder {
    pub(crate) fn new(seed: u32) -> Self {
        let mut slots = [0; COUNT];
        slots.iter_mut().zip(1..).for_each(|(slot, number)| *slot = number);
        // SplitMix64 and a Fisher-Yates shuffle. The remainder of 64 bits is even enough.
        let mut state = u64::from(seed);
        for i in (1..COUNT).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            slots.swap(i, ((z ^ z >> 31) % (i as u64 + 1)) as usize);
        }
        let mut places = [0; COUNT + 1];
        slots.iter().zip(0..).for_each(|(slot, place)| places[usize::from(*slot)] = place);
        Self { seed, slots, places }
    }

    /// What [`SlotOrder::new`] needs to make the same order.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// The slot at a place, 0 to 253.
    pub(crate) fn slot(&self, place: usize) -> Option<u8> {
        self.slots.get(place).copied()
    }

    /// The place of a slot, 1 to 254.
    pub(crate) fn place(&self, slot: u8) -> usize {
        debug_assert!((1..=SLOT_MAX).contains(&slot));
        self.places[usize::from(slot)].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_one_place() {
        for seed in [0, 1, u32::MAX] {
            let order = SlotOrder::new(seed);
            let mut all: Vec<u8> = (0..COUNT).filter_map(|place| order.slot(place)).collect();
            assert!(all.iter().enumerate().all(|(place, slot)| order.place(*slot) == place));
            all.sort_unstable();
            assert_eq!(all, (1..=SLOT_MAX).collect::<Vec<u8>>());
            assert_eq!(order.slot(COUNT), None);
        }
    }

    /// Two brokers, one of which has got a program of the other one, give different slots next.
    #[test]
    fn what_follows_a_slot_differs_between_brokers() {
        let orders: Vec<SlotOrder> = (0..100).map(SlotOrder::new).collect();
        let after = |order: &SlotOrder, slot| order.slot((order.place(slot) + 1) % COUNT);
        let same = (1..100).filter(|n| after(&orders[0], 7) == after(&orders[*n], 7)).count();
        assert!(same < 5, "{same} of 99");
        let first = (1..100).filter(|n| orders[0].slot(0) == orders[*n].slot(0)).count();
        assert!(first < 5, "{first} of 99");
    }
}
