//! One end of the checker: memory for a counter and a result, two paths, and the queue pair that ships.
//!
//! Everything in it can be copied, and all of it shows in its `Debug` text, which tells states apart.

use core::fmt::Write as _;
use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::hash_map::DefaultHasher;

use polypath_transport::{
    Access, AhAttr, AtomicOp, Burst, CameBy, Completion, CqSide, EarlyRoom, Explanation, Fault,
    FlatMemory, FlatSegment, FlushScope, Host, Memory, MigState, MigrationNews, Observer, PathId,
    PathTag, Paths, PeerId, QpAttr, QpAttrMask as M, QpConfig, QpEvent, QpState, QpType, QueuePair,
    Queues, RecvWr, RemoteAccess, RemoteKey, Route, SendData, SendFlags, SendOp, SendWr, Sge,
    TransmitState, Unread,
};
use polypath_wire::ICRC_LEN;
use polypath_wire::packet::Packet;

/// The key of all of an end's memory, local and remote.
const KEY: u32 = 0x1234_5678;
const PD: u32 = 1;
/// The counter that the peer adds to, and the place for the values that come back.
const COUNTER: u64 = 0;
const RESULT: u64 = 8;
const QPN: [u32; 2] = [0x11_0001, 0x22_0002];
const PSN: [u32; 2] = [0x100, 0xab_cdef];
/// An ACK timeout of 0.27 s with seven retries: longer than anything that happens here.
const TIMEOUT: u8 = 16;

/// A packet on its way: the end that it is for, the path, its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Flying {
    pub(crate) to: usize,
    pub(crate) path: usize,
    pub(crate) bytes: Vec<u8>,
    /// It was held back, and may arrive after others.
    pub(crate) late: bool,
}

/// What of an end its queue pair sees. Path `n` is that to the peer `PeerId(n)`.
#[derive(Clone, Debug)]
pub(crate) struct Io {
    memory: Vec<u8>,
    out: Vec<(usize, Vec<u8>)>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) atomics: u64,
    pub(crate) said: Vec<String>,
    /// The primary and the alternate path.
    pub(crate) paths: [usize; 2],
}

impl Io {
    fn flat(&mut self) -> FlatMemory<'_> {
        FlatMemory { bytes: &mut self.memory, key: KEY, atomics: &mut self.atomics }
    }
}

impl Memory for Io {
    type Segment = FlatSegment;

    fn resolve(&mut self, pd: u32, sge: Sge, rights: Access) -> Result<FlatSegment, Fault> {
        self.flat().resolve(pd, sge, rights)
    }

    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<FlatSegment, Fault> {
        self.flat().resolve_remote(access)
    }

    fn store(&mut self, segment: FlatSegment, data: &[u8]) -> Result<(), Fault> {
        self.flat().store(segment, data)
    }

    fn load(&mut self, segment: FlatSegment, out: &mut [u8]) -> Result<(), Fault> {
        self.flat().load(segment, out)
    }

    fn atomic(&mut self, segment: FlatSegment, op: AtomicOp) -> Result<u64, Fault> {
        self.flat().atomic(segment, op)
    }

    fn atomic_write(&mut self, segment: FlatSegment, value: u64) -> Result<(), Fault> {
        self.flat().atomic_write(segment, value)
    }

    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault> {
        self.flat().flush(key, scope, rights)
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault> {
        self.flat().invalidate(key)
    }

    fn bind_mw(&mut self, mw: u32, key: RemoteKey) -> Result<(), Fault> {
        self.flat().bind_mw(mw, key)
    }
}

impl EarlyRoom for Io {
    fn reserve(&mut self, _bytes: u32) -> bool {
        false
    }

    fn release(&mut self, _bytes: u32) {}
}

impl Queues for Io {
    fn take_srq(&mut self) -> Option<RecvWr> {
        None
    }

    fn complete(&mut self, _side: CqSide, completion: Completion) {
        self.completions.push(completion);
    }
}

impl Observer for Io {
    fn event(&mut self, _event: QpEvent) {}

    fn migration(&mut self, news: MigrationNews) {
        if let MigrationNews::Migrated(_) = news {
            self.paths[0] = self.paths[1];
        }
    }

    fn explain(&mut self, explanation: Explanation) {
        self.said.push(explanation.to_string());
    }
}

impl Paths for Io {
    fn route(&self, peer: PeerId) -> Option<Route> {
        let path = PathId(peer.0);
        let (window, quantum) = (1 << 16, u32::MAX);
        Some(Route { path, tag: None, window, rtt: None, quantum, twin: None })
    }

    fn tag(&self, _path: PathId) -> Option<PathTag> {
        None
    }

    fn sent(&mut self, _path: PathId, _bytes: u32) {}
    fn acked(&mut self, _path: PathId, _bytes: u32, _rtt: Option<Duration>) {}
    fn lost(&mut self, _path: PathId, _bytes: u32, _congestion: bool) {}
    fn suspect(&mut self, _path: PathId, _since: Duration) {}
}

impl Host for Io {
    fn transmit(&mut self, burst: &Burst<'_, FlatSegment>) -> Result<(), Unread> {
        let payload = burst.copy_payload(&mut self.flat()).expect("all memory is there");
        for i in 0..burst.packets {
            let range = burst.range(i);
            let data = &payload[range.start as usize..range.end as usize];
            let mut bytes = burst.headers(i).packet(data);
            bytes.resize(bytes.len() + ICRC_LEN, 0);
            self.out.push((burst.path.0 as usize, bytes));
        }
        Ok(())
    }
}

/// One end.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) now: Duration,
    pub(crate) qp: QueuePair,
    pub(crate) io: Io,
    pub(crate) posted: u64,
}

