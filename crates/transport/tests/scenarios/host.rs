//! A host in memory: regions, completions, and packets as bytes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use polypath_transport::{
    Access, AtomicOp, Burst, Completion, CqSide, EarlyRoom, Explanation, Fault, FlatSegment,
    FlushScope, Host, Memory, MigrationNews, Observer, PathId, PathTag, Paths, Payload, PeerId,
    QpEvent, Queues, RecvWr, RemoteAccess, RemoteKey, Route, Sge, Unread, WcStatus,
};
use polypath_transport::{Class, DatagramCopies, Pick, Twin, TwoPaths, Want};
use polypath_wire::ICRC_LEN;
use polypath_wire::packet::Headers;

/// The bytes of memory of each host.
pub const MEMORY: usize = 1 << 20;
/// The peer's number for the association of the lanes.
pub const ASSOCIATION: u32 = 77;
/// The protection domain of everything in these tests.
pub const PD: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    /// Its address in memory, if that is not `addr`.
    pub place: u64,
}

/// One end of a path as its host sees it.
#[derive(Clone, Copy, Debug)]
pub struct PathEnd {
    pub alive: bool,
    pub generation: u16,
    pub outstanding: i64,
    pub acked: u64,
    pub lost: u64,
    pub congestions: u32,
    pub rtt: Option<Duration>,
    /// The longest round trip that was measured.
    pub rtt_max: Duration,
    pub suspected: u32,
}

pub struct SimHost {
    pub memory: Vec<u8>,
    pub regions: BTreeMap<u32, Region>,
    pub paths: Vec<PathEnd>,
    /// Whether paths are tagged: the lanes negotiated multi-path.
    pub tagged: bool,
    pub active: Option<usize>,
    /// The primary and the alternate path, if the queue pair has two peers instead of a path set: the peer
    /// by path `n` is `PeerId(APM + n)`.
    pub apm: Option<[usize; 2]>,
    pub migrations: Vec<MigrationNews>,
    pub window: u32,
    /// Requests go by all paths in turn, this many bytes each time; `None`: all by the active one.
    pub spread: Option<u32>,
    pub turn: usize,
    /// Everything is sent by path 0 and by path 1, whose window takes so much.
    pub twin_window: Option<u32>,
    /// The datagrams that were sent by two paths.
    pub datagrams: u32,
    /// The bytes charged to each path for what was sent by two.
    pub sent_twice: [u64; 2],
    /// The answers that came by each path, and the bytes that they stand for, if they are a part.
    pub answers: [Vec<Option<u32>>; 2],
    /// The paths by which answers do not arrive, as told.
    pub unheard: Vec<PathId>,
    pub srq: VecDeque<RecvWr>,
    pub srq_pd: Option<u32>,
    /// Shared receive queues of XRC, by number.
    pub xrc: BTreeMap<u32, VecDeque<RecvWr>>,
    /// What completed in them.
    pub xrc_completions: Vec<(u32, Completion)>,
    /// Binds that were cancelled: window, queue pair, key.
    pub cancelled: Vec<(u32, u32, u32)>,
    /// Packets that are to be put on the wire.
    pub out: Vec<(PathId, Vec<u8>)>,
    pub send_completions: Vec<Completion>,
    pub recv_completions: Vec<Completion>,
    pub events: Vec<QpEvent>,
    pub explanations: Vec<String>,
    pub atomics: u64,
    pub atomic_writes: u64,
    /// What was flushed, and the first byte of the range at that time.
    pub flushes: Vec<(FlushScope, Access, u8)>,
    /// Memory that is registered but not there any more.
    pub gone: Range<u64>,
    /// For each burst from memory, whether it was to be copied.
    pub changing: Vec<bool>,
    /// For each FLUSH sent, whether its ICRC covers it twice.
    pub flush_covers: Vec<bool>,
    /// Which FLUSHes the peer accepts; `None`: both.
    pub takes_twice: Option<bool>,
    /// The bytes that packets which arrived early may take, and those that they take now.
    pub early_max: u32,
    pub early: u32,
    pub early_most: u32,
    /// Whether the queue pair may ask for anything, because it was made up.
    pub made_up: bool,
}

/// See [`SimHost::apm`].
pub const APM: u32 = 10;

