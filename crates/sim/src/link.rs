//! The network: links that every host is on. They delay, queue, lose, double, hold back and corrupt
//! packets, and can be cut.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::attack::Seen;
use crate::datagram::{Datagram, address};
use crate::link_faults::{Holes, LinkFaults, LinkPlan};
use crate::out::say;
use crate::rng::Rng;
use crate::trace::{Drop, Fate, Record, Trace};

#[derive(Clone, Debug)]
struct Port {
    ip: Option<IpAddr>,
    carrier: bool,
    /// The time when what is queued has left, for each direction.
    out_free: Duration,
    in_free: Duration,
    /// Whether it is in a burst of losses.
    burst: bool,
}

#[derive(Clone, Debug)]
struct Link {
    plan: LinkPlan,
    link_faults: LinkFaults,
    holes: Holes,
    /// The ways that lose packets, and how many of 1000 they lose.
    bad_ways: (u8, u64),
    ports: Vec<Port>,
    /// The pairs of sender and receiver between which the link is silently cut.
    cut: Vec<(usize, usize)>,
    latest: BTreeMap<(usize, usize), Duration>,
}

/// Links, and the port of each host on each of them.
#[derive(Debug)]
pub struct Network {
    links: Vec<Link>,
    flying: BTreeMap<(Duration, u64), (usize, usize, Datagram)>,
    order: u64,
    /// The number of datagrams sent.
    pub sent: u64,
    /// The number of datagrams that did not arrive.
    pub dropped: u64,
    /// The number of datagrams with flipped bits.
    pub corrupted: u64,
    /// The number of datagrams that were marked.
    pub marked: u64,
    /// A digest of every datagram that was sent, and when.
    pub digest: u64,
    /// The packets that an attacker on the path has seen, if there is an attacker.
    pub(crate) seen: Option<Seen>,
    /// The trace that records packets, if there is one.
    pub trace: Option<Trace>,
    /// Whether to print packets as they are sent.
    pub print: bool,
}

impl Port {
    /// Whether a datagram that comes at that time is to be marked.
    fn marks(&self, plan: &LinkPlan, at: Duration) -> bool {
        let waiting = self.out_free.saturating_sub(at).as_nanos();
        plan.marks && waiting * u128::from(plan.rate_mbps) > u128::from(plan.queue / 4) * 8000
    }

    /// Adds a datagram of `bytes` to the queue, which is empty from `free` on. Returns the time when it
    /// has left, or `None` if the queue has no room.
    fn queue(plan: &LinkPlan, free: &mut Duration, at: Duration, bytes: usize) -> Option<Duration> {
        if plan.rate_mbps == 0 {
            return Some(at);
        }
        let time = |bytes: u64| Duration::from_nanos(bytes * 8000 / u64::from(plan.rate_mbps));
        let waiting = free.saturating_sub(at);
        if waiting > time(u64::from(plan.queue)) {
            return None;
        }
        // A packet's Ethernet, IP and UDP headers, preamble and gap are 66 bytes.
        *free = at.max(*free) + time(bytes as u64 + 66);
        Some(*free)
    }
}

impl Network {
    /// Creates links without faults that join `hosts` hosts.
    pub fn new(plans: &[LinkPlan], hosts: usize, v6: bool) -> Self {
        let link = |(number, plan): (usize, &LinkPlan)| Link {
            plan: *plan,
            link_faults: LinkFaults::default(),
            holes: Holes::default(),
            bad_ways: (0, 0),
            ports: (0..hosts)
                .map(|host| Port {
                    ip: Some(address(number, host, v6)),
                    carrier: true,
                    out_free: Duration::ZERO,
                    in_free: Duration::ZERO,
                    burst: false,
                })
                .collect(),
            cut: Vec::new(),
            latest: BTreeMap::new(),
        };
        Self {
            links: plans.iter().enumerate().map(link).collect(),
            flying: BTreeMap::new(),
            order: 0,
            sent: 0,
            dropped: 0,
            corrupted: 0,
            marked: 0,
            digest: 0,
            seen: None,
            trace: None,
            print: false,
        }
    }

    /// Changes the faults of a link.
    pub fn set_link_faults(&mut self, link: usize, link_faults: LinkFaults) {
        self.links[link].link_faults = link_faults;
        for port in &mut self.links[link].ports {
            port.burst = false;
        }
    }

