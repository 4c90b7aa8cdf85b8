//! The properties of links, and what happens to packets on them.

use core::time::Duration;

/// The properties of a link without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkPlan {
    /// The least time that a packet takes.
    pub delay: Duration,
    /// The most that is added to the delay at random.
    pub jitter: Duration,
    /// Whether packets overtake each other within the jitter.
    pub reorders: bool,
    /// The speed of each port in each direction, in Mbit/s; 0 means no limit.
    pub rate_mbps: u32,
    /// The number of bytes that a port holds before it drops packets.
    pub queue: u32,
    /// Whether a port marks packets that find a quarter of its queue full, if they may be marked.
    pub marks: bool,
}

/// Losses that come in bursts (Gilbert's model). All chances are per mille and packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bursts {
    /// The chance that a burst begins.
    pub begin: u64,
    /// The chance that a burst ends.
    pub end: u64,
    /// The chance that a packet is lost within a burst.
    pub loss: u64,
}

/// The faults that happen to packets on a link by chance. All chances are per mille.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// The chance that a single packet is lost.
    pub loss: u64,
    /// Losses in bursts.
    pub bursts: Bursts,
    /// The chance that a packet arrives twice.
    pub double: u64,
    /// The chance that a packet arrives after some that were sent later.
    pub overtake: u64,
    /// The chance that a packet is held back for up to 300 ms. Generations of paths protect against
    /// such packets.
    pub straggle: u64,
    /// The chance that a packet arrives with one to three bits flipped.
    pub corrupt: u64,
}

/// Packets that a link loses for certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// The link loses datagrams with more bytes of UDP payload than this; 0 means none.
    pub over: u32,
    /// The link loses the packets of these classes of queue pairs, a bit for each of eight classes. A
    /// class is a hash of the destination queue pair number. (A fabric that chooses the way by the UDP
    /// source port loses or carries a path as a whole, because each path has its own port.)
    pub classes: u8,
}

impl Holes {
    /// Whether the link loses this datagram, given as its UDP payload.
    pub(crate) fn swallow(&self, datagram: &[u8]) -> bool {
        let qpn = datagram.get(5..8).map_or(0, |q| u32::from_be_bytes([0, q[0], q[1], q[2]]));
        // Path managers send to number 0 of a lane, which no class contains.
        let class = 1u8 << (qpn.wrapping_mul(0x9e37_79b1) >> 29);
        let large = self.over > 0 && datagram.len() > self.over as usize;
        large || (qpn & 0xffff != 0 && self.classes & class != 0)
    }
}
