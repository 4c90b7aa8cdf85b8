//! The whole way of a datagram, for the fuzzer: its bytes pass ICRC check, header parser, path
//! manager and queue pair into memory and completion queue. Everything is real except sockets,
//! threads and clock.
//!
//! There is one engine with an `mp0` device over two interfaces. Their addresses are for
//! documentation (RFC 5737), so no machine has them and nothing is really sent. The peer is a path
//! manager, so that multi-path can be agreed on, together with whatever the fuzzer writes.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use polypath_paths::{
    Config as PathConfig, ControlOut, LaneIdentity, LocalAddress, PathManager, PathOptions,
};
use polypath_topology::{Address, MP, Port, Selection, Table};
use polypath_transport::{
    Access, AhAttr, FlushScope, Placement, QpAttr, QpAttrMask as M, QpState, QpType, RecvWr,
    SendData, SendFlags, SendOp, Sge,
};
use polypath_verbs::{
    CompletionQueue, Context, CqRequest, MemoryRegion, MrRequest, QpRequest, QueuePair,
    SendRequest, SharedReceiveQueue, SrqAttr, SrqRequest, UdTarget,
};
use polypath_wire::Packet;
use polypath_wire::icrc::{Flow, compute};

use crate::context::OpenDevice;
use crate::devices;
use crate::engine_inner::EngineInner;
use crate::lane::Lane;
use crate::media::Received;

/// Lets the other end of memory that two lanes share do what these bytes say. Returns how many packets
/// came out, and how often the channel was given up.
pub fn hostile_ring(script: &[u8]) -> (usize, usize) {
    crate::media::local::hostile::run(script)
}

/// Takes packets from bytes of a TCP stream, in pieces. Returns how many there were, and whether the stream
/// was given up.
pub fn hostile_stream(bytes: &[u8], piece: usize) -> (usize, bool) {
    crate::media::tcp::hostile::run(bytes, piece)
}

/// The slots of our lane and of the peer.
const SLOTS: [u8; 2] = [1, 2];
/// Bytes of the memory region.
pub const AREA: usize = 1 << 14;
/// The number of queue pairs.
pub const QPS: usize = KINDS.len();
/// The UDP source port of all incoming datagrams.
const SOURCE_PORT: u16 = 0xc123;
/// The first PSN of all queue pairs in both directions; it is close to the wrap.
pub const PSN: u32 = 0xff_fff0;
const QKEY: u32 = 0x1111;

/// The queue pairs: type, whether they use the shared receive queue, whether they use the small
/// completion queue, whether they are connected.
const KINDS: [(QpType, bool, bool, bool); 7] = [
    (QpType::Rc, false, false, true),
    (QpType::Rc, true, false, true),
    (QpType::Uc, false, false, true),
    (QpType::Ud, false, false, true),
    (QpType::Rc, false, true, true),
    (QpType::Ud, true, false, true),
    (QpType::Rc, false, false, false),
];

/// All parts of the set-up.
#[derive(Debug)]
pub struct Rig {
    lane: Arc<Lane>,
    context: Arc<OpenDevice>,
    pd: u32,
    cqs: [Arc<dyn CompletionQueue>; 2],
    srq: Arc<dyn SharedReceiveQueue>,
    region: Arc<dyn MemoryRegion>,
    area: Box<[u64]>,
    qps: Vec<Arc<dyn QueuePair>>,
    peer: PathManager,
    _one_at_a_time: MutexGuard<'static, ()>,
}

/// The address of a host on a link. Host 0 is ours, 1 is the peer, and others are strangers.
pub fn ip(link: u8, host: u8) -> IpAddr {
    IpAddr::from([192, 0, if link == 0 { 2 } else { 3 }, host + 1])
}

fn locals(host: u8) -> Vec<LocalAddress> {
    (0..2u8)
        .map(|link| LocalAddress {
            ip: ip(link, host),
            prefix_len: 24,
            ifindex: u32::from(link) + 2,
            link_up: true,
            usable: true,
            speed_mbps: 1000,
        })
        .collect()
}

pub(crate) fn table() -> Table {
    let port = |link: u8| Port {
        mac: [2, 0, 0, 0, 0, link + 1],
        speed_mbps: Some(1000),
        device_number: Some(link.into()),
        addresses: vec![Address {
            ip: ip(link, 0),
            prefix_len: 24,
            link_local: false,
            tentative: false,
        }],
        ..Port::ethernet(u32::from(link) + 2, &format!("eth{link}"))
    };
    Table { generation: 1, ports: vec![port(0), port(1)], ..Table::default() }
}