    /// Sets what a link loses for certain.
    pub fn set_holes(&mut self, link: usize, holes: Holes) {
        self.links[link].holes = holes;
    }

    /// Sets which of a link's ways lose packets, a bit for each, and how many of 1000.
    pub fn set_bad_ways(&mut self, link: usize, ways: u8, loss: u64) {
        self.links[link].bad_ways = (ways, loss);
    }

    /// Cuts a link silently from one host to another, or joins it again.
    pub fn set_cut(&mut self, link: usize, from: usize, to: usize, cut: bool) {
        let list = &mut self.links[link].cut;
        list.retain(|direction| *direction != (from, to));
        if cut {
            list.push((from, to));
        }
    }

    /// Sets whether a port has a carrier.
    pub fn set_carrier(&mut self, link: usize, host: usize, carrier: bool) {
        self.links[link].ports[host].carrier = carrier;
    }

    /// Sets the address of a port, or removes it.
    pub fn set_address(&mut self, link: usize, host: usize, ip: Option<IpAddr>) {
        self.links[link].ports[host].ip = ip;
    }

    /// Sends a datagram from host `from`.
    pub fn send(&mut self, now: Duration, from: usize, mut datagram: Datagram, rng: &mut Rng) {
        self.sent += 1;
        datagram.sent = now;
        self.digest = digest(self.digest, now, &datagram);
        if let Some(seen) = &mut self.seen {
            seen.pass(&datagram);
        }
        let src = Some(datagram.flow.src);
        let link = self.links.iter().position(|l| l.ports[from].ip == src);
        let way = match link {
            None => Err(Drop::NoSource),
            Some(number) => {
                if self.links[number].marks(now, from) && may_be_marked(datagram.traffic_class) {
                    datagram.traffic_class |= MARKED;
                    self.marked += 1;
                }
                self.links[number].way(now, from, &datagram, rng)
            }
        };
        let (to, mut at) = match way {
            Ok(way) => way,
            Err(why) => {
                self.dropped += 1;
                self.record(now, from, link, &datagram, Fate::Dropped(why));
                return;
            }
        };
        let (link, link_faults) = (link.unwrap_or(0), self.links[link.unwrap_or(0)].link_faults);
        if rng.chance(link_faults.corrupt) {
            corrupt(&mut datagram, rng);
            self.corrupted += u64::from(datagram.corrupted);
            self.record(now, from, Some(link), &datagram, Fate::Corrupted(at));
        } else {
            self.record(now, from, Some(link), &datagram, Fate::Arrives(at));
        }
        if rng.chance(link_faults.double) {
            self.fly(at, to, link, datagram.clone());
            at += rng.time(self.links[link].plan.delay);
            self.record(now, from, Some(link), &datagram, Fate::Again(at));
        }
        self.fly(at, to, link, datagram);
    }

    /// Sends an attacker's datagram. It arrives at once, and is not counted.
    pub(crate) fn inject(&mut self, now: Duration, datagram: Datagram) {
        let dst = Some(datagram.flow.dst);
        let ports = self.links.iter().enumerate().flat_map(|(link, l)| {
            l.ports.iter().enumerate().map(move |(host, port)| (link, host, port.ip))
        });
        let Some((link, to, _)) = ports.into_iter().find(|(.., ip)| *ip == dst) else { return };
        self.record(now, to, Some(link), &datagram, Fate::Injected);
        self.fly(now, to, link, datagram);
    }

    fn fly(&mut self, at: Duration, to: usize, link: usize, datagram: Datagram) {
        self.order += 1;
        self.flying.insert((at, self.order), (to, link, datagram));
    }

    fn record(
        &mut self,
        at: Duration,
        from: usize,
        link: Option<usize>,
        datagram: &Datagram,
        fate: Fate,
    ) {
        if self.print || self.trace.is_some() {
            let record = Record { at, from, link, datagram: datagram.clone(), fate };
            if self.print {
                say!("{record}");
            }
            if let Some(trace) = &mut self.trace {
                trace.push(record);
            }
        }
    }

    /// The time when the next datagram arrives.
    pub fn next(&self) -> Option<Duration> {
        self.flying.keys().next().map(|k| k.0)
    }

