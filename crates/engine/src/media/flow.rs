//! What media and a lane tell each other: capabilities, flows and what became of their packets.

use std::fmt::{self, Display};

use polypath_wire::ICRC_LEN;
use polypath_wire::icrc::FlowCrc;

/// What a medium can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What it is called: `udp`.
    pub name: &'static str,
    /// The largest packet that it takes, in bytes from the BTH to the padding.
    pub packet_bytes: usize,
    /// Packets of a flow arrive in the order in which they were sent.
    pub ordered: bool,
    /// A packet that it took arrives, unless the peer is gone.
    pub lossless: bool,
    /// What arrives is as it was sent, so that packets need no ICRC:
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

/// What follows a packet on a medium that does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// Its ICRC.
    Right,
    /// An ICRC that covers the packet twice, as Linux' rxe wants it of a FLUSH.
    Twice,
    /// An ICRC that is wrong, as if the packet had been damaged on its way.
    Wrong,
}

impl Seal {
    /// What follows a packet with this identification.
    pub(super) fn icrc(self, crc: &FlowCrc, packet: &[u8], id: u16) -> [u8; 4] {
        let mut icrc = crc.start(packet.len() + ICRC_LEN, id);
        icrc.headers(packet);
        if self == Self::Twice {
            icrc.update(packet);
        }
        let right = icrc.finish();
        // Wrong for each identification: a test looks at all lengths.
        if self == Self::Wrong { right.map(|byte| !byte) } else { right }
    }
}

/// Names an open flow of one medium. Not used again after it was closed before 2^32 others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHandle {
    /// The medium's own.
    pub index: u32,
    /// The medium's own, to tell a flow from another that had its index before.
    pub serial: u32,
}

/// What went wrong on a flow since [`Tx::take_errors`](super::Tx::take_errors) was last called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// The flow that it happened to.
    pub flow: FlowHandle,
    /// What [`Tx::open`](super::Tx::open) was told about the flow.
    pub tag: u32,
    /// The fault.
    pub kind: FlowFault,
    /// Packets that were not sent, or, for [`FlowFault::TooBig`], that were sent in fragments.
    pub packets: u32,
}

/// Reason for which packets of a flow did not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowFault {
    /// The socket's or the interface's queue was full: `errno`. Packets were dropped, as a wire drops them.
    Congested(i32),
    /// Packets of this UDP payload, in bytes, are larger than the interface's MTU. From now on they leave in
    /// fragments.
    TooBig(u16),
    /// No route, interface down, a firewall's refusal, the address is gone, or anything else: `errno`.
    Refused(i32),
}

/// What [`Tx::flush`](super::Tx::flush) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Packets handed to the kernel, or to the peer.
    pub sent: u32,
    /// Bytes of them (UDP payload).
    pub sent_bytes: u64,
    /// Those of them that leave in fragments.
    pub fragmented: u32,
    /// Packets that were not; [`Tx::take_errors`](super::Tx::take_errors) gives the reasons.
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
