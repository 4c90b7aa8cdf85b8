//! The extended transport headers that follow the BTH (IBTA 9.3, 9.4, 9.5), and Polypath's own two:
//! the multi-path header and the selective acknowledgement (docs/wire.md).

use core::fmt;

use crate::QPN_MASK;
use crate::bytes::{be16, be24, be32, be64, head, put24};
use crate::error::ParseError;
use crate::psn::{PSN_MASK, Psn};

/// RDMA extended transport header: the memory that a WRITE writes or a READ reads (IBTA 9.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes, 0 to 2^31.
    pub len: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("RETH", buf)?;
        Ok(Self { va: be64(b, 0), rkey: be32(b, 8), len: be32(b, 12) })
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }
}

/// FLUSH extended transport header: which memory to flush, and how far (annex A19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feth {
    /// Placement types: bit 0 global visibility, bit 1 persistence; 4 bits.
    pub placement: u8,
    /// Selectivity level: 0 the range that the RETH names, 1 the whole region; 2 bits.
    pub selectivity: u8,
}

impl Feth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the first bytes of `buf`; reserved bits are ignored.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("FETH", buf)?;
        Ok(Self { placement: b[3] & 0xf, selectivity: b[3] >> 4 & 3 })
    }

    /// The header's bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        [0, 0, 0, self.selectivity << 4 & 0x30 | self.placement & 0xf]
    }
}

/// The reason why a responder refuses a request (IBTA 9.7.5.2.2, table 46).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet before this one is missing.
    PsnSequence,
    /// The request is malformed or not supported.
    InvalidRequest,
    /// The key, the bounds or the rights do not allow it.
    RemoteAccess,
    /// The responder failed while executing it.
    RemoteOperational,
    /// The request of reliable datagram is invalid.
    InvalidRdRequest,
}

impl NakCode {
    /// The code in the low five bits of the syndrome.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
        }
    }
}

/// The meaning of an acknowledgement (IBTA 9.7.5.1, tables 44 to 46).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to the packet's PSN is acknowledged.
    Ack {
        /// Encoded end-to-end credit count, 0 to 31; 31 means that credits are not used.
        credits: u8,
    },
    /// There was no receive work request; the requester is to try again after a time.
    RnrNak {
        /// Encoded waiting time, 0 to 31 (IBTA table 45; 0 is 655.36 ms, 1 is 0.01 ms).
        timer: u8,
    },
    /// The request at the packet's PSN is refused.
    Nak(NakCode),
    /// Any other byte. A packet with such a syndrome is dropped.
    Reserved(u8),
}

impl Syndrome {
    /// An acknowledgement without end-to-end credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// Decodes the syndrome byte. Bytes without a meaning become `Reserved`.
    #[inline]
    pub const fn from_byte(b: u8) -> Self {
        let low = b & 0x1f;
        match b >> 5 {
            0 => Self::Ack { credits: low },
            1 => Self::RnrNak { timer: low },
            3 => match low {
                0 => Self::Nak(NakCode::PsnSequence),
                1 => Self::Nak(NakCode::InvalidRequest),
                2 => Self::Nak(NakCode::RemoteAccess),
                3 => Self::Nak(NakCode::RemoteOperational),
                4 => Self::Nak(NakCode::InvalidRdRequest),
                _ => Self::Reserved(b),
            },
            _ => Self::Reserved(b),
        }
    }

    /// Encodes the syndrome byte.
    #[inline]
    const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.code(),
            Self::Reserved(b) => b,
        }
    }
}

/// ACK extended transport header (IBTA 9.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// The meaning of the acknowledgement.
    pub syndrome: Syndrome,
    /// Message sequence number: the number of messages that the responder has completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("AETH", buf)?;
        Ok(Self { syndrome: Syndrome::from_byte(b[0]), msn: be24(b, 1) })
    }

    /// The header's bytes; only the low 24 bits of the MSN are sent.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [self.syndrome.to_byte(), 0, 0, 0];
        put24(&mut b, 1, self.msn);
        b
    }
}

