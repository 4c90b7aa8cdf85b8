//! Why a queue pair went wrong, as a value: whoever reads it makes the words.

use core::fmt;

use polypath_types::PathId;
use polypath_wire::ext::NakCode;
use polypath_wire::psn::Psn;

use crate::memory::Fault;

/// Why a queue pair failed, or dropped something, with the numbers that belong to it.
///
/// It is made while the owner of the queue pair holds a lock, so it is small and `Copy`. `Display`
/// makes a sentence of it, which begins with the queue pair and says what to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The queue pair's number.
    pub qpn: u32,
    /// The number of the peer's queue pair; 0 if there is none.
    pub dest: u32,
    /// The path that it happened on, if it belongs to one.
    pub path: Option<PathId>,
    /// What happened.
    pub what: What,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, dest, path, what } = self;
        write!(f, "QP {qpn:#08x} to {dest:#08x}")?;
        if let Some(PathId(path)) = path {
            write!(f, ", path {path}")?;
        }
        write!(f, ": {what}")
    }
}

/// What went wrong with a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// A request was not acknowledged in spite of all retries.
    #[error(
        "no acknowledgement of PSN {psn} after {retries} retries with timeout {timeout} \
         (4 * 4.096 us * 2^{timeout} each): is the peer's queue pair alive and in RTR or RTS, \
         and does the path carry packets both ways?"
    )]
    Unacknowledged {
        /// The oldest PSN that is outstanding.
        psn: Psn,
        /// `retry_cnt`.
        retries: u8,
        /// The attribute `timeout`: the local ACK timeout is 4.096 µs × 2^timeout.
        timeout: u8,
    },
    /// The peer asked for the same packet again and again.
    #[error(
        "PSN {psn} was sent {times} times more, and the peer asked for it each time: do packets of its \
         size get through, and do both ends have the same path MTU?"
    )]
    AskedForAgain {
        /// The packet's.
        psn: Psn,
        /// `retry_cnt`.
        times: u8,
    },
    /// The peer had no receive work request in spite of all RNR retries.
    #[error(
        "the peer had no receive work request for PSN {psn} in {retries} retries: it must post \
         receives earlier, or rnr_retry be 7 (for ever)"
    )]
    NoReceive {
        /// The packet that the receive was wanted for.
        psn: Psn,
        /// `rnr_retry`.
        retries: u8,
    },
    /// The peer refused a request.
    #[error("the peer refused PSN {psn}: {}", refused(*.nak))]
    PeerRefused {
        /// The packet that it refused.
        psn: Psn,
        /// The code of its answer.
        nak: NakCode,
    },
    /// A response does not answer the request it is for.
    #[error(
        "response to PSN {psn} has {bytes} bytes and does not fit its request: do both ends \
         have the same path MTU ({mtu})?"
    )]
    ResponseDoesNotFit {
        /// The request's.
        psn: Psn,
        /// The payload of the response.
        bytes: u32,
        /// The path MTU of this end, bytes.
        mtu: u32,
    },
    /// A response has more bytes than the work request has room for.
    #[error("response to PSN {psn} can't be stored: its scatter list is too short")]
    ResponseTooLong {
        /// The request's.
        psn: Psn,
    },
    /// The memory that a response belongs in can't be written.
    #[error("response to PSN {psn} can't be stored: {fault}")]
    ResponseNotStored {
        /// The request's.
        psn: Psn,
        /// The reason.
        fault: Fault,
    },
    /// A request that the peer answers was posted, but the queue pair may have none of them
    /// outstanding.
    #[error("a READ, atomic, ATOMIC WRITE or FLUSH was posted, but max_rd_atomic is 0")]
    NoRdAtomic,
    /// A local invalidate failed.
    #[error("local invalidate failed: {fault}")]
    LocalInvalidate {
        /// The reason.
        fault: Fault,
    },
    /// A memory window could not be bound.
    #[error("memory window bind failed: {fault}")]
    WindowBind {
        /// The reason.
        fault: Fault,
    },
    /// A bind or local invalidate of an unreliable queue pair failed.
    #[error("bind or invalidate failed: {fault}")]
    BindOrInvalidate {
        /// The reason.
        fault: Fault,
    },
    /// The memory of a work request can't be read.
    #[error(
        "work request {wr_id:#x} at PSN {psn}: local memory: {fault}; check lkey, address, length and \
         the access flags of its region"
    )]
    LocalMemory {
        /// The work request's.
        wr_id: u64,
        /// The PSN of its first packet.
        psn: Psn,
        /// The reason.
        fault: Fault,
    },
    /// A request of the peer was refused.
    #[error("request with PSN {psn} refused: {why}")]
    RequestRefused {
        /// The request's.
        psn: Psn,
        /// The reason.
        why: BadRequest,
    },
    /// A datagram was posted with an address handle that the queue pair may not use.
    #[error(
        "work request {wr_id:#x}: its address handle is of another protection domain than the queue \
         pair; create it with the queue pair's"
    )]
    AddressHandleOfOtherPd {
        /// The work request's.
        wr_id: u64,
    },
    /// A datagram was posted that does not fit into a packet.
    #[error("a datagram of {bytes} bytes is longer than the port's MTU, {mtu}: dropped")]
    DatagramTooLong {
        /// Its payload.
        bytes: u32,
        /// The most that fits, bytes.
        mtu: u32,
    },
    /// A datagram arrived with a Q_Key that is not this queue pair's.
    #[error("datagram from QP {src_qpn:#08x} with Q_Key {qkey:#x}, ours is {own:#x}: dropped")]
    DatagramQkey {
        /// Who sent it.
        src_qpn: u32,
        /// The Q_Key that it came with.
        qkey: u32,
        /// The Q_Key of this queue pair.
        own: u32,
    },
    /// A datagram could not be stored.
    #[error(
        "datagram of {bytes} bytes (and 40 for the GRH) does not fit the receive work request: dropped"
    )]
    DatagramNotStored {
        /// Its payload.
        bytes: u32,
    },
    /// A SEND to a UC queue pair could not be stored.
    #[error("a UC SEND does not fit the receive work request: dropped")]
    UcSendNotStored,
    /// The memory of a receive of a UC or UD queue pair is not valid.
    #[error("the memory of a receive work request is not valid, so the queue pair ends: {fault}")]
    ReceiveNotValid {
        /// The reason.
        fault: Fault,
    },
    /// A WRITE to a UC queue pair names memory that it may not write.
    #[error("UC WRITE: {fault}")]
    UcWriteFault {
        /// The reason.
        fault: Fault,
    },
    /// A WRITE to a UC queue pair was dropped.
    #[error("a UC WRITE was dropped: {why}")]
    UcWriteDropped {
        /// The reason.
        why: BadUcWrite,
    },
}

