//! An application's librdmacm: commands as bytes, at the offsets of `rdma/rdma_user_cm.h`.

use core::net::{IpAddr, SocketAddr};

use polypath_cm::FileId;

use super::World;

pub const CREATE_ID: u32 = 0;
pub const DESTROY_ID: u32 = 1;
pub const BIND_IP: u32 = 2;
pub const RESOLVE_IP: u32 = 3;
pub const RESOLVE_ROUTE: u32 = 4;
pub const QUERY_ROUTE: u32 = 5;
pub const CONNECT: u32 = 6;
pub const LISTEN: u32 = 7;
pub const ACCEPT: u32 = 8;
pub const REJECT: u32 = 9;
pub const DISCONNECT: u32 = 10;
pub const INIT_QP_ATTR: u32 = 11;
pub const GET_EVENT: u32 = 12;
pub const SET_OPTION: u32 = 14;
pub const NOTIFY: u32 = 15;
pub const LEAVE_MCAST: u32 = 17;
pub const MIGRATE_ID: u32 = 18;
pub const QUERY: u32 = 19;
pub const BIND: u32 = 20;
pub const RESOLVE_ADDR: u32 = 21;
pub const JOIN_MCAST: u32 = 22;
pub const RESOLVE_IB_SERVICE: u32 = 23;
pub const WRITE_CM_EVENT: u32 = 24;

pub const PS_IPOIB: u16 = 0x0002;
pub const PS_TCP: u16 = 0x0106;
pub const PS_UDP: u16 = 0x0111;
pub const PS_IB: u16 = 0x013f;

pub const ADDR_RESOLVED: u32 = 0;
pub const ADDR_ERROR: u32 = 1;
pub const ROUTE_RESOLVED: u32 = 2;
pub const CONNECT_REQUEST: u32 = 4;
pub const CONNECT_RESPONSE: u32 = 5;
pub const UNREACHABLE: u32 = 7;
pub const REJECTED: u32 = 8;
pub const ESTABLISHED: u32 = 9;
pub const DISCONNECTED: u32 = 10;
pub const DEVICE_REMOVAL: u32 = 11;
pub const MULTICAST_JOIN: u32 = 12;
pub const ADDR_CHANGE: u32 = 14;
pub const TIMEWAIT_EXIT: u32 = 15;
pub const USER: u32 = 18;

pub const EINVAL: i32 = 22;
pub const ENOENT: i32 = 2;
pub const EAGAIN: i32 = 11;
pub const ENODEV: i32 = 19;
pub const EADDRINUSE: i32 = 98;
pub const EADDRNOTAVAIL: i32 = 99;
pub const ETIMEDOUT: i32 = 110;

/// One open file of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    pub host: usize,
    pub file: FileId,
}

/// `struct rdma_ucm_event_resp`, parsed.
#[derive(Clone, Debug)]
pub struct Event {
    pub uid: u64,
    pub id: u32,
    pub kind: u32,
    pub status: i32,
    pub bytes: Vec<u8>,
}

impl Event {
    pub fn parse(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), 336);
        Self {
            uid: u64_at(bytes, 0),
            id: u32_at(bytes, 8),
            kind: u32_at(bytes, 12),
            status: u32_at(bytes, 16) as i32,
            bytes: bytes.to_vec(),
        }
    }

    pub fn qp_num(&self) -> u32 {
        u32_at(&self.bytes, 20)
    }

    pub fn qkey(&self) -> u32 {
        u32_at(&self.bytes, 24)
    }

    pub fn conn_private(&self) -> &[u8] {
        &self.bytes[28..28 + usize::from(self.bytes[284])]
    }

    pub fn ud_private(&self) -> &[u8] {
        &self.bytes[60..60 + usize::from(self.bytes[316])]
    }

    /// srq, responder resources, initiator depth, flow control, retry count, RNR retry count.
    pub fn conn_numbers(&self) -> [u8; 6] {
        self.bytes[285..291].try_into().unwrap()
    }

    pub fn ah_dgid(&self) -> [u8; 16] {
        self.bytes[28..44].try_into().unwrap()
    }
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// `struct rdma_ucm_conn_param` with the usual values.
#[derive(Clone, Debug)]
pub struct Param {
    pub qp_num: u32,
    pub private: Vec<u8>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub valid: bool,
}

