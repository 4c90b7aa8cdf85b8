//! An application's librdmacm: it makes commands as bytes, with the offsets of `rdma/rdma_user_cm.h`.

use core::net::SocketAddr;

use super::case::Service;

/// `enum rdma_cm_event_type`: the events that may come.
pub(super) mod event {
    pub(in crate::cm) const ADDR_RESOLVED: u32 = 0;
    pub(in crate::cm) const ADDR_ERROR: u32 = 1;
    pub(in crate::cm) const ROUTE_RESOLVED: u32 = 2;
    pub(in crate::cm) const CONNECT_REQUEST: u32 = 4;
    pub(in crate::cm) const CONNECT_RESPONSE: u32 = 5;
    pub(in crate::cm) const UNREACHABLE: u32 = 7;
    pub(in crate::cm) const REJECTED: u32 = 8;
    pub(in crate::cm) const ESTABLISHED: u32 = 9;
    pub(in crate::cm) const DISCONNECTED: u32 = 10;
    pub(in crate::cm) const DEVICE_REMOVAL: u32 = 11;
    pub(in crate::cm) const ADDR_CHANGE: u32 = 14;
    pub(in crate::cm) const TIMEWAIT_EXIT: u32 = 15;

    /// The name of an event.
    pub(in crate::cm) fn name(kind: u32) -> &'static str {
        match kind {
            ADDR_RESOLVED => "ADDR_RESOLVED",
            ADDR_ERROR => "ADDR_ERROR",
            ROUTE_RESOLVED => "ROUTE_RESOLVED",
            CONNECT_REQUEST => "CONNECT_REQUEST",
            CONNECT_RESPONSE => "CONNECT_RESPONSE",
            UNREACHABLE => "UNREACHABLE",
            REJECTED => "REJECTED",
            ESTABLISHED => "ESTABLISHED",
            DISCONNECTED => "DISCONNECTED",
            DEVICE_REMOVAL => "DEVICE_REMOVAL",
            ADDR_CHANGE => "ADDR_CHANGE",
            TIMEWAIT_EXIT => "TIMEWAIT_EXIT",
            _ => "an event that nobody knows",
        }
    }
}

pub(super) const ENOENT: i32 = 2;
pub(super) const ENOMEM: i32 = 12;
pub(super) const ENODEV: i32 = 19;
pub(super) const EINVAL: i32 = 22;
pub(super) const EADDRINUSE: i32 = 98;
pub(super) const EADDRNOTAVAIL: i32 = 99;
pub(super) const EISCONN: i32 = 106;
pub(super) const ETIMEDOUT: i32 = 110;

/// `IB_EVENT_COMM_EST`.
const COMM_EST: u32 = 4;
/// `IB_CM_REJ_CONSUMER_DEFINED`.
pub(super) const CONSUMER_DEFINED: u16 = 28;
const STORAGE_LEN: usize = 128;
const CONN_PARAM_LEN: usize = 272;
const EVENT_LEN: usize = 336;
const QP_ATTR_LEN: u16 = 144;

