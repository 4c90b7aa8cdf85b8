//! Bouts of packets that an attacker sends.

use core::fmt;
use core::time::Duration;

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Beside the path, from the peer's address: packets of any opcode, with numbers that are wrong.
    Guess,
    /// Beside the path, from an address that is nobody's: packets of any opcode, with the right numbers.
    Stranger,
    /// On the path: packets that were seen lately, once more.
    Replay,
    /// On the path: packets of long ago, once more.
    Stale,
    /// On the path, and clever: packets that were seen lately, with anything changed, and a right ICRC.
    Forge,
}

/// A bout of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attack {
    /// When it begins, counted from when the queue pairs are connected.
    pub at: Duration,
    /// What kind it is.
    pub way: Way,
    /// The pair of queue pairs that it is for.
    pub pair: usize,
    /// The end that is lied to.
    pub end: usize,
    /// How many packets.
    pub packets: u32,
    /// What they are drawn from.
    pub seed: u64,
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, way, pair, end, packets, .. } = self;
        write!(f, "at {at:?}: attack on end {end} of pair {pair}: {packets} packets, {way}")
    }
}
