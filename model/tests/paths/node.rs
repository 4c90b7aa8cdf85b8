//! One host as the checker sees it: the simulator's host, a digest of all its state, and what it owes.

use core::fmt::Write as _;
use core::hash::Hasher;
use core::time::Duration;
use std::collections::hash_map::DefaultHasher;

use polypath_paths::{Config, PathEvent, PathId, PathState};
use polypath_transport::{
    Access, AhAttr, CqSide, QpAttr, QpAttrMask as M, QpConfig, QpState, QpType, QueuePair, RecvWr,
    SendData, SendFlags, SendOp, SendWr, Sge, WcStatus,
};

use crate::host::{Datagram, Host, KEY, PD, address};

/// Links between the hosts, each with an address on both.
pub(crate) const LINKS: usize = 2;
/// Queue pairs of the two hosts.
pub(crate) const QPN: [u32; 2] = [0x01_0011, 0x02_0022];
/// First PSNs: one of them wraps within a few packets.
const PSN: [u32; 2] = [7, 0xff_fffe];
/// Bytes of each host's memory: counter, landing, source, two receive buffers.
const MEMORY: usize = 64;
const COUNTER: u64 = 0;
const LANDING: u64 = 8;
const SOURCE: u64 = 24;
const RECEIVES: u64 = 32;
const MESSAGE: u32 = 8;
/// What the path manager's table numbers at most in these small worlds.
const PATHS_MAX: u32 = 24;

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    Fence,
    Once,
}

/// A broken promise, in words.
pub(crate) type Broken = (Rule, String);

/// What a host is to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    FetchAdd,
    Send,
    WriteImm,
}

/// What became of a path during one step of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    GivenUp { link: usize },
    Alive { link: usize },
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) host: Host,
    number: usize,
    posted: Vec<Request>,
    /// The links of the paths in the table.
    links: [Option<u8>; PATHS_MAX as usize],
    digest: u64,
    sealed: bool,
}

struct Digest(DefaultHasher);

impl core::fmt::Write for Digest {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.0.write(s.as_bytes());
        Ok(())
    }
}

impl Node {
    /// A host whose queue pair is ready; the handshake waits to be sent.
    pub(crate) fn new(number: usize) -> Self {
        let instance = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888][number];
        // A path proves itself in a few rounds of probes, so that proof is a short step.
        let config = Config { updelay: Duration::from_millis(30), ..Config::default() };
        let mut host = Host::new(number, LINKS, config, instance, MEMORY);
        host.begin(Duration::from_millis(1));
        connect(number, &mut host);
        for id in 0..2 {
            let sge = Sge { addr: RECEIVES + id * 8, len: MESSAGE, lkey: KEY };
            let receive = RecvWr { wr_id: id, sges: [sge].as_slice().into() };
            host.with(QPN[number], |visit| visit.qp.post_recv(receive)).expect("room");
        }
        host.io.memory[SOURCE as usize..][..8].copy_from_slice(&[0xa0 + number as u8; 8]);
        Self {
            host,
            number,
            posted: Vec::new(),
            links: [None; PATHS_MAX as usize],
            digest: 0,
            sealed: false,
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Nothing has happened to it since [`Node::seal`].
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// To be called when a step is complete: no two hosts that differ in anything have one digest.
    pub(crate) fn seal(&mut self) {
        let mut digest = Digest(DefaultHasher::new());
        let _ = write!(digest, "{:?}{:?}", self.host, self.posted);
        self.digest = digest.0.finish();
        self.sealed = true;
    }

    /// Posts a request.
    pub(crate) fn post(&mut self, request: Request) {
        let (at, len, op) = match request {
            Request::FetchAdd => (LANDING, 8, SendOp::FetchAdd { va: COUNTER, rkey: KEY, add: 1 }),
            Request::Send => (SOURCE, MESSAGE, SendOp::Send),
            Request::WriteImm => {
                (SOURCE, MESSAGE, SendOp::WriteImm { va: LANDING + 8, rkey: KEY, imm: *b"once" })
            }
        };
        let sge = [Sge { addr: at, len, lkey: KEY }];
        let wr = SendWr {
            wr_id: self.posted.len() as u64,
            op,
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sge),
            ud: None,
        };
        self.host.with(QPN[self.number], |visit| visit.qp.post_send(&wr)).expect("room");
        self.posted.push(request);
        self.sealed = false;
    }

