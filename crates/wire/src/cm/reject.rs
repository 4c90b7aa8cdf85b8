//! REJ: refuses a connection, and says why (IBTA 12.6.7; tables 108 and 109).

use super::codes::codes;
use super::{Body, Data, Info};
use crate::bytes::{array, be16, be32, put};
use crate::error::ParseError;

/// The message that a REJ refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// No message: a timeout, or the message is not known.
    Other,
}

codes! {
    /// The reason why a connection is refused (IBTA table 109). The number is also
    /// `rdma_cm_event.status` of an `RDMA_CM_EVENT_REJECTED`.
    RejectReason: u16;

    /// No queue pair available.
    NoQp = 1,
    /// No end-to-end context available.
    NoEec = 2,
    /// There are not enough resources.
    NoResources = 3,
    /// No answer came in time.
    Timeout = 4,
    /// The request is not supported.
    Unsupported = 5,
    /// Communication id is not known.
    InvalidCommId = 6,
    /// The combination of both communication ids and the queue pair is not known.
    InvalidCommInstance = 7,
    /// No process listens on the service id.
    InvalidServiceId = 8,
    /// The transport service is not the one of the listener.
    InvalidTransport = 9,
    /// The queue pair is still connected from an earlier connection.
    StaleConnection = 10,
    /// Reliable datagram channel does not exist.
    RdcNotExist = 11,
    /// The primary path's GID is not acceptable.
    InvalidGid = 12,
    /// The primary path's LID is not acceptable.
    InvalidLid = 13,
    /// The primary path's service level is not acceptable.
    InvalidSl = 14,
    /// The primary path's traffic class is not acceptable.
    InvalidTrafficClass = 15,
    /// The primary path's hop limit is not acceptable.
    InvalidHopLimit = 16,
    /// The primary path's packet rate is not acceptable.
    InvalidPacketRate = 17,
    /// The alternate path's GID is not acceptable.
    InvalidAltGid = 18,
    /// The alternate path's LID is not acceptable.
    InvalidAltLid = 19,
    /// The alternate path's service level is not acceptable.
    InvalidAltSl = 20,
    /// The alternate path's traffic class is not acceptable.
    InvalidAltTrafficClass = 21,
    /// The alternate path's hop limit is not acceptable.
    InvalidAltHopLimit = 22,
    /// The alternate path's packet rate is not acceptable.
    InvalidAltPacketRate = 23,
    /// The sender is to ask the connection manager of another port.
    PortCmRedirect = 24,
    /// The sender is to connect to another port.
    PortRedirect = 25,
    /// Path MTU is not acceptable.
    InvalidMtu = 26,
    /// Too few responder resources.
    InsufficientResponderResources = 27,
    /// The consumer refuses. The private data may say why.
    ConsumerDefined = 28,
    /// The RNR retry count is not acceptable.
    InvalidRnrRetry = 29,
    /// The sender's communication id is in use already.
    DuplicateLocalCommId = 30,
    /// Class version is not supported.
    InvalidClassVersion = 31,
    /// The primary path's flow label is not acceptable.
    InvalidFlowLabel = 32,
    /// The alternate path's flow label is not acceptable.
    InvalidAltFlowLabel = 33,
    /// A vendor option is not supported.
    VendorOptionNotSupported = 35,
}

/// REJ: refuses a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication id, 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The message that is refused.
    pub rejected: Rejected,
    /// The reason why the connection is refused.
    pub reason: RejectReason,
    /// More about the reason, for example a path that would be acceptable.
    pub info: Info,
    /// The consumer's data.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Rej {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 148;
    pub(crate) const NAME: &str = "REJ";
}

impl Body for Rej {
    const ATTR: u16 = 0x12;

    fn parse(b: &Data) -> Result<Self, ParseError> {
        Ok(Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            rejected: match b[8] >> 6 {
                0 => Rejected::Req,
                1 => Rejected::Rep,
                2 => Rejected::Other,
                other => {
                    return Err(ParseError::BadValue {
                        what: "REJ message",
                        expected: "0 (REQ), 1 (REP) or 2 (other)",
                        got: u64::from(other),
                    });
                }
            },
            reason: RejectReason::from_code(be16(b, 10)),
            info: Info::parse(b[9] >> 1, array(b, 12))?,
            private_data: array(b, 84),
        })
    }

    fn emit(&self, b: &mut Data) {
        put(b, 0, self.local_comm_id.to_be_bytes());
        put(b, 4, self.remote_comm_id.to_be_bytes());
        b[8] = match self.rejected {
            Rejected::Req => 0,
            Rejected::Rep => 1 << 6,
            Rejected::Other => 2 << 6,
        };
        b[9] = self.info.len() << 1;
        put(b, 10, self.reason.code().to_be_bytes());
        put(b, 12, self.info.bytes());
        put(b, 84, self.private_data);
    }
}
