//! Which numbers have come, so that each counts once.

/// A bit for each number of a window, which repeats every 64 x `WORDS` numbers.
#[derive(Clone, Debug)]
pub(crate) struct Bits<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Default for Bits<WORDS> {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl<const WORDS: usize> Bits<WORDS> {
    pub(crate) fn get(&self, n: u64) -> bool {
        self.0[(n / 64) as usize % WORDS] >> (n % 64) & 1 != 0
    }

    pub(crate) fn set(&mut self, n: u64, value: bool) {
        let word = &mut self.0[(n / 64) as usize % WORDS];
        *word = *word & !(1 << (n % 64)) | u64::from(value) << (n % 64);
    }
}

const WORDS: usize = 128;
/// How far a copy may be behind the newest datagram. What is further behind is taken for a copy.
const WINDOW: u32 = WORDS as u32 * 64;
/// What is so far behind is no late copy: somebody else has made a number up that is far ahead, or the sender
/// has begun anew. The numbers from there on count again.
const BEGUN_ANEW: u32 = 1 << 20;

/// The numbers of datagrams that have come.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    newest: u32,
    bits: Bits<WORDS>,
}

impl Seen {
    pub(crate) fn new(first: u32) -> Self {
        let mut seen = Self { newest: first, bits: Bits::default() };
        seen.bits.set(first.into(), true);
        seen
    }

    /// Takes note of a number. Returns whether it is the first time.
    pub(crate) fn take(&mut self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.newest);
        let behind = self.newest.wrapping_sub(number);
        if ahead == 0 {
            return false;
        }
        if ahead < behind {
            if ahead >= WINDOW {
                *self = Self::new(number);
                return true;
            }
            for n in 1..ahead {
                self.bits.set(self.newest.wrapping_add(n).into(), false);
            }
            self.newest = number;
        } else if behind >= BEGUN_ANEW {
            *self = Self::new(number);
            return true;
        } else if behind >= WINDOW || self.bits.get(number.into()) {
            return false;
        }
        self.bits.set(number.into(), true);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once() {
        let mut seen = Seen::new(7);
        assert_eq!([7, 8, 8, 10, 9, 9, 6, 6].map(|n| seen.take(n)), {
            [false, true, false, true, true, false, true, false]
        });
        // Numbers that were not seen are not taken for others of the same place.
        assert!(seen.take(10 + WINDOW - 1) && seen.take(10 + WINDOW - 2));
        assert_eq!([12, 11, 10].map(|n| seen.take(n)), [true, true, false]);
        assert!(!seen.take(9), "beyond the window");
        assert!(seen.take(5 * WINDOW) && !seen.take(4 * WINDOW) && seen.take(4 * WINDOW + 1));
    }

    #[test]
    fn numbers_wrap() {
        let mut seen = Seen::new(u32::MAX - 1);
        assert_eq!([0, u32::MAX, 0, u32::MAX, 1].map(|n| seen.take(n)), {
            [true, true, false, false, true]
        });
    }

    #[test]
    fn a_number_that_was_made_up_hides_one_datagram_at_most() {
        let mut seen = Seen::new(5);
        assert!(seen.take(5 + (1 << 30)), "made up");
        assert_eq!([6, 6, 7, 5].map(|n| seen.take(n)), [true, false, true, true]);
    }

    #[test]
    fn it_knows_as_much_as_a_set() {
        let (mut seen, mut all) = (Seen::new(0), std::collections::HashSet::from([0]));
        let mut state = 1_u32;
        for n in 0..200_000_u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (n / 2).saturating_sub(state >> 8 & 0xfff);
            assert_eq!(seen.take(number), all.insert(number), "{number}");
        }
    }
}
