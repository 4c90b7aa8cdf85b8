//! Messages that make and end a connection: REQ, MRA, REP, RTU, DREQ, DREP (IBTA 12.6.5, 12.6.6, 12.6.8
//! to 12.6.11; tables 106, 107, 110 to 113).

use super::{Body, Data};
use crate::bytes::{array, be16, be24, be32, be64, put, put24};
use crate::error::ParseError;
use crate::gid::Gid;
use crate::psn::Psn;

/// A path as REQ and LAP describe it, from the sender's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmPath {
    /// Sender's local identifier; 0xffff on RoCE.
    pub local_lid: u16,
    /// Receiver's local identifier; 0xffff on RoCE.
    pub remote_lid: u16,
    /// Sender's address.
    pub local_gid: Gid,
    /// Receiver's address.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Encoded packet rate, 6 bits; 0 means the port's own rate.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether the path stays in the subnet.
    pub subnet_local: bool,
    /// Local ACK timeout, 5 bits: 4.096 µs · 2^n; 0 means no timeout.
    pub ack_timeout: u8,
}

/// The LID field of an address that has none, as on RoCE.
pub(crate) const PERMISSIVE_LID: u16 = 0xffff;

impl Default for CmPath {
    /// A RoCE path without addresses: the LIDs are 0xffff, everything else is zero.
    fn default() -> Self {
        Self {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: Gid::ZERO,
            remote_gid: Gid::ZERO,
            flow_label: 0,
            packet_rate: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            subnet_local: false,
            ack_timeout: 0,
        }
    }
}

impl CmPath {
    /// Length of a path's block in a REQ, in bytes.
    const LEN: usize = 44;

    /// All fields zero, which says in a REQ that there is no alternate path.
    const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Gid::ZERO,
        remote_gid: Gid::ZERO,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        ack_timeout: 0,
    };

    fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            local_lid: be16(b, 0),
            remote_lid: be16(b, 2),
            local_gid: Gid(array(b, 4)),
            remote_gid: Gid(array(b, 20)),
            flow_label: be32(b, 36) >> 12,
            packet_rate: b[39] & 0x3f,
            traffic_class: b[40],
            hop_limit: b[41],
            sl: b[42] >> 4,
            subnet_local: b[42] & 0x08 != 0,
            ack_timeout: b[43] >> 3,
        }
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put(&mut b, 0, self.local_lid.to_be_bytes());
        put(&mut b, 2, self.remote_lid.to_be_bytes());
        put(&mut b, 4, self.local_gid.0);
        put(&mut b, 20, self.remote_gid.0);
        put(&mut b, 36, (self.flow_label << 12 | u32::from(self.packet_rate & 0x3f)).to_be_bytes());
        b[40] = self.traffic_class;
        b[41] = self.hop_limit;
        b[42] = self.sl << 4 | u8::from(self.subnet_local) << 3;
        b[43] = self.ack_timeout << 3;
        b
    }
}

/// The transport service that a REQ asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CmService {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// The transport that the extended transport field names, such as [`Req::EXTENDED_XRC`].
    Extended,
}

