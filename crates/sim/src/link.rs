//! The network: links that delay, lose, double and hold back packets, and get cut.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::rng::Rng;

/// How a link treats packets.
#[derive(Clone, Debug)]
pub struct Link {
    /// Least time of flight.
    pub delay: Duration,
    /// Added at random.
    pub jitter: Duration,
    /// Packets overtake each other within the jitter.
    pub reorders: bool,
    /// Chance of loss.
    pub loss_per_mille: u64,
    /// Chance to arrive twice.
    pub double_per_mille: u64,
    /// Chance to be held back for up to 300 ms: the packets that fences are for.
    pub straggle_per_mille: u64,
    /// Silently cut, by the number of the sending host.
    pub cut: [bool; 2],
    /// Has a carrier.
    pub up: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(30),
            jitter: Duration::from_micros(30),
            reorders: false,
            loss_per_mille: 0,
            double_per_mille: 0,
            straggle_per_mille: 0,
            cut: [false; 2],
            up: true,
        }
    }
}

/// A datagram: what a UDP socket gives.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// UDP payload, ICRC and all (which is zero: there is no corruption here).
    pub bytes: Vec<u8>,
}

/// Two hosts, joined by links. Link `l` has the subnet 10.0.`l + 1`.0/24.
#[derive(Debug)]
pub struct Network {
    /// The links.
    pub links: Vec<Link>,
    flying: BTreeMap<(Duration, u64), (usize, Datagram)>,
    order: u64,
    latest: BTreeMap<(usize, usize), Duration>,
    /// Datagrams that did not arrive.
    pub dropped: u64,
}

/// The address of a host on a link.
pub fn address(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link as u8 + 1, host as u8 + 1])
}

impl Network {
    /// Perfect links.
    pub fn new(links: usize) -> Self {
        Self {
            links: vec![Link::default(); links],
            flying: BTreeMap::new(),
            order: 0,
            latest: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// The link that an address of a host is on.
    pub fn link_of(&self, ip: IpAddr, host: usize) -> Option<usize> {
        (0..self.links.len()).find(|l| address(*l, host) == ip)
    }

    /// Host `from` sends.
    pub fn send(&mut self, now: Duration, from: usize, datagram: &Datagram, rng: &mut Rng) {
        let to = 1 - from;
        let number = self.link_of(datagram.src, from);
        let Some(number) = number.filter(|n| address(*n, to) == datagram.dst) else {
            self.dropped += 1;
            return;
        };
        let link = self.links[number].clone();
        if !link.up || link.cut[from] || rng.chance(link.loss_per_mille) {
            self.dropped += 1;
            return;
        }
        let copies = 1 + u32::from(rng.chance(link.double_per_mille));
        for _ in 0..copies {
            let mut at = now + link.delay + rng.time(link.jitter);
            if !link.reorders {
                let latest = self.latest.entry((number, from)).or_default();
                at = at.max(*latest);
                *latest = at;
            }
            if rng.chance(link.straggle_per_mille) {
                at += rng.time(Duration::from_millis(300));
            }
            self.order += 1;
            self.flying.insert((at, self.order), (to, datagram.clone()));
        }
    }

    /// When the next datagram arrives.
    pub fn next(&self) -> Option<Duration> {
        self.flying.keys().next().map(|k| k.0)
    }

    /// Takes one that has arrived by now, with its receiver's number.
    pub fn arrived(&mut self, now: Duration) -> Option<(usize, Datagram)> {
        let first = self.flying.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
