//! Two path managers in virtual time, joined by links that lose, delay and get cut.
#![allow(dead_code, reason = "each test binary and the example use a part of it")]

mod seen;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use polypath_paths::{
    Config, Handled, LaneIdentity, LocalAddress, PathEvent, PathId, PathKind, PathManager,
    PathOptions, PathTag, PeerId, StreamEnds,
};
use polypath_wire::packet::Packet;
use polypath_wire::relay::{RENDEZVOUS_QPN, Relay, Token};

/// A third host that both reach by any of their addresses.
pub(crate) const RENDEZVOUS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 1));
/// What all packets come by, unless a test says otherwise.
pub(crate) const UDP: PathKind = PathKind::Udp;
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const US: Duration = Duration::from_micros(1);
pub(crate) const QPN: [u32; 2] = [0x0001_0011, 0x0002_0022];
/// Payload of the simulated data packets.
const BYTES: u32 = 4096;

pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
    pub(crate) fn time(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.below(max.as_nanos() as u64))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// How long it takes to send a packet with data, and until when it is busy with those of each sender.
    pub(crate) pace: Duration,
    busy_until: [Duration; 2],
    pub(crate) loss_per_mille: u64,
    /// Silently cut, by the sender's number.
    pub(crate) cut: [bool; 2],
    /// How many ways it consists of. A hash of the source port chooses one.
    pub(crate) ways: u32,
    /// The ways that are silently cut, in both directions.
    pub(crate) cut_ways: Vec<u32>,
    /// For each host, the ports of its bond of the kernel's: whether the bond sends by each. Empty: none.
    pub(crate) bonds: [Vec<bool>; 2],
    /// Whether the senders bind their source ports to the ports of the bonds.
    pub(crate) bound: [bool; 2],
    /// For each host, the cables at the ports of its bond, and those that are cut.
    pub(crate) cables: [Vec<usize>; 2],
    pub(crate) cut_cables: Vec<usize>,
    /// Packets by each port of the bonds, by the sender.
    pub(crate) by_port: [[u64; 4]; 2],
    /// The source ports that pass, if not all do.
    pub(crate) only: Option<Vec<u16>>,
}

impl Link {
    /// The way that packets of this source port take.
    pub(crate) fn way(&self, port: u16) -> u32 {
        (u32::from(port).wrapping_mul(0x9e37_79b1) >> 16) % self.ways
    }

    /// The port of the sender's bond that packets leave by, as bonding chooses it with layer3+4. The lowest
    /// byte of its hash is the exclusive-or of all bytes, and it is even.
    pub(crate) fn member(&self, from: usize, by: (IpAddr, IpAddr), port: u16) -> Option<usize> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = by else { return None };
        let bytes = [src.octets(), dst.octets()].concat();
        let ports = [port.to_be_bytes(), 4791_u16.to_be_bytes()].concat();
        let byte = bytes.iter().chain(&ports).fold(0, |sum, byte| sum ^ byte) >> 1;
        let own = usize::from(byte).checked_rem(self.bonds[from].len());
        if let Some(own) = own.filter(|own| self.bound[from] && self.bonds[from][*own]) {
            return Some(own);
        }
        let usable = || self.bonds[from].iter().enumerate().filter(|(_, usable)| **usable);
        assert!([0, 1, 2, 4].contains(&usable().count()));
        usable().nth(usize::from(byte).checked_rem(usable().count())?).map(|(n, _)| n)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Wire {
    Control(Vec<u8>),
    Data { tag: Option<PathTag>, id: u64 },
    Ack { tag: Option<PathTag>, id: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Flying {
    pub(crate) to: usize,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// What it comes by, as the receiver sees it.
    pub(crate) kind: PathKind,
    pub(crate) wire: Wire,
}

#[derive(Debug)]
struct Outstanding {
    path: PathId,
    first: Duration,
    sent: Duration,
    accounted: bool,
}

pub(crate) struct Host {
    pub(crate) paths: PathManager,
    pub(crate) local: Vec<LocalAddress>,
    pub(crate) peer: Option<PeerId>,
    pub(crate) paused_until: Duration,
    pub(crate) inbox: VecDeque<Flying>,
    pub(crate) events: Vec<(Duration, PathEvent)>,
    /// Sends data all the time.
    pub(crate) traffic: bool,
    next_id: u64,
    outstanding: BTreeMap<u64, Outstanding>,
    pub(crate) last_ack: Duration,
    /// Largest time without acknowledgement while sending.
    pub(crate) worst_gap: Duration,
    pub(crate) acked: u64,
    pub(crate) received: u64,
    /// How often each packet without a path's tag came.
    came: BTreeMap<u64, u32>,
    /// Generations that this side has raised: nothing older may be accepted.
    pub(crate) fence: BTreeMap<u8, u16>,
}

pub(crate) struct Net {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) links: Vec<Link>,
    /// The memory that both hosts share, if they are one.
    pub(crate) memory: Link,
    /// What TCP streams run over; nothing passes while it is cut, and no new one is made.
    pub(crate) tcp: Link,
    /// Whether a firewall drops all UDP.
    pub(crate) udp_blocked: bool,
    pub(crate) hosts: [Host; 2],
    flying: BTreeMap<(Duration, u64), Flying>,
    sequence: u64,
    next_tick: Duration,
    /// The hosts that the rendezvous knows, by their tokens.
    met: BTreeMap<Token, usize>,
    /// Every control packet that flew, for replay.
    pub(crate) log: Vec<Flying>,
    pub(crate) keep_log: bool,
}

pub(crate) fn ip(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link as u8 + 1, host as u8 + 1])
}

