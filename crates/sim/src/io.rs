//! The host as its queue pairs see it. Everything that a queue pair does to its host is written to a
//! journal, which the judge reads.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polypath_lane::{NotSent, Outside, Overrun};
use polypath_paths::{ControlOut, PathAddress, PathEvent, PathManager, Reason};
use polypath_transport::{
    Access, AtomicOp, Burst, Completion, CqSide, Explanation, Fault, FlatSegment, FlushScope,
    Memory, PathId, QpEvent, RecvWr, RemoteAccess, RemoteKey, Sge,
};
use polypath_wire::ext::{Aeth, Syndrome};
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::packet::Packet;
use polypath_wire::psn::Psn;

use crate::datagram::Datagram;

/// The local and remote key of all of a host's memory, with all rights.
pub const KEY: u32 = 0x1234_5678;
/// The remote key of all of a host's memory for READs only.
pub const READ_KEY: u32 = 0x1234_5601;
/// The remote key of all of a host's memory for WRITEs only.
pub const WRITE_KEY: u32 = 0x1234_5602;
/// The remote key of all of a host's memory for WRITEs only, which may go there in any order.
pub const RELAXED_KEY: u32 = 0x1234_5603;
/// A key that is never valid.
pub const NO_KEY: u32 = 0x6666_6666;
/// The Q_Key of all UD queue pairs.
pub(crate) const QKEY: u32 = 0x1122_3344;
/// The protection domain of everything but XRC shared receive queues.
pub const PD: u32 = 1;
/// The numbers of each host's XRC shared receive queues, all in one XRC domain, each with a protection
/// domain of its own.
pub const SRQNS: [u32; 2] = [0x00_0007, 0xfe_dcba];

/// The protection domain of an XRC shared receive queue.
pub(crate) fn pd_of(srqn: u32) -> Option<u32> {
    let place = SRQNS.iter().position(|n| *n == srqn)?;
    Some(PD + 1 + place as u32)
}

/// The number that one of the keys of all memory has in a protection domain.
pub(crate) fn key_in(pd: u32, key: u32) -> u32 {
    key ^ (pd - PD) << 24
}

/// Something that a queue pair did to its host, or was told.
#[derive(Clone, Debug)]
pub enum Effect {
    /// It copied received data into memory.
    Store {
        /// The local queue pair.
        qpn: u32,
        /// Address of its first byte.
        addr: u64,
        /// The bytes stored.
        data: Vec<u8>,
    },
    /// It executed an atomic.
    Atomic {
        /// The local queue pair.
        qpn: u32,
        /// Address of the word.
        addr: u64,
        /// The operation, with its operands.
        op: AtomicOp,
        /// The value of the word before.
        old: u64,
    },
    /// It executed a FLUSH.
    Flushed {
        /// The local queue pair.
        qpn: u32,
        /// The memory that the request names.
        scope: FlushScope,
    },
    /// It made a key invalid.
    Invalidated {
        /// The local queue pair.
        qpn: u32,
        /// The key that is invalid now.
        rkey: u32,
    },
    /// It bound a memory window.
    Bound {
        /// The local queue pair.
        qpn: u32,
        /// The key of the window from now on.
        rkey: u32,
    },
    /// It took a work request from a shared receive queue.
    Took {
        /// The local queue pair.
        qpn: u32,
        /// XRC: the number of the shared receive queue.
        srqn: Option<u32>,
        /// Identifier of the work request.
        wr_id: u64,
    },
    /// It reported a completion.
    Completed {
        /// Send or receive queue.
        side: CqSide,
        /// XRC: number of the shared receive queue that the completion belongs to.
        srqn: Option<u32>,
        /// The completion as reported.
        completion: Completion,
    },
    /// It raised an asynchronous event.
    Event {
        /// The local queue pair.
        qpn: u32,
        /// The event as raised.
        event: QpEvent,
    },
    /// It sent an acknowledgement (no response).
    Acknowledged {
        /// The local queue pair.
        qpn: u32,
        /// PSN of the packet acknowledged.
        psn: Psn,
        /// The AETH, which says whether it is positive.
        aeth: Aeth,
    },
    /// It sent a READ response: data, or the answer to a request without data.
    Answered {
        /// The local queue pair.
        qpn: u32,
        /// PSN of the packet answered.
        psn: Psn,
    },
    /// It received an RNR NAK: the peer has no receive work request.
    HeardNotReady {
        /// The local queue pair.
        qpn: u32,
        /// PSN of the packet that found none.
        psn: Psn,
    },
    /// It took a packet that should have been refused.
    WronglyAccepted {
        /// The local queue pair.
        qpn: u32,
        /// The reason why it should have been refused.
        why: &'static str,
    },
}