/// REQ: asks for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The service asked for.
    pub service_id: u64,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// Q_Key, for reliable datagram only.
    pub local_qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub local_qpn: u32,
    /// The number of READs and atomics that the sender accepts at a time as responder.
    pub responder_resources: u8,
    /// End-to-end context, for reliable datagram only, 24 bits.
    pub local_eecn: u32,
    /// The number of READs and atomics that the sender has outstanding as requester.
    pub initiator_depth: u8,
    /// End-to-end context, for reliable datagram only, 24 bits.
    pub remote_eecn: u32,
    /// The time that the receiver may take to answer, 5 bits: 4.096 µs · 2^n.
    pub remote_cm_response_timeout: u8,
    /// The transport service.
    pub service: CmService,
    /// Whether the sender uses end-to-end credits.
    pub flow_control: bool,
    /// The first PSN that the receiver of this message is to send with.
    pub starting_psn: Psn,
    /// The time that the sender takes to answer, 5 bits: 4.096 µs · 2^n.
    pub local_cm_response_timeout: u8,
    /// Retry count of the queue pair, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, 4 bits, encoded: 1 is 256 bytes, 5 is 4096 bytes.
    pub mtu: u8,
    /// Whether a reliable datagram channel exists.
    pub rdc_exists: bool,
    /// RNR retry count, 3 bits; 7 means without limit.
    pub rnr_retry_count: u8,
    /// The largest number of times that CM messages are repeated, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The extended transport, 3 bits; used if `service` is [`CmService::Extended`].
    pub extended_transport: u8,
    /// The primary path.
    pub primary: CmPath,
    /// The alternate path for migration. A path with all fields zero means that there is none.
    pub alternate: Option<CmPath>,
    /// Whether the sender understands SAP.
    pub sap_supported: bool,
    /// The consumer's data. That of RDMA CM begins with a [`CmaHeader`](super::CmaHeader).
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 92;
    /// The extended transport of XRC (annex A14).
    pub const EXTENDED_XRC: u8 = 1;
    pub(crate) const NAME: &str = "REQ";
}

impl Default for Req {
    /// An RC request with the default partition key and an RoCE path without addresses; everything else
    /// is zero.
    fn default() -> Self {
        Self {
            local_comm_id: 0,
            service_id: 0,
            local_ca_guid: 0,
            local_qkey: 0,
            local_qpn: 0,
            responder_resources: 0,
            local_eecn: 0,
            initiator_depth: 0,
            remote_eecn: 0,
            remote_cm_response_timeout: 0,
            service: CmService::Rc,
            flow_control: false,
            starting_psn: Psn::new(0),
            local_cm_response_timeout: 0,
            retry_count: 0,
            pkey: crate::DEFAULT_PKEY,
            mtu: 0,
            rdc_exists: false,
            rnr_retry_count: 0,
            max_cm_retries: 0,
            srq: false,
            extended_transport: 0,
            primary: CmPath::default(),
            alternate: None,
            sap_supported: false,
            private_data: [0; Self::PRIVATE_DATA_LEN],
        }
    }
}

/// The bit of SAP support in the last byte of the alternate path's block, beside its ACK timeout.
const SAP_SUPPORTED: u8 = 0x04;

impl Body for Req {
    const ATTR: u16 = 0x10;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        let alternate = CmPath::parse(&array(b, 96));
        Ok(Self {
            local_comm_id: be32(b, 0),
            service_id: be64(b, 8),
            local_ca_guid: be64(b, 16),
            local_qkey: be32(b, 28),
            local_qpn: be24(b, 32),
            responder_resources: b[35],
            local_eecn: be24(b, 36),
            initiator_depth: b[39],
            remote_eecn: be24(b, 40),
            remote_cm_response_timeout: b[43] >> 3,
            service: match (b[43] >> 1) & 3 {
                0 => CmService::Rc,
                1 => CmService::Uc,
                2 => CmService::Rd,
                _ => CmService::Extended,
            },
            flow_control: b[43] & 1 != 0,
            starting_psn: Psn::new(be24(b, 44)),
            local_cm_response_timeout: b[47] >> 3,
            retry_count: b[47] & 7,
            pkey: be16(b, 48),
            mtu: b[50] >> 4,
            rdc_exists: b[50] & 0x08 != 0,
            rnr_retry_count: b[50] & 7,
            max_cm_retries: b[51] >> 4,
            srq: b[51] & 0x08 != 0,
            extended_transport: b[51] & 7,
            primary: CmPath::parse(&array(b, 52)),
            alternate: (alternate != CmPath::NONE).then_some(alternate),
            sap_supported: b[139] & SAP_SUPPORTED != 0,
            private_data: array(b, 140),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 8, self.service_id.to_be_bytes());
        put(b, 16, self.local_ca_guid.to_be_bytes());
        put(b, 28, self.local_qkey.to_be_bytes());
        put24(b, 32, self.local_qpn);
        b[35] = self.responder_resources;
        put24(b, 36, self.local_eecn);
        b[39] = self.initiator_depth;
        put24(b, 40, self.remote_eecn);
        let service = match self.service {
            CmService::Rc => 0,
            CmService::Uc => 1,
            CmService::Rd => 2,
            CmService::Extended => 3,
        };
        b[43] = self.remote_cm_response_timeout << 3 | service << 1 | u8::from(self.flow_control);
        put24(b, 44, self.starting_psn.get());
        b[47] = self.local_cm_response_timeout << 3 | self.retry_count & 7;
        put(b, 48, self.pkey.to_be_bytes());
        b[50] = self.mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        b[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.extended_transport & 7;
        put(b, 52, self.primary.to_bytes());
        if let Some(alternate) = self.alternate {
            put(b, 96, alternate.to_bytes());
        }
        b[139] |= u8::from(self.sap_supported) * SAP_SUPPORTED;
        put(b, 140, self.private_data);
    }
}

/// The message that an MRA answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mraed {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// A LAP.
    Lap,
}

