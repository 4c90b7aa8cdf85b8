//! One host of the checker: memory, a queue pair, a path manager, driven as the engine drives them.
//!
//! Everything in it can be copied, and all of it shows in its `Debug` text, which tells states apart.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polypath_paths::{Config, LaneIdentity, LocalAddress, PathEvent, PathManager, PathOptions};
use polypath_transport::{
    Access, AtomicOp, Burst, Completion, CqSide, Fault, FlushScope, Host, PathId, PathTag, Payload,
    PeerId, QpEvent, QueuePair, RecvWr, Route, Segment, Sge, TransmitState, Unread,
};
use polypath_wire::ICRC_LEN;
use polypath_wire::packet::{Headers, MAX_HEADERS_LEN, Packet};

/// A datagram between two addresses; the ICRC is zero.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The address of a host on a link.
pub(crate) fn address(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link as u8 + 1, host as u8 + 1])
}

/// The key of all of a host's memory, local and remote.
pub(crate) const KEY: u32 = 0x1234_5678;
/// The protection domain of everything.
pub(crate) const PD: u32 = 1;

/// What of a host a queue pair sees.
#[derive(Clone, Debug)]
pub(crate) struct Io {
    /// The time of the current call.
    pub(crate) now: Duration,
    /// The host's memory; addresses are indexes.
    pub(crate) memory: Vec<u8>,
    /// Its path manager.
    pub(crate) paths: PathManager,
    /// Datagrams to send.
    pub(crate) out: Vec<Datagram>,
    /// Completions so far, in order, by queue pair and side.
    pub(crate) completions: Vec<(CqSide, Completion)>,
    /// What queue pairs said of errors.
    pub(crate) explanations: Vec<String>,
    /// Asynchronous events.
    pub(crate) events: Vec<(u32, QpEvent)>,
    /// Atomics executed.
    pub(crate) atomics: u64,
    /// Bytes charged to paths and not given back, all together.
    pub(crate) charged: i64,
    qpn: u32,
    /// An acknowledgement, or an event, may have opened a window.
    window_opened: bool,
}

impl Io {
    fn find(key: u32, addr: u64, len: u32, memory: usize) -> Result<Segment, Fault> {
        if key != KEY {
            return Err(Fault::Key);
        }
        match addr.checked_add(u64::from(len)) {
            Some(end) if end <= memory as u64 => Ok(Segment { addr, len }),
            _ => Err(Fault::Range),
        }
    }
}

impl Host for Io {
    fn resolve(&self, _pd: u32, sge: Sge, _access: Access) -> Result<Segment, Fault> {
        Self::find(sge.lkey, sge.addr, sge.len, self.memory.len())
    }

    fn resolve_remote(
        &self,
        _pd: u32,
        _qpn: u32,
        rkey: u32,
        va: u64,
        len: u32,
        _access: Access,
    ) -> Result<Segment, Fault> {
        Self::find(rkey, va, len, self.memory.len())
    }

    fn load(&self, segment: Segment, out: &mut [u8]) -> Result<(), Fault> {
        let at = segment.addr as usize;
        out.copy_from_slice(&self.memory[at..at + out.len()]);
        Ok(())
    }