impl SimHost {
    pub fn new(paths: usize) -> Self {
        let end = PathEnd {
            alive: true,
            generation: 1,
            outstanding: 0,
            acked: 0,
            lost: 0,
            congestions: 0,
            rtt: None,
            rtt_max: Duration::ZERO,
            suspected: 0,
        };
        Self {
            memory: vec![0; MEMORY],
            regions: BTreeMap::new(),
            paths: vec![end; paths],
            tagged: false,
            active: Some(0),
            apm: None,
            migrations: Vec::new(),
            window: 128 << 10,
            spread: None,
            turn: 0,
            twin_window: None,
            datagrams: 0,
            sent_twice: [0; 2],
            answers: [Vec::new(), Vec::new()],
            unheard: Vec::new(),
            srq: VecDeque::new(),
            srq_pd: None,
            xrc: BTreeMap::new(),
            xrc_completions: Vec::new(),
            cancelled: Vec::new(),
            out: Vec::new(),
            send_completions: Vec::new(),
            recv_completions: Vec::new(),
            events: Vec::new(),
            explanations: Vec::new(),
            atomics: 0,
            atomic_writes: 0,
            flushes: Vec::new(),
            gone: 0..0,
            changing: Vec::new(),
            flush_covers: Vec::new(),
            takes_twice: None,
            early_max: u32::MAX,
            early: 0,
            early_most: 0,
            made_up: false,
        }
    }

    pub fn register(&mut self, key: u32, addr: u64, len: u64, access: Access) {
        self.regions.insert(key, Region { addr, len, access, place: addr });
    }

    /// Registers `len` bytes at `place` for the addresses from `addr` on, for remote access.
    pub fn alias(&mut self, key: u32, addr: u64, place: u64, len: u64) {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.regions.insert(key, Region { addr, len, access, place });
    }

    fn find(&self, key: u32, addr: u64, len: u64, access: Access) -> Result<FlatSegment, Fault> {
        let region = self.regions.get(&key).ok_or(Fault::Key)?;
        let end = addr.checked_add(len).ok_or(Fault::Range)?;
        if addr < region.addr || end > region.addr + region.len {
            return Err(Fault::Range);
        }
        if !region.access.contains(access) {
            return Err(Fault::Rights);
        }
        Ok(FlatSegment { addr: addr - region.addr + region.place, len: len as u32 })
    }

    /// The fault that an allowed access meets.
    fn touch(&self, addr: u64, len: u64) -> Result<(), Fault> {
        let touches = addr < self.gone.end && addr + len > self.gone.start;
        if touches { Err(Fault::Gone) } else { Ok(()) }
    }

    /// Checks that everything that was charged has come back.
    pub fn assert_settled(&self) {
        assert_eq!(self.early, 0, "bytes for early packets");
        for (i, path) in self.paths.iter().enumerate() {
            assert_eq!(path.outstanding, 0, "bytes outstanding on path {i}");
        }
    }

    pub fn statuses(&self) -> Vec<(u64, WcStatus)> {
        self.send_completions.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    fn check_pd(&self, pd: u32) -> Result<(), Fault> {
        assert!(pd == PD || self.made_up, "protection domain {pd}");
        if pd == PD { Ok(()) } else { Err(Fault::Key) }
    }

    pub fn recv_statuses(&self) -> Vec<(u64, WcStatus)> {
        self.recv_completions.iter().map(|c| (c.wr_id, c.status)).collect()
    }
}

impl Memory for SimHost {
    type Segment = FlatSegment;

    fn resolve(&mut self, pd: u32, sge: Sge, rights: Access) -> Result<FlatSegment, Fault> {
        self.check_pd(pd)?;
        self.find(sge.lkey, sge.addr, u64::from(sge.len), rights)
    }

    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<FlatSegment, Fault> {
        let RemoteAccess { key, va, len, rights } = *access;
        self.check_pd(key.pd)?;
        assert!(len > 0, "length 0 is not asked");
        self.find(key.rkey, va, u64::from(len), rights)
    }

    fn load(&mut self, segment: FlatSegment, out: &mut [u8]) -> Result<(), Fault> {
        self.touch(segment.addr, out.len() as u64)?;
        let at = segment.addr as usize;
        out.copy_from_slice(&self.memory[at..at + out.len()]);
        Ok(())
    }