pub(crate) fn options() -> PathOptions {
    PathOptions { multipath: true, ..PathOptions::default() }
}

impl Net {
    pub(crate) fn new(seed: u64, links: usize) -> Self {
        Self::with(seed, links, [Config::default(), Config::default()])
    }

    pub(crate) fn with(seed: u64, links: usize, configs: [Config; 2]) -> Self {
        let mut rng = Rng(seed);
        let mut number = 0;
        let hosts = configs.map(|config| {
            let host = number;
            number += 1;
            let lane = LaneIdentity { instance: rng.next(), slot: host as u8 + 1 };
            let mut secret = [0; 16];
            secret[..8].copy_from_slice(&rng.next().to_be_bytes());
            let local: Vec<_> = (0..links)
                .map(|link| LocalAddress {
                    ip: ip(link, host),
                    prefix_len: 24,
                    ifindex: link as u32 + 2,
                    link_up: true,
                    usable: true,
                    speed_mbps: 0,
                })
                .collect();
            let mut paths = PathManager::new(config, lane, secret);
            paths.set_local(Duration::ZERO, &local);
            Host {
                paths,
                local,
                peer: None,
                paused_until: Duration::ZERO,
                inbox: VecDeque::new(),
                events: Vec::new(),
                traffic: false,
                next_id: 0,
                outstanding: BTreeMap::new(),
                last_ack: Duration::ZERO,
                worst_gap: Duration::ZERO,
                acked: 0,
                received: 0,
                came: BTreeMap::new(),
                fence: BTreeMap::new(),
            }
        });
        let link = Link {
            delay: 50 * US,
            jitter: 50 * US,
            pace: Duration::ZERO,
            busy_until: [Duration::ZERO; 2],
            loss_per_mille: 0,
            cut: [false, false],
            ways: 1,
            cut_ways: vec![],
            bonds: [vec![], vec![]],
            bound: [false; 2],
            cables: [vec![], vec![]],
            cut_cables: vec![],
            by_port: [[0; 4]; 2],
            only: None,
        };
        Self {
            now: MS,
            rng,
            tcp: Link { jitter: Duration::ZERO, ..link.clone() },
            udp_blocked: false,
            memory: Link { delay: US, jitter: US, ..link.clone() },
            links: vec![link; links],
            hosts,
            flying: BTreeMap::new(),
            sequence: 0,
            next_tick: MS,
            met: BTreeMap::new(),
            log: Vec::new(),
            keep_log: false,
        }
    }

    /// Connects one queue pair over link 0.
    pub(crate) fn connect(&mut self) {
        for host in 0..2 {
            self.attach(host);
        }
    }

    pub(crate) fn attach(&mut self, host: usize) {
        let (local, remote) = (ip(0, host), ip(0, 1 - host));
        let h = &mut self.hosts[host];
        let peer =
            h.paths.attach(self.now, QPN[host], QPN[1 - host], local, remote, options()).unwrap();
        h.peer = Some(peer);
    }

