//! The messages of communication management (IBTA chapter 12), and the header that RDMA CM puts into
//! their private data (Annex A11).
//!
//! [`CmMad`] is a whole datagram: a transaction id and a message. Every message is a plain value. The
//! length of the private data is not on the wire, so private data always has the size of its field,
//! filled up with zeros.
//!
//! [`Sap`] and [`Spr`] have the layout with which the first implementation of them shipped: SAP is a LAP
//! with only the sender's address, SPR is an APR with statuses of its own.

mod codes;
mod connect;
mod ip;
mod path;
mod reject;
mod sidr;

use core::fmt;

pub use connect::{CmPath, CmService, Drep, Dreq, Failover, Mra, Mraed, Rep, Req, Rtu};
pub use ip::{CmaHeader, PortSpace, port_of, service_id};
pub use path::{ApStatus, Apr, Lap, Sap, Spr, SprStatus};
pub use reject::{Rej, RejectReason, Rejected};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use crate::error::ParseError;
use crate::mad::{self, CLASS_CM, MAD_DATA_LEN, MAD_LEN, METHOD_SEND, MadHeader};

/// The only class version of communication management.
const CM_CLASS_VERSION: u8 = 2;

/// The bytes of a datagram after the MAD header.
pub(crate) type Data = [u8; MAD_DATA_LEN];

/// Operations of every message. Offsets count from the end of the MAD header, as in the IBTA's tables.
pub(crate) trait Body: Sized {
    /// Attribute number.
    const ATTR: u16;
    fn parse(b: &Data) -> Result<Self, ParseError>;
    fn emit(&self, b: &mut Data);
}

/// Up to 72 bytes of additional information, whose length is on the wire (in REJ, APR, SPR, SIDR_REP).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Info {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Info {
    /// The largest number of bytes.
    pub const MAX: usize = 72;
    /// No information.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// Holds a copy of `info`.
    ///
    /// # Errors
    /// There are more than [`Info::MAX`] bytes.
    pub fn new(info: &[u8]) -> Result<Self, ParseError> {
        let Some(bytes) = fill(info) else {
            return Err(ParseError::TooLong {
                what: "CM additional information",
                expected: Self::MAX,
                got: info.len(),
            });
        };
        Ok(Self { len: info.len() as u8, bytes })
    }

    /// The information.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn parse(len: u8, bytes: [u8; Self::MAX]) -> Result<Self, ParseError> {
        match bytes.get(..usize::from(len)) {
            Some(info) => Self::new(info),
            None => Err(ParseError::BadValue {
                what: "CM additional information length",
                expected: "at most 72",
                got: u64::from(len),
            }),
        }
    }

    pub(crate) const fn len(&self) -> u8 {
        self.len
    }

    pub(crate) const fn bytes(&self) -> [u8; Self::MAX] {
        self.bytes
    }
}

impl Default for Info {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Info({:02x?})", self.as_slice())
    }
}

fn fill<const N: usize>(data: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    out.get_mut(..data.len())?.copy_from_slice(data);
    Some(out)
}

/// Puts private data into the field of a message, followed by zeros.
///
/// ```
/// # use polypath_wire::cm::{private_data, Rtu};
/// let rtu = Rtu { local_comm_id: 1, remote_comm_id: 2, private_data: private_data(b"hello").unwrap() };
/// assert!(private_data::<92>(&[0; 93]).is_err());
/// # assert_eq!(rtu.private_data[5], 0);
/// ```
///
/// # Errors
/// There are more bytes than the field has.
pub fn private_data<const N: usize>(data: &[u8]) -> Result<[u8; N], ParseError> {
    fill(data).ok_or(ParseError::TooLong { what: "CM private data", expected: N, got: data.len() })
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident($body:ty);)*) => {
        /// A message of communication management.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant)] // All are about the size of a MAD, which is the point.
        pub enum CmMessage {
            $($(#[$doc])* $name($body),)*
        }

        impl CmMessage {
            /// The attribute number, which identifies the message.
            pub const fn attr_id(&self) -> u16 {
                match self {
                    $(Self::$name(_) => <$body as Body>::ATTR,)*
                }
            }

            /// The message's name as the IBTA writes it.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => <$body>::NAME,)*
                }
            }

            fn parse(attr_id: u16, data: &Data) -> Result<Self, ParseError> {
                match attr_id {
                    $(<$body as Body>::ATTR => Ok(Self::$name(Body::parse(data)?)),)*
                    other => Err(ParseError::BadValue {
                        what: "CM attribute",
                        expected: "0x10 to 0x1c",
                        got: u64::from(other),
                    }),
                }
            }

            fn emit(&self, data: &mut Data) {
                match self {
                    $(Self::$name(m) => m.emit(data),)*
                }
            }
        }

        $(impl From<$body> for CmMessage {
            fn from(m: $body) -> Self {
                Self::$name(m)
            }
        })*
    };
}