/// A promise that a host breaks on purpose, to check that the judge notices. All numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// The n-th piece of received data is stored with a byte changed.
    Spoil(u64),
    /// The n-th completion is not reported.
    Forget(u64),
    /// The n-th completion is reported twice.
    Repeat(u64),
    /// The n-th atomic or ATOMIC WRITE is executed twice.
    Double(u64),
    /// The n-th FLUSH flushes nothing.
    Skip(u64),
}

/// The part of the current packet that only the judge knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Came {
    /// The time when it was sent.
    pub(crate) sent: Duration,
    /// Whether an attacker sent it.
    pub(crate) forged: bool,
}

/// The part of a host that its lane and queue pairs see.
#[derive(Debug)]
pub struct Io {
    /// The time of the current call.
    pub now: Duration,
    /// The host's memory. An address is an index into it.
    pub memory: Vec<u8>,
    /// The datagrams to send.
    pub out: Vec<Datagram>,
    /// The effects of queue pairs since the judge last looked.
    pub journal: Vec<Effect>,
    /// The explanations of errors that queue pairs gave.
    pub explanations: Vec<String>,
    /// The events that the path manager reported, with their times.
    pub path_events: Vec<(Duration, PathEvent)>,
    /// The number of bytes charged to paths and not given back, in total.
    pub charged: i64,
    /// The shared receive queue (`None`), and those of XRC by number.
    pub shared: BTreeMap<Option<u32>, VecDeque<RecvWr>>,
    /// Keys that can be made invalid, each once. They give access to nothing.
    pub passing_keys: BTreeSet<u32>,
    /// The type 2B memory windows by key, with the protection domain and the queue pair that they are
    /// bound to. Each covers all memory, with all rights.
    windows: BTreeMap<u32, (u32, u32)>,
    /// The promise that this host breaks, if any.
    pub planted: Option<PlantedFault>,
    /// The packet that is being handled.
    pub(crate) came: Came,
    /// The latest generation that a queue pair has accepted from its peer, by queue pair and path
    /// number.
    newest: BTreeMap<(u32, u8), u16>,
    /// The time when the host last gave up each path. Paths are identified by number, because paths to
    /// two peers may have the same addresses.
    gave_up: BTreeMap<PathId, Duration>,
    /// The periods in which the host did not run, as start and end.
    pub(crate) stalls: Vec<(Duration, Duration)>,
    /// The identification of the next IPv4 packet.
    id: u16,
    stores: u64,
    completions: u64,
    atomics: u64,
    flushes: u64,
}

impl Io {
    pub(crate) fn new(now: Duration, memory: usize) -> Self {
        Self {
            now,
            memory: vec![0; memory],
            out: Vec::new(),
            journal: Vec::new(),
            explanations: Vec::new(),
            path_events: Vec::new(),
            charged: 0,
            shared: BTreeMap::new(),
            passing_keys: BTreeSet::new(),
            windows: BTreeMap::new(),
            planted: None,
            came: Came::default(),
            newest: BTreeMap::new(),
            gave_up: BTreeMap::new(),
            stalls: Vec::new(),
            id: 0,
            stores: 0,
            completions: 0,
            atomics: 0,
            flushes: 0,
        }
    }

    /// The time for which the host did not run between `since` and now. The first 210 ms of each period
    /// are left out, because nobody may have noticed them: the next timer, that of a probe, is due at
    /// most 200 ms later.
    pub(crate) fn stalled_since(&self, since: Duration) -> Duration {
        const UNNOTICED: Duration = Duration::from_millis(210);
        let noticed = |(from, to): &(Duration, Duration)| {
            let time = (*to).min(self.now).saturating_sub((*from).max(since));
            time.saturating_sub(UNNOTICED)
        };
        self.stalls.iter().map(noticed).sum()
    }

    /// Adds the ICRC to a packet and sends it.
    fn emit(&mut self, address: &PathAddress, mut bytes: Vec<u8>) {
        let flow = Flow::new(address.local, address.remote, address.source_port);
        self.id = self.id.wrapping_add(1);
        bytes.extend(FlowCrc::new(&flow).compute(self.id, &bytes));
        self.out.push(Datagram {
            flow,
            id: self.id,
            traffic_class: address.traffic_class,
            hop_limit: address.hop_limit,
            flow_label: address.flow_label,
            bytes,
            corrupted: false,
            forged: false,
            sent: self.now,
        });
    }

