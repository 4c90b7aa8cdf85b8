//! What links are like, and what happens to packets on them.

use core::time::Duration;

/// What a link is like without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkPlan {
    /// Least time of flight.
    pub delay: Duration,
    /// Added at random.
    pub jitter: Duration,
    /// Packets overtake each other within the jitter.
    pub reorders: bool,
    /// Speed of each port, both ways, Mbit/s; 0: no limit.
    pub rate_mbps: u32,
    /// Bytes that a port holds before it drops what comes.
    pub queue: u32,
}

/// Losses that come in bursts (Gilbert's model), per mille and packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bursts {
    /// Chance that a burst begins.
    pub begin: u64,
    /// Chance that it ends.
    pub end: u64,
    /// Chance of loss within one.
    pub loss: u64,
}

/// What happens to packets on a link by chance, of a thousand packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// Loss of single packets.
    pub loss: u64,
    /// Losses in bursts.
    pub bursts: Bursts,
    /// Packets that arrive twice.
    pub double: u64,
    /// Packets that arrive after some that were sent later.
    pub overtake: u64,
    /// Packets held back for up to 300 ms, which fences are for.
    pub straggle: u64,
    /// Packets that arrive with one to three bits flipped.
    pub corrupt: u64,
}

/// What a link loses for certain, of what it should carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// Datagrams of more bytes of UDP payload than this; 0: of none.
    pub over: u32,
    /// Packets of some queue pairs, by a hash of the destination: a set of eight classes. (A fabric that
    /// spreads by UDP source port takes a path as a whole: each has a port of its own.)
    pub classes: u8,
}

impl Holes {
    /// Whether a datagram falls in.
    pub(crate) fn swallow(&self, datagram: &[u8]) -> bool {
        let qpn = datagram.get(5..8).map_or(0, |q| u32::from_be_bytes([0, q[0], q[1], q[2]]));
        // Path managers talk to number 0 of a lane.
        let class = 1u8 << (qpn.wrapping_mul(0x9e37_79b1) >> 29);
        let large = self.over > 0 && datagram.len() > self.over as usize;
        large || (qpn & 0xffff != 0 && self.classes & class != 0)
    }
}
