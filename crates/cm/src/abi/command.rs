//! The structures of the commands. Each is parsed by the offsets of its fields.

use core::time::Duration;

use super::address::{Address, SOCKADDR_IN6_LEN, STORAGE_LEN};
use super::{PRIVATE_DATA_LEN, Reader};
use crate::errno;

/// Size of `struct rdma_ucm_conn_param`.
const CONN_PARAM_LEN: usize = 272;

/// `struct rdma_ucm_conn_param`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnParam {
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    pub(crate) private_data: Vec<u8>,
    pub(crate) srq: bool,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: bool,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) valid: bool,
}

impl ConnParam {
    fn parse(r: Reader<'_>) -> Result<Self, i32> {
        let len = usize::from(r.u8(264)?);
        Ok(Self {
            qp_num: r.u32(0)? & polypath_wire::QPN_MASK,
            qkey: r.u32(4)?,
            private_data: r.bytes(8, len)?.to_vec(),
            srq: r.u8(265)? != 0,
            responder_resources: r.u8(266)?,
            initiator_depth: r.u8(267)?,
            flow_control: r.u8(268)? != 0,
            retry_count: r.u8(269)?.min(7),
            rnr_retry_count: r.u8(270)?.min(7),
            valid: r.u8(271)? != 0,
        })
    }
}

/// `struct rdma_ucm_ece`: the vendors' options of both ends. They are passed on without being
/// interpreted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ece {
    pub(crate) vendor_id: u32,
    pub(crate) attr_mod: u32,
}

impl Ece {
    /// Parses the field. Applications with an older librdmacm do not send it.
    fn parse(r: Reader<'_>, at: usize) -> Self {
        match (r.u32(at), r.u32(at + 4)) {
            (Ok(vendor_id), Ok(attr_mod)) => Self { vendor_id, attr_mod },
            _ => Self::default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct CreateId {
    pub(crate) uid: u64,
    pub(crate) port_space: u16,
    pub(crate) qp_type: u8,
}

impl CreateId {
    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        Ok(Self { uid: r.u64(0)?, port_space: r.u16(16)?, qp_type: r.u8(18)? })
    }
}

/// `BIND_IP` and `BIND`.
#[derive(Debug)]
pub(crate) struct Bind {
    pub(crate) id: u32,
    pub(crate) address: Address,
}

impl Bind {
    pub(crate) fn parse_ip(r: Reader<'_>) -> Result<Self, i32> {
        let address = Address::parse(r.bytes(8, SOCKADDR_IN6_LEN)?)?.ok_or(errno::EAFNOSUPPORT)?;
        Ok(Self { id: r.u32(8 + SOCKADDR_IN6_LEN)?, address })
    }

    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        if r.u16(6)? != 0 {
            return Err(errno::EINVAL);
        }
        let address = sized_address(r, 8, r.u16(4)?)?.ok_or(errno::EINVAL)?;
        Ok(Self { id: r.u32(0)?, address })
    }
}

/// `RESOLVE_IP` and `RESOLVE_ADDR`.
#[derive(Debug)]
pub(crate) struct ResolveAddr {
    pub(crate) id: u32,
    pub(crate) source: Option<Address>,
    pub(crate) destination: Address,
    /// How long it may take.
    pub(crate) timeout: Duration,
}

impl ResolveAddr {
    pub(crate) fn parse_ip(r: Reader<'_>) -> Result<Self, i32> {
        Ok(Self {
            source: Address::parse(r.bytes(0, SOCKADDR_IN6_LEN)?)?,
            destination: Address::parse(r.bytes(28, SOCKADDR_IN6_LEN)?)?.ok_or(errno::EINVAL)?,
            id: r.u32(56)?,
            timeout: Duration::from_millis(r.u32(60)?.into()),
        })
    }

    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        if r.u32(12)? != 0 {
            return Err(errno::EINVAL);
        }
        Ok(Self {
            id: r.u32(0)?,
            timeout: Duration::from_millis(r.u32(4)?.into()),
            source: sized_address(r, 16, r.u16(8)?)?,
            destination: sized_address(r, 16 + STORAGE_LEN, r.u16(10)?)?.ok_or(errno::EINVAL)?,
        })
    }
}