/// The only engine.
fn engine() -> (&'static Arc<EngineInner>, Arc<Lane>) {
    static ONE: OnceLock<(Arc<EngineInner>, Arc<Lane>)> = OnceLock::new();
    let (engine, lane) = ONE.get_or_init(|| {
        let lane = Lane::still(SLOTS[0]).expect("an eventfd");
        (EngineInner::alone(table(), Selection::of(MP), lane.clone()), lane)
    });
    (engine, lane.clone())
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// Creates queue pairs in RTS with posted receives, and a peer that knows them.
    ///
    /// # Panics
    /// If the system has no file descriptors left.
    pub fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one_at_a_time = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (engine, lane) = engine();
        lane.begin_anew(&locals(0));
        let context = devices::first(engine);
        let pd = context.alloc_pd().expect("a protection domain");
        let cq = |cqe| {
            let request = CqRequest { cqe, channel: None, token: 1, ignore_overrun: false };
            context.create_cq(&request).expect("a completion queue")
        };
        let cqs = [cq(4096), cq(4)];
        let attr = SrqAttr { max_wr: 64, max_sge: 2, limit: 0 };
        let request = SrqRequest { pd, attr, xrc: None, token: 2 };
        let srq = context.create_srq(&request).expect("an SRQ");
        let area = vec![0u64; AREA / 8].into_boxed_slice();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let addr = area.as_ptr() as usize;
        let request = MrRequest { pd, addr, len: AREA, iova: 0, access };
        // SAFETY: `area` outlives the region, and is read only while no thread is in the lane.
        #[allow(unsafe_code)]
        let region = unsafe { context.reg_mr(&request) }.expect("a memory region");
        let mut peer = PathManager::new(
            PathConfig::default(),
            LaneIdentity { instance: 8, slot: SLOTS[1] },
            [8; 16],
        );
        peer.set_local(Duration::ZERO, &locals(1));
        let mut rig = Self {
            lane,
            context,
            pd,
            cqs,
            srq,
            region,
            area,
            qps: Vec::new(),
            peer,
            _one_at_a_time: one_at_a_time,
        };
        for at in 0..QPS {
            rig.add_qp(at);
        }
        for at in 0..QPS {
            for _ in 0..4 {
                rig.post_recv(at);
            }
        }
        rig
    }

    /// The open device.
    #[cfg(test)]
    pub(crate) fn context(&self) -> &OpenDevice {
        &self.context
    }

    /// The same device, opened again.
    #[cfg(test)]
    pub(crate) fn another_context(&self) -> Arc<OpenDevice> {
        let engine = engine().0;
        devices::first(engine)
    }

    fn add_qp(&mut self, at: usize) {
        let (qp_type, from_srq, small, connected) = KINDS[at];
        let cq = &self.cqs[usize::from(small)];
        let request = QpRequest {
            pd: Some(self.pd),
            qp_type,
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            srq: from_srq.then(|| self.srq.clone()),
            xrcd: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: 64,
            sq_sig_all: true,
            token: 16 + at as u64,
        };
        let qp = self.context.create_qp(&request).expect("a queue pair");
        let mut attr = QpAttr::new(QpState::Init);
        attr.port_num = 1;
        attr.qkey = QKEY;
        attr.access = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let third = if qp_type == QpType::Ud { M::QKEY } else { M::ACCESS_FLAGS };
        qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | third).expect("INIT");
        if connected {
            self.connect(qp.as_ref(), at);
        }
        self.qps.push(qp);
    }

    fn connect(&mut self, qp: &dyn QueuePair, at: usize) {
        let qp_type = KINDS[at].0;
        let mut attr = QpAttr::new(QpState::Rtr);
        attr.path_mtu = 1024;
        attr.dest_qpn = peer_qpn(at);
        attr.rq_psn = PSN;
        attr.sq_psn = PSN;
        attr.max_dest_rd_atomic = 4;
        attr.max_rd_atomic = 4;
        attr.min_rnr_timer = 12;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 6;
        attr.ah = Self::way();
        let rtr = match qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER
            }
            QpType::Uc => M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            QpType::Ud => M::empty(),
        };
        qp.modify(&attr, M::STATE | rtr).expect("RTR");
        attr.state = QpState::Rts;
        let rts = match qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC
            }
            QpType::Uc | QpType::Ud => M::SQ_PSN,
        };
        qp.modify(&attr, M::STATE | rts).expect("RTS");
        if qp_type == QpType::Rc {
            let options = PathOptions { multipath: true, ..PathOptions::default() };
            let (own, own_ip, peer_ip) = (qp.number(), ip(0, 0), ip(0, 1));
            self.peer
                .attach(crate::clock::now(), peer_qpn(at), own, peer_ip, own_ip, options)
                .expect("an empty table has room");
        }
    }

    fn way() -> AhAttr {
        let IpAddr::V4(to) = ip(0, 1) else { unreachable!("documentation addresses are IPv4") };
        AhAttr {
            dgid: to.to_ipv6_mapped().octets(),
            sgid_index: 1,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        }
    }

    /// The number of a queue pair.
    pub fn qpn(&self, at: usize) -> u32 {
        self.qps[at % QPS].number()
    }

    /// The key of the memory region, which begins at address 0.
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// The memory region.
    pub fn area(&self) -> &[u64] {
        &self.area
    }

    /// Takes in a datagram. If `seal` is set, its last four bytes are replaced with the correct
    /// ICRC.
    pub fn datagram(&mut self, src: IpAddr, dst: IpAddr, bytes: &mut [u8], seal: bool) {
        if seal && bytes.len() >= 16 {
            let flow = Flow::new(src, dst, SOURCE_PORT);
            let (body, icrc) = bytes.split_at_mut(bytes.len() - 4);
            icrc.copy_from_slice(&compute(&flow, 0, body));
        }
        self.lane.round(&[Received::new(src, SOURCE_PORT, dst, bytes)]);
    }

    /// Lets time pass, and runs the timers that are due.
    pub fn pass(&mut self, time: Duration) {
        #[cfg(fuzzing)]
        crate::clock::pass(time);
        let _ = time;
        self.lane.round(&[]);
        self.peer.handle_timeout(crate::clock::now());
    }

    /// Posts a send. Returns whether it was accepted.
    pub fn post_send(&mut self, at: usize, kind: u8, len: u32) -> bool {
        let at = at % QPS;
        let (va, rkey) = (64, self.rkey());
        let op = match kind % 9 {
            0 => SendOp::Send,
            1 => SendOp::SendImm([1, 2, 3, 4]),
            2 => SendOp::Write { va, rkey },
            3 => SendOp::WriteImm { va, rkey, imm: [1, 2, 3, 4] },
            4 => SendOp::Read { va, rkey },
            5 => SendOp::FetchAdd { va, rkey, add: 1 },
            6 => SendOp::AtomicWrite { va, rkey },
            7 => SendOp::Flush {
                rkey,
                scope: FlushScope::Range { va, len },
                placement: Placement::GLOBAL,
            },
            _ => SendOp::CompareSwap { va, rkey, compare: 0, swap: 1 },
        };
        let len = if matches!(op, SendOp::Flush { .. }) { 0 } else { len };
        let sges = [Sge { addr: 0, len, lkey: self.region.lkey() }];
        let ah = (KINDS[at].0 == QpType::Ud)
            .then(|| self.context.create_ah(self.pd, &Self::way()).ok())
            .flatten();
        let ud = ah.as_ref().map(|ah| UdTarget { ah, qpn: peer_qpn(at), qkey: QKEY });
        let request = SendRequest {
            wr_id: 1,
            op,
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud,
            xrc_srqn: 0,
        };
        self.qps[at].post_send(&[request], false).is_ok()
    }

    /// Posts a receive of 1 KiB. Returns whether it was accepted.
    pub fn post_recv(&mut self, at: usize) -> bool {
        let at = at % QPS;
        let sge = Sge { addr: 8192, len: 1024, lkey: self.region.lkey() };
        let wr = RecvWr { wr_id: 2, sges: [sge].into_iter().collect() };
        if KINDS[at].1 {
            self.srq.post_recv(&[wr]).is_ok()
        } else {
            self.qps[at].post_recv(&[wr]).is_ok()
        }
    }

    /// Takes all completions and events. Returns their number.
    pub fn poll(&mut self) -> usize {
        let mut n = 0;
        for cq in &self.cqs {
            let _ = cq.poll(usize::MAX, &mut |_| n += 1);
        }
        while self.context.take_async_event().is_some() {
            n += 1;
        }
        n
    }

    /// Lets the path managers talk. Our packets go to the peer, and its answers are passed to
    /// `judge`, which may change them. If it returns false, the packet is lost.
    pub fn talk(&mut self, judge: &mut dyn FnMut(&mut ControlOut) -> bool) {
        let now = crate::clock::now();
        for out in self.lane.take_control() {
            let mut with_icrc = out.packet.clone();
            with_icrc.extend([0; 4]);
            if let Ok(packet) = Packet::parse(&with_icrc) {
                let (src, dst) = (out.address.local, out.address.remote);
                let _ = self.peer.handle_control(now, src, dst, out.address.kind, &packet);
            }
        }
        while let Some(mut out) = self.peer.poll_transmit(now) {
            if judge(&mut out) {
                let mut bytes = out.packet.clone();
                bytes.extend([0; 4]);
                self.datagram(out.address.local, out.address.remote, &mut bytes, true);
            }
        }
        while self.peer.poll_event().is_some() {}
    }

    /// The number of queue pairs that have agreed on multi-path.
    pub fn multipath(&self) -> usize {
        let index = |qp: &Arc<dyn QueuePair>| crate::lane::index_of(qp.number());
        let agreed =
            |at: &u16| self.lane.visit(*at, |entry| entry.qp.is_multipath()).unwrap_or_default();
        self.qps.iter().map(index).filter(|at| agreed(at)).count()
    }

    /// The numbers of dropped packets by reason.
    pub fn drops(&self) -> Vec<(String, u64)> {
        self.lane.enter(|state| {
            use polypath_telemetry::Counters as _;
            state.io.drops.iter().map(|(drop, count)| (drop.name.to_owned(), count)).collect()
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for qp in self.qps.drain(..) {
            qp.destroy().expect("destroyed once");
        }
        for cq in &self.cqs {
            cq.destroy().expect("nobody uses it");
        }
        self.srq.destroy().expect("nobody uses it");
        self.region.deregister().expect("no windows");
    }
}

/// The number of the peer's queue pair.
pub fn peer_qpn(at: usize) -> u32 {
    u32::from(SLOTS[1]) << 16 | (0x100 + u32::try_from(at).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use polypath_verbs::AsyncKind;
    use polypath_wire::ext::Deth;
    use polypath_wire::packet::Headers;
    use polypath_wire::{Bth, Opcode, Psn};

    use super::*;

    /// A message of four bytes in one packet.
    fn send_only(qpn: u32, psn: u32) -> Vec<u8> {
        let bth = Bth { dest_qpn: qpn, psn: Psn::new(psn), ..Bth::new(Opcode::RC_SEND_ONLY) };
        let mut bytes = vec![0; Headers::new(bth).len()];
        Headers::new(bth).emit(&mut bytes);
        bytes.extend(*b"data\0\0\0\0");
        bytes
    }

    fn dropped(rig: &Rig, why: &str) -> u64 {
        rig.drops().into_iter().find(|(name, _)| name == why).map_or(0, |(_, n)| n)
    }

    #[test]
    fn a_right_packet_goes_all_the_way_and_every_wrong_one_is_counted() {
        let mut rig = Rig::new();
        let (src, dst) = (ip(0, 1), ip(0, 0));
        let mut packet = send_only(rig.qpn(0), PSN);
        rig.datagram(src, dst, &mut packet, true);
        assert!(rig.poll() >= 1, "a completion");
        assert_eq!(rig.area()[8192 / 8].to_ne_bytes()[..4], *b"data");

        for (why, src, qpn, seal) in [
            ("icrc_wrong", src, rig.qpn(0), false),
            ("wrong_source", ip(0, 7), rig.qpn(0), true),
            ("wrong_source", src, rig.qpn(6), true),
            ("unknown_qp", src, 0x01_0000, true),
        ] {
            let before = dropped(&rig, why);
            let mut packet = send_only(qpn, PSN + 1);
            rig.datagram(src, dst, &mut packet, seal);
            assert_eq!(dropped(&rig, why), before + 1, "{why}");
            assert_eq!(rig.poll(), 0, "{why}");
        }
        let mut short = [1u8; 20];
        rig.datagram(src, dst, &mut short, true);
        assert_eq!(dropped(&rig, "malformed"), 1);
    }

    /// IBTA 14.2.5.6 (`PortInfo`): Q_KeyViolations, P_KeyViolations.
    #[test]
    fn packets_with_wrong_keys_are_counted_by_the_port() {
        let mut rig = Rig::new();
        let (src, dst) = (ip(0, 1), ip(0, 0));
        let counted = |rig: &Rig| {
            let port = rig.context().query_port(1).unwrap();
            (port.qkey_violations, port.bad_pkey)
        };
        assert_eq!(counted(&rig), (0, 0));
        let datagram = |qkey| Headers {
            deth: Some(Deth { qkey, src_qpn: 77 }),
            ..Headers::new(Bth::new(Opcode::UD_SEND_ONLY))
        };
        let send = |rig: &mut Rig, mut headers: Headers, at: usize| {
            headers.bth.dest_qpn = rig.qpn(at);
            let mut bytes = vec![0; headers.len()];
            headers.emit(&mut bytes);
            bytes.extend([0; 8]);
            rig.datagram(src, dst, &mut bytes, true);
        };
        for qkey in [QKEY, QKEY + 1, 0] {
            send(&mut rig, datagram(qkey), 3);
        }
        assert_eq!(counted(&rig), (2, 0));
        let bth = Bth { pkey: 0x1234, ..Bth::new(Opcode::RC_SEND_ONLY) };
        send(&mut rig, Headers::new(bth), 0);
        assert_eq!(counted(&rig), (2, 1));
        // The port counts them, not the context.
        let other = rig.another_context().query_port(1).unwrap();
        assert_eq!((other.qkey_violations, other.bad_pkey), (2, 1));
    }

    fn events(rig: &Rig) -> Vec<AsyncKind> {
        std::iter::from_fn(|| rig.context().take_async_event()).map(|event| event.kind).collect()
    }

    #[test]
    fn a_device_that_is_removed_is_a_fatal_error_told_once() {
        let rig = Rig::new();
        events(&rig);
        for context in engine().0.contexts() {
            context.table_changed(&table(), &Table::default(), &Selection::of(MP));
            context.table_changed(&Table::default(), &Table::default(), &Selection::of(MP));
        }
        assert_eq!(events(&rig), [AsyncKind::PortErr, AsyncKind::DeviceFatal]);
    }

    #[test]
    fn a_port_that_loses_one_of_its_links_changes_its_speed() {
        let rig = Rig::new();
        events(&rig);
        let both = table();
        let with = |up: [bool; 2]| {
            let mut table = both.clone();
            table.ports.iter_mut().zip(up).for_each(|(port, up)| port.link_up = up);
            table
        };
        let (one, none) = (with([true, false]), with([false, false]));
        for (old, new, expected) in [
            (&both, &one, &[AsyncKind::DeviceSpeedChange][..]),
            (&one, &with([false, true]), &[]),
            (&one, &none, &[AsyncKind::PortErr]),
            (&none, &both, &[AsyncKind::PortActive]),
            (&both, &both, &[]),
        ] {
            for context in engine().0.contexts() {
                context.table_changed(old, new, &Selection::of(MP));
            }
            assert_eq!(events(&rig), expected);
        }
    }

    /// `ibv_modify_qp` changes all attributes or none.
    #[test]
    fn a_queue_pair_that_finds_no_room_for_its_peer_stays_as_it_was() {
        let mut rig = Rig::new();
        let now = crate::clock::now();
        let (local, remote) = (ip(0, 0), |n: u32| IpAddr::from((10 << 24 | n).to_be_bytes()));
        let full = rig.lane.enter(|state| {
            (0..).find_map(|n| {
                let (paths, options) = (state.core.paths_mut(), PathOptions::default());
                paths.attach(now, 0x7f_0000 + n, 0x03_0001, local, remote(n), options).err()
            })
        });
        assert!(full.unwrap().to_string().contains("peers"));

        let mut attr = QpAttr::new(QpState::Rtr);
        attr.path_mtu = 1024;
        attr.dest_qpn = 0x04_0001;
        attr.min_rnr_timer = 12;
        attr.ah = Rig::way();
        let address = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let all = M::STATE | address | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let qp = rig.qps[6].clone();
        let before = qp.query().unwrap();
        assert_eq!(qp.modify(&attr, all).unwrap_err().errno, libc::ENOMEM);
        assert_eq!(qp.query().unwrap(), before);
        assert_eq!(before.state, QpState::Init);

        // A queue pair that is connected keeps its peer.
        let qp = rig.qps[0].clone();
        attr.state = QpState::Sqd;
        qp.modify(&attr, M::STATE).unwrap();
        let IpAddr::V4(other) = ip(0, 7) else { unreachable!("documentation addresses are IPv4") };
        attr.ah.dgid = other.to_ipv6_mapped().octets();
        assert_eq!(qp.modify(&attr, M::STATE | M::AV).unwrap_err().errno, libc::ENOMEM);
        assert_eq!(qp.query().unwrap().ah, Rig::way());
        let mut packet = send_only(rig.qpn(0), PSN);
        rig.datagram(ip(0, 1), ip(0, 0), &mut packet, true);
        assert!(rig.poll() >= 1, "a completion of what the peer sent");
    }

    #[test]
    fn the_path_managers_agree_on_multi_path() {
        let mut rig = Rig::new();
        for _ in 0..8 {
            rig.talk(&mut |_| true);
            rig.pass(Duration::ZERO);
        }
        assert!(rig.multipath() >= 3, "{} agreed", rig.multipath());
    }
}
