//! The headers that each opcode has.

use crate::opcode::{Opcode, REQUEST, Service, op, set};

const RETH: u32 = set(&[
    op::WRITE_FIRST,
    op::WRITE_ONLY,
    op::WRITE_ONLY_IMM,
    op::READ_REQUEST,
    op::FLUSH,
    op::ATOMIC_WRITE,
]);
const IMM: u32 = set(&[
    op::SEND_LAST_IMM,
    op::SEND_ONLY_IMM,
    op::WRITE_LAST_IMM,
    op::WRITE_ONLY_IMM,
    op::MP_DATAGRAM_IMM,
]);
const IETH: u32 = set(&[op::SEND_LAST_INV, op::SEND_ONLY_INV]);
const AETH: u32 = set(&[
    op::READ_RESPONSE_FIRST,
    op::READ_RESPONSE_LAST,
    op::READ_RESPONSE_ONLY,
    op::ACK,
    op::ATOMIC_ACK,
]);

/// The set of headers that follow a BTH. It is empty for an opcode that is not known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout(u16);

impl Layout {
    pub(crate) const KNOWN: Self = Self(1);
    pub(crate) const MP: Self = Self(1 << 1);
    pub(crate) const DETH: Self = Self(1 << 2);
    pub(crate) const RETH: Self = Self(1 << 3);
    pub(crate) const ATOMIC: Self = Self(1 << 4);
    pub(crate) const AETH: Self = Self(1 << 5);
    pub(crate) const ATOMIC_ACK: Self = Self(1 << 6);
    pub(crate) const IMM: Self = Self(1 << 7);
    pub(crate) const IETH: Self = Self(1 << 8);
    pub(crate) const SACK: Self = Self(1 << 9);
    pub(crate) const XRC: Self = Self(1 << 10);
    pub(crate) const FETH: Self = Self(1 << 12);
    /// Not a header: the operation is that of an RC opcode.
    pub(crate) const LIKE_RC: Self = Self(1 << 11);

    #[inline]
    pub(crate) const fn has(self, header: Self) -> bool {
        self.0 & header.0 != 0
    }

    const fn with(self, header: Self, condition: bool) -> Self {
        if condition { Self(self.0 | header.0) } else { self }
    }

    /// The headers of an opcode. A table makes this one look-up instead of a dozen decisions for every
    /// packet.
    #[inline]
    pub(crate) const fn of(o: Opcode) -> Self {
        LAYOUTS[o.0 as usize]
    }

    const fn decide(o: Opcode) -> Self {
        let xrc = matches!(o.service(), Service::Xrc);
        let (known, mp) = match o.service() {
            Service::Unknown | Service::Rd => return Self(0),
            Service::Mp => (Self::KNOWN, true),
            Service::Ud => (Self(Self::KNOWN.0 | Self::DETH.0), false),
            _ => (Self::KNOWN, false),
        };
        known
            .with(Self::MP, mp && !o.is_mp_management() || o.is_mp_datagram())
            .with(Self::RETH, o.within(RETH) || mp && o.is_write())
            .with(Self::FETH, o.is_flush())
            .with(Self::ATOMIC, o.is_atomic())
            .with(Self::AETH, o.within(AETH))
            .with(Self::ATOMIC_ACK, o.within(set(&[op::ATOMIC_ACK])))
            .with(Self::IMM, o.within(IMM))
            .with(Self::IETH, o.within(IETH))
            .with(Self::SACK, o.0 == Opcode::MP_ACK.0)
            .with(Self::XRC, xrc && o.within(REQUEST))
            .with(Self::LIKE_RC, xrc || mp && !o.is_mp_management())
    }
}

impl Opcode {
    /// The RC opcode of the same operation for a multi-path data opcode or an XRC opcode. Any other
    /// opcode is returned as it is.
    #[inline]
    pub const fn base(self) -> Self {
        if self.layout().has(Layout::LIKE_RC) { Self(self.0 & 0x1f) } else { self }
    }

    /// The headers that follow the BTH.
    #[inline]
    pub(crate) const fn layout(self) -> Layout {
        Layout::of(self)
    }

    /// Whether an [`MpHeader`](crate::ext::MpHeader) follows the BTH.
    #[inline]
    pub const fn has_mp_header(self) -> bool {
        self.layout().has(Layout::MP)
    }

    /// Whether an XRC header follows, which names a shared receive queue of the peer. Every XRC request
    /// has one.
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        self.layout().has(Layout::XRC)
    }

    /// Whether an RDMA extended transport header follows. Multi-path WRITEs have one in every packet.
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.layout().has(Layout::RETH)
    }

    /// Whether a FLUSH extended transport header follows.
    #[inline]
    pub const fn has_feth(self) -> bool {
        self.layout().has(Layout::FETH)
    }

    /// Whether immediate data follows.
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.layout().has(Layout::IMM)
    }

    /// Whether a remote key to invalidate follows.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.layout().has(Layout::IETH)
    }

    /// Whether an ACK extended transport header follows.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.layout().has(Layout::AETH)
    }

    /// Whether a datagram extended transport header follows.
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.layout().has(Layout::DETH)
    }

    /// Whether an atomic extended transport header follows.
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.layout().has(Layout::ATOMIC)
    }

    /// Whether an atomic ACK extended transport header follows, with the value that the atomic found.
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.layout().has(Layout::ATOMIC_ACK)
    }

    /// Whether a selective acknowledgement follows.
    #[inline]
    pub const fn has_sack(self) -> bool {
        self.layout().has(Layout::SACK)
    }
}

static LAYOUTS: [Layout; 256] = {
    let mut table = [Layout(0); 256];
    let mut i = 0;
    while i < 256 {
        table[i] = Layout::decide(Opcode(i as u8));
        i += 1;
    }
    table
};
