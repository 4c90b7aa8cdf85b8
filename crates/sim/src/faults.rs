//! What goes wrong, and when.

use core::time::Duration;

use crate::rng::Rng;

#[allow(missing_docs, reason = "fields say what they are")]
/// Something that happens to the network or to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A link silently drops what the hosts 0 and 1 send.
    Cut { link: usize, from: [bool; 2] },
    /// A link loses or gets its carrier; `seen`: which hosts get an event.
    Carrier { link: usize, up: bool, seen: [bool; 2] },
    /// A host loses or gets the address on a link.
    Address { host: usize, link: usize, there: bool },
    /// An administrator takes a host's path down or up.
    Admin { host: usize, link: usize, usable: bool },
    /// A host's process does not run for a while.
    Pause { host: usize, time: Duration },
    /// Packets get lost, doubled, held back.
    Bad { link: usize, loss: u64, double: u64, straggle: u64 },
}

/// Faults in order of time. At the end everything is whole again.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// When and what.
    pub faults: Vec<(Duration, Fault)>,
    /// From then on nothing is wrong.
    pub healed: Duration,
}

impl Schedule {
    /// Random faults from `start` on for `time`. With a single link there is no other path, so that
    /// outages are kept short.
    pub fn random(rng: &mut Rng, links: usize, start: Duration, time: Duration) -> Self {
        let mut faults = Vec::new();
        let end = start + time;
        let mut at = start;
        while at < end {
            let link = rng.below(links as u64) as usize;
            let host = rng.below(2) as usize;
            let both = [true; 2];
            let back = at + rng.time(Duration::from_millis(400));
            match rng.below(9) {
                0 | 1 => {
                    let from = [both, [true, false], [false, true]][rng.below(3) as usize];
                    faults.push((at, Fault::Cut { link, from }));
                    faults.push((back, Fault::Cut { link, from: [false; 2] }));
                }
                2 => {
                    // A host may learn of it from its own link only.
                    let seen = [both, [true, false], [false, true]][rng.below(3) as usize];
                    faults.push((at, Fault::Carrier { link, up: false, seen }));
                    faults.push((back, Fault::Carrier { link, up: true, seen: both }));
                }
                3 => {
                    faults.push((at, Fault::Address { host, link, there: false }));
                    faults.push((back, Fault::Address { host, link, there: true }));
                }
                4 => {
                    faults.push((at, Fault::Admin { host, link, usable: false }));
                    faults.push((back, Fault::Admin { host, link, usable: true }));
                }
                5 => {
                    let (loss, double) = (rng.below(60), rng.below(60));
                    let straggle = rng.below(10);
                    faults.push((at, Fault::Bad { link, loss, double, straggle }));
                }
                // All links at once.
                6 => {
                    for link in 0..links {
                        faults.push((at, Fault::Cut { link, from: both }));
                        let back = back + rng.time(Duration::from_millis(100));
                        faults.push((back, Fault::Cut { link, from: [false; 2] }));
                    }
                }
                _ => {
                    let time = rng.time(Duration::from_millis(40));
                    faults.push((at, Fault::Pause { host, time }));
                }
            }
            at += rng.time(Duration::from_millis(150));
        }
        let healed = end + Duration::from_millis(600);
        for link in 0..links {
            let from = [false; 2];
            faults.push((healed, Fault::Cut { link, from }));
            faults.push((healed, Fault::Carrier { link, up: true, seen: [true; 2] }));
            faults.push((healed, Fault::Bad { link, loss: 0, double: 0, straggle: 0 }));
            for host in 0..2 {
                faults.push((healed, Fault::Address { host, link, there: true }));
                faults.push((healed, Fault::Admin { host, link, usable: true }));
            }
        }
        faults.sort_by_key(|(at, _)| *at);
        Self { faults, healed }
    }
}