/// What a peer means by refusing a request with this code.
fn refused(nak: NakCode) -> &'static str {
    match nak {
        NakCode::RemoteAccess => {
            "remote access error: check rkey, remote address, length and access flags"
        }
        NakCode::RemoteOperational => {
            "remote operational error: the peer's own memory or queue pair failed"
        }
        NakCode::PsnSequence | NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
            "invalid request: not allowed by the peer's queue pair, longer than its receive \
             buffer, or more READs than its max_dest_rd_atomic"
        }
    }
}

/// Why a WRITE to a UC queue pair is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUcWrite {
    /// The queue pair takes no WRITE, or none of that length.
    #[error("not allowed by qp_access_flags, or too long")]
    NotAllowed,
    /// The memory that it names may not be written.
    #[error("key, range or rights")]
    Memory,
    /// Its packets have more or fewer bytes than it announced.
    #[error("it brings not as many bytes as its RETH says")]
    Length,
}

/// Why a responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The texts say it.
pub enum BadRequest {
    #[error("a message does not begin with a middle or last packet")]
    NoFirstPacket,
    #[error("a message began before the one under way was complete")]
    NoLastPacket,
    #[error("the operation changed within a message")]
    OperationChanged,
    #[error(
        "the payload does not have the length that path MTU and operation ask for: \
         do both ends have the same path MTU?"
    )]
    PacketLength,
    #[error("a message is longer than 2^31 bytes")]
    MessageTooLong,
    #[error("the message is longer than the receive work request")]
    ReceiveTooSmall,
    #[error(
        "the receive work request's memory is not valid: check lkey, address, length \
         and LOCAL_WRITE"
    )]
    ReceiveMemory,
    #[error("the shared receive queue changed within a message")]
    SrqChanged,
    #[error("the XRC domain of this queue pair has no shared receive queue of that number")]
    NoSuchSrq,
    #[error("the key to invalidate is not valid for this queue pair")]
    InvalidateKey,
    #[error("no region has this remote key")]
    Key,
    #[error("the range is not within the region")]
    Range,
    #[error("the region does not allow it")]
    Rights,
    #[error("the memory of the region was given up before it was deregistered")]
    Gone,
    #[error("qp_access_flags do not allow REMOTE_WRITE")]
    WriteNotAllowed,
    #[error("qp_access_flags do not allow REMOTE_READ")]
    ReadNotAllowed,
    #[error("qp_access_flags do not allow REMOTE_ATOMIC")]
    AtomicNotAllowed,
    #[error("qp_access_flags do not allow the FLUSH")]
    FlushNotAllowed,
    #[error("a WRITE without RETH")]
    WriteWithoutReth,
    #[error("a WRITE brings not as many bytes as its RETH says")]
    WriteLength,
    #[error("the region of a WRITE went away on its way")]
    WriteRegionGone,
    #[error("a READ without RETH")]
    ReadWithoutReth,
    #[error("a READ takes more than half of the PSNs")]
    ReadTooLong,
    #[error("the region of a READ went away")]
    ReadRegionGone,
    #[error("an atomic without AtomicETH")]
    AtomicWithoutEth,
    #[error("the address of an atomic is not a multiple of 8")]
    AtomicAddress,
    #[error("key, address or rights do not allow the atomic")]
    AtomicAccess,
    #[error("the memory of an atomic is not aligned to 8 bytes")]
    AtomicMemory,
    #[error("an ATOMIC WRITE without RETH")]
    AtomicWriteWithoutReth,
    #[error("an ATOMIC WRITE is of 8 bytes")]
    AtomicWriteLength,
    #[error("the address of an ATOMIC WRITE is not a multiple of 8")]
    AtomicWriteAddress,
    #[error("the memory of an ATOMIC WRITE is not aligned to 8 bytes")]
    AtomicWriteMemory,
    #[error("a FLUSH without FETH or RETH")]
    FlushWithoutHeaders,
    #[error("a FLUSH of an unknown placement type")]
    FlushPlacement,
    #[error("a FLUSH of an unknown selectivity level")]
    FlushSelectivity,
    #[error("more READs, atomics, ATOMIC WRITEs and FLUSHes outstanding than max_dest_rd_atomic")]
    TooManyOutstanding,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One value of each kind, and its text.
    fn table() -> Vec<(What, &'static str)> {
        let (psn, fault) = (Psn::new(7), Fault::Key);
        let refused = |nak| What::PeerRefused { psn, nak };
        vec![
            (
                What::Unacknowledged { psn, retries: 3, timeout: 14 },
                "no acknowledgement of PSN 7 after 3 retries with timeout 14 (4 * 4.096 us * 2^14 each): \
                 is the peer's queue pair alive and in RTR or RTS, and does the path carry packets both \
                 ways?",
            ),
            (
                What::AskedForAgain { psn, times: 5 },
                "PSN 7 was sent 5 times more, and the peer asked for it each time: do packets of its size \
                 get through, and do both ends have the same path MTU?",
            ),
            (
                What::NoReceive { psn, retries: 6 },
                "the peer had no receive work request for PSN 7 in 6 retries: it must post receives \
                 earlier, or rnr_retry be 7 (for ever)",
            ),
            (
                refused(NakCode::RemoteAccess),
                "the peer refused PSN 7: remote access error: check rkey, remote address, length and \
                 access flags",
            ),
            (
                refused(NakCode::RemoteOperational),
                "the peer refused PSN 7: remote operational error: the peer's own memory or queue pair \
                 failed",
            ),
            (
                refused(NakCode::InvalidRequest),
                "the peer refused PSN 7: invalid request: not allowed by the peer's queue pair, longer \
                 than its receive buffer, or more READs than its max_dest_rd_atomic",
            ),
            (
                What::ResponseDoesNotFit { psn, bytes: 100, mtu: 4096 },
                "response to PSN 7 has 100 bytes and does not fit its request: do both ends have the same \
                 path MTU (4096)?",
            ),
            (
                What::ResponseTooLong { psn },
                "response to PSN 7 can't be stored: its scatter list is too short",
            ),
            (
                What::ResponseNotStored { psn, fault: Fault::Range },
                "response to PSN 7 can't be stored: the range is not within the memory region",
            ),
            (
                What::NoRdAtomic,
                "a READ, atomic, ATOMIC WRITE or FLUSH was posted, but max_rd_atomic is 0",
            ),
            (
                What::LocalInvalidate { fault },
                "local invalidate failed: no memory region has this key in this protection domain",
            ),
            (
                What::WindowBind { fault: Fault::Rights },
                "memory window bind failed: the memory region does not allow this access",
            ),
            (
                What::BindOrInvalidate { fault },
                "bind or invalidate failed: no memory region has this key in this protection domain",
            ),
            (
                What::LocalMemory { wr_id: 0xab, psn, fault: Fault::Gone },
                "work request 0xab at PSN 7: local memory: the memory of the region is gone: it was \
                 unmapped, or its file cut, before ibv_dereg_mr; check lkey, address, length and the \
                 access flags of its region",
            ),
            (
                What::RequestRefused { psn, why: BadRequest::TooManyOutstanding },
                "request with PSN 7 refused: more READs, atomics, ATOMIC WRITEs and FLUSHes outstanding \
                 than max_dest_rd_atomic",
            ),
            (
                What::AddressHandleOfOtherPd { wr_id: 0xab },
                "work request 0xab: its address handle is of another protection domain than the queue \
                 pair; create it with the queue pair's",
            ),
            (
                What::DatagramTooLong { bytes: 5000, mtu: 4096 },
                "a datagram of 5000 bytes is longer than the port's MTU, 4096: dropped",
            ),
            (
                What::DatagramQkey { src_qpn: 0x1234, qkey: 0x11, own: 0x22 },
                "datagram from QP 0x001234 with Q_Key 0x11, ours is 0x22: dropped",
            ),
            (
                What::DatagramNotStored { bytes: 90 },
                "datagram of 90 bytes (and 40 for the GRH) does not fit the receive work request: dropped",
            ),
            (What::UcSendNotStored, "a UC SEND does not fit the receive work request: dropped"),
            (
                What::UcWriteFault { fault },
                "UC WRITE: no memory region has this key in this protection domain",
            ),
            (
                What::UcWriteDropped { why: BadUcWrite::NotAllowed },
                "a UC WRITE was dropped: not allowed by qp_access_flags, or too long",
            ),
            (
                What::UcWriteDropped { why: BadUcWrite::Memory },
                "a UC WRITE was dropped: key, range or rights",
            ),
            (
                What::UcWriteDropped { why: BadUcWrite::Length },
                "a UC WRITE was dropped: it brings not as many bytes as its RETH says",
            ),
        ]
    }

    #[test]
    fn each_kind_has_its_words() {
        for (what, words) in table() {
            assert_eq!(what.to_string(), words);
        }
        assert_eq!(
            BadRequest::ReceiveMemory.to_string(),
            "the receive work request's memory is not valid: check lkey, address, length and LOCAL_WRITE"
        );
    }

    #[test]
    fn an_explanation_begins_with_the_queue_pair_and_the_path() {
        let mut said =
            Explanation { qpn: 0x02_0011, dest: 0x12, path: None, what: What::UcSendNotStored };
        let rest = "a UC SEND does not fit the receive work request: dropped";
        assert_eq!(said.to_string(), format!("QP 0x020011 to 0x000012: {rest}"));
        said.path = Some(PathId(3));
        assert_eq!(said.to_string(), format!("QP 0x020011 to 0x000012, path 3: {rest}"));
    }

    #[test]
    fn an_explanation_is_small() {
        assert!(size_of::<Explanation>() <= 48, "{} bytes", size_of::<Explanation>());
    }
}
