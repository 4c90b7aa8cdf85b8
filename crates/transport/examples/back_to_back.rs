//! Measures how many packets per second one core's requester and responder handle, back to back: no
//! sockets, no ICRC, headers as values. What remains is the queue pairs' own work and one copy of
//! the payload.
//!
//! `cargo run --release -p polypath-transport --example back_to_back`

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polypath_transport::*;
use polypath_wire::packet::{Headers, Packet};

const MEMORY: usize = 2 << 20;
const KEY: u32 = 1;

/// A packet on its way: its headers, and where its payload lies in the sender's memory or `inline`.
struct Flying {
    headers: Headers,
    at: usize,
    len: usize,
    inline: bool,
}

struct BenchHost {
    memory: Vec<u8>,
    inline: Vec<u8>,
    out: VecDeque<Flying>,
    outstanding: u32,
    tag: Option<PathTag>,
    sends: u64,
    receives: u64,
    bursts: u64,
}

impl Memory for BenchHost {
    type Segment = FlatSegment;

    fn resolve(&mut self, _pd: u32, sge: Sge, _rights: Access) -> Result<FlatSegment, Fault> {
        if sge.lkey != KEY {
            return Err(Fault::Key);
        }
        Ok(FlatSegment { addr: sge.addr, len: sge.len })
    }

    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<FlatSegment, Fault> {
        if access.key.rkey != KEY {
            return Err(Fault::Key);
        }
        Ok(FlatSegment { addr: access.va, len: access.len })
    }

    fn load(&mut self, segment: FlatSegment, out: &mut [u8]) -> Result<(), Fault> {
        let at = segment.addr as usize;
        out.copy_from_slice(&self.memory[at..at + out.len()]);
        Ok(())
    }