impl Param {
    pub fn new(qp_num: u32, private: &[u8]) -> Self {
        Self {
            qp_num,
            private: private.to_vec(),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            valid: true,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; 272];
        b[0..4].copy_from_slice(&self.qp_num.to_ne_bytes());
        b[8..8 + self.private.len()].copy_from_slice(&self.private);
        b[264] = self.private.len() as u8;
        b[266] = self.responder_resources;
        b[267] = self.initiator_depth;
        b[268] = self.flow_control.into();
        b[269] = self.retry_count;
        b[270] = self.rnr_retry_count;
        b[271] = self.valid.into();
        b
    }
}

/// A socket address in a `sockaddr_storage`.
pub fn storage(address: SocketAddr) -> (u16, Vec<u8>) {
    let mut b = vec![0; 128];
    b[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(a) => {
            b[0..2].copy_from_slice(&2u16.to_ne_bytes());
            b[4..8].copy_from_slice(&a.ip().octets());
            (16, b)
        }
        SocketAddr::V6(a) => {
            b[0..2].copy_from_slice(&10u16.to_ne_bytes());
            b[8..24].copy_from_slice(&a.ip().octets());
            b[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
            (28, b)
        }
    }
}

/// Concatenates the fields of a structure.
pub fn fields(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// The fields of `struct ib_uverbs_qp_attr` that the tests look at.
#[derive(Clone, Debug)]
pub struct QpAttr {
    pub bytes: Vec<u8>,
}

impl QpAttr {
    pub fn mask(&self) -> u32 {
        u32_at(&self.bytes, 0)
    }
    pub fn path_mtu(&self) -> u32 {
        u32_at(&self.bytes, 12)
    }
    pub fn qkey(&self) -> u32 {
        u32_at(&self.bytes, 20)
    }
    pub fn rq_psn(&self) -> u32 {
        u32_at(&self.bytes, 24)
    }
    pub fn sq_psn(&self) -> u32 {
        u32_at(&self.bytes, 28)
    }
    pub fn dest_qp_num(&self) -> u32 {
        u32_at(&self.bytes, 32)
    }
    pub fn access_flags(&self) -> u32 {
        u32_at(&self.bytes, 36)
    }
    pub fn dgid(&self) -> [u8; 16] {
        self.bytes[40..56].try_into().unwrap()
    }
    /// sgid index, hop limit, traffic class.
    pub fn grh(&self) -> [u8; 3] {
        self.bytes[60..63].try_into().unwrap()
    }
    /// max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port, timeout, retry, rnr retry.
    pub fn numbers(&self) -> [u8; 7] {
        self.bytes[130..137].try_into().unwrap()
    }
}

impl World {
    /// One write() to the device.
    pub fn write(
        &mut self,
        client: Client,
        cmd: u32,
        payload: &[u8],
        out: u16,
        extra: &[u8],
    ) -> Result<Vec<u8>, i32> {
        let mut bytes = cmd.to_ne_bytes().to_vec();
        bytes.extend((payload.len() as u16).to_ne_bytes());
        bytes.extend(out.to_ne_bytes());
        bytes.extend(payload);
        bytes.extend(extra);
        let host = &mut self.hosts[client.host];
        let response = host.cm.command(self.now, client.file, &bytes, &mut host.env)?;
        assert!(response.len() <= usize::from(out), "more than there is room for");
        Ok(response)
    }

    fn simple(&mut self, client: Client, cmd: u32, payload: &[u8]) -> Result<(), i32> {
        self.write(client, cmd, payload, 0, &[]).map(|r| assert!(r.is_empty()))
    }

    pub fn try_create(&mut self, c: Client, uid: u64, ps: u16, qpt: u8) -> Result<u32, i32> {
        let payload =
            fields(&[&uid.to_ne_bytes(), &[0; 8], &ps.to_ne_bytes(), &[qpt, 0, 0, 0, 0, 0]]);
        Ok(u32_at(&self.write(c, CREATE_ID, &payload, 4, &[])?, 0))
    }

    pub fn create(&mut self, c: Client, uid: u64, ps: u16) -> u32 {
        self.try_create(c, uid, ps, if ps == PS_TCP { 2 } else { 4 }).unwrap()
    }

    /// Returns how many events were reported.
    pub fn destroy(&mut self, c: Client, id: u32) -> Result<u32, i32> {
        let payload = fields(&[&[0; 8], &id.to_ne_bytes(), &[0; 4]]);
        Ok(u32_at(&self.write(c, DESTROY_ID, &payload, 4, &[])?, 0))
    }

    pub fn bind(&mut self, c: Client, id: u32, address: SocketAddr) -> Result<(), i32> {
        let (size, storage) = storage(address);
        let payload = fields(&[&id.to_ne_bytes(), &size.to_ne_bytes(), &[0; 2], &storage]);
        self.simple(c, BIND, &payload)
    }

    pub fn listen(&mut self, c: Client, id: u32, backlog: u32) -> Result<(), i32> {
        self.simple(c, LISTEN, &fields(&[&id.to_ne_bytes(), &backlog.to_ne_bytes()]))
    }

    pub fn resolve_addr(
        &mut self,
        c: Client,
        id: u32,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), i32> {
        let (src_size, src) = source.map_or_else(|| (0, vec![0; 128]), storage);
        let (dst_size, dst) = storage(destination);
        let payload = fields(&[
            &id.to_ne_bytes(),
            &2000u32.to_ne_bytes(),
            &src_size.to_ne_bytes(),
            &dst_size.to_ne_bytes(),
            &[0; 4],
            &src,
            &dst,
        ]);
        self.simple(c, RESOLVE_ADDR, &payload)
    }

    pub fn resolve_route(&mut self, c: Client, id: u32) -> Result<(), i32> {
        self.simple(c, RESOLVE_ROUTE, &fields(&[&id.to_ne_bytes(), &2000u32.to_ne_bytes()]))
    }

    pub fn connect(&mut self, c: Client, id: u32, param: &Param) -> Result<(), i32> {
        let payload = fields(&[&param.encode(), &id.to_ne_bytes(), &[0; 4], &[0; 8]]);
        self.simple(c, CONNECT, &payload)
    }

    pub fn accept(&mut self, c: Client, id: u32, uid: u64, param: &Param) -> Result<(), i32> {
        let payload =
            fields(&[&uid.to_ne_bytes(), &param.encode(), &id.to_ne_bytes(), &[0; 4], &[0; 8]]);
        self.simple(c, ACCEPT, &payload)
    }

    /// Sends the RTU, as librdmacm does when its queue pair is ready.
    pub fn confirm(&mut self, c: Client, id: u32) -> Result<(), i32> {
        self.accept(c, id, 0, &Param { valid: false, ..Param::new(0, &[]) })
    }

    pub fn reject(&mut self, c: Client, id: u32, private: &[u8]) -> Result<(), i32> {
        let mut data = private.to_vec();
        data.resize(256, 0);
        let payload = fields(&[&id.to_ne_bytes(), &[private.len() as u8, 28, 0, 0], &data]);
        self.simple(c, REJECT, &payload)
    }

    pub fn disconnect(&mut self, c: Client, id: u32) -> Result<(), i32> {
        self.simple(c, DISCONNECT, &id.to_ne_bytes())
    }

    pub fn notify(&mut self, c: Client, id: u32, event: u32) -> Result<(), i32> {
        self.simple(c, NOTIFY, &fields(&[&id.to_ne_bytes(), &event.to_ne_bytes()]))
    }

    pub fn qp_attr(&mut self, c: Client, id: u32, state: u32) -> Result<QpAttr, i32> {
        let payload = fields(&[&[0; 8], &id.to_ne_bytes(), &state.to_ne_bytes()]);
        let bytes = self.write(c, INIT_QP_ATTR, &payload, 144, &[])?;
        assert_eq!(bytes.len(), 144);
        Ok(QpAttr { bytes })
    }

    pub fn query(&mut self, c: Client, id: u32, option: u32, out: u16) -> Result<Vec<u8>, i32> {
        let payload = fields(&[&[0; 8], &id.to_ne_bytes(), &option.to_ne_bytes()]);
        self.write(c, QUERY, &payload, out, &[])
    }

    /// The local port of an id.
    pub fn local_port(&mut self, c: Client, id: u32) -> u16 {
        let answer = self.query(c, id, 0, 280).unwrap();
        u16::from_be_bytes([answer[18], answer[19]])
    }

    pub fn set_option(
        &mut self,
        c: Client,
        id: u32,
        level: u32,
        name: u32,
        value: &[u8],
    ) -> Result<(), i32> {
        let len = value.len() as u32;
        let payload = fields(&[
            &[0; 8],
            &id.to_ne_bytes(),
            &level.to_ne_bytes(),
            &name.to_ne_bytes(),
            &len.to_ne_bytes(),
        ]);
        self.write(c, SET_OPTION, &payload, 0, value).map(|_| ())
    }

    pub fn join(&mut self, c: Client, id: u32, uid: u64, group: IpAddr) -> Result<u32, i32> {
        let (size, storage) = storage(SocketAddr::new(group, 0));
        let payload = fields(&[
            &[0; 8],
            &uid.to_ne_bytes(),
            &id.to_ne_bytes(),
            &size.to_ne_bytes(),
            &[0; 2],
            &storage,
        ]);
        Ok(u32_at(&self.write(c, JOIN_MCAST, &payload, 4, &[])?, 0))
    }

    pub fn leave(&mut self, c: Client, membership: u32) -> Result<u32, i32> {
        let payload = fields(&[&[0; 8], &membership.to_ne_bytes(), &[0; 4]]);
        Ok(u32_at(&self.write(c, LEAVE_MCAST, &payload, 4, &[])?, 0))
    }

    pub fn migrate(&mut self, to: Client, id: u32, from: Client) -> Result<u32, i32> {
        let payload = fields(&[&[0; 8], &id.to_ne_bytes(), &from.file.0.to_ne_bytes()]);
        Ok(u32_at(&self.write(to, MIGRATE_ID, &payload, 4, &[])?, 0))
    }

    /// Creates a listening id.
    pub fn listener(&mut self, c: Client, uid: u64, ps: u16, address: SocketAddr) -> u32 {
        let id = self.create(c, uid, ps);
        self.start_listening(c, id, address);
        id
    }

    /// Makes an id listen.
    pub fn start_listening(&mut self, c: Client, id: u32, address: SocketAddr) {
        self.bind(c, id, address).unwrap();
        self.listen(c, id, 128).unwrap();
    }

    /// Creates an id whose route to an address is resolved.
    pub fn resolved(&mut self, c: Client, uid: u64, ps: u16, destination: SocketAddr) -> u32 {
        let id = self.create(c, uid, ps);
        self.resolve(c, id, destination);
        id
    }

    /// Resolves an id's route to an address.
    pub fn resolve(&mut self, c: Client, id: u32, destination: SocketAddr) {
        self.resolve_addr(c, id, None, destination).unwrap();
        assert_eq!(self.expect(c, ADDR_RESOLVED).id, id);
        self.resolve_route(c, id).unwrap();
        assert_eq!(self.expect(c, ROUTE_RESOLVED).id, id);
    }
}
