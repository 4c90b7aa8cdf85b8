//! The types that media and a lane share: capabilities, flows, and errors of sending.

use std::fmt::{self, Display};

use polypath_wire::ICRC_LEN;
use polypath_wire::icrc::FlowCrc;

/// The capabilities of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, such as `udp`.
    pub name: &'static str,
    /// The largest packet that it takes, in bytes from the BTH to the padding.
    pub packet_bytes: usize,
    /// Whether packets of a flow arrive in the order in which they were sent.
    pub ordered: bool,
    /// Whether every packet that it takes arrives, unless the peer is gone.
    pub lossless: bool,
    /// Whether packets arrive exactly as they were sent, so that they need no ICRC:
    /// [`Received::verified`](super::Received::verified).
    pub verified: bool,
}

impl Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, packets of up to {} bytes", self.name, self.packet_bytes)?;
        let words =
            [(self.ordered, "ordered"), (self.lossless, "lossless"), (self.verified, "verified")];
        words.iter().filter(|(is, _)| *is).try_for_each(|(_, word)| write!(f, ", {word}"))
    }
}

/// The trailer of a packet on a medium that does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// The correct ICRC.
    Right,
    /// An ICRC that covers the packet twice, as Linux' rxe does for a FLUSH.
    Twice,
    /// A wrong ICRC, as if the packet had been damaged on its way.
    Wrong,
}

impl Seal {
    /// The trailer of a packet with this IPv4 identification.
    pub(super) fn icrc(self, crc: &FlowCrc, packet: &[u8], id: u16) -> [u8; 4] {
        let mut icrc = crc.start(packet.len() + ICRC_LEN, id);
        icrc.headers(packet);
        if self == Self::Twice {
            icrc.update(packet);
        }
        let right = icrc.finish();
        // The inverted ICRC is wrong for every identification; a test checks this for all lengths.
        if self == Self::Wrong { right.map(|byte| !byte) } else { right }
    }
}

/// The name of an open flow of one medium. A closed flow's handle is not used again until 2^32
/// other flows have been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHandle {
    /// The medium chooses it.
    pub index: u32,
    /// The medium chooses it, to tell a flow from an earlier one with the same index.
    pub serial: u32,
}

/// An error of a flow since [`Tx::take_errors`](super::Tx::take_errors) was last called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// The flow that had the error.
    pub flow: FlowHandle,
    /// The tag that [`Tx::open`](super::Tx::open) got for the flow.
    pub tag: u32,
    /// The fault.
    pub kind: FlowFault,
    /// The number of packets that were not sent or, for [`FlowFault::TooBig`], were sent in
    /// fragments.
    pub packets: u32,
}

/// The reason why packets of a flow were not sent as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowFault {
    /// The socket's or the interface's queue was full (the `errno`). Packets were dropped, as on a
    /// wire.
    Congested(i32),
    /// Packets with a UDP payload of this many bytes are larger than the interface's MTU. From now
    /// on they leave in fragments.
    TooBig(u16),
    /// There is no route, the interface is down, a firewall refused, the address is gone, or
    /// another error (the `errno`).
    Refused(i32),
}

/// The result of [`Tx::flush`](super::Tx::flush).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// The number of packets that the kernel or the peer took.
    pub sent: u32,
    /// The bytes of these packets (UDP payload).
    pub sent_bytes: u64,
    /// The number of these packets that leave in fragments.
    pub fragmented: u32,
    /// The number of packets that were not sent; [`Tx::take_errors`](super::Tx::take_errors)
    /// returns the reasons.
    pub dropped: u32,
}

impl std::ops::AddAssign for Flushed {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.fragmented += other.fragmented;
        self.dropped += other.dropped;
    }
}