    fn store(&mut self, segment: Segment, data: &[u8]) -> Result<(), Fault> {
        let at = segment.addr as usize;
        self.memory[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn atomic(&mut self, segment: Segment, op: AtomicOp) -> Result<u64, Fault> {
        let cell = &mut self.memory[segment.addr as usize..][..8];
        let mut bytes = [0; 8];
        bytes.copy_from_slice(cell);
        let old = u64::from_ne_bytes(bytes);
        let new = match op {
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
        };
        cell.copy_from_slice(&new.to_ne_bytes());
        self.atomics += 1;
        Ok(old)
    }

    fn atomic_write(&mut self, segment: Segment, value: u64) -> Result<(), Fault> {
        self.store(segment, &value.to_ne_bytes())
    }

    fn flush(
        &mut self,
        _pd: u32,
        _qpn: u32,
        _rkey: u32,
        _scope: FlushScope,
        _access: Access,
    ) -> Result<(), Fault> {
        Ok(())
    }

    fn invalidate(&mut self, _pd: u32, _qpn: u32, _rkey: u32) -> Result<(), Fault> {
        Ok(())
    }

    fn bind_mw(&mut self, _pd: u32, _qpn: u32, _mw: u32, _rkey: u32) -> Result<(), Fault> {
        Ok(())
    }

    fn take_srq(&mut self) -> Option<RecvWr> {
        None
    }

    fn complete(&mut self, side: CqSide, completion: Completion) {
        self.completions.push((side, completion));
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push((self.qpn, event));
    }

    fn explain(&mut self, text: core::fmt::Arguments<'_>) {
        self.explanations.push(format!("{:?}: {text}", self.now));
    }

    fn route(&mut self, peer: PeerId) -> Option<Route> {
        self.paths.route_of(peer, self.qpn)
    }

    fn tag(&self, path: PathId) -> Option<PathTag> {
        self.paths.tag(path)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Result<(), Unread> {
        let Some(a) = self.paths.path(burst.path) else {
            return Ok(());
        };
        let (src, dst) = (a.local, a.remote);
        let payload = match burst.payload {
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Memory { segments, skip, len } => {
                let all = segments.iter().flat_map(|s| {
                    let at = s.addr as usize;
                    self.memory[at..at + s.len as usize].iter().copied()
                });
                all.skip(skip as usize).take(len as usize).collect()
            }
        };
        for i in 0..burst.packets {
            let range = burst.range(i);
            let data = &payload[range.start as usize..range.end as usize];
            self.out.push(Datagram { src, dst, bytes: encode(&burst.headers(i), data) });
        }
        Ok(())
    }

    fn sent(&mut self, path: PathId, bytes: u32) {
        self.charged += i64::from(bytes);
        self.paths.sent(self.now, path, bytes);
    }

    fn acked(&mut self, path: PathId, bytes: u32, rtt: Option<Duration>) {
        self.charged -= i64::from(bytes);
        self.paths.acked(self.now, path, bytes, rtt);
        self.window_opened = true;
    }

    fn lost(&mut self, path: PathId, bytes: u32, congestion: bool) {
        self.charged -= i64::from(bytes);
        self.paths.lost(self.now, path, bytes, congestion);
        self.window_opened = true;
    }

    fn suspect(&mut self, path: PathId, since: Duration) {
        self.paths.stalled(self.now, path, self.qpn, since);
    }
}

fn encode(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; MAX_HEADERS_LEN];
    let n = headers.emit(&mut bytes);
    bytes.truncate(n);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad) + ICRC_LEN, 0);
    bytes
}

/// A queue pair in the lane's table.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The queue pair.
    pub(crate) qp: QueuePair,
    peer: PeerId,
    /// Waits for the window.
    blocked: bool,
}

/// A host, with one lane.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// What queue pairs see.
    pub(crate) io: Io,
    /// Queue pairs by number.
    pub(crate) qps: BTreeMap<u32, Entry>,
    /// Addresses and links, as the broker would tell.
    pub(crate) local: Vec<LocalAddress>,
    /// Not scheduled until then.
    pub(crate) paused_until: Duration,
    /// The socket.
    pub(crate) inbox: VecDeque<Datagram>,
    /// What the path manager reported, with the time.
    pub(crate) path_events: Vec<(Duration, PathEvent)>,
    /// Packets that were not for any queue pair, or refused.
    pub(crate) refused: u64,
}