impl Node {
    /// Connected by path 0.
    pub(crate) fn new(side: usize) -> Self {
        let config = QpConfig {
            qpn: QPN[side],
            qp_type: QpType::Rc,
            pd: PD,
            sq_sig_all: true,
            srq: false,
            max_send_wr: 8,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let io = Io {
            memory: vec![0; 16],
            out: Vec::new(),
            completions: Vec::new(),
            atomics: 0,
            said: Vec::new(),
            paths: [0, 0],
        };
        let mut node =
            Self { now: Duration::from_secs(1), qp: QueuePair::new(config), io, posted: 0 };
        let mut a = QpAttr::new(QpState::Init);
        (a.path_mtu, a.dest_qpn, a.port_num) = (1024, QPN[1 - side], 1);
        (a.sq_psn, a.rq_psn) = (PSN[side], PSN[1 - side]);
        (a.access, a.ah.is_global) = (Access::REMOTE_ATOMIC | Access::REMOTE_WRITE, true);
        (a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer) = (4, 4, 1);
        (a.timeout, a.retry_cnt, a.rnr_retry) = (TIMEOUT, 7, 7);
        let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let address = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = M::STATE | address | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY;
        let rts = M::STATE | retries | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            a.state = state;
            node.qp.modify(&a, mask, &mut node.io).expect("a legal change");
            if state == QpState::Rtr {
                node.qp.set_peer(PeerId(0));
            }
        }
        node
    }

    /// The migration state.
    pub(crate) fn state(&self) -> MigState {
        self.qp.migration().state
    }

    /// Adds one to the peer's counter.
    pub(crate) fn add(&mut self) {
        let sge = [Sge { addr: RESULT, len: 8, lkey: KEY }];
        let op = SendOp::FetchAdd { va: COUNTER, rkey: KEY, add: 1 };
        let data = SendData::Sges(&sge);
        let wr = SendWr { wr_id: self.posted, op, flags: SendFlags::SIGNALED, data, ud: None };
        self.qp.post_send(&wr).expect("room");
        self.posted += 1;
    }

    fn attr(&self, state: MigState) -> QpAttr {
        let mut attr = QpAttr::new(QpState::Rts);
        attr.alt_ah = AhAttr { is_global: true, port_num: 1, ..AhAttr::default() };
        (attr.alt_port_num, attr.alt_timeout) = (1, TIMEOUT);
        attr.path_mig_state = state;
        attr
    }

    /// Loads the path that is not in use, and asks for REARM.
    pub(crate) fn load(&mut self) {
        let path = 1 - self.io.paths[0];
        let attr = self.attr(MigState::Rearm);
        self.qp.modify(&attr, M::ALT_PATH | M::PATH_MIG_STATE, &mut self.io).expect("a legal wish");
        self.io.paths[1] = path;
        self.qp.set_alternate(Some(PeerId(path as u32)), &mut self.io);
    }

    /// Migrates as the program wants it.
    pub(crate) fn migrate(&mut self) {
        let attr = self.attr(MigState::Migrated);
        self.qp.modify(&attr, M::PATH_MIG_STATE, &mut self.io).expect("a legal wish");
    }

    /// Takes a packet.
    pub(crate) fn take(&mut self, path: usize, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("what we send can be parsed");
        let [primary, alternate] = self.io.paths.map(|own| own == path);
        let alternate = alternate && self.qp.alternate().is_some();
        if primary || alternate {
            let came = (PathId(path as u32), CameBy { primary, alternate, ..CameBy::PRIMARY });
            self.qp.handle_packet_by(self.now, &packet, came, None, &mut self.io);
        }
    }

    /// Does all that can be done now. Returns what is sent, by path.
    pub(crate) fn run(&mut self) -> Vec<(usize, Vec<u8>)> {
        while self.qp.wants_transmit() {
            if self.qp.poll_transmit(self.now, &mut self.io) != TransmitState::More {
                break;
            }
        }
        if self.qp.acks_due() {
            self.qp.flush_acks(&mut self.io);
        }
        core::mem::take(&mut self.io.out)
    }

    /// Its earliest timer fires.
    pub(crate) fn tick(&mut self) {
        if let Some(at) = self.qp.next_deadline() {
            self.now = self.now.max(at);
            self.qp.handle_timeout(self.now, &mut self.io);
        }
    }

    /// No two ends that differ in anything have one digest.
    pub(crate) fn digest(&self) -> u64 {
        struct Digest(DefaultHasher);
        impl core::fmt::Write for Digest {
            fn write_str(&mut self, s: &str) -> core::fmt::Result {
                s.hash(&mut self.0);
                Ok(())
            }
        }
        let mut digest = Digest(DefaultHasher::new());
        let _ = write!(digest, "{self:?}");
        digest.0.finish()
    }
}
