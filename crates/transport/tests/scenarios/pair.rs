//! Two queue pairs joined by simulated paths, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use polypath_transport::*;
use polypath_wire::packet::Packet;

use crate::host::{MEMORY, PD, SimHost};

pub const US: Duration = Duration::from_micros(1);
pub const MS: Duration = Duration::from_millis(1);

/// The key of all of a host's memory, for every access.
pub const ALL: u32 = 0x1234;
/// The same for data that may go there in any order.
pub const RELAXED: u32 = 0x1235;

/// Deterministic randomness (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// How a path treats packets.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub delay: Duration,
    pub jitter: Duration,
    /// Packets per thousand.
    pub loss: u32,
    pub duplicate: u32,
    /// Towards host 0, towards host 1: whether it silently drops everything.
    pub cut: [bool; 2],
    /// Bytes per microsecond; 0: unlimited.
    pub rate: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: 20 * US,
            jitter: Duration::ZERO,
            loss: 0,
            duplicate: 0,
            cut: [false; 2],
            rate: 0,
        }
    }
}

pub struct Node {
    pub qp: QueuePair,
    pub host: SimHost,
}

/// A packet seen by a filter: its direction and its bytes.
type Filter = Box<dyn FnMut(usize, &Packet<'_>) -> bool>;

pub struct Pair {
    pub now: Duration,
    pub nodes: [Node; 2],
    pub links: Vec<Link>,
    pub rng: Rng,
    /// Decides whether a packet to host `.0` is delivered.
    pub filter: Option<Filter>,
    /// Until when each link is busy with packets sent towards host 0 and towards host 1.
    busy: Vec<[Duration; 2]>,
    wire: BinaryHeap<Reverse<(Duration, u64, usize, u32)>>,
    packets: Vec<Vec<u8>>,
    spare: Vec<usize>,
    order: u64,
    pub delivered: u64,
    /// Whether to print what is delivered (`POLYPATH_TRACE=1`).
    trace: bool,
    /// The GRH that datagrams arrive with.
    pub grh: [u8; 40],
    /// Until when each host does not run. What comes before is read then, all at once.
    pub asleep_until: [Duration; 2],
}

/// The settings that the two queue pairs are made with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// `XrcSend`: the initiator is side 0, and its target side 1.
    pub qp_type: QpType,
    pub mtu: u32,
    pub psn: [u32; 2],
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub access: Access,
    pub sq_sig_all: bool,
    pub srq: bool,
    pub max_send_wr: u32,
    pub paths: usize,
    pub multipath: bool,
    /// The reach that both announce.
    pub reach: u32,
    /// Whether both join the parts of READs.
    pub joins_reads: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: 1024,
            psn: [0x00_0100, 0xab_cdef],
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            access: Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL,
            sq_sig_all: false,
            srq: false,
            max_send_wr: 64,
            paths: 1,
            multipath: false,
            reach: 0,
            joins_reads: false,
        }
    }
}

pub const QPN: [u32; 2] = [0x11_0001, 0x22_0002];

impl Setup {
    fn config(&self, side: usize) -> QpConfig {
        QpConfig {
            qpn: QPN[side],
            qp_type: match (self.qp_type, side) {
                (QpType::XrcSend, 1) => QpType::XrcRecv,
                (qp_type, _) => qp_type,
            },
            pd: if self.qp_type.is_xrc() && side == 1 { 0 } else { PD },
            sq_sig_all: self.sq_sig_all,
            srq: self.srq,
            max_send_wr: self.max_send_wr,
            max_recv_wr: 64,
            max_send_sge: 8,
            max_recv_sge: 8,
            max_inline: 256,
        }
    }

    pub fn attr(&self, side: usize) -> QpAttr {
        let mut a = QpAttr::new(QpState::Reset);
        a.path_mtu = self.mtu;
        a.sq_psn = self.psn[side];
        a.rq_psn = self.psn[1 - side];
        a.dest_qpn = QPN[1 - side];
        a.access = self.access;
        a.ah.is_global = true;
        a.port_num = 1;
        a.qkey = 0x11111111;
        a.max_rd_atomic = self.max_rd_atomic;
        a.max_dest_rd_atomic = self.max_dest_rd_atomic;
        a.timeout = self.timeout;
        a.retry_cnt = self.retry_cnt;
        a.rnr_retry = self.rnr_retry;
        a.min_rnr_timer = self.min_rnr_timer;
        a
    }
}

/// The attributes that a change to `state` takes.
pub fn mask(qp_type: QpType, state: QpState) -> QpAttrMask {
    use QpAttrMask as M;
    let m = match (state, qp_type) {
        (QpState::Init, QpType::Ud) => M::PKEY_INDEX | M::PORT | M::QKEY,
        (QpState::Init, _) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        (QpState::Rtr, QpType::Ud) => M::empty(),
        (QpState::Rtr, QpType::Uc) => M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
        (QpState::Rtr, QpType::Rc | QpType::XrcSend | QpType::XrcRecv) => {
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
        }
        (QpState::Rts, QpType::Rc | QpType::XrcSend | QpType::XrcRecv) => {
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC
        }
        (QpState::Rts, _) => M::SQ_PSN,
        _ => M::empty(),
    };
    m | M::STATE
}

