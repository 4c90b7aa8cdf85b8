//! Messages about alternate paths: LAP and APR, and the suggestions of the passive side, SAP and SPR
//! (IBTA 12.8; tables 115 and 116).

use super::codes::codes;
use super::connect::CmPath;
use super::{Body, Data, Info};
use crate::bytes::{array, be16, be24, be32, put, put24};
use crate::error::ParseError;
use crate::gid::Gid;

/// LAP: loads an alternate path. The active side sends it, and an [`Apr`] answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lap {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// The time that the receiver may take to answer, 5 bits: 4.096 µs · 2^n.
    pub remote_cm_response_timeout: u8,
    /// The alternate path.
    pub alternate: CmPath,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Lap {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 168;
    pub(crate) const NAME: &str = "LAP";
}

impl Body for Lap {
    const ATTR: u16 = 0x19;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            remote_qpn: be24(b, 12),
            remote_cm_response_timeout: b[15] >> 3,
            alternate: parse_alternate(b),
            private_data: array(b, 64),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 4, self.remote_comm_id.to_be_bytes());
        put24(b, 12, self.remote_qpn);
        b[15] = self.remote_cm_response_timeout << 3;
        emit_alternate(&self.alternate, b);
        put(b, 64, self.private_data);
    }
}

/// SAP: suggests an alternate path. The passive side sends it, and an [`Spr`] answers it.
///
/// The sender knows only its own end, so of a LAP's path only the local LID and GID are there; the
/// other bytes are sent as zero and ignored on receipt. A suggestion alone changes nothing; if the
/// active side accepts it, it sends a LAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sap {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// Sender's local identifier on the path; 0xffff on RoCE.
    pub local_lid: u16,
    /// Sender's address on the path.
    pub local_gid: Gid,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Sap {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 168;
    pub(crate) const NAME: &str = "SAP";
}

impl Body for Sap {
    const ATTR: u16 = 0x1b;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            remote_qpn: be24(b, 12),
            local_lid: be16(b, 20),
            local_gid: Gid(array(b, 24)),
            private_data: array(b, 64),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 4, self.remote_comm_id.to_be_bytes());
        put24(b, 12, self.remote_qpn);
        put(b, 20, self.local_lid.to_be_bytes());
        put(b, 24, self.local_gid.0);
        put(b, 64, self.private_data);
    }
}

/// Reads the path of a LAP, whose fields are in another order than in a REQ.
fn parse_alternate(b: &Data) -> CmPath {
    CmPath {
        local_lid: be16(b, 20),
        remote_lid: be16(b, 22),
        local_gid: Gid(array(b, 24)),
        remote_gid: Gid(array(b, 40)),
        flow_label: be32(b, 56) >> 12,
        packet_rate: b[61] & 0x3f,
        traffic_class: b[59],
        hop_limit: b[60],
        sl: b[62] >> 4,
        subnet_local: b[62] & 0x08 != 0,
        ack_timeout: b[63] >> 3,
    }
}

fn emit_alternate(p: &CmPath, b: &mut Data) {
    put(b, 20, p.local_lid.to_be_bytes());
    put(b, 22, p.remote_lid.to_be_bytes());
    put(b, 24, p.local_gid.0);
    put(b, 40, p.remote_gid.0);
    put(b, 56, (p.flow_label << 12 | u32::from(p.traffic_class)).to_be_bytes());
    b[60] = p.hop_limit;
    b[61] = p.packet_rate & 0x3f;
    b[62] = p.sl << 4 | u8::from(p.subnet_local) << 3;
    b[63] = p.ack_timeout << 3;
}

codes! {
    /// The answer to a LAP.
    ApStatus: u8;

    /// The path is loaded.
    Ok = 0,
    /// Communication id is not known.
    InvalidCommId = 1,
    /// Migration is not supported.
    Unsupported = 2,
    /// The path is refused.
    Reject = 3,
    /// The sender is to ask another port.
    Redirect = 4,
    /// The path is in use already.
    IsCurrent = 5,
    /// Queue pair is not the connection's.
    InvalidQpn = 6,
    /// LID is not acceptable.
    InvalidLid = 7,
    /// GID is not acceptable.
    InvalidGid = 8,
    /// Flow label is not acceptable.
    InvalidFlowLabel = 9,
    /// Traffic class is not acceptable.
    InvalidTrafficClass = 10,
    /// Hop limit is not acceptable.
    InvalidHopLimit = 11,
    /// Packet rate is not acceptable.
    InvalidPacketRate = 12,
    /// Service level is not acceptable.
    InvalidSl = 13,
}

codes! {
    /// The answer to a SAP.
    SprStatus: u8;

    /// The suggestion is accepted: a LAP may follow.
    Success = 0,
    /// Not now: the sender is to suggest the path again later.
    Busy = 1,
    /// The suggestion is refused: the sender is to suggest nothing more.
    Reject = 2,
}

impl SprStatus {
    /// What earlier versions of Polypath sent for [`Busy`](Self::Busy).
    const BUSY_BEFORE: u8 = 0x80;

    const fn from_wire(code: u8) -> Self {
        match code {
            Self::BUSY_BEFORE => Self::Busy,
            code => Self::from_code(code),
        }
    }
}

macro_rules! answer {
    ($(#[$doc:meta])* $name:ident, $status:ident, $from:ident, $text:literal, $attr:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            /// The sender's communication id.
            pub local_comm_id: u32,
            /// The receiver's communication id.
            pub remote_comm_id: u32,
            /// The answer.
            pub status: $status,
            /// More about the status.
            pub info: Info,
            /// The consumer's data.
            pub private_data: [u8; 148],
        }

        impl $name {
            /// Bytes of private data.
            pub const PRIVATE_DATA_LEN: usize = 148;
            pub(crate) const NAME: &str = $text;
        }

        impl Body for $name {
            const ATTR: u16 = $attr;

            fn parse(b: &Data) -> Result<Self, ParseError> {
                Ok(Self {
                    local_comm_id: be32(b, 0),
                    remote_comm_id: be32(b, 4),
                    status: $status::$from(b[9]),
                    info: Info::parse(b[8], array(b, 12))?,
                    private_data: array(b, 84),
                })
            }

            fn emit(&self, b: &mut Data) {
                put(b, 0, self.local_comm_id.to_be_bytes());
                put(b, 4, self.remote_comm_id.to_be_bytes());
                b[8] = self.info.len();
                b[9] = self.status.code();
                put(b, 12, self.info.bytes());
                put(b, 84, self.private_data);
            }
        }
    };
}

answer!(
    /// APR: answers a [`Lap`].
    Apr, ApStatus, from_code, "APR", 0x1a
);
answer!(
    /// SPR: answers a [`Sap`]. It has APR's layout, with statuses of its own.
    Spr, SprStatus, from_wire, "SPR", 0x1c
);
