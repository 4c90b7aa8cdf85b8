//! The faults of a case, and when they happen.

use core::time::Duration;

use polypath_paths::Mode;

use crate::link_faults::{Bursts, Holes, LinkFaults};
use crate::rng::Rng;

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This time after the queue pairs were connected.
    At(Duration),
    /// As soon as this many packets have been sent.
    Packet(u64),
}

/// A change of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is removed.
    Gone,
    /// Another one takes its place.
    Other,
    /// The first one comes back.
    Back,
}

#[allow(missing_docs, reason = "fields say what they are")]
/// Something that happens to the network, to a host, or to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A link silently drops what one host sends to another, or stops doing so.
    Cut { link: usize, from: usize, to: usize, cut: bool },
    /// A host's port loses its carrier or gets it back; the host is told.
    Carrier { link: usize, host: usize, up: bool },
    /// The address of a host on a link changes.
    Address { host: usize, link: usize, change: Change },
    /// A host's device for a link is removed or comes back.
    Device { host: usize, link: usize, there: bool },
    /// An administrator takes a host's path down or up.
    Admin { host: usize, link: usize, usable: bool },
    /// A host's process does not run for `time`.
    Pause { host: usize, time: Duration },
    /// A link loses, doubles, holds back and corrupts packets.
    LinkFaults { link: usize, link_faults: LinkFaults },
    /// A link loses some packets for certain, or stops doing so.
    Holes { link: usize, holes: Holes },
    /// Of the eight ways that a link consists of, these (a bit each) lose so many of 1000 packets, or none
    /// any more. A hash of the UDP source port chooses the way.
    Ways { link: usize, ways: u8, loss: u64 },
    /// A host's process dies. With `reborn`, another one takes its place, without its queue pairs.
    Die { host: usize, reborn: bool },
    /// An application puts its queue pair into the error state.
    Error { pair: usize, end: usize },
    /// An application takes its queue pair to SQD, and back to RTS after `pause` or once the send queue
    /// is drained, whichever is later.
    Drain { pair: usize, end: usize, pause: Duration, notify: bool },
    /// A program migrates its queue pair to the alternate path, if it may.
    Migrate { pair: usize, end: usize },
    /// A queue pair is frozen and thawed at once.
    Freeze { pair: usize, end: usize },
    /// A queue pair is frozen, and thawed after `time` on a lane that knows nothing of it.
    Away { pair: usize, end: usize, time: Duration },
    /// A host uses the paths to all its peers in another way.
    Mode { host: usize, mode: Mode },
    /// The host of an end uses the paths to the other end's address in another way, or as those to its
    /// other peers.
    PeerMode { pair: usize, end: usize, mode: Option<Mode> },
    /// A queue pair uses its paths in another way, or as the others of its peer do.
    OwnMode { pair: usize, end: usize, mode: Option<Mode> },
    /// A host prefers paths over this link, or none.
    Primary { host: usize, link: Option<usize> },
    /// A host wants so many source ports for each pair of addresses from now on, as one does whose bond
    /// gets or loses a port.
    Ports { host: usize, ports: u8 },
    /// Everything is mended, but dead processes stay dead.
    Heal,
}

impl Fault {
    /// Whether a link, a path or a host is disturbed by it. A change of how paths are used must disturb
    /// nothing.
    pub(crate) fn disturbs(&self) -> bool {
        let inside = matches!(
            self,
            Self::Mode { .. } | Self::PeerMode { .. } | Self::OwnMode { .. } | Self::Primary { .. }
        );
        !inside && !matches!(self, Self::Heal | Self::Drain { .. })
    }

    /// Whether a host's kernel tells the host about it: faults of ports, addresses and devices.
    pub(crate) fn is_told_to_hosts(&self) -> bool {
        matches!(
            self,
            Self::Carrier { .. } | Self::Address { .. } | Self::Device { .. } | Self::Admin { .. }
        )
    }
}

/// Draws random faults for `time`, in order. What they break, they mend a while later.
pub(crate) fn draw(
    rng: &mut Rng,
    hosts: usize,
    links: usize,
    time: Duration,
    keep_order: bool,
) -> Vec<(When, Fault)> {
    let mut faults = Vec::new();
    let start = Duration::from_millis(10);
    let mut at = start;
    while at < start + time {
        let link = rng.below(links as u64) as usize;
        let host = rng.below(hosts as u64) as usize;
        let other = (host + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
        let back = at + rng.time(Duration::from_millis(400));
        // A fault happens at a time, or after a number of packets.
        let when = if rng.chance(100) { When::Packet(rng.below(2000)) } else { When::At(at) };
        let mut both = |at: When, broken: Fault, back: Duration, mended: Fault| {
            faults.push((at, broken));
            faults.push((When::At(back), mended));
        };
        match rng.below(12) {
            0 | 1 => {
                let ways = [(host, other), (other, host)];
                let ways = if rng.chance(600) { &ways[..] } else { &ways[..1] };
                for &(from, to) in ways {
                    let cut = |cut| Fault::Cut { link, from, to, cut };
                    both(when, cut(true), back, cut(false));
                }
            }
            2 => {
                // A host may learn about it from its own link only.
                let both_see = rng.chance(500);
                let seen = if both_see { &[host, other][..] } else { &[host][..] };
                for &host in seen {
                    let up = |up| Fault::Carrier { link, host, up };
                    both(when, up(false), back, up(true));
                }
            }
            3 => {
                let change = if rng.chance(500) { Change::Gone } else { Change::Other };
                let address = |change| Fault::Address { host, link, change };
                both(when, address(change), back, address(Change::Back));
            }
            4 => {
                let admin = |usable| Fault::Admin { host, link, usable };
                both(when, admin(false), back, admin(true));
            }
            5 => {
                let device = |there| Fault::Device { host, link, there };
                both(when, device(false), back, device(true));
            }
            6..=8 => {
                let link_faults = draw_link_faults(rng, keep_order);
                faults.push((when, Fault::LinkFaults { link, link_faults }));
            }
            // All links fail at once.
            9 => {
                for link in 0..links {
                    let back = back + rng.time(Duration::from_millis(100));
                    for (from, to) in [(host, other), (other, host)] {
                        let cut = |cut| Fault::Cut { link, from, to, cut };
                        both(when, cut(true), back, cut(false));
                    }
                }
            }
            _ => {
                let time = rng.time(Duration::from_millis(40));
                faults.push((when, Fault::Pause { host, time }));
            }
        }
        at += rng.time(Duration::from_millis(150));
    }
    faults
}

fn draw_link_faults(rng: &mut Rng, keep_order: bool) -> LinkFaults {
    let mut some = |most| if rng.chance(500) { rng.below(most) } else { 0 };
    let mut link_faults = LinkFaults {
        loss: some(60),
        double: some(60),
        overtake: some(30),
        straggle: some(10),
        corrupt: some(30),
        bursts: Bursts::default(),
    };
    if keep_order {
        link_faults = LinkFaults { double: 0, overtake: 0, straggle: 0, ..link_faults };
    }
    if rng.chance(300) {
        link_faults.bursts = Bursts {
            begin: 1 + rng.below(10),
            end: 50 + rng.below(300),
            loss: 300 + rng.below(700),
        };
    }
    link_faults
}