/// Datagram extended transport header (IBTA 9.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deth {
    /// The Q_Key, which must be that of the receiving queue pair.
    pub qkey: u32,
    /// The sending queue pair, 24 bits.
    pub src_qpn: u32,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("DETH", buf)?;
        Ok(Self { qkey: be32(b, 0), src_qpn: be24(b, 5) })
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        debug_assert!(self.src_qpn <= QPN_MASK);
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.qkey.to_be_bytes());
        put24(&mut b, 5, self.src_qpn);
        b
    }
}

/// Immediate data: 4 bytes in wire order, as verbs hand them over (IBTA 9.3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        Ok(Self(*head("ImmDt", buf)?))
    }
}

/// Invalidate extended transport header: the remote key to invalidate (IBTA 9.3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ieth {
    /// The key.
    pub rkey: u32,
}

impl Ieth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("IETH", buf)?;
        Ok(Self { rkey: be32(b, 0) })
    }
}

/// XRC extended transport header: the shared receive queue that a request is for (IBTA A14.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct XrcEth {
    /// Number of the queue at the responder, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header from the first bytes of `buf`; reserved bits are ignored.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("XRCETH", buf)?;
        Ok(Self { srqn: be24(b, 1) })
    }

    /// The header's bytes; reserved bits are zero.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        (self.srqn & QPN_MASK).to_be_bytes()
    }
}

/// Atomic extended transport header (IBTA 9.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder; must be a multiple of 8.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value to add, or to store if the comparison holds.
    pub swap_add: u64,
    /// The value to compare with; fetch and add ignores it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("AtomicETH", buf)?;
        Ok(Self { va: be64(b, 0), rkey: be32(b, 8), swap_add: be64(b, 12), compare: be64(b, 20) })
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// Atomic ACK extended transport header (IBTA 9.5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicAckEth {
    /// The value of the memory before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("AtomicAckETH", buf)?;
        Ok(Self { original: be64(b, 0) })
    }
}

/// Polypath's multi-path header, between the BTH and the usual extended headers of every multi-path
/// data packet. It says to which message a packet belongs and where in it, so that the receiver can
/// place the packet whatever has arrived before. In responses `msg`, `offset` and `recv` are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MpHeader {
    /// Flags, 4 bits: [`MpHeader::TWICE`], [`MpHeader::MARKED`] and [`MpHeader::COPY`]. Senders send 0 for
    /// the others, and receivers ignore them.
    pub flags: u8,
    /// The path that the packet was sent on, by the sender's number.
    pub path_id: u8,
    /// The number of times the sender has put this path into use, wrapping. A late packet of an earlier
    /// use is dropped.
    pub generation: u16,
    /// Message number: the number of messages that the requester has started before this one, wrapping. In
    /// datagrams, the number of datagrams that the sender's lane has sent by two paths to the receiver's lane
    /// before this one, wrapping.
    pub msg: u32,
    /// The number of bytes of the message before this packet's payload. In datagrams, the receiver's number
    /// for the association of the two lanes.
    pub offset: u32,
    /// The number of messages that consume a receive and that the requester has started before this
    /// one, wrapping.
    pub recv: u32,
    /// In requests, the sender's clock in microseconds, wrapping. In responses, the timestamp of the
    /// packet that is answered.
    pub timestamp: u32,
}

impl MpHeader {
    /// Length in bytes.
    pub const LEN: usize = 20;
    /// The version of this crate, in the high nibble of byte 0.
    pub const VERSION: u8 = 1;
    /// The flag of a request that is sent by two paths at once, and of what answers it.
    pub const TWICE: u8 = 1;
    /// The flag of the second copy of a datagram that is sent by two paths.
    pub const COPY: u8 = 4;
    /// The flag of a response: a packet came by this path with a mark of congestion (RFC 3168, section 5).
    pub const MARKED: u8 = 2;

    /// Whether [`MpHeader::TWICE`] is set.
    #[inline]
    pub const fn is_twice(&self) -> bool {
        self.flags & Self::TWICE != 0
    }

    /// Whether [`MpHeader::COPY`] is set.
    #[inline]
    pub const fn is_copy(&self) -> bool {
        self.flags & Self::COPY != 0
    }