    fn store(&mut self, segment: FlatSegment, data: &[u8]) -> Result<(), Fault> {
        let at = segment.addr as usize;
        self.memory[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn atomic(&mut self, _segment: FlatSegment, _op: AtomicOp) -> Result<u64, Fault> {
        Ok(0)
    }

    fn atomic_write(&mut self, _segment: FlatSegment, _value: u64) -> Result<(), Fault> {
        Ok(())
    }

    fn flush(&mut self, _: RemoteKey, _: FlushScope, _: Access) -> Result<(), Fault> {
        Ok(())
    }

    fn invalidate(&mut self, _key: RemoteKey) -> Result<(), Fault> {
        Ok(())
    }

    fn bind_mw(&mut self, _mw: u32, _key: RemoteKey) -> Result<(), Fault> {
        Ok(())
    }
}

/// Nothing arrives early in this benchmark.
impl EarlyRoom for BenchHost {
    fn reserve(&mut self, _bytes: u32) -> bool {
        true
    }

    fn release(&mut self, _bytes: u32) {}
}

impl Queues for BenchHost {
    fn take_srq(&mut self) -> Option<RecvWr> {
        None
    }

    fn complete(&mut self, side: CqSide, completion: Completion) {
        assert_eq!(completion.status, WcStatus::Success);
        match side {
            CqSide::Send => self.sends += 1,
            CqSide::Recv => self.receives += 1,
        }
    }
}

impl Observer for BenchHost {
    fn event(&mut self, _event: QpEvent) {}

    fn explain(&mut self, explanation: Explanation) {
        eprintln!("{explanation}");
    }
}

impl Paths for BenchHost {
    fn route(&self, _peer: PeerId) -> Option<Route> {
        let window = (256u32 << 10).saturating_sub(self.outstanding);
        Some(Route {
            path: PathId(0),
            tag: self.tag,
            window,
            rtt: None,
            quantum: u32::MAX,
            twin: None,
        })
    }

    fn tag(&self, _path: PathId) -> Option<PathTag> {
        self.tag
    }

    fn sent(&mut self, _path: PathId, bytes: u32) {
        self.outstanding += bytes;
    }

    fn acked(&mut self, _path: PathId, bytes: u32, _rtt: Option<Duration>) {
        self.outstanding -= bytes;
    }

    fn lost(&mut self, _path: PathId, bytes: u32, _congestion: bool) {
        self.outstanding -= bytes;
    }

    fn suspect(&mut self, _path: PathId, _since: Duration) {}
}

impl Host for BenchHost {
    fn transmit(&mut self, burst: &Burst<'_, FlatSegment>) -> Result<(), Unread> {
        self.bursts += 1;
        let (base, inline) = match burst.payload {
            Payload::Memory { segments, skip, .. } => {
                (segments.first().map_or(0, |s| s.addr as usize) + skip as usize, false)
            }
            Payload::Bytes(bytes) => {
                let at = self.inline.len();
                self.inline.extend_from_slice(bytes);
                (at, true)
            }
        };
        for i in 0..burst.packets {
            let (headers, range) = (*burst.headers(i), burst.range(i));
            let at = base + range.start as usize;
            self.out.push_back(Flying { headers, at, len: range.len(), inline });
        }
        Ok(())
    }
}

struct End {
    qp: QueuePair,
    host: BenchHost,
}

fn end(side: u32, mtu: u32, multipath: bool) -> End {
    let mut host = BenchHost {
        memory: vec![0; MEMORY],
        inline: Vec::new(),
        out: VecDeque::new(),
        outstanding: 0,
        tag: multipath.then_some(PathTag { id: 1, generation: 1 }),
        sends: 0,
        receives: 0,
        bursts: 0,
    };
    let mut qp = QueuePair::new(QpConfig {
        qpn: side,
        qp_type: QpType::Rc,
        pd: 0,
        sq_sig_all: false,
        srq: false,
        max_send_wr: 256,
        max_recv_wr: 512,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline: 256,
    });
    let mut a = QpAttr::new(QpState::Init);
    a.access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    a.path_mtu = mtu;
    a.port_num = 1;
    a.ah.is_global = true;
    a.dest_qpn = 1 - side;
    a.max_rd_atomic = 16;
    a.max_dest_rd_atomic = 16;
    a.timeout = 14;
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    use QpAttrMask as M;
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        a.state = state;
        qp.modify(&a, mask | M::STATE, &mut host).expect("legal");
    }
    qp.set_peer(PeerId(0));
    qp.set_multipath(multipath);
    End { qp, host }
}

/// Hands all packets of `from` to `to` as one batch.
fn carry(now: Duration, from: &mut End, to: &mut End) -> u64 {
    let mut n = 0;
    while let Some(f) = from.host.out.pop_front() {
        let source = if f.inline { &from.host.inline } else { &from.host.memory };
        let packet = Packet { headers: f.headers, payload: &source[f.at..f.at + f.len] };
        to.qp.handle_packet(now, &packet, PathId(0), None, &mut to.host);
        n += 1;
    }
    from.host.inline.clear();
    n
}

fn run(name: &str, op: SendOp, len: u32, mtu: u32, inline: bool, multipath: bool) {
    let (mut a, mut b) = (end(0, mtu, multipath), end(1, mtu, multipath));
    let (mut posted, mut received) = (0u64, 0u64);
    let (mut packets, mut messages) = (0u64, 0u64);
    let recv =
        RecvWr { wr_id: 0, sges: Sges::from_slice(&[Sge { addr: 0, len: 1 << 20, lkey: KEY }]) };
    let sges = [Sge { addr: 0, len, lkey: KEY }];
    let bytes = vec![1; len as usize];
    let data = if inline { SendData::Inline(&bytes) } else { SendData::Sges(&sges) };
    let start = Instant::now();
    let mut now = Duration::ZERO;
    while now < Duration::from_millis(700) {
        now = start.elapsed();
        for _ in 0..16 {
            let wr = SendWr { wr_id: posted, op, flags: SendFlags::SIGNALED, data, ud: None };
            while received - b.host.receives < 256 {
                b.qp.post_recv(recv.clone()).expect("room");
                received += 1;
            }
            while posted - a.host.sends < 64 && a.qp.post_send(&wr).is_ok() {
                posted += 1;
            }
            while a.qp.wants_transmit()
                && a.qp.poll_transmit(now, &mut a.host) == TransmitState::More
            {}
            packets += carry(now, &mut a, &mut b);
            while b.qp.wants_transmit() {
                b.qp.poll_transmit(now, &mut b.host);
            }
            b.qp.flush_acks(&mut b.host);
            packets += carry(now, &mut b, &mut a);
            messages = a.host.sends;
        }
    }
    let s = start.elapsed().as_secs_f64();
    println!(
        "{name:24} {len:8} B mtu {mtu}: {:7.2} M packets/s {:7.2} M messages/s {:7.2} GB/s \
         {:6.1} packets per burst",
        packets as f64 / s / 1e6,
        messages as f64 / s / 1e6,
        messages as f64 * f64::from(len) / s / 1e9,
        packets as f64 / (a.host.bursts + b.host.bursts) as f64,
    );
}

fn main() {
    let write = SendOp::Write { va: 1 << 20, rkey: KEY };
    let read = SendOp::Read { va: 1 << 20, rkey: KEY };
    for multipath in [false, true] {
        println!("{}", if multipath { "multi-path" } else { "plain" });
        run("WRITE", write, 1 << 20, 4096, false, multipath);
        run("WRITE", write, 1 << 20, 1024, false, multipath);
        run("READ", read, 1 << 20, 4096, false, multipath);
        run("SEND", SendOp::Send, 65536, 4096, false, multipath);
        run("SEND", SendOp::Send, 64, 1024, false, multipath);
        run("SEND inline", SendOp::Send, 64, 1024, true, multipath);
        run("WRITE inline", write, 8, 1024, true, multipath);
        run("WRITE empty", write, 0, 1024, true, multipath);
    }
}