    /// One round of the lane at `now`; gives what became of its paths.
    pub(crate) fn run(&mut self, now: Duration) -> Vec<Turn> {
        self.learn_links();
        self.host.run(now);
        self.turns()
    }

    /// Tells the path manager which links and addresses there are.
    pub(crate) fn tell(&mut self, gone: [bool; LINKS]) -> Vec<Turn> {
        self.learn_links();
        let there = self.host.local.iter().enumerate().filter(|(l, _)| !gone[*l]).map(|(_, a)| *a);
        let there: Vec<_> = there.collect();
        let now = self.host.io.now;
        self.host.lane.set_local(&there);
        self.host.run(now);
        self.turns()
    }

    fn learn_links(&mut self) {
        for id in 0..PATHS_MAX {
            let path = self.host.lane.paths().path(PathId(id));
            if let Some(link) = path.and_then(|a| link_of(a.local, a.remote, self.number)) {
                self.links[id as usize] = Some(link as u8);
            }
        }
    }

    fn turns(&mut self) -> Vec<Turn> {
        self.sealed = false;
        self.learn_links();
        let events = core::mem::take(&mut self.host.io.path_events);
        let link = |p: PathId| self.links.get(p.0 as usize).copied().flatten().map(usize::from);
        let turn = |e: &PathEvent| match e {
            PathEvent::PathDead { path, .. } => link(*path).map(|link| Turn::GivenUp { link }),
            // Out of the set, it is the peer's own path of last resort: nothing is sent there.
            PathEvent::PathAlive { path } if self.host.lane.paths().tag(*path).is_some() => {
                link(*path).map(|link| Turn::Alive { link })
            }
            _ => None,
        };
        events.iter().filter_map(|(_, e)| turn(e)).collect()
    }