    /// Returns the eight bytes at `at` as an atomic sees them, in native byte order.
    pub fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.memory[at as usize..][..8]);
        u64::from_ne_bytes(bytes)
    }

    fn take(&mut self, qpn: u32, srqn: Option<u32>) -> Option<RecvWr> {
        let wr = self.shared.get_mut(&srqn)?.pop_front()?;
        self.journal.push(Effect::Took { qpn, srqn, wr_id: wr.wr_id });
        Some(wr)
    }

    fn completed(&mut self, side: CqSide, srqn: Option<u32>, completion: Completion) {
        self.completions += 1;
        let copies = match self.planted {
            Some(PlantedFault::Forget(n)) if n == self.completions => 0,
            Some(PlantedFault::Repeat(n)) if n == self.completions => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.journal.push(Effect::Completed { side, srqn, completion });
        }
    }

    fn execute(&mut self, at: u64, op: AtomicOp) -> u64 {
        let old = self.word(at);
        self.memory[at as usize..][..8].copy_from_slice(&op.apply(old).to_ne_bytes());
        old
    }
}

/// The memory of a host, as one of its queue pairs uses it.
struct QpMemory<'a> {
    io: &'a mut Io,
    /// The queue pair's number.
    own: u32,
}

impl Memory for QpMemory<'_> {
    type Segment = FlatSegment;

    fn resolve(&mut self, pd: u32, sge: Sge, _rights: Access) -> Result<FlatSegment, Fault> {
        if sge.lkey != key_in(pd, KEY) {
            return Err(Fault::Key);
        }
        FlatSegment::within(&self.io.memory, sge.addr, sge.len)
    }

    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<FlatSegment, Fault> {
        let RemoteKey { pd, qpn, rkey } = access.key;
        let all = Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let rights = match key_in(pd, rkey) {
            KEY => all,
            _ if self.io.windows.get(&rkey) == Some(&(pd, qpn)) => all,
            READ_KEY => Access::REMOTE_READ,
            WRITE_KEY => Access::REMOTE_WRITE,
            RELAXED_KEY => Access::REMOTE_WRITE | Access::RELAXED_ORDERING,
            _ => return Err(Fault::Key),
        };
        let segment = FlatSegment::within(&self.io.memory, access.va, access.len)?;
        if rights.contains(access.rights) { Ok(segment) } else { Err(Fault::Rights) }
    }

    fn load(&mut self, segment: FlatSegment, out: &mut [u8]) -> Result<(), Fault> {
        out.copy_from_slice(&self.io.memory[segment.indexes(out.len())]);
        Ok(())
    }

    fn store(&mut self, segment: FlatSegment, data: &[u8]) -> Result<(), Fault> {
        let (io, at) = (&mut *self.io, segment.indexes(data.len()));
        io.memory[at.clone()].copy_from_slice(data);
        io.stores += 1;
        if io.planted == Some(PlantedFault::Spoil(io.stores)) && !data.is_empty() {
            io.memory[at.start] ^= 1;
        }
        let data = io.memory[at].to_vec();
        io.journal.push(Effect::Store { qpn: self.own, addr: segment.addr, data });
        Ok(())
    }

    fn atomic(&mut self, segment: FlatSegment, op: AtomicOp) -> Result<u64, Fault> {
        let (io, addr) = (&mut *self.io, segment.addr);
        io.atomics += 1;
        if io.planted == Some(PlantedFault::Double(io.atomics)) {
            io.execute(addr, op);
        }
        let old = io.execute(addr, op);
        io.journal.push(Effect::Atomic { qpn: self.own, addr, op, old });
        Ok(old)
    }

    fn atomic_write(&mut self, segment: FlatSegment, value: u64) -> Result<(), Fault> {
        self.io.atomics += 1;
        if self.io.planted == Some(PlantedFault::Double(self.io.atomics)) {
            self.store(segment, &value.to_ne_bytes())?;
        }
        self.store(segment, &value.to_ne_bytes())
    }

    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault> {
        let (va, len) = match scope {
            FlushScope::Range { va, len } => (va, len),
            FlushScope::Region => (0, 0),
        };
        self.resolve_remote(&RemoteAccess { key, va, len, rights })?;
        let io = &mut *self.io;
        io.flushes += 1;
        let copies = match io.planted {
            Some(PlantedFault::Skip(n)) if n == io.flushes => 0,
            _ => 1,
        };
        for _ in 0..copies {
            io.journal.push(Effect::Flushed { qpn: self.own, scope });
        }
        Ok(())
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault> {
        let (io, rkey) = (&mut *self.io, key.rkey);
        if io.windows.get(&rkey) == Some(&(key.pd, key.qpn)) {
            io.windows.remove(&rkey);
        } else if !io.passing_keys.remove(&rkey) {
            return Err(Fault::Key);
        }
        io.journal.push(Effect::Invalidated { qpn: self.own, rkey });
        Ok(())
    }

    fn bind_mw(&mut self, _mw: u32, key: RemoteKey) -> Result<(), Fault> {
        self.io.windows.insert(key.rkey, (key.pd, key.qpn));
        self.io.journal.push(Effect::Bound { qpn: self.own, rkey: key.rkey });
        Ok(())
    }
}

