//! The offsets in the commands of `rdma/rdma_user_cm.h` (ABI version 4) that are used here.

use libc::c_int;

pub(crate) const CREATE_ID: u32 = 0;
pub(crate) const DESTROY_ID: u32 = 1;
pub(crate) const BIND_IP: u32 = 2;
pub(crate) const RESOLVE_IP: u32 = 3;
pub(crate) const RESOLVE_ROUTE: u32 = 4;
pub(crate) const QUERY_ROUTE: u32 = 5;
pub(crate) const CONNECT: u32 = 6;
pub(crate) const LISTEN: u32 = 7;
pub(crate) const ACCEPT: u32 = 8;
pub(crate) const REJECT: u32 = 9;
pub(crate) const DISCONNECT: u32 = 10;
pub(crate) const INIT_QP_ATTR: u32 = 11;
pub(crate) const GET_EVENT: u32 = 12;
pub(crate) const SET_OPTION: u32 = 14;
pub(crate) const NOTIFY: u32 = 15;
pub(crate) const JOIN_IP_MCAST: u32 = 16;
pub(crate) const LEAVE_MCAST: u32 = 17;
pub(crate) const MIGRATE_ID: u32 = 18;
pub(crate) const QUERY: u32 = 19;
pub(crate) const BIND: u32 = 20;
pub(crate) const RESOLVE_ADDR: u32 = 21;
pub(crate) const JOIN_MCAST: u32 = 22;
pub(crate) const RESOLVE_IB_SERVICE: u32 = 23;
pub(crate) const WRITE_CM_EVENT: u32 = 24;

/// `RDMA_CM_EVENT_CONNECT_REQUEST`.
pub(crate) const CONNECT_REQUEST: u32 = 4;
/// `RDMA_CM_EVENT_MULTICAST_JOIN` and `_ERROR`.
pub(crate) const MULTICAST: core::ops::RangeInclusive<u32> = 12..=13;

/// Bytes of `rdma_ucm_cmd_hdr`.
pub(crate) const HEADER: usize = 8;

/// Bytes of `rdma_ucm_conn_param`.
const CONN_PARAM: usize = 272;

/// Bytes of `rdma_ucm_event_resp`.
pub(crate) const EVENT_LEN: usize = 336;

/// Bytes of it that `GET_EVENT` must have room for: all but `reserved` and `ece`, which old programs
/// do not have.
pub(crate) const EVENT_LEN_MIN: usize = EVENT_LEN - 4 - 8;

/// Where in its body a command names the id that it is about; `None` for those that name none.
pub(crate) fn id_at(code: u32) -> Option<usize> {
    match code {
        BIND_IP => Some(36),
        RESOLVE_IP => Some(56),
        RESOLVE_ROUTE | LISTEN | REJECT | DISCONNECT | NOTIFY | BIND | RESOLVE_ADDR
        | RESOLVE_IB_SERVICE | WRITE_CM_EVENT => Some(0),
        DESTROY_ID | QUERY_ROUTE | INIT_QP_ATTR | SET_OPTION | MIGRATE_ID | QUERY => Some(8),
        CONNECT => Some(CONN_PARAM),
        ACCEPT => Some(8 + CONN_PARAM),
        JOIN_IP_MCAST => Some(44),
        JOIN_MCAST => Some(16),
        _ => None,
    }
}

/// Reads a number; an offset beyond the end is `EINVAL`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Result<u32, c_int> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(libc::EINVAL)
}

/// The same.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Result<u64, c_int> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(libc::EINVAL)
}

/// Writes a number. The bytes must have room for it.
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

/// The same.
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

/// A command with room for a response of `out` bytes.
pub(crate) fn command(code: u32, body: &[u8], out: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(code.to_ne_bytes());
    bytes.extend((body.len() as u16).to_ne_bytes());
    bytes.extend((out as u16).to_ne_bytes());
    bytes.extend(body);
    bytes
}