impl Lane {
    /// A host with an address on each link.
    pub(crate) fn new(
        number: usize,
        links: usize,
        config: Config,
        instance: u64,
        memory: usize,
    ) -> Self {
        let local: Vec<LocalAddress> = (0..links)
            .map(|link| LocalAddress {
                ip: address(link, number),
                prefix_len: 24,
                ifindex: link as u32 + 2,
                link_up: true,
                usable: true,
                speed_mbps: 10_000,
            })
            .collect();
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&instance.rotate_left(17).to_be_bytes());
        let lane = LaneIdentity { instance, slot: number as u8 + 1 };
        let mut paths = PathManager::new(config, lane, seed);
        paths.set_local(Duration::ZERO, &local);
        Self {
            io: Io {
                now: Duration::ZERO,
                memory: vec![0; memory],
                paths,
                out: Vec::new(),
                completions: Vec::new(),
                explanations: Vec::new(),
                events: Vec::new(),
                atomics: 0,
                charged: 0,
                qpn: 0,
                window_opened: false,
            },
            qps: BTreeMap::new(),
            local,
            paused_until: Duration::ZERO,
            inbox: VecDeque::new(),
            path_events: Vec::new(),
            refused: 0,
        }
    }

    /// Adds a queue pair that has just become ready to receive.
    pub(crate) fn add(
        &mut self,
        mut qp: QueuePair,
        remote_qpn: u32,
        link: usize,
        number: usize,
        multipath: bool,
    ) {
        let qpn = qp.config().qpn;
        let options = PathOptions { multipath, ..PathOptions::default() };
        let (local, remote) = (address(link, number), address(link, 1 - number));
        let now = self.io.now;
        let peer = self
            .io
            .paths
            .attach(now, qpn, remote_qpn, local, remote, options)
            .expect("there is room for a simulation's queue pairs");
        qp.set_peer(peer);
        self.qps.insert(qpn, Entry { qp, peer, blocked: false });
    }

    /// When it wants to run.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let paths = self.io.paths.next_deadline();
        let inbox = (!self.inbox.is_empty()).then_some(self.paused_until);
        let qps = self.qps.values().filter_map(|e| e.qp.next_deadline());
        let next = qps.chain(paths).chain(inbox).min()?;
        Some(next.max(self.paused_until))
    }

    /// One round of the lane: receive, time out, send, acknowledge.
    pub(crate) fn run(&mut self, now: Duration) {
        self.io.now = now;
        while let Some(datagram) = self.inbox.pop_front() {
            self.receive(&datagram);
        }
        for (qpn, entry) in &mut self.qps {
            self.io.qpn = *qpn;
            if entry.qp.next_deadline().is_some_and(|at| at <= now) {
                entry.qp.handle_timeout(now, &mut self.io);
                // A probe does not ask for the window.
                entry.blocked = false;
            }
        }
        if self.io.paths.next_deadline().is_some_and(|at| at <= now) {
            self.io.paths.handle_timeout(now);
        }
        self.path_events();
        // Whoever takes the room that an acknowledgement made, nobody waits for more of it.
        if core::mem::take(&mut self.io.window_opened) {
            self.qps.values_mut().for_each(|entry| entry.blocked = false);
        }
        for (qpn, entry) in &mut self.qps {
            self.io.qpn = *qpn;
            for _ in 0..4 {
                if entry.blocked || !entry.qp.wants_transmit() {
                    break;
                }
                match entry.qp.poll_transmit(now, &mut self.io) {
                    TransmitState::Blocked => entry.blocked = true,
                    TransmitState::Idle => {
                        assert!(!entry.qp.wants_transmit(), "idle, but wants to send");
                        break;
                    }
                    TransmitState::More => {}
                }
            }
        }
        // Control packets go first: what they tell must be known before the data arrives.
        let data = core::mem::take(&mut self.io.out);
        while let Some(out) = self.io.paths.poll_transmit(now) {
            let mut bytes = out.packet;
            bytes.resize(bytes.len() + ICRC_LEN, 0);
            let (src, dst) = (out.address.local, out.address.remote);
            self.io.out.push(Datagram { src, dst, bytes });
        }
        self.io.out.extend(data);
        for (qpn, entry) in &mut self.qps {
            self.io.qpn = *qpn;
            if entry.qp.acks_due() {
                entry.qp.flush_acks(&mut self.io);
            }
        }
        self.path_events();
    }

    fn receive(&mut self, datagram: &Datagram) {
        let now = self.io.now;
        let Ok(packet) = Packet::parse(&datagram.bytes) else {
            self.refused += 1;
            return;
        };
        let (src, dst) = (datagram.src, datagram.dst);
        if PathManager::is_control(&packet) {
            let handled = self.io.paths.handle_control(now, src, dst, &packet);
            self.refused += u64::from(handled != polypath_paths::Handled::Accepted);
            return;
        }
        let qpn = packet.headers.bth.dest_qpn;
        let Some(entry) = self.qps.get_mut(&qpn) else {
            self.refused += 1;
            return;
        };
        let tag = packet
            .headers
            .mp
            .map(|mp| polypath_paths::PathTag { id: mp.path_id, generation: mp.generation });
        let Ok(path) = self.io.paths.classify(entry.peer, src, dst, tag, datagram.bytes.len())
        else {
            self.refused += 1;
            return;
        };
        self.io.qpn = qpn;
        entry.qp.handle_packet(now, &packet, path, None, &mut self.io);
        // Answers do not wait for the window either.
        entry.blocked = false;
    }

    /// Passes on what the path manager decided, as the engine does.
    fn path_events(&mut self) {
        let now = self.io.now;
        while let Some(event) = self.io.paths.poll_event() {
            self.path_events.push((now, event));
            match event {
                PathEvent::MultipathAgreed { qpn, reach } => {
                    if let Some(entry) = self.qps.get_mut(&qpn) {
                        entry.qp.set_multipath(true);
                        entry.qp.set_peer_reach(reach);
                    }
                }
                PathEvent::PathDead { path, .. } => {
                    for qpn in self.io.paths.qpns_on(path) {
                        self.tell(qpn, |qp, io| qp.on_path_dead(now, path, io));
                    }
                }
                PathEvent::ActiveChanged { peer, from, reason, .. } => {
                    let lives = matches!(
                        reason,
                        polypath_paths::Reason::Primary | polypath_paths::Reason::Association
                    );
                    self.path_changed(peer, from.filter(|_| !lives));
                }
                PathEvent::NoPath { peer } | PathEvent::PeerLost { peer } => {
                    self.path_changed(peer, None);
                }
                PathEvent::Detour { qpn, from, .. } => {
                    self.tell(qpn, |qp, io| qp.on_path_change(now, Some(from), io));
                }
                PathEvent::PathHeard { path } => {
                    for qpn in self.io.paths.qpns_on(path) {
                        self.tell(qpn, |qp, io| qp.on_path_heard(now, path, io));
                    }
                }
                PathEvent::WindowOpened { .. } => self.io.window_opened = true,
                PathEvent::Overflow => {
                    let alive: BTreeSet<u32> = self.io.paths.alive().map(|path| path.0).collect();
                    let qpns: Vec<u32> = self.io.paths.qpns().collect();
                    for qpn in qpns {
                        let agreed = self.io.paths.is_agreed(qpn);
                        self.tell(qpn, |qp, io| {
                            if agreed {
                                qp.set_multipath(true);
                            }
                            qp.on_paths_unknown(now, |path| !alive.contains(&path.0), io);
                        });
                    }
                    self.io.window_opened = true;
                }
                _ => {}
            }
        }
    }

    fn path_changed(&mut self, peer: PeerId, dead: Option<PathId>) {
        let now = self.io.now;
        let dead = dead.map(|p| PathId(p.0));
        let qpns: Vec<u32> = self.io.paths.qpns_of(peer).collect();
        for qpn in qpns {
            self.tell(qpn, |qp, io| qp.on_path_change(now, dead, io));
        }
    }

    /// Tells a queue pair of its paths; it gets its turn, whatever it waited for.
    fn tell(&mut self, qpn: u32, of: impl FnOnce(&mut QueuePair, &mut Io)) {
        if let Some(entry) = self.qps.get_mut(&qpn) {
            entry.blocked = false;
            self.io.qpn = qpn;
            of(&mut entry.qp, &mut self.io);
        }
    }
}