impl Outside<u32> for Io {
    type Segment = FlatSegment;

    fn memory<'a>(&'a mut self, own: &'a u32) -> impl Memory<Segment = FlatSegment> + 'a {
        QpMemory { io: self, own: *own }
    }

    fn take_srq(&mut self, own: &u32) -> Option<RecvWr> {
        self.take(*own, None)
    }

    fn complete(
        &mut self,
        _own: &u32,
        side: CqSide,
        completion: Completion,
    ) -> Result<(), Overrun> {
        self.completed(side, None, completion);
        Ok(())
    }

    fn xrc_pd(&self, _own: &u32, srqn: u32) -> Option<u32> {
        pd_of(srqn)
    }

    fn take_xrc(&mut self, own: &u32, srqn: u32) -> Option<RecvWr> {
        self.take(*own, Some(srqn))
    }

    fn complete_xrc(
        &mut self,
        _own: &u32,
        srqn: u32,
        completion: Completion,
    ) -> Result<(), Overrun> {
        self.completed(CqSide::Recv, Some(srqn), completion);
        Ok(())
    }

    fn event(&mut self, own: &u32, event: QpEvent) {
        self.journal.push(Effect::Event { qpn: *own, event });
    }

    fn explain(&mut self, _own: &u32, _paths: &PathManager, explanation: Explanation) {
        self.explanations.push(format!("{:?}: {explanation}", self.now));
    }

    /// Checks whether the packet should have been refused, before the queue pair sees it.
    fn accepted(&mut self, own: &u32, path: PathId, packet: &Packet<'_>) {
        let qpn = *own;
        if let Some(mp) = packet.headers.mp {
            let newest = self.newest.entry((qpn, mp.path_id)).or_insert(mp.generation);
            // The first condition compares with what the peer has told, the second with what this host
            // has decided.
            if (mp.generation.wrapping_sub(*newest) as i16) < 0
                || self.gave_up.get(&path).is_some_and(|at| self.came.sent < *at)
            {
                let why = "it was sent before its path was fenced";
                self.journal.push(Effect::WronglyAccepted { qpn, why });
            } else {
                *newest = mp.generation;
            }
        }
        if let Some(Syndrome::RnrNak { .. }) = packet.headers.aeth.map(|a| a.syndrome)
            && !self.came.forged
        {
            let psn = packet.headers.bth.psn;
            self.journal.push(Effect::HeardNotReady { qpn, psn });
        }
    }

    fn charged(&mut self, _own: &u32, bytes: i64) {
        self.charged += bytes;
    }

    fn transmit(
        &mut self,
        own: &u32,
        address: Option<&PathAddress>,
        burst: &Burst<'_, FlatSegment>,
    ) -> Result<(), NotSent> {
        let Some(address) = address else { return Err(NotSent::NoWay) };
        let payload = burst.copy_payload(&mut self.memory(own)).expect("all memory is there");
        for i in 0..burst.packets {
            let range = burst.range(i);
            let headers = burst.headers(i);
            if let (Some(aeth), true) = (headers.aeth, headers.bth.opcode.base().0 == ACK) {
                let psn = headers.bth.psn;
                self.journal.push(Effect::Acknowledged { qpn: *own, psn, aeth });
            }
            if headers.bth.opcode.base().is_read_response() {
                let psn = headers.bth.psn;
                self.journal.push(Effect::Answered { qpn: *own, psn });
            }
            let data = &payload[range.start as usize..range.end as usize];
            let bytes = headers.packet(data);
            self.emit(address, bytes);
        }
        Ok(())
    }

    fn control(&mut self, out: ControlOut) {
        self.emit(&out.address, out.packet);
    }

    fn path_event(&mut self, now: Duration, paths: &PathManager, event: &PathEvent) {
        self.path_events.push((now, *event));
        if let PathEvent::PathDead { path, reason } = *event
            && reason != Reason::PeerNotice
            // A path of generation 1 was in no path set yet when it died.
            && paths.tag(path).is_some_and(|tag| tag.generation > 1)
        {
            self.gave_up.insert(path, now);
        }
    }
}

const ACK: u8 = polypath_wire::Opcode::RC_ACK.0;
