//! Bouts of packets that an attacker sends.

use core::fmt;
use core::time::Duration;

/// An attacker's method. An attacker off the path can't see packets; one on the path can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Off the path: sends packets of any opcode from the peer's address, with wrong numbers.
    Guess,
    /// Off the path: sends packets of any opcode with the right numbers, from an address that nobody
    /// has.
    Stranger,
    /// On the path: sends packets again that it saw lately.
    Replay,
    /// On the path: sends packets again that it saw long ago.
    Stale,
    /// On the path, and knows everything: changes anything in packets that it saw lately, and computes
    /// a right ICRC.
    Forge,
}

/// A bout of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attack {
    /// The time when it begins, counted from when the queue pairs are connected.
    pub at: Duration,
    /// The attacker's method.
    pub way: Way,
    /// The number of the pair that it attacks.
    pub pair: usize,
    /// The end that receives the packets, 0 or 1.
    pub end: usize,
    /// The number of packets.
    pub packets: u32,
    /// The seed from which the packets are drawn.
    pub seed: u64,
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, way, pair, end, packets, .. } = self;
        write!(f, "at {at:?}: attack on end {end} of pair {pair}: {packets} packets, {way}")
    }
}