    /// When its earliest timer is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        Some(self.host.deadline()?.max(self.host.io.now))
    }

    /// Packets that were dropped unseen: of unknown or fenced paths, or not for any queue pair.
    pub(crate) fn refused(&self) -> u64 {
        let fenced = |qp: &QueuePair| qp.counters().dropped_generation;
        self.host.refused + self.host.qps().map(fenced).sum::<u64>()
    }

    /// Its queue pair has sent something again.
    pub(crate) fn has_retransmitted(&self) -> bool {
        self.host.qps().any(|qp| qp.counters().retransmitted_packets > 0)
    }

    /// Judges what this host has seen so far; `peer` is the other one.
    pub(crate) fn check(&self, peer: &Self) -> Result<(), Broken> {
        let fail = |what: String| Err((Rule::Once, format!("host {}: {what}", self.number)));
        let io = &self.host.io;
        let (mut sent, mut received) = (0, 0);
        for (side, c) in &io.completions {
            let next = if *side == CqSide::Send { &mut sent } else { &mut received };
            if c.status != WcStatus::Success || c.wr_id != *next {
                return fail(format!("{side:?} {} ended as {:?}", c.wr_id, c.status));
            }
            *next += 1;
        }
        let consuming = peer.posted.iter().filter(|r| **r != Request::FetchAdd).count() as u64;
        let atomics = peer.posted.iter().filter(|r| **r == Request::FetchAdd).count() as u64;
        if sent > self.posted.len() as u64 || received > consuming {
            return fail(format!("{sent} requests completed, {received} messages received"));
        }
        let counter = &io.memory[COUNTER as usize..][..8];
        if io.atomics > atomics || counter != io.atomics.to_ne_bytes() {
            return fail(format!("{} atomics executed of {atomics}", io.atomics));
        }
        Ok(())
    }

    /// What is still to be done here, or nothing.
    pub(crate) fn unfinished(&self, peer: &Self) -> Option<String> {
        let io = &self.host.io;
        let count = |side| io.completions.iter().filter(|(s, _)| *s == side).count();
        let consuming = peer.posted.iter().filter(|r| **r != Request::FetchAdd).count();
        let (sent, received) = (count(CqSide::Send), count(CqSide::Recv));
        if sent < self.posted.len() || received < consuming || io.charged != 0 {
            return Some(format!(
                "host {}: {sent} of {} requests completed, {received} of {consuming} messages \
                 received, {} bytes charged",
                self.number,
                self.posted.len(),
                io.charged
            ));
        }
        None
    }

    /// Number, generation and state of the path on a link.
    pub(crate) fn path_on(&self, link: usize) -> Option<(u8, u16, PathState)> {
        let status = self.host.lane.paths().status();
        let mut paths = status.peers.first()?.paths.iter();
        let path = paths
            .find(|p| link_of(p.address.local, p.address.remote, self.number) == Some(link))?;
        Some((path.tag?.id, path.tag?.generation, path.state))
    }

    /// The generation that it accepts of a path number.
    pub(crate) fn generation(&self, id: u8) -> Option<u16> {
        let status = self.host.lane.paths().status();
        let tags = status.peers.first()?.paths.iter().filter_map(|p| p.tag);
        tags.filter(|t| t.id == id).map(|t| t.generation).next()
    }

    /// Its queue pair may send multi-path packets.
    pub(crate) fn agreed(&self) -> bool {
        self.host.qps().all(QueuePair::is_multipath)
    }

    /// Takes what is to be sent, by link; what has no carrier or joins no two addresses is lost.
    pub(crate) fn take_out(&mut self) -> Vec<(usize, Vec<u8>)> {
        let out = core::mem::take(&mut self.host.io.out);
        let sent = |d: Datagram| Some((link_of(d.src, d.dst, self.number)?, d.bytes));
        out.into_iter()
            .filter_map(sent)
            .filter(|(link, _)| self.host.local[*link].link_up)
            .collect()
    }
}

fn link_of(local: core::net::IpAddr, remote: core::net::IpAddr, host: usize) -> Option<usize> {
    (0..LINKS).find(|l| (address(*l, host), address(*l, 1 - host)) == (local, remote))
}

/// Adds the queue pair, and takes it to RTS.
fn connect(number: usize, host: &mut Host) {
    let qp = QueuePair::new(QpConfig {
        qpn: QPN[number],
        qp_type: QpType::Rc,
        pd: PD,
        sq_sig_all: false,
        srq: false,
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    });
    host.lane.insert(qp, QPN[number]);
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let attr = QpAttr {
        access: remote | Access::LOCAL_WRITE,
        port_num: 1,
        ah: AhAttr { is_global: true, port_num: 1, ..AhAttr::default() },
        path_mtu: 256,
        dest_qpn: QPN[1 - number],
        rq_psn: PSN[1 - number],
        sq_psn: PSN[number],
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 8,
        // The timers of the path manager are what is to be seen, not the ACK timeout.
        timeout: 19,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::new(QpState::Init)
    };
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC;
    let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    for (state, mask) in
        [(QpState::Init, init), (QpState::Rtr, rtr | M::MIN_RNR_TIMER), (QpState::Rts, rts)]
    {
        if state == QpState::Rtr {
            host.attach(QPN[number], QPN[1 - number], 0, number);
        }
        let done = host.with(QPN[number], |visit| {
            let attr = QpAttr { state, cur_state: visit.qp.state(), ..attr };
            visit.qp.modify(&attr, mask | M::STATE, &mut visit.host)
        });
        done.expect("legal transitions");
    }
}
