//! One host: memory, queue pairs, a path manager, driven as the engine drives them.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polypath_paths::{
    Config, Handled, LaneIdentity, LocalAddress, PathEvent, PathManager, PathOptions, Reason,
};
use polypath_transport::{PathId, PeerId, QpType, QueuePair, TransmitState};
use polypath_wire::ext::Syndrome;
use polypath_wire::grh::Grh;
use polypath_wire::icrc::FlowCrc;
use polypath_wire::packet::Packet;

use crate::case::LanePlan;
use crate::io::{Did, Io};
use crate::link::{Datagram, address};

/// A queue pair in the lane's table.
#[derive(Debug)]
pub struct Entry {
    /// The queue pair.
    pub qp: QueuePair,
    /// Its peer; none for UD.
    peer: Option<PeerId>,
    /// Waits for the window.
    blocked: bool,
    /// The latest generation of each path number that was taken from the peer.
    newest: BTreeMap<u8, u16>,
}

/// What makes a host.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    /// Its number; its lane has the slot after it.
    pub number: usize,
    /// Tells its process from one that was there before.
    pub instance: u64,
    /// How many links it is on.
    pub links: usize,
    /// With IPv6 addresses.
    pub v6: bool,
    /// What it tells of its lane.
    pub lane: LanePlan,
    /// Bytes of memory.
    pub memory: usize,
}

/// A host with one lane.
#[derive(Debug)]
pub struct SimHost {
    /// What queue pairs see.
    pub io: Io,
    /// Queue pairs by number.
    pub qps: BTreeMap<u32, Entry>,
    /// Addresses and links, as the broker would tell.
    pub local: Vec<LocalAddress>,
    /// Not scheduled until then.
    pub paused_until: Duration,
    /// The socket.
    pub inbox: VecDeque<Datagram>,
    /// What the path manager reported, with the time.
    pub path_events: Vec<(Duration, PathEvent)>,
    /// Packets that were not for any queue pair, or refused.
    pub refused: u64,
    /// Packets whose ICRC was wrong.
    pub corrupt: u64,
    /// When it gave a path up last. Two peers' paths may have the same addresses.
    gave_up: BTreeMap<PathId, Duration>,
}