    pub(crate) fn start_traffic(&mut self) {
        for h in &mut self.hosts {
            h.traffic = true;
            h.last_ack = self.now;
            h.worst_gap = Duration::ZERO;
        }
    }

    pub(crate) fn reset_gaps(&mut self) {
        for h in &mut self.hosts {
            h.worst_gap = Duration::ZERO;
            h.last_ack = self.now;
        }
    }

    pub(crate) fn cut(&mut self, link: usize, cut: bool) {
        self.links[link].cut = [cut; 2];
    }

    /// Link down, seen by both hosts.
    pub(crate) fn link_up(&mut self, link: usize, up: bool) {
        self.cut(link, !up);
        for host in 0..2 {
            self.hosts[host].local[link].link_up = up;
            self.tell_local(host);
        }
    }

    pub(crate) fn tell_local(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        h.paths.set_local(self.now, &h.local);
        self.flush(host);
    }

    pub(crate) fn pause(&mut self, host: usize, time: Duration) {
        self.hosts[host].paused_until = self.now + time;
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let flying = self.flying.keys().next().map(|k| k.0);
            let timers = (0..2).filter_map(|h| {
                let h = &self.hosts[h];
                let waiting = (!h.inbox.is_empty()).then_some(h.paused_until);
                [h.paths.next_deadline(), waiting]
                    .into_iter()
                    .flatten()
                    .min()
                    .map(|at| at.max(h.paused_until))
            });
            let next = flying.into_iter().chain(timers).chain([self.next_tick]).min().unwrap();
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.step();
        }
    }

    fn step(&mut self) {
        while let Some((&key, _)) = self.flying.first_key_value() {
            if key.0 > self.now {
                break;
            }
            let packet = self.flying.remove(&key).unwrap();
            self.hosts[packet.to].inbox.push_back(packet);
        }
        let tick = self.now >= self.next_tick;
        if tick {
            self.next_tick = self.now + 500 * US;
        }
        for host in 0..2 {
            if self.hosts[host].paused_until > self.now {
                continue;
            }
            while let Some(packet) = self.hosts[host].inbox.pop_front() {
                self.deliver(host, packet);
            }
            self.hosts[host].paths.handle_timeout(self.now);
            self.flush(host);
            if tick {
                self.transport(host);
            }
        }
    }

    fn deliver(&mut self, host: usize, packet: Flying) {
        let now = self.now;
        let h = &mut self.hosts[host];
        match packet.wire {
            Wire::Control(bytes) => {
                let _ = self.control_by(host, packet.src, packet.dst, packet.kind, &bytes);
            }
            Wire::Data { tag, id } => {
                let Some(peer) = h.peer else { return };
                let (src, dst, kind) = (packet.src, packet.dst, packet.kind);
                let found = h.paths.classify(peer, src, dst, kind, tag, BYTES as usize);
                let Ok(path) = found else { return };
                let port = h.paths.path(path).unwrap().source_port;
                if let Some(tag) = tag {
                    let fence = h.fence.get(&tag.id).copied().unwrap_or(0);
                    assert!(tag.generation >= fence, "{now:?}: packet of before the fence");
                }
                h.received += 1;
                let came = h.came.entry(id).or_default();
                *came += u32::from(tag.is_none());
                // As a responder does that is asked again and again.
                if *came > 3 {
                    h.paths.unheard(now, path);
                }
                self.send(host, kind, (dst, src, port), Wire::Ack { tag, id });
            }
            Wire::Ack { tag, id } => {
                let Some(peer) = h.peer else { return };
                if h.paths
                    .classify(peer, packet.src, packet.dst, packet.kind, tag, BYTES as usize)
                    .is_err()
                {
                    return;
                }
                if let Some(o) = h.outstanding.remove(&id) {
                    if o.accounted {
                        // Karn: an answer to a repeated packet times nothing.
                        let rtt = (o.sent == o.first).then(|| now - o.sent);
                        h.paths.acked(now, o.path, BYTES, rtt);
                    }
                    h.worst_gap = h.worst_gap.max(now - h.last_ack);
                    h.last_ack = now;
                    h.acked += 1;
                }
            }
        }
        self.flush(host);
    }

    pub(crate) fn control(
        &mut self,
        host: usize,
        src: IpAddr,
        dst: IpAddr,
        bytes: &[u8],
    ) -> Handled {
        self.control_by(host, src, dst, UDP, bytes)
    }

    pub(crate) fn control_by(
        &mut self,
        host: usize,
        src: IpAddr,
        dst: IpAddr,
        kind: PathKind,
        bytes: &[u8],
    ) -> Handled {
        let mut udp = bytes.to_vec();
        udp.extend_from_slice(&[0; 4]);
        let packet = Packet::parse(&udp).expect("what a manager sends can be parsed");
        assert!(PathManager::is_control(&packet));
        self.hosts[host].paths.handle_control(self.now, src, dst, kind, &packet)
    }

    /// What a transport does: keeps the window full, notices stalls, resends.
    fn transport(&mut self, host: usize) {
        let now = self.now;
        let h = &mut self.hosts[host];
        let (Some(peer), true) = (h.peer, h.traffic) else { return };
        let Some(route) = h.paths.route(peer) else { return };
        let rtt = route.rtt.unwrap_or(MS);
        let oldest = h.outstanding.values().map(|o| o.first).min();
        if oldest.is_some_and(|at| now - at.max(h.last_ack) > (rtt * 3).max(3 * MS)) {
            match route.tag {
                Some(_) => h.paths.suspect(now, route.path),
                None => h.paths.stalled(now, route.path, QPN[host], h.last_ack),
            }
        }
        // Repeat what has been out for long, a little at a time.
        let late = now.saturating_sub((rtt * 4).max(10 * MS));
        let again: Vec<u64> = h
            .outstanding
            .iter()
            .filter(|(_, o)| o.sent < late)
            .map(|(id, _)| *id)
            .take(4)
            .collect();
        let mut sends = Vec::new();
        for id in again {
            let o = h.outstanding.get_mut(&id).unwrap();
            if o.accounted {
                h.paths.lost(now, o.path, BYTES, true);
            }
            o.accounted = true;
            o.path = route.path;
            o.sent = now;
            h.paths.sent(now, route.path, BYTES);
            sends.push((route.path, id, route.tag));
        }
        for _ in 0..2 {
            let Some(route) = h.paths.route(peer) else { break };
            if route.window < BYTES || h.outstanding.len() > 64 {
                break;
            }
            let id = h.next_id;
            h.next_id += 1;
            let o = Outstanding { path: route.path, first: now, sent: now, accounted: true };
            h.outstanding.insert(id, o);
            h.paths.sent(now, route.path, BYTES);
            sends.push((route.path, id, route.tag));
        }
        for (path, id, tag) in sends {
            let a = *self.hosts[host].paths.path(path).unwrap();
            self.send(host, a.kind, (a.local, a.remote, a.source_port), Wire::Data { tag, id });
        }
    }

    fn flush(&mut self, host: usize) {
        while let Some(out) = self.hosts[host].paths.poll_transmit(self.now) {
            let a = out.address;
            let by = (a.local, a.remote, a.source_port);
            // A socket can't be bound to an address that the host has not got.
            let own = &self.hosts[host].local;
            assert!(own.iter().any(|it| it.ip == a.local), "host {host} sends from {}", a.local);
            self.send(host, a.kind, by, Wire::Control(out.packet));
        }
        while let Some(event) = self.hosts[host].paths.poll_event() {
            self.event(host, event);
        }
    }

    fn event(&mut self, host: usize, event: PathEvent) {
        let now = self.now;
        let h = &mut self.hosts[host];
        h.events.push((now, event));
        match event {
            PathEvent::ActiveChanged { .. } => {
                // Everything outstanding goes again, at once.
                for o in h.outstanding.values_mut() {
                    if core::mem::take(&mut o.accounted) {
                        h.paths.lost(now, o.path, BYTES, false);
                    }
                    o.sent = Duration::ZERO;
                }
            }
            PathEvent::PathDead { path, .. } => {
                if let Some(tag) = h.paths.tag(path) {
                    h.fence.insert(tag.id, tag.generation);
                }
            }
            PathEvent::StreamWanted { ends } => self.connect_stream(host, ends),
            _ => {}
        }
    }

    /// What lanes and brokers do when a stream is wanted, in no time.
    fn connect_stream(&mut self, host: usize, ends: StreamEnds) {
        if self.tcp.cut[host] {
            return;
        }
        let Some(opening) = self.hosts[host].paths.stream_opening(self.now, ends) else { return };
        let StreamEnds { local, remote, .. } = ends;
        let theirs = StreamEnds { local: remote, remote: local, slot: host as u8 + 1 };
        let other = &mut self.hosts[1 - host].paths;
        if other.accept_stream(self.now, theirs, &opening) {
            other.set_stream(self.now, theirs, true);
            self.hosts[host].paths.set_stream(self.now, ends, true);
            self.flush(1 - host);
        }
    }

    /// `by`: source and destination address, and source port.
    pub(crate) fn send(
        &mut self,
        from: usize,
        kind: PathKind,
        by: (IpAddr, IpAddr, u16),
        wire: Wire,
    ) {
        let (src, dst, port) = by;
        if let PathKind::Local { slot } = kind {
            assert_eq!(usize::from(slot), 2 - from, "the other lane's slot");
            let kind = PathKind::Local { slot: from as u8 + 1 };
            let memory = self.memory.clone();
            return self.fly(from, &memory, Flying { to: 1 - from, src, dst, kind, wire });
        }
        if let PathKind::Tcp { slot } = kind {
            assert_eq!(usize::from(slot), 2 - from, "the other lane's slot");
            let kind = PathKind::Tcp { slot: from as u8 + 1 };
            let tcp = self.tcp.clone();
            return self.fly(from, &tcp, Flying { to: 1 - from, src, dst, kind, wire });
        }
        if self.udp_blocked {
            return;
        }
        if let Wire::Control(bytes) = &wire
            && dst == RENDEZVOUS
        {
            return self.at_rendezvous(from, bytes);
        }
        // The n-th address of each host is on the n-th link.
        let place = |host: usize, ip| self.hosts[host].local.iter().position(|a| a.ip == ip);
        let Some(number) = place(from, src) else { return };
        let flying = Flying { to: 1 - from, src, dst, kind, wire };
        if self.keep_log && matches!(flying.wire, Wire::Control(_)) {
            self.log.push(flying.clone());
        }
        let Some(mut link) = self.links.get(number).cloned() else { return };
        let up = self.hosts[from].local[number].link_up;
        let to_same_link = place(1 - from, dst) == Some(number);
        let mut cut = link.cut_ways.contains(&link.way(port))
            || link.only.as_ref().is_some_and(|ports| !ports.contains(&port));
        if let Some(member) = link.member(from, (src, dst), port) {
            self.links[number].by_port[from][member] += 1;
            let cable = link.cables[from].get(member);
            cut |= cable.is_some_and(|cable| link.cut_cables.contains(cable));
        }
        if !cut && up && to_same_link {
            let busy_until = &mut self.links[number].busy_until[from];
            *busy_until = self.now.max(*busy_until);
            if matches!(flying.wire, Wire::Data { .. }) {
                *busy_until += link.pace;
            }
            link.delay += *busy_until - self.now;
            self.fly(from, &link, flying);
        }
    }

    /// What the rendezvous does.
    fn at_rendezvous(&mut self, from: usize, bytes: &[u8]) {
        let passed_on = Packet::parse_body_with(bytes, |packet| {
            assert_eq!(packet.headers.bth.dest_qpn, RENDEZVOUS_QPN);
            let relay = Relay::decode(packet.payload).expect("a manager sends what can be read");
            self.met.insert(relay.from, from);
            let to = *self.met.get(&relay.to)?;
            Some((to, relay.encode(((to as u32) + 1) << 16)))
        });
        let Some((to, packet)) = passed_on.unwrap() else { return };
        let Some(dst) = self.hosts[to].local.first().map(|local| local.ip) else { return };
        let (src, kind, wire) = (RENDEZVOUS, UDP, Wire::Control(packet));
        let link = self.links[0].clone();
        self.fly(from, &link, Flying { to, src, dst, kind, wire });
    }

    fn fly(&mut self, from: usize, link: &Link, flying: Flying) {
        if link.cut[from] || self.rng.chance(link.loss_per_mille) {
            return;
        }
        let at = self.now + link.delay + self.rng.time(link.jitter);
        self.sequence += 1;
        self.flying.insert((at, self.sequence), flying);
    }
}