messages! {
    /// Asks for a connection.
    Req(Req);
    /// Says that the answer will take longer.
    Mra(Mra);
    /// Refuses a connection.
    Rej(Rej);
    /// Accepts a connection.
    Rep(Rep);
    /// Confirms the acceptance.
    Rtu(Rtu);
    /// Ends a connection.
    Dreq(Dreq);
    /// Confirms the end.
    Drep(Drep);
    /// Asks for the queue pair of a datagram service.
    SidrReq(SidrReq);
    /// Answers a SIDR_REQ.
    SidrRep(SidrRep);
    /// Loads an alternate path.
    Lap(Lap);
    /// Answers a LAP.
    Apr(Apr);
    /// Suggests an alternate path.
    Sap(Sap);
    /// Answers a SAP.
    Spr(Spr);
}

/// A communication management datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmMad {
    /// The transaction id. An answer has that of the request.
    pub tid: u64,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// Wraps a message.
    pub fn new(tid: u64, message: impl Into<CmMessage>) -> Self {
        Self { tid, message: message.into() }
    }

    /// Reads a datagram of exactly [`MAD_LEN`] bytes.
    ///
    /// # Errors
    /// Another length, class, class version, method or attribute; a field with a reserved value that
    /// decides how the rest is read.
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let (header, data) = mad::parse(buf)?;
        for (what, expected, want, got) in [
            ("MAD class", "7 (communication management)", CLASS_CM, header.class),
            ("CM class version", "2", CM_CLASS_VERSION, header.class_version),
            ("CM method", "3 (Send)", METHOD_SEND, header.method),
        ] {
            if want != got {
                return Err(ParseError::BadValue { what, expected, got: u64::from(got) });
            }
        }
        Ok(Self { tid: header.tid, message: CmMessage::parse(header.attr_id, &data)? })
    }

    /// The datagram's bytes.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut data = [0; MAD_DATA_LEN];
        self.message.emit(&mut data);
        let mut mad = [0; MAD_LEN];
        let (head, body) = mad.split_at_mut(MadHeader::LEN);
        head.copy_from_slice(&MadHeader::cm(self.message.attr_id(), self.tid).to_bytes());
        body.copy_from_slice(&data);
        mad
    }
}

impl fmt::Display for CmMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM.{} tid {:#x}", self.message.name(), self.tid)?;
        let ids = |f: &mut fmt::Formatter<'_>, local: u32, remote: u32| {
            write!(f, " local {local:#010x} remote {remote:#010x}")
        };
        match &self.message {
            CmMessage::Req(m) => write!(
                f,
                " local {:#010x} service {:#x} qpn {:#08x} psn {}",
                m.local_comm_id, m.service_id, m.local_qpn, m.starting_psn
            ),
            CmMessage::Rep(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " qpn {:#08x} psn {}", m.local_qpn, m.starting_psn)
            }
            CmMessage::Rej(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " {:?} of {:?}", m.reason, m.rejected)
            }
            CmMessage::Mra(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " of {:?} timeout {}", m.mraed, m.service_timeout)
            }
            CmMessage::Rtu(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            CmMessage::Dreq(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " qpn {:#08x}", m.remote_qpn)
            }
            CmMessage::Drep(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            CmMessage::Lap(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            CmMessage::Apr(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " {:?}", m.status)
            }
            CmMessage::Sap(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            CmMessage::Spr(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " {:?}", m.status)
            }
            CmMessage::SidrReq(m) => {
                write!(f, " request {:#010x} service {:#x}", m.request_id, m.service_id)
            }
            CmMessage::SidrRep(m) => {
                write!(f, " request {:#010x} {:?} qpn {:#08x}", m.request_id, m.status, m.qpn)
            }
        }
    }
}

#[cfg(test)]
mod tests;