impl SimHost {
    /// A host with an address on each link.
    pub fn new(plan: &HostPlan, now: Duration) -> Self {
        let local: Vec<LocalAddress> = (0..plan.links)
            .map(|link| LocalAddress {
                ip: address(link, plan.number, plan.v6),
                prefix_len: if plan.v6 { 64 } else { 24 },
                ifindex: link as u32 + 2,
                link_up: true,
                usable: true,
                speed_mbps: 10_000,
            })
            .collect();
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&plan.instance.rotate_left(17).to_be_bytes());
        let lane = LaneIdentity { instance: plan.instance, slot: plan.number as u8 + 1 };
        let LanePlan { reach, receive_window } = plan.lane;
        let config = Config { reach, receive_window, ..Config::default() };
        let mut paths = PathManager::new(config, lane, seed);
        paths.set_local(now, &local);
        Self {
            io: Io::new(now, paths, plan.memory),
            qps: BTreeMap::new(),
            local,
            paused_until: Duration::ZERO,
            inbox: VecDeque::new(),
            path_events: Vec::new(),
            refused: 0,
            corrupt: 0,
            gave_up: BTreeMap::new(),
        }
    }

    /// Adds a queue pair that has just become ready to receive, connected between two addresses; UD: not
    /// connected.
    pub fn add(
        &mut self,
        mut qp: QueuePair,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        multipath: bool,
    ) {
        let qpn = qp.config().qpn;
        let options = PathOptions { multipath, ..PathOptions::default() };
        let mut peer = None;
        if qp.config().qp_type != QpType::Ud {
            let now = self.io.now;
            let attached = self.io.paths.attach(now, qpn, remote_qpn, local, remote, options);
            let id = attached.expect("there is room for a simulation's queue pairs");
            qp.set_peer(id);
            peer = Some(id);
        }
        let entry = Entry { qp, peer, blocked: false, newest: BTreeMap::new() };
        self.qps.insert(qpn, entry);
    }

    /// When it wants to run.
    pub fn deadline(&self) -> Option<Duration> {
        let paths = self.io.paths.next_deadline();
        let inbox = (!self.inbox.is_empty()).then_some(self.paused_until);
        let qps = self.qps.values().filter_map(|e| e.qp.next_deadline());
        let next = qps.chain(paths).chain(inbox).min()?;
        Some(next.max(self.paused_until))
    }

    /// One round of the lane: receive, time out, send, acknowledge.
    pub fn run(&mut self, now: Duration) {
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
            self.io.emit(&out.address, out.packet);
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
        let flow = &datagram.flow;
        let id = if flow.src.is_ipv4() { datagram.id } else { 0 };
        // Verification finds out the identification; here, unlike at a socket, it is known as well.
        if FlowCrc::new(flow).verify(&datagram.bytes, id) != Some(id) {
            self.corrupt += 1;
            return;
        }
        let Ok(packet) = Packet::parse(&datagram.bytes) else {
            self.refused += 1;
            return;
        };
        let qpn = packet.headers.bth.dest_qpn;
        if datagram.corrupted {
            let why = "its ICRC fits although bits were flipped";
            self.io.journal.push(Did::Wrongly { qpn, why });
        }
        let (src, dst) = (flow.src, flow.dst);
        if PathManager::is_control(&packet) {
            let handled = self.io.paths.handle_control(now, src, dst, &packet);
            self.refused += u64::from(handled != Handled::Accepted);
            return;
        }
        let Some(entry) = self.qps.get_mut(&qpn) else {
            self.refused += 1;
            return;
        };
        self.io.qpn = qpn;
        let Some(peer) = entry.peer else {
            let grh = Grh {
                src,
                dst,
                traffic_class: datagram.traffic_class,
                flow_label: datagram.flow_label,
                payload_len: datagram.bytes.len() as u16 + 8,
                hop_limit: datagram.hop_limit,
            }
            .to_bytes();
            entry.qp.handle_packet(now, &packet, PathId(u32::MAX), Some(&grh), &mut self.io);
            return;
        };
        let mp = packet.headers.mp;
        let tag =
            mp.map(|mp| polypath_paths::PathTag { id: mp.path_id, generation: mp.generation });
        let Ok(path) = self.io.paths.classify(peer, src, dst, tag, datagram.bytes.len()) else {
            self.refused += 1;
            return;
        };
        if let Some(mp) = mp {
            let newest = entry.newest.entry(mp.path_id).or_insert(mp.generation);
            // The first is true of what it was told, the second of what it decided.
            if (mp.generation.wrapping_sub(*newest) as i16) < 0
                || self.gave_up.get(&path).is_some_and(|at| datagram.sent < *at)
            {
                let why = "it was sent before its path was fenced";
                self.io.journal.push(Did::Wrongly { qpn, why });
            } else {
                *newest = mp.generation;
            }
        }
        if let Some(Syndrome::RnrNak { .. }) = packet.headers.aeth.map(|a| a.syndrome)
            && !datagram.forged
        {
            let psn = packet.headers.bth.psn;
            self.io.journal.push(Did::HeardNotReady { qpn, psn });
        }
        entry.qp.handle_packet(now, &packet, path, None, &mut self.io);
        // Answers do not wait for the window either.
        entry.blocked = false;
    }

    /// Passes on what the path manager decided, as the engine does.
    pub fn path_events(&mut self) {
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
                PathEvent::PathDead { path, reason } => {
                    let own = reason != Reason::PeerNotice;
                    if own && self.io.paths.tag(path).is_some() {
                        self.gave_up.insert(path, now);
                    }
                    for qpn in self.io.paths.qpns_on(path) {
                        self.tell(qpn, |qp, io| qp.on_path_dead(now, path, io));
                    }
                }
                PathEvent::ActiveChanged { peer, from, reason, .. } => {
                    let lives = matches!(reason, Reason::Primary | Reason::Association);
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
