//! Decides which faults each packet suffers, and counts them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polypath_ipc::faults::{Cut, Faults, Share};
use polypath_telemetry::FaultCounters;

use super::names::Names;
use crate::notify::lock;

/// The largest number of packets that overtake a reordered one.
const OVERTAKERS_MAX: u64 = 5;

/// The faults of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) lost: bool,
    pub(super) corrupt: bool,
    pub(super) twice: bool,
    /// The number of packets that overtake it.
    pub(super) overtakers: u32,
    pub(super) delay: Duration,
}

/// Decides about the packets of one direction of a lane.
#[derive(Debug)]
pub(super) struct Judge {
    faults: Arc<Faults>,
    names: Names,
    pub(super) counts: Arc<Mutex<FaultCounters>>,
    rng: Rng,
    /// The time at which the lane began, on its clock.
    since: Duration,
}

impl Judge {
    /// Creates a judge. `seed` differs between the directions and lanes of a program.
    pub(super) fn new(
        faults: Arc<Faults>,
        names: Names,
        counts: Arc<Mutex<FaultCounters>>,
        seed: u64,
        since: Duration,
    ) -> Self {
        Self { faults, names, counts, rng: Rng(seed), since }
    }

    /// Decides about the next packet that is sent from or arrived at this local address.
    pub(super) fn fate(&mut self, now: Duration, local: IpAddr) -> Fate {
        let faults = self.faults.clone();
        if faults.on.is_some() || !faults.cuts.is_empty() {
            let name = self.names.of(local);
            let is = |other: &str| name.as_deref() == Some(other);
            let age = now.saturating_sub(self.since);
            if faults.cuts.iter().any(|cut| is(&cut.interface) && holds(cut, age)) {
                lock(&self.counts).cut += 1;
                return Fate { lost: true, ..Fate::default() };
            }
            if faults.on.as_deref().is_some_and(|on| !is(on)) {
                return Fate::default();
            }
        }
        if self.rng.happens(faults.loss) {
            lock(&self.counts).lost += 1;
            return Fate { lost: true, ..Fate::default() };
        }
        let mut fate = Fate {
            corrupt: self.rng.happens(faults.corrupt),
            twice: self.rng.happens(faults.dup),
            ..Fate::default()
        };
        if self.rng.happens(faults.reorder) {
            fate.overtakers = 1 + self.rng.below(OVERTAKERS_MAX) as u32;
            lock(&self.counts).reordered += 1;
        }
        if !faults.delay.is_zero() {
            fate.delay = faults.delay - faults.jitter;
            let spread = 2 * faults.jitter.as_nanos() as u64;
            if spread > 0 {
                fate.delay += Duration::from_nanos(self.rng.below(spread + 1));
            }
            lock(&self.counts).delayed += 1;
        }
        if fate.corrupt {
            lock(&self.counts).corrupted += 1;
        }
        if fate.twice {
            lock(&self.counts).duplicated += 1;
        }
        fate
    }

    /// Whether packets may change their order.
    pub(super) fn reorders(&self) -> bool {
        self.faults.reorder != Share(0) || !self.faults.jitter.is_zero()
    }
}

/// Whether a cut applies at this time after the lane began.
fn holds(cut: &Cut, age: Duration) -> bool {
    cut.at <= age && cut.lasts.is_none_or(|lasts| age < cut.at + lasts)
}

/// A SplitMix64 generator.
#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Draws whether a fault happens. Nothing is drawn for a share of 0, so that adding one fault
    /// does not change the draws of another.
    fn happens(&mut self, share: Share) -> bool {
        share != Share(0) && self.below(u64::from(Share::ALL)) < u64::from(share.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn judge(text: &str) -> Judge {
        let faults = Faults::parse(text).unwrap().unwrap();
        let (names, counts) = (Names::default(), Arc::default());
        names.learn(&crate::fuzz::table());
        Judge::new(Arc::new(faults), names, counts, 7, S)
    }

    #[test]
    fn faults_are_as_frequent_as_was_said() {
        let mut judge = judge("loss=10%,dup=20%,reorder=30%,corrupt=40%,delay=5ms~1ms");
        let ip = crate::fuzz::ip(0, 0);
        let fates: Vec<Fate> = (0..100_000).map(|_| judge.fate(S, ip)).collect();
        let share =
            |what: fn(&Fate) -> bool| (fates.iter().filter(|fate| what(fate)).count() + 500) / 1000;
        assert_eq!(share(|fate| fate.lost), 10);
        // The share of those packets that are not lost.
        assert_eq!(share(|fate| fate.twice), 90 * 20 / 100);
        assert_eq!(share(|fate| fate.overtakers > 0), 90 * 30 / 100);
        assert_eq!(share(|fate| fate.corrupt), 90 * 40 / 100);
        let ms = Duration::from_millis;
        let kept = || fates.iter().filter(|fate| !fate.lost);
        assert!(kept().all(|fate| (ms(4)..=ms(6)).contains(&fate.delay)));
        assert!(kept().any(|fate| fate.delay < ms(5)) && kept().any(|fate| fate.delay > ms(5)));
        assert!(kept().all(|fate| u64::from(fate.overtakers) <= OVERTAKERS_MAX));
        let lost = lock(&judge.counts).lost;
        assert_eq!(lost, fates.iter().filter(|fate| fate.lost).count() as u64);
    }

    #[test]
    fn a_cut_holds_for_its_interface_and_its_time() {
        let mut judge = judge("cut=eth0@10s+5s,cut=eth1@20s");
        let (eth0, eth1) = (crate::fuzz::ip(0, 0), crate::fuzz::ip(1, 0));
        for (now, first, second) in [
            (10, false, false),
            (11, true, false),
            (15, true, false),
            (16, false, false),
            (21, false, true),
        ] {
            assert_eq!(judge.fate(now * S, eth0).lost, first, "eth0 at {now}");
            assert_eq!(judge.fate(now * S, eth1).lost, second, "eth1 at {now}");
        }
    }

    #[test]
    fn faults_on_one_interface_leave_the_others_alone() {
        let mut judge = judge("loss=100%,on=eth1");
        assert!(!judge.fate(S, crate::fuzz::ip(0, 0)).lost);
        assert!(judge.fate(S, crate::fuzz::ip(1, 0)).lost);
        assert!(!judge.fate(S, IpAddr::from([224, 0, 0, 1])).lost);
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let ip = crate::fuzz::ip(0, 0);
        let draw = || {
            let mut judge = judge("loss=30%,dup=30%");
            (0..100).map(|_| judge.fate(S, ip)).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
    }
}
