//! Attackers: they send packets that no queue pair of the case has sent.
//!
//! An attacker off the path spoofs the peer's address and guesses numbers. An attacker on the path has
//! seen packets and sends them again. Neither may change anything that a program can see: the judge
//! judges as if they were not there. Of an attacker that forges packets with all that can be known
//! (`Way::Forge`), only this is demanded: nothing panics, tables agree, and nothing grows without
//! bounds.

mod forge;
mod strike;

use core::time::Duration;
use std::collections::VecDeque;

use polypath_paths::PathManager;
use polypath_transport::QpType;
use polypath_wire::ext::Syndrome;
use polypath_wire::opcode::Service;
use polypath_wire::packet::Packet;

use crate::bout::{Attack, Way};
use crate::case::{Case, PairPlan};
use crate::datagram::Datagram;
use crate::rng::Rng;

pub(crate) use forge::{Guess, Target, garble, guess};

const MS: Duration = Duration::from_millis(1);
/// Attackers are drawn from a stream of their own, so that the rest of a seed's meaning stays as it
/// was.
const STREAM: u64 = 0x6174_7461_636b_6572;
/// The longest time between two packets of a bout.
const PAUSE: Duration = Duration::from_micros(300);
/// The number of latest packets that are kept.
const RECENT: usize = 128;
/// The number of packets of long ago that are kept.
const OLD: usize = 64;
/// The age from which a packet is stale. A network may deliver late, too, but not by more.
pub(crate) const LATE: Duration = Duration::from_millis(300);

/// Draws the attackers of a seed's case.
pub(crate) fn draw(seed: u64, pairs: &[PairPlan]) -> Vec<Attack> {
    let rng = &mut Rng::new(seed ^ STREAM);
    let mut attacks = Vec::new();
    if pairs.is_empty() || !rng.chance(350) {
        return attacks;
    }
    let clever = rng.chance(200);
    for _ in 0..=rng.below(12) {
        let way = match rng.below(if clever { 12 } else { 9 }) {
            0..=3 => Way::Guess,
            4 => Way::Stranger,
            5..=6 => Way::Replay,
            7..=8 => Way::Stale,
            _ => Way::Forge,
        };
        attacks.push(Attack {
            at: rng.time(MS * 700),
            way,
            pair: rng.below(pairs.len() as u64) as usize,
            end: rng.below(2) as usize,
            packets: 1 + rng.below(40) as u32,
            seed: rng.bits(),
        });
    }
    attacks.sort_by_key(|attack| attack.at);
    attacks
}

/// The packets that an attacker on the path has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    recent: VecDeque<Datagram>,
    old: Vec<Datagram>,
    count: u64,
}

impl Seen {
    /// Notes a packet that passes.
    pub(crate) fn pass(&mut self, datagram: &Datagram) {
        self.count += 1;
        if self.recent.len() == RECENT {
            let oldest = self.recent.pop_front();
            // One packet in 16 is kept as a packet of long ago.
            if self.count.is_multiple_of(16)
                && let Some(oldest) = oldest
            {
                let place = (self.count / 16) as usize % OLD;
                match self.old.get_mut(place) {
                    Some(kept) => *kept = oldest,
                    None => self.old.push(oldest),
                }
            }
        }
        self.recent.push_back(datagram.clone());
    }

    /// One of the latest packets.
    pub(crate) fn recent(&self, rng: &mut Rng) -> Option<&Datagram> {
        self.recent.get(rng.below(self.recent.len() as u64) as usize)
    }

    /// One of the packets of long ago.
    pub(crate) fn old(&self, rng: &mut Rng) -> Option<&Datagram> {
        self.old.get(rng.below(self.old.len() as u64) as usize)
    }
}

/// Whether a packet must change nothing if it comes again, unchanged. UC and UD do not detect
/// duplicates. A stale RNR NAK does not differ from a new one while its PSN is outstanding.
pub(crate) fn is_harmless(datagram: &Datagram, now: Duration) -> bool {
    let Ok(packet) = Packet::parse(&datagram.bytes) else { return true };
    let age = now.saturating_sub(datagram.sent);
    let rnr = matches!(packet.headers.aeth.map(|a| a.syndrome), Some(Syndrome::RnrNak { .. }));
    let service = packet.opcode().service();
    let once = matches!(service, Service::Rc | Service::Xrc | Service::Mp);
    (once && !(rnr && age > LATE)) || PathManager::is_control(&packet)
}

/// The attacks of a run that are still to come, packet by packet.
#[derive(Debug, Default)]
pub(crate) struct Attackers {
    attacks: Vec<Attack>,
    /// For each attack, the time of its next packet, its number, and how many packets are left.
    due: Vec<(Duration, usize, u32)>,
    chance: Vec<Rng>,
}

impl Attackers {
    pub(crate) fn new(case: &Case, epoch: Duration) -> Self {
        let attacks = case.attacks.clone();
        let due = attacks.iter().enumerate().map(|(i, a)| (epoch + a.at, i, a.packets)).collect();
        let chance = attacks.iter().map(|a| Rng::new(a.seed)).collect();
        Self { attacks, due, chance }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.attacks.is_empty()
    }

    /// The time when the next packet comes.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.due.iter().map(|(at, ..)| *at).min()
    }

    /// Takes an attack whose next packet is due, with the generator to draw that packet from.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<(Attack, Rng)> {
        let place = self.due.iter().position(|(at, ..)| *at <= now)?;
        let (at, which, left) = &mut self.due[place];
        let (which, rng) = (*which, &mut self.chance[*which]);
        let packet = Rng::new(rng.bits());
        *left -= 1;
        *at = now + rng.time(PAUSE) + Duration::from_nanos(1);
        if *left == 0 {
            self.due.swap_remove(place);
        }
        Some((self.attacks[which], packet))
    }
}

/// The service bits of the opcodes of a pair's packets.
pub(crate) const fn service_bits(service: QpType) -> u8 {
    match service {
        QpType::Rc => 0,
        QpType::Uc => 1 << 5,
        QpType::Ud => 3 << 5,
        QpType::XrcSend | QpType::XrcRecv => 5 << 5,
    }
}