impl Node {
    fn new(setup: &Setup, side: usize) -> Self {
        let mut host = SimHost::new(setup.paths);
        host.tagged = setup.multipath;
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        host.register(ALL, 0, MEMORY as u64, all);
        host.register(RELAXED, 0, MEMORY as u64, all | Access::RELAXED_ORDERING);
        Self { qp: QueuePair::new(setup.config(side)), host }
    }

    pub fn modify(&mut self, attr: &QpAttr, state: QpState) -> Result<(), ModifyError> {
        let attr = QpAttr { state, ..*attr };
        let mask = mask(self.qp.config().qp_type, state);
        self.qp.modify(&attr, mask, &mut self.host)
    }

    pub fn recv(&mut self, wr_id: u64, addr: u64, len: u32) {
        let wr = RecvWr { wr_id, sges: Sges::from_slice(&[sge(addr, len)]) };
        self.qp.post_recv(wr).unwrap();
    }

    /// Posts a signaled send.
    pub fn post(&mut self, wr_id: u64, op: SendOp, addr: u64, len: u32) {
        self.post_with(wr_id, op, SendFlags::SIGNALED, addr, len);
    }

    pub fn post_with(&mut self, wr_id: u64, op: SendOp, flags: SendFlags, addr: u64, len: u32) {
        let sges = [sge(addr, len)];
        let data = SendData::Sges(if len == 0 { &[] } else { &sges });
        self.qp.post_send(&SendWr { wr_id, op, flags, data, ud: None }).unwrap();
    }

    pub fn write_memory(&mut self, at: usize, data: &[u8]) {
        self.host.memory[at..at + data.len()].copy_from_slice(data);
    }

    pub fn memory(&self, at: usize, len: usize) -> &[u8] {
        &self.host.memory[at..at + len]
    }

    pub fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.memory(at, 8).try_into().unwrap())
    }
}

pub fn sge(addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey: ALL }
}

/// Bytes that are different everywhere.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