/// Parses an address in a `sockaddr_storage`. Its size must be that of its family; a size of 0
/// means that there is no address.
fn sized_address(r: Reader<'_>, at: usize, size: u16) -> Result<Option<Address>, i32> {
    if size == 0 {
        return Ok(None);
    }
    // The kernel finds an unknown family by its size, so the errno is that of a wrong size.
    let address = Address::parse(r.bytes(at, STORAGE_LEN)?).map_err(|_| errno::EINVAL)?;
    match address {
        Some(address) if address.len() == usize::from(size) => Ok(Some(address)),
        _ => Err(errno::EINVAL),
    }
}

/// `CONNECT` and `ACCEPT`.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) uid: u64,
    pub(crate) id: u32,
    pub(crate) param: ConnParam,
    pub(crate) ece: Ece,
}

impl Connect {
    pub(crate) fn parse_connect(r: Reader<'_>) -> Result<Self, i32> {
        Self::parse(r, 0, 0)
    }

    pub(crate) fn parse_accept(r: Reader<'_>) -> Result<Self, i32> {
        Self::parse(r, r.u64(0)?, 8)
    }

    fn parse(r: Reader<'_>, uid: u64, at: usize) -> Result<Self, i32> {
        // The fields up to `reserved` have always been there.
        let _reserved = r.u32(at + CONN_PARAM_LEN + 4)?;
        Ok(Self {
            uid,
            param: ConnParam::parse(r.tail(at)?)?,
            id: r.u32(at + CONN_PARAM_LEN)?,
            ece: Ece::parse(r, at + CONN_PARAM_LEN + 8),
        })
    }
}

#[derive(Debug)]
pub(crate) struct Reject {
    pub(crate) id: u32,
    pub(crate) reason: u8,
    pub(crate) private_data: Vec<u8>,
}

impl Reject {
    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        let len = usize::from(r.u8(4)?);
        Ok(Self { id: r.u32(0)?, reason: r.u8(5)?, private_data: r.bytes(8, len)?.to_vec() })
    }
}

/// `JOIN_IP_MCAST` and `JOIN_MCAST`.
#[derive(Debug)]
pub(crate) struct JoinMcast {
    pub(crate) uid: u64,
    pub(crate) id: u32,
    pub(crate) send_only: bool,
    pub(crate) address: Address,
}

impl JoinMcast {
    pub(crate) fn parse_ip(r: Reader<'_>) -> Result<Self, i32> {
        Ok(Self {
            uid: r.u64(8)?,
            id: r.u32(44)?,
            send_only: false,
            address: Address::parse(r.bytes(16, SOCKADDR_IN6_LEN)?)
                .map_err(|_| errno::EINVAL)?
                .ok_or(errno::EINVAL)?,
        })
    }

    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        let send_only = match r.u16(22)? {
            0 => false,
            1 => true,
            _ => return Err(errno::EINVAL),
        };
        Ok(Self {
            uid: r.u64(8)?,
            id: r.u32(16)?,
            send_only,
            address: sized_address(r, 24, r.u16(20)?)?.ok_or(errno::EINVAL)?,
        })
    }
}

#[derive(Debug)]
pub(crate) struct SetOption {
    pub(crate) id: u32,
    pub(crate) level: u32,
    pub(crate) name: u32,
    pub(crate) len: u32,
}

impl SetOption {
    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        Ok(Self { id: r.u32(8)?, level: r.u32(12)?, name: r.u32(16)?, len: r.u32(20)? })
    }
}

#[derive(Debug)]
pub(crate) struct WriteCmEvent {
    pub(crate) id: u32,
    pub(crate) event: u32,
    pub(crate) status: u32,
    pub(crate) arg: u64,
}

impl WriteCmEvent {
    pub(crate) fn parse(r: Reader<'_>) -> Result<Self, i32> {
        Ok(Self { id: r.u32(0)?, event: r.u32(8)?, status: r.u32(12)?, arg: r.u64(16)? })
    }
}

/// The private data of a command must fit into the field that it is copied to.
const _: () = assert!(PRIVATE_DATA_LEN > u8::MAX as usize);