/// MRA: the message has arrived, and the answer will take longer than usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The message that this answers.
    pub mraed: Mraed,
    /// The time that the answer may take, 5 bits: 4.096 µs · 2^n.
    pub service_timeout: u8,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 222;
    pub(crate) const NAME: &str = "MRA";
}

impl Body for Mra {
    const ATTR: u16 = 0x11;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            mraed: match b[8] >> 6 {
                0 => Mraed::Req,
                1 => Mraed::Rep,
                2 => Mraed::Lap,
                other => {
                    return Err(ParseError::BadValue {
                        what: "MRA message",
                        expected: "0 (REQ), 1 (REP) or 2 (LAP)",
                        got: u64::from(other),
                    });
                }
            },
            service_timeout: b[9] >> 3,
            private_data: array(b, 10),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 4, self.remote_comm_id.to_be_bytes());
        b[8] = match self.mraed {
            Mraed::Req => 0,
            Mraed::Rep => 1 << 6,
            Mraed::Lap => 2 << 6,
        };
        b[9] = self.service_timeout << 3;
        put(b, 10, self.private_data);
    }
}

/// The answer of the passive side about the alternate path of the REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Failover {
    /// It accepted the path, or the REQ had none.
    #[default]
    Accepted,
    /// It does not support migration.
    NotSupported,
    /// It refuses this path.
    Rejected,
    /// A value without meaning.
    Reserved,
}

/// REP: accepts a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Q_Key, for reliable datagram only.
    pub local_qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub local_qpn: u32,
    /// End-to-end context, for reliable datagram only, 24 bits.
    pub local_eecn: u32,
    /// The first PSN that the receiver of this message is to send with.
    pub starting_psn: Psn,
    /// The number of READs and atomics that the sender accepts at a time as responder.
    pub responder_resources: u8,
    /// The number of READs and atomics that the sender has outstanding as requester.
    pub initiator_depth: u8,
    /// The time that the sender takes to acknowledge, 5 bits: 4.096 µs · 2^n.
    pub target_ack_delay: u8,
    /// The answer about the alternate path.
    pub failover: Failover,
    /// Whether the sender uses end-to-end credits.
    pub flow_control: bool,
    /// RNR retry count, 3 bits; 7 means without limit.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Whether the sender answers LAPs. Only Polypath sets this bit, which is reserved in the IBTA's
    /// table 110; `failover` alone does not tell, since other managers accept without looking.
    pub lap_supported: bool,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 196;
    pub(crate) const NAME: &str = "REP";
}