impl Pair {
    /// Two connected queue pairs in RTS.
    pub fn new(setup: Setup) -> Self {
        let mut pair = Self::unconnected(setup);
        for side in 0..2 {
            let attr = setup.attr(side);
            let node = &mut pair.nodes[side];
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                node.modify(&attr, state).unwrap();
                if state == QpState::Rtr {
                    node.qp.set_peer(PeerId(1 - side as u32));
                    node.qp.set_multipath(setup.multipath);
                    let (reach, joins_reads) = (setup.reach, setup.joins_reads);
                    node.qp.set_peer_abilities(PeerAbilities {
                        reach,
                        joins_reads,
                        ..PeerAbilities::default()
                    });
                }
            }
        }
        pair
    }

    pub fn unconnected(setup: Setup) -> Self {
        Self {
            now: Duration::from_secs(1000),
            nodes: [Node::new(&setup, 0), Node::new(&setup, 1)],
            links: vec![Link::default(); setup.paths],
            rng: Rng(7),
            filter: None,
            busy: vec![[Duration::ZERO; 2]; setup.paths],
            wire: BinaryHeap::new(),
            packets: Vec::new(),
            spare: Vec::new(),
            order: 0,
            delivered: 0,
            trace: std::env::var_os("POLYPATH_TRACE").is_some(),
            grh: [0xee; 40],
            asleep_until: [Duration::ZERO; 2],
        }
    }

    /// Puts on the wire what the hosts sent.
    fn collect(&mut self, from: usize) {
        let to = 1 - from;
        for (path, bytes) in std::mem::take(&mut self.nodes[from].host.out) {
            let link = self.links[path.0 as usize];
            let copies = 1 + u32::from(self.rng.chance(link.duplicate));
            for _ in 0..copies {
                if link.cut[to] || self.rng.chance(link.loss) {
                    continue;
                }
                let jitter = link.jitter.mul_f64(self.rng.below(1000) as f64 / 1000.0);
                self.order += 1;
                let at = self.spare.pop().unwrap_or_else(|| {
                    self.packets.push(Vec::new());
                    self.packets.len() - 1
                });
                let busy = &mut self.busy[path.0 as usize][to];
                *busy = self.now.max(*busy);
                if link.rate > 0 {
                    *busy += Duration::from_nanos(bytes.len() as u64 * 1000 / u64::from(link.rate));
                }
                let sent = *busy;
                self.packets[at] = bytes.clone();
                let key = (at << 1) | to;
                let at = (sent + link.delay + jitter).max(self.asleep_until[to]);
                self.wire.push(Reverse((at, self.order, key, path.0)));
            }
        }
    }

    /// Lets both hosts do everything they can do now.
    pub fn pump(&mut self) {
        for side in 0..2 {
            for _ in 0..1000 {
                let node = &mut self.nodes[side];
                if !node.qp.wants_transmit() {
                    break;
                }
                let state = node.qp.poll_transmit(self.now, &mut node.host);
                // A queue pair that wants to send and then sends nothing would keep a processor busy.
                let idle = state == TransmitState::Idle;
                assert!(!(idle && node.qp.wants_transmit()), "idle, but wants to send");
                if state != TransmitState::More {
                    break;
                }
            }
            let node = &mut self.nodes[side];
            if node.qp.acks_due() {
                node.qp.flush_acks(&mut node.host);
            }
            self.collect(side);
        }
    }

    /// Takes the next packet off the wire. Returns the host it is for, and its bytes.
    pub fn take_packet(&mut self) -> (usize, Vec<u8>) {
        let Reverse((_, _, key, _)) = self.wire.pop().expect("a packet is on the wire");
        self.spare.push(key >> 1);
        (key & 1, std::mem::take(&mut self.packets[key >> 1]))
    }

    /// The time of the next thing to happen.
    pub fn next_event(&self) -> Option<Duration> {
        let wire = self.wire.peek().map(|Reverse((t, ..))| *t);
        let timers = self.nodes.iter().filter_map(|n| n.qp.next_deadline());
        timers.chain(wire).min()
    }

    fn deliver(&mut self, key: usize, path: u32) {
        let (at, to) = (key >> 1, key & 1);
        let bytes = std::mem::take(&mut self.packets[at]);
        self.spare.push(at);
        if self.links[path as usize].cut[to] {
            return; // The path was cut while the packet was on its way.
        }
        let packet = Packet::parse(&bytes).expect("what we send can be parsed");
        if let Some(filter) = &mut self.filter
            && !filter(to, &packet)
        {
            return;
        }
        self.delivered += 1;
        if self.trace {
            let (t, len) = (self.now.as_micros() % 1_000_000_000, packet.payload.len());
            println!("{t:9} path {path} to {to}: {} +{len}", packet.headers);
        }
        let node = &mut self.nodes[to];
        let grh = self.grh;
        let Some(ways) = node.host.apm else {
            node.qp.handle_packet(self.now, &packet, PathId(path), Some(&grh), &mut node.host);
            return;
        };
        let [primary, alternate] = ways.map(|way| way == path as usize);
        if primary || alternate {
            let came = (PathId(path), CameBy { primary, alternate, ..CameBy::PRIMARY });
            node.qp.handle_packet_by(self.now, &packet, came, None, &mut node.host);
        }
    }

    /// Runs for some time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.run_to_rest(time);
        self.now = end;
    }

    /// Runs until nothing happens any more, or for `most`. Returns whether it came to rest.
    pub fn run_to_rest(&mut self, most: Duration) -> bool {
        let end = self.now + most;
        loop {
            self.pump();
            let Some(next) = self.next_event() else { return true };
            if next > end {
                self.now = end;
                return false;
            }
            self.now = self.now.max(next);
            // Everything that arrives at the same moment is one batch, acknowledged once.
            while let Some(Reverse((t, _, key, path))) = self.wire.peek().copied() {
                if t > self.now {
                    break;
                }
                self.wire.pop();
                self.deliver(key, path);
            }
            for node in &mut self.nodes {
                if node.qp.next_deadline().is_some_and(|d| d <= self.now) {
                    node.qp.handle_timeout(self.now, &mut node.host);
                }
            }
        }
    }

    /// Runs until nothing happens any more; panics if that takes a minute of virtual time.
    pub fn run(&mut self) {
        assert!(
            self.run_to_rest(Duration::from_secs(60)),
            "not at rest: {:?} {:?}",
            self.nodes[0].host.explanations,
            self.nodes[1].host.explanations
        );
    }

    /// Tells both hosts that `path` is dead or alive again and which one is active now.
    pub fn set_path(&mut self, side: usize, path: usize, alive: bool) {
        let node = &mut self.nodes[side];
        let end = &mut node.host.paths[path];
        if end.alive == alive {
            return;
        }
        end.alive = alive;
        if alive {
            end.generation += 1;
        }
        node.host.active = (0..node.host.paths.len()).find(|p| node.host.paths[*p].alive);
        let dead = (!alive).then_some(PathId(path as u32));
        node.qp.on_path_change(self.now, dead, &mut node.host);
    }

    /// Tells a host that a path that it uses is dead, which is not the active one.
    pub fn lose_path(&mut self, side: usize, path: usize) {
        let node = &mut self.nodes[side];
        node.host.paths[path].alive = false;
        assert_ne!(node.host.active, Some(path));
        node.qp.on_path_dead(self.now, PathId(path as u32), &mut node.host);
    }

    /// Tells a host that the peer answers again on `path`.
    pub fn path_heard(&mut self, side: usize, path: usize) {
        let node = &mut self.nodes[side];
        node.qp.on_path_heard(self.now, PathId(path as u32), &mut node.host);
    }

    pub fn assert_settled(&self) {
        for node in &self.nodes {
            node.host.assert_settled();
        }
    }
}