    fn store(&mut self, segment: FlatSegment, data: &[u8]) -> Result<(), Fault> {
        assert!(data.len() <= segment.len as usize);
        self.touch(segment.addr, data.len() as u64)?;
        let at = segment.addr as usize;
        self.memory[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn atomic(&mut self, segment: FlatSegment, op: AtomicOp) -> Result<u64, Fault> {
        self.touch(segment.addr, 8)?;
        let at = segment.addr as usize;
        let bytes: [u8; 8] = self.memory[at..at + 8].try_into().unwrap();
        let old = u64::from_ne_bytes(bytes);
        self.memory[at..at + 8].copy_from_slice(&op.apply(old).to_ne_bytes());
        self.atomics += 1;
        Ok(old)
    }

    fn atomic_write(&mut self, segment: FlatSegment, value: u64) -> Result<(), Fault> {
        assert_eq!((segment.len, segment.addr % 8), (8, 0));
        self.store(segment, &value.to_ne_bytes())?;
        self.atomic_writes += 1;
        Ok(())
    }

    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault> {
        self.check_pd(key.pd)?;
        let region = *self.regions.get(&key.rkey).ok_or(Fault::Key)?;
        let (va, len) = match scope {
            FlushScope::Range { va, len } => (va, u64::from(len)),
            FlushScope::Region => (region.addr, region.len),
        };
        self.find(key.rkey, va, len, rights)?;
        self.flushes.push((scope, rights, self.memory[va as usize]));
        Ok(())
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault> {
        self.regions.remove(&key.rkey).map(|_| ()).ok_or(Fault::Key)
    }

    fn bind_mw(&mut self, _mw: u32, key: RemoteKey) -> Result<(), Fault> {
        let region = Region { addr: 0, len: 4096, access: Access::REMOTE_WRITE, place: 0 };
        self.regions.insert(key.rkey, region);
        Ok(())
    }

    fn cancel_bind(&mut self, mw: u32, key: RemoteKey) {
        self.cancelled.push((mw, key.qpn, key.rkey));
    }
}

impl EarlyRoom for SimHost {
    fn reserve(&mut self, bytes: u32) -> bool {
        if bytes > self.early_max - self.early {
            return false;
        }
        self.early += bytes;
        self.early_most = self.early_most.max(self.early);
        true
    }

    fn release(&mut self, bytes: u32) {
        self.early = self.early.checked_sub(bytes).expect("it was granted");
    }
}

impl Queues for SimHost {
    fn take_srq(&mut self) -> Option<RecvWr> {
        self.srq.pop_front()
    }

    fn srq_pd(&self) -> Option<u32> {
        self.srq_pd
    }

    fn complete(&mut self, side: CqSide, completion: Completion) {
        match side {
            CqSide::Send => self.send_completions.push(completion),
            CqSide::Recv => self.recv_completions.push(completion),
        }
    }

    fn xrc_pd(&self, srqn: u32) -> Option<u32> {
        self.xrc.contains_key(&srqn).then_some(PD)
    }

    fn take_xrc(&mut self, srqn: u32) -> Option<RecvWr> {
        self.xrc.get_mut(&srqn)?.pop_front()
    }

    fn complete_xrc(&mut self, srqn: u32, completion: Completion) {
        self.xrc_completions.push((srqn, completion));
    }
}

impl Observer for SimHost {
    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn migration(&mut self, news: MigrationNews) {
        self.migrations.push(news);
        if let (MigrationNews::Migrated(_), Some([primary, alternate])) = (news, &mut self.apm) {
            assert_eq!(self.paths[*primary].outstanding, 0, "given back before the path is left");
            *primary = *alternate;
        }
    }

    fn explain(&mut self, explanation: Explanation) {
        self.explanations.push(explanation.to_string());
    }
}

impl Paths for SimHost {
    fn route(&self, peer: PeerId) -> Option<Route> {
        let active = match self.apm {
            None => self.active?,
            Some(_) => (peer.0 - APM) as usize,
        };
        let end = &self.paths[active];
        if self.apm.is_some() && !end.alive {
            return None;
        }
        let window = (i64::from(self.window) - end.outstanding).max(0) as u32;
        let path = PathId(active as u32);
        Some(Route {
            path,
            tag: self.tag(path),
            window,
            rtt: end.rtt,
            quantum: u32::MAX,
            twin: None,
        })
    }

    fn number_datagram(&mut self, paths: [PathId; 2]) -> Option<DatagramCopies> {
        let [one, other] = paths.map(|path| self.tag(path));
        let number = self.datagrams;
        self.datagrams += 1;
        Some(DatagramCopies { tags: [one?, other?], association: ASSOCIATION, number })
    }

    fn two_paths(&self, _peer: PeerId) -> Option<TwoPaths> {
        let active = self.active?;
        let other = (0..self.paths.len()).find(|path| *path != active && self.paths[*path].alive);
        let path = |path: usize| PathId(path as u32);
        Some(TwoPaths { active: path(active), other: other.map(path) })
    }

    fn take_other_path(&mut self, peer: PeerId) -> Option<TwoPaths> {
        let other = self.two_paths(peer)?.other?;
        self.active = Some(other.0 as usize);
        self.two_paths(peer)
    }

    fn pick(&mut self, peer: PeerId, want: &Want) -> Pick {
        let Some(main) = self.route(peer) else { return Pick::NoPath };
        if let Some(window) = self.twin_window
            && let Some(tag) = self.tag(PathId(1))
        {
            let twin = Some(Twin { path: PathId(1), tag, window });
            return Pick::Route(Route { twin, quantum: 0, ..main });
        }
        let Some(quantum) = self.spread else { return Pick::Route(main) };
        let alive = |path: &usize| self.paths[*path].alive;
        if let Class::Answer { asked_by } = want.class
            && alive(&(asked_by.0 as usize))
        {
            return Pick::Route(Route { path: asked_by, tag: self.tag(asked_by), ..main });
        }
        self.turn += 1;
        let order = (0..self.paths.len()).map(|n| (self.turn + n) % self.paths.len());
        for path in order.filter(alive) {
            let end = &self.paths[path];
            let window = (i64::from(self.window) - end.outstanding).max(0) as u32;
            if window >= want.bytes.min(8192) {
                let path = PathId(path as u32);
                let tag = self.tag(path);
                return Pick::Route(Route { path, tag, window, rtt: end.rtt, quantum, twin: None });
            }
        }
        if want.class == Class::Request { Pick::Wait } else { Pick::Route(main) }
    }

    fn tag(&self, path: PathId) -> Option<PathTag> {
        let generation = self.paths[path.0 as usize].generation;
        self.tagged.then_some(PathTag { id: path.0 as u8, generation })
    }

    fn sent(&mut self, path: PathId, bytes: u32) {
        self.paths[path.0 as usize].outstanding += i64::from(bytes);
    }

    fn acked(&mut self, path: PathId, bytes: u32, rtt: Option<Duration>) {
        let end = &mut self.paths[path.0 as usize];
        end.outstanding -= i64::from(bytes);
        end.acked += u64::from(bytes);
        end.rtt = rtt.or(end.rtt);
        end.rtt_max = rtt.map_or(end.rtt_max, |rtt| rtt.max(end.rtt_max));
        assert!(end.outstanding >= 0);
    }

    fn lost(&mut self, path: PathId, bytes: u32, congestion: bool) {
        let end = &mut self.paths[path.0 as usize];
        end.outstanding -= i64::from(bytes);
        end.lost += u64::from(bytes);
        end.congestions += u32::from(congestion);
        assert!(end.outstanding >= 0);
    }

    fn sent_twice(&mut self, path: PathId, bytes: u32) {
        self.sent_twice[path.0 as usize] += u64::from(bytes);
    }

    fn unheard(&mut self, path: PathId) {
        self.unheard.push(path);
    }

    fn answered(&mut self, path: PathId, _: u32, bytes: Option<u32>, rtt: Option<Duration>) {
        let at = path.0 as usize;
        self.answers[at].push(bytes);
        self.paths[at].rtt = rtt.or(self.paths[at].rtt);
    }

    fn suspect(&mut self, path: PathId, _since: Duration) {
        self.paths[path.0 as usize].suspected += 1;
    }
}

impl Host for SimHost {
    fn transmit(&mut self, burst: &Burst<'_, FlatSegment>) -> Result<(), Unread> {
        let mut unread = None;
        let payload: Vec<u8> = match burst.payload {
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Memory { segments, skip, len } => {
                self.changing.push(burst.changing);
                let all = segments.iter().flat_map(|s| s.addr..s.addr + u64::from(s.len));
                let addrs: Vec<u64> = all.skip(skip as usize).take(len as usize).collect();
                unread = addrs.iter().position(|addr| self.gone.contains(addr));
                addrs.iter().map(|&addr| self.memory[addr as usize]).collect()
            }
        };
        assert_eq!(payload.len(), burst.payload.len() as usize);
        if burst.first.bth.opcode.is_flush() {
            self.flush_covers.push(burst.covered_twice);
            if self.takes_twice.is_some_and(|twice| twice != burst.covered_twice) {
                return Ok(()); // The peer finds its ICRC wrong.
            }
        } else {
            assert!(!burst.covered_twice, "{burst:?}");
        }
        for i in 0..burst.packets {
            let range = burst.range(i);
            if unread.is_some_and(|at| at < range.end as usize) {
                return Err(Unread { sent: i });
            }
            let data = &payload[range.start as usize..range.end as usize];
            self.out.push((burst.path, encode(&burst.headers(i), data)));
        }
        Ok(())
    }
}

/// A packet's bytes, with padding and room for the ICRC.
pub fn encode(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    assert!(headers.fit_opcode(), "{headers:?}");
    let mut bytes = headers.packet(payload);
    bytes.resize(bytes.len() + ICRC_LEN, 0);
    assert_eq!(bytes.len() % 4, 0, "padding of {headers}");
    bytes
}