    /// Takes a datagram that has arrived by now, with the number of its receiver.
    pub fn arrived(&mut self, now: Duration) -> Option<(usize, Datagram)> {
        loop {
            let first = self.flying.first_entry()?;
            if first.key().0 > now {
                return None;
            }
            let (to, link, datagram) = first.remove();
            let port = &self.links[link].ports[to];
            if port.carrier && port.ip == Some(datagram.flow.dst) {
                return Some((to, datagram));
            }
            // The address or the carrier went away while the datagram was under way.
            self.dropped += 1;
        }
    }
}

/// Whether the ECN field says that a packet may be marked (RFC 3168, section 5).
fn may_be_marked(traffic_class: u8) -> bool {
    matches!(traffic_class & MARKED, 1 | 2)
}

/// The ECN field of a packet that is marked.
const MARKED: u8 = 3;

impl Link {
    /// Whether a datagram that a host sends now is to be marked.
    fn marks(&self, now: Duration, from: usize) -> bool {
        self.ports[from].marks(&self.plan, now)
    }

    /// The receiver of a datagram and the time when it arrives, or why it is dropped.
    fn way(
        &mut self,
        now: Duration,
        from: usize,
        datagram: &Datagram,
        rng: &mut Rng,
    ) -> Result<(usize, Duration), Drop> {
        if !self.ports[from].carrier {
            return Err(Drop::NoSource);
        }
        let dst = Some(datagram.flow.dst);
        let to = self.ports.iter().position(|p| p.ip == dst && p.carrier);
        let to = to.ok_or(Drop::NoDestination)?;
        if self.cut.contains(&(from, to)) {
            return Err(Drop::Cut);
        }
        if self.holes.swallow(&datagram.bytes) {
            return Err(Drop::Hole);
        }
        let (ways, loss) = self.bad_ways;
        if ways & way_of(datagram.flow.src_port) != 0 && rng.chance(loss) {
            return Err(Drop::Way);
        }
        if rng.chance(self.link_faults.loss) {
            return Err(Drop::Chance);
        }
        let (bursts, port) = (self.link_faults.bursts, &mut self.ports[from]);
        if bursts.begin > 0 {
            port.burst =
                if port.burst { !rng.chance(bursts.end) } else { rng.chance(bursts.begin) };
            if port.burst && rng.chance(bursts.loss) {
                return Err(Drop::Burst);
            }
        }
        let bytes = datagram.bytes.len();
        let left = Port::queue(&self.plan, &mut port.out_free, now, bytes).ok_or(Drop::Queue)?;
        let mut at = left + self.plan.delay + rng.time(self.plan.jitter);
        if !self.plan.reorders {
            let latest = self.latest.entry((from, to)).or_default();
            at = at.max(*latest);
            *latest = at;
            // A queue takes packets in the order in which they come. If packets overtake each other
            // that order is not known yet, and those sent later would find the queue full of packets
            // that come after them.
            at = Port::queue(&self.plan, &mut self.ports[to].in_free, at, bytes)
                .ok_or(Drop::Queue)?;
        }
        if rng.chance(self.link_faults.overtake) {
            at += rng.time(self.plan.delay * 2);
        }
        if rng.chance(self.link_faults.straggle) {
            at += rng.time(Duration::from_millis(300));
        }
        Ok((to, at))
    }
}

/// The way that packets of a source port take within a link, as a bit.
fn way_of(port: u16) -> u8 {
    1 << (u32::from(port).wrapping_mul(0x9e37_79b1) >> 29)
}

/// Mixes a datagram into the digest of those before it. Its ICRC represents its contents.
fn digest(before: u64, now: Duration, datagram: &Datagram) -> u64 {
    let tail = datagram.bytes.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc));
    let mixed = before ^ now.as_nanos() as u64 ^ u64::from(tail) << 32;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

/// The byte of the BTH that the ICRC takes as ones, whatever its value is.
const UNCOVERED: usize = 4;

/// Flips one to three bits of the UDP payload.
fn corrupt(datagram: &mut Datagram, rng: &mut Rng) {
    let before = datagram.bytes.clone();
    for _ in 0..=rng.below(3) {
        let bit = rng.below(datagram.bytes.len() as u64 * 8);
        datagram.bytes[bit as usize / 8] ^= 1 << (bit % 8);
    }
    let differs = |i: usize| i != UNCOVERED && before[i] != datagram.bytes[i];
    datagram.corrupted = (0..before.len()).any(differs);
}