/// Makes one write to the device: the command's code, the room for the response, and the structure.
fn command(code: u32, out: u16, parts: &[&[u8]]) -> Vec<u8> {
    let payload = parts.concat();
    let mut bytes = code.to_ne_bytes().to_vec();
    bytes.extend((payload.len() as u16).to_ne_bytes());
    bytes.extend(out.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// The first 32-bit number of a response.
pub(super) fn number(response: &[u8]) -> u32 {
    u32_at(response, 0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_ne_bytes(*b))
}

/// Returns the size of a socket address and its bytes in a `sockaddr_storage`.
fn storage(address: SocketAddr) -> (u16, [u8; STORAGE_LEN]) {
    let mut b = [0; STORAGE_LEN];
    b[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(a) => {
            b[..2].copy_from_slice(&2u16.to_ne_bytes());
            b[4..8].copy_from_slice(&a.ip().octets());
            (16, b)
        }
        SocketAddr::V6(a) => {
            b[..2].copy_from_slice(&10u16.to_ne_bytes());
            b[8..24].copy_from_slice(&a.ip().octets());
            (28, b)
        }
    }
}

/// `struct rdma_ucm_conn_param`: the fields that are used.
#[derive(Clone, Debug)]
pub(super) struct Param {
    pub(super) qpn: u32,
    pub(super) private: Vec<u8>,
    /// Responder resources, initiator depth, retries, RNR retries.
    pub(super) numbers: [u8; 4],
}

fn conn_param(param: Option<&Param>) -> [u8; CONN_PARAM_LEN] {
    let mut b = [0; CONN_PARAM_LEN];
    if let Some(p) = param {
        let [responder, initiator, retries, rnr_retries] = p.numbers;
        b[..4].copy_from_slice(&p.qpn.to_ne_bytes());
        b[8..8 + p.private.len()].copy_from_slice(&p.private);
        b[264..].copy_from_slice(&[
            p.private.len() as u8,
            0,
            responder,
            initiator,
            0,
            retries,
            rnr_retries,
            1,
        ]);
    }
    b
}

/// Creates an id for a service, to listen on it or to ask for it.
pub(super) fn create(uid: u64, service: Service, listens: bool) -> Vec<u8> {
    let (space, qp_type) = (service.space().code(), service.qp_type(listens));
    command(0, 4, &[&uid.to_ne_bytes(), &[0; 8], &space.to_ne_bytes(), &[qp_type, 0, 0, 0, 0, 0]])
}

pub(super) fn destroy(id: u32) -> Vec<u8> {
    command(1, 4, &[&[0; 8], &id.to_ne_bytes(), &[0; 4]])
}

pub(super) fn bind(id: u32, address: SocketAddr) -> Vec<u8> {
    let (size, storage) = storage(address);
    command(20, 0, &[&id.to_ne_bytes(), &size.to_ne_bytes(), &[0; 2], &storage])
}

pub(super) fn listen(id: u32, backlog: u32) -> Vec<u8> {
    command(7, 0, &[&id.to_ne_bytes(), &backlog.to_ne_bytes()])
}

pub(super) fn resolve_addr(id: u32, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let ((src_size, src), (dst_size, dst)) = (storage(source), storage(destination));
    let sizes = [src_size.to_ne_bytes(), dst_size.to_ne_bytes()].concat();
    command(21, 0, &[&id.to_ne_bytes(), &2000u32.to_ne_bytes(), &sizes, &[0; 4], &src, &dst])
}

pub(super) fn resolve_route(id: u32) -> Vec<u8> {
    command(4, 0, &[&id.to_ne_bytes(), &2000u32.to_ne_bytes()])
}

pub(super) fn connect(id: u32, param: &Param) -> Vec<u8> {
    command(6, 0, &[&conn_param(Some(param)), &id.to_ne_bytes(), &[0; 12]])
}

/// Accepts. Without parameters, it is the confirmation of the active end.
pub(super) fn accept(id: u32, uid: u64, param: Option<&Param>) -> Vec<u8> {
    command(8, 0, &[&uid.to_ne_bytes(), &conn_param(param), &id.to_ne_bytes(), &[0; 12]])
}

pub(super) fn reject(id: u32, private: &[u8]) -> Vec<u8> {
    let mut data = [0; 256];
    data[..private.len()].copy_from_slice(private);
    let head = [private.len() as u8, CONSUMER_DEFINED as u8, 0, 0];
    command(9, 0, &[&id.to_ne_bytes(), &head, &data])
}

pub(super) fn disconnect(id: u32) -> Vec<u8> {
    command(10, 0, &[&id.to_ne_bytes()])
}

/// Moves an id from another file to the file that this command is written to.
pub(super) fn migrate(id: u32, from: u32) -> Vec<u8> {
    command(18, 4, &[&[0; 8], &id.to_ne_bytes(), &from.to_ne_bytes()])
}

/// Reports that the queue pair has seen data.
pub(super) fn notify(id: u32) -> Vec<u8> {
    command(15, 0, &[&id.to_ne_bytes(), &COMM_EST.to_ne_bytes()])
}

/// The flow label of the address vector in the answer to [`qp_attr`].
pub(super) fn flow_label(answer: &[u8]) -> u32 {
    u32_at(answer, 56)
}

/// Asks for the queue pair's attributes for a state, which is a number of `enum ibv_qp_state`.
pub(super) fn qp_attr(id: u32, state: u32) -> Vec<u8> {
    command(11, QP_ATTR_LEN, &[&[0; 8], &id.to_ne_bytes(), &state.to_ne_bytes()])
}

/// The attributes about which both ends must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attr {
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qpn: u32,
}

/// Takes them from the attributes for RTR and for RTS.
pub(super) fn attr(rtr: &[u8], rts: &[u8]) -> Attr {
    Attr { rq_psn: u32_at(rtr, 24), sq_psn: u32_at(rts, 28), dest_qpn: u32_at(rtr, 32) }
}

/// `struct rdma_ucm_event_resp`, parsed.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) uid: u64,
    pub(super) id: u32,
    pub(super) kind: u32,
    pub(super) status: i32,
    bytes: Vec<u8>,
}

impl Event {
    /// Parses an event. Returns `None` if it does not have the structure's length.
    pub(super) fn parse(bytes: Vec<u8>) -> Option<Self> {
        if bytes.len() != EVENT_LEN {
            return None;
        }
        let uid = u64::from_ne_bytes(*bytes.first_chunk()?);
        Some(Self {
            uid,
            id: u32_at(&bytes, 8),
            kind: u32_at(&bytes, 12),
            status: u32_at(&bytes, 16) as i32,
            bytes,
        })
    }

    pub(super) fn qpn(&self) -> u32 {
        u32_at(&self.bytes, 20)
    }

    /// The private data of an event of a connection, or with `ud` of a datagram service. It is as long
    /// as the whole field.
    pub(super) fn private(&self, ud: bool) -> &[u8] {
        let (at, len) = if ud { (60, 316) } else { (28, 284) };
        self.bytes.get(at..at + usize::from(self.bytes[len])).unwrap_or_default()
    }

    /// Responder resources, initiator depth, retries, RNR retries.
    pub(super) fn numbers(&self) -> [u8; 4] {
        [286, 287, 289, 290].map(|at| self.bytes[at])
    }
}
