//! What must hold between any two calls, counted anew.

use super::{ANSWERED, DONE, END, Flight, LOST, SACKED};
use polypath_types::PathId;

impl Flight {
    /// # Errors
    /// A counter does not match the slots.
    pub(crate) fn check(&self) -> Result<(), String> {
        let count = |flags: u8| self.slots.iter().filter(|s| s.is(flags)).count() as u32;
        let charged = self.slots.iter().filter(|s| !s.is(DONE | LOST | SACKED)).count() as u32;
        let counters = [
            ("lost", self.lost, count(LOST)),
            ("sacked", self.sacked, count(SACKED)),
            ("charged", self.charged, charged),
            ("unanswered", self.unanswered, count(END)),
        ];
        for (name, counter, slots) in counters {
            if counter != slots {
                return Err(format!("{counter} {name} are counted, {slots} slots are"));
            }
        }
        for (at, slot) in self.slots.iter().enumerate() {
            let seq = self.una + at as u64;
            let fate = slot.flags & (DONE | LOST | SACKED);
            if fate.count_ones() > 1 {
                return Err(format!("{seq} has more than one fate: {slot:?}"));
            }
            if slot.is(LOST) && seq < self.lost_from {
                return Err(format!("{seq} is lost, before {}", self.lost_from));
            }
            if slot.is(DONE | SACKED) && seq >= self.done_to {
                return Err(format!("{seq} is done, but nothing from {} on", self.done_to));
            }
            if slot.is(END) && !slot.is(ANSWERED) {
                return Err(format!("{seq} ends a request that has no answer"));
            }
        }
        for seq in self.beyond.iter().flat_map(Clone::clone) {
            if !self.slot(seq).is_some_and(|s| s.is(DONE | SACKED)) {
                return Err(format!("{seq} is taken to have arrived, and has not"));
            }
        }
        if self.slots.front().is_some_and(|s| s.is(DONE)) {
            return Err(format!("{} is done, and kept", self.una));
        }
        self.check_paths()?;
        if self.acked_to > self.next() {
            return Err(format!("{} is acknowledged before it is sent", self.acked_to));
        }
        Ok(())
    }

    /// The bytes that are charged, by packet.
    pub(crate) fn charges(&self) -> impl Iterator<Item = (PathId, u32)> + '_ {
        let charged = self.slots.iter().filter(|s| !s.is(DONE | LOST | SACKED));
        charged.map(|s| (s.path, s.charge()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_wrong_is_noticed() {
        let mut flight = Flight::new(7);
        for _ in 0..3 {
            flight.push(PathId(1), 100, 0, 0);
        }
        assert_eq!(flight.check(), Ok(()));
        assert_eq!(flight.charges().count(), 3);
        let wrong: [fn(&mut Flight); 6] = [
            |f| f.charged += 1,
            |f| f.lost += 1,
            |f| f.sacked += 1,
            |f| f.unanswered += 1,
            |f| f.slots[0].flags |= DONE,
            |f| f.slots[1].flags |= LOST | SACKED,
        ];
        for spoil in wrong {
            let mut flight = flight.clone();
            spoil(&mut flight);
            assert!(flight.check().is_err());
        }
    }
}