impl Default for Rep {
    fn default() -> Self {
        Self {
            local_comm_id: 0,
            remote_comm_id: 0,
            local_qkey: 0,
            local_qpn: 0,
            local_eecn: 0,
            starting_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            target_ack_delay: 0,
            failover: Failover::Accepted,
            flow_control: false,
            rnr_retry_count: 0,
            srq: false,
            lap_supported: false,
            local_ca_guid: 0,
            private_data: [0; Self::PRIVATE_DATA_LEN],
        }
    }
}

/// The bit of LAP support in the last four bits of the byte of the RNR retry count.
const LAP_SUPPORTED: u8 = 0x01;

impl Body for Rep {
    const ATTR: u16 = 0x13;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            local_qkey: be32(b, 8),
            local_qpn: be24(b, 12),
            local_eecn: be24(b, 16),
            starting_psn: Psn::new(be24(b, 20)),
            responder_resources: b[24],
            initiator_depth: b[25],
            target_ack_delay: b[26] >> 3,
            failover: match (b[26] >> 1) & 3 {
                0 => Failover::Accepted,
                1 => Failover::NotSupported,
                2 => Failover::Rejected,
                _ => Failover::Reserved,
            },
            flow_control: b[26] & 1 != 0,
            rnr_retry_count: b[27] >> 5,
            srq: b[27] & 0x10 != 0,
            lap_supported: b[27] & LAP_SUPPORTED != 0,
            local_ca_guid: be64(b, 28),
            private_data: array(b, 36),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 4, self.remote_comm_id.to_be_bytes());
        put(b, 8, self.local_qkey.to_be_bytes());
        put24(b, 12, self.local_qpn);
        put24(b, 16, self.local_eecn);
        put24(b, 20, self.starting_psn.get());
        b[24] = self.responder_resources;
        b[25] = self.initiator_depth;
        let failover = match self.failover {
            Failover::Accepted => 0,
            Failover::NotSupported => 1,
            Failover::Rejected => 2,
            Failover::Reserved => 3,
        };
        b[26] = self.target_ack_delay << 3 | failover << 1 | u8::from(self.flow_control);
        b[27] = self.rnr_retry_count << 5
            | u8::from(self.srq) << 4
            | (u8::from(self.lap_supported) * LAP_SUPPORTED);
        put(b, 28, self.local_ca_guid.to_be_bytes());
        put(b, 36, self.private_data);
    }
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident, $text:literal, $attr:literal, $len:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            /// The sender's communication id.
            pub local_comm_id: u32,
            /// The receiver's communication id.
            pub remote_comm_id: u32,
            /// The consumer's data.
            pub private_data: [u8; $len],
        }

        impl $name {
            /// Bytes of private data.
            pub const PRIVATE_DATA_LEN: usize = $len;
            pub(crate) const NAME: &str = $text;
        }

        impl Body for $name {
            const ATTR: u16 = $attr;

            fn parse(b: &Data) -> Result<Self, ParseError> {
                Ok(Self {
                    local_comm_id: be32(b, 0),
                    remote_comm_id: be32(b, 4),
                    private_data: array(b, 8),
                })
            }

            fn emit(&self, b: &mut Data) {
                put(b, 0, self.local_comm_id.to_be_bytes());
                put(b, 4, self.remote_comm_id.to_be_bytes());
                put(b, 8, self.private_data);
            }
        }
    };
}

plain!(
    /// RTU: the connection is ready to use.
    Rtu, "RTU", 0x14, 224
);
plain!(
    /// DREP: the end of the connection is confirmed.
    Drep, "DREP", 0x16, 224
);

/// DREQ: ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 220;
    pub(crate) const NAME: &str = "DREQ";
}

impl Body for Dreq {
    const ATTR: u16 = 0x15;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            remote_qpn: be24(b, 8),
            private_data: array(b, 12),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 4, self.remote_comm_id.to_be_bytes());
        put24(b, 8, self.remote_qpn);
        put(b, 12, self.private_data);
    }
}