    /// Whether [`MpHeader::MARKED`] is set.
    #[inline]
    pub const fn is_marked(&self) -> bool {
        self.flags & Self::MARKED != 0
    }

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes, or another version.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("MPH", buf)?;
        if b[0] >> 4 != Self::VERSION {
            return Err(ParseError::BadValue {
                what: "MPH version",
                expected: "1",
                got: u64::from(b[0] >> 4),
            });
        }
        Ok(Self {
            flags: b[0] & 0xf,
            path_id: b[1],
            generation: be16(b, 2),
            msg: be32(b, 4),
            offset: be32(b, 8),
            recv: be32(b, 12),
            timestamp: be32(b, 16),
        })
    }

    /// The header's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = Self::VERSION << 4 | self.flags & 0xf;
        b[1] = self.path_id;
        b[2..4].copy_from_slice(&self.generation.to_be_bytes());
        b[4..8].copy_from_slice(&self.msg.to_be_bytes());
        b[8..12].copy_from_slice(&self.offset.to_be_bytes());
        b[12..16].copy_from_slice(&self.recv.to_be_bytes());
        b[16..].copy_from_slice(&self.timestamp.to_be_bytes());
        b
    }
}

/// Selective acknowledgement. Bit `i` (least significant first) is set if the packet with PSN `psn + 1
/// + i` has arrived, where `psn` is the one in the acknowledgement's BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MpSack(pub u64);

impl MpSack {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("SACK", buf)?;
        Ok(Self(be64(b, 0)))
    }
}

impl fmt::Debug for MpSack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MpSack({:#018x})", self.0)
    }
}

/// A run of packets that have arrived out of order. A list of runs extends a selective acknowledgement
/// beyond the 64 packets that [`MpSack`] covers. It is the payload of a multi-path acknowledgement, and
/// is sent to peers that have said that they understand it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SackBlock {
    /// The first PSN of the run.
    pub first: Psn,
    /// The number of PSNs, 1 to [`SackBlock::COUNT_MAX`].
    pub count: u32,
}

impl SackBlock {
    /// Length in bytes.
    pub const LEN: usize = 8;
    /// The largest number of blocks of an acknowledgement.
    pub const MAX: usize = 32;
    /// The largest number of PSNs of a block. The order of PSNs that are further apart can't be
    /// determined.
    pub const COUNT_MAX: u32 = (1 << 23) - 1;

    /// The bytes of the block.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.first.get().to_be_bytes());
        b[4..].copy_from_slice(&self.count.to_be_bytes());
        b
    }

    /// Reads the payload of an acknowledgement: a list of blocks, which may be empty.
    ///
    /// # Errors
    /// There are more than [`SackBlock::MAX`] blocks, bytes that are no whole block, or a block without
    /// meaning: a PSN of more than 24 bits, a count of 0, or one of more than [`SackBlock::COUNT_MAX`].
    pub fn list(payload: &[u8]) -> Result<SackBlocks<'_>, ParseError> {
        let (blocks, rest) = payload.as_chunks();
        if !rest.is_empty() {
            return Err(ParseError::Truncated {
                what: "SACK block",
                expected: Self::LEN,
                got: rest.len(),
            });
        }
        if blocks.len() > Self::MAX {
            return Err(ParseError::TooLong {
                what: "SACK blocks",
                expected: Self::MAX * Self::LEN,
                got: payload.len(),
            });
        }
        for b in blocks {
            let (first, count) = (be32(b, 0), be32(b, 4));
            if first > PSN_MASK || !(1..=Self::COUNT_MAX).contains(&count) {
                return Err(ParseError::BadValue {
                    what: "SACK block",
                    expected: "a PSN and a count from 1 to 2^23 - 1",
                    got: u64::from(first) << 32 | u64::from(count),
                });
            }
        }
        Ok(SackBlocks(blocks))
    }
}

/// Blocks that were read; see [`SackBlock::list`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks<'a>(&'a [[u8; SackBlock::LEN]]);

impl SackBlocks<'_> {
    /// Whether there is no block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The blocks in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = SackBlock> {
        self.0.iter().map(|b| SackBlock { first: Psn::new(be32(b, 0)), count: be32(b, 4) })
    }
}
