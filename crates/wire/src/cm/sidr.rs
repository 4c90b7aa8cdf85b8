//! Messages that find the queue pair of a datagram service: SIDR_REQ and SIDR_REP (IBTA 12.11; tables
//! 119 and 120).

use super::codes::codes;
use super::{Body, Data, Info};
use crate::bytes::{array, be16, be24, be32, be64, put, put24};
use crate::error::ParseError;

/// SIDR_REQ: asks which queue pair serves a service id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrReq {
    /// The id of the request, chosen by the sender.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// The service asked for.
    pub service_id: u64,
    /// The consumer's data. That of RDMA CM begins with a [`CmaHeader`](super::CmaHeader).
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 216;
    pub(crate) const NAME: &str = "SIDR_REQ";
}

impl Body for SidrReq {
    const ATTR: u16 = 0x17;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            request_id: be32(b, 0),
            pkey: be16(b, 4),
            service_id: be64(b, 8),
            private_data: array(b, 16),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.request_id.to_be_bytes());
        put(b, 4, self.pkey.to_be_bytes());
        put(b, 8, self.service_id.to_be_bytes());
        put(b, 16, self.private_data);
    }
}

codes! {
    /// The answer to a SIDR_REQ.
    SidrStatus: u8;

    /// Success: queue pair and Q_Key are in the answer.
    Success = 0,
    /// The service id is not supported.
    Unsupported = 1,
    /// The service refuses.
    Reject = 2,
    /// The service has no queue pair.
    NoQp = 3,
    /// The sender is to ask another port.
    Redirect = 4,
    /// The version is not supported.
    UnsupportedVersion = 5,
}

/// SIDR_REP: answers a [`SidrReq`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrRep {
    /// The id of the request that this answers.
    pub request_id: u32,
    /// The answer.
    pub status: SidrStatus,
    /// Its queue pair, 24 bits.
    pub qpn: u32,
    /// The service asked for.
    pub service_id: u64,
    /// Its Q_Key.
    pub qkey: u32,
    /// More about the status.
    pub info: Info,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl SidrRep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 136;
    pub(crate) const NAME: &str = "SIDR_REP";
}

impl Body for SidrRep {
    const ATTR: u16 = 0x18;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            request_id: be32(b, 0),
            status: SidrStatus::from_code(b[4]),
            qpn: be24(b, 8),
            service_id: be64(b, 12),
            qkey: be32(b, 20),
            info: Info::parse(b[5], array(b, 24))?,
            private_data: array(b, 96),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.request_id.to_be_bytes());
        b[4] = self.status.code();
        b[5] = self.info.len();
        put24(b, 8, self.qpn);
        put(b, 12, self.service_id.to_be_bytes());
        put(b, 20, self.qkey.to_be_bytes());
        put(b, 24, self.info.bytes());
        put(b, 96, self.private_data);
    }
}
