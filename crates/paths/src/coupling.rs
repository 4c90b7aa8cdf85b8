//! Paths that share a bottleneck together take one flow's share of it.
//!
//! Each path has a congestion window of its own. Several of them through one bottleneck would take the shares
//! of several flows, to the harm of others (RFC 6356, section 1). Addresses do not tell which paths share
//! one. But a queue that two paths share makes the round trips of both longer at the same times, and shorter
//! at the same times, while queues of their own come and go independently (RFC 8382 groups flows by what it
//! sees of their delays, too). So the round trips of paths that carry data are compared while they do, and
//! paths whose queues move together grow their windows like parts of one flow.

use core::time::Duration;

use polypath_types::PathId;

use crate::id::{ByNumber, PathNumber};
use crate::types::MAX_PATHS;

/// Round trips are averaged over so many of the longest one, so that each path had its say, and within these
/// bounds.
const ROUND_TRIPS: u32 = 4;
const INTERVAL_MIN: Duration = Duration::from_millis(5);
const INTERVAL_MAX: Duration = Duration::from_millis(50);
/// A path with fewer round trips in an interval does not carry data worth a comparison.
const SAMPLES_MIN: u32 = 4;
/// Levels are those of about so many intervals, and so is what is known of two paths together.
const LEVEL: u16 = 32;
const MEMORY: u16 = 64;
/// Nothing is said of two paths before they were compared so often.
const SEEN_MIN: u16 = 2 * MEMORY;
/// Equal paths whose windows began together may fill and empty queues of their own in step for long. So the
/// window of one is cut alone, this often and so many intervals apart, before two paths count as sharing a
/// queue, and again after so many intervals.
const TRIALS: [u16; 2] = [MEMORY / 8, MEMORY + MEMORY / 8];
const AGAIN: u16 = 8 * SEEN_MIN;
/// Queues that move less than this, nanoseconds, are not told from processors that are late.
const MOVEMENT_MIN: f64 = 100_000.0;
/// A movement counts as at most so many times the usual one. Otherwise one stall of a process, which all
/// paths see, would outweigh everything.
const CLIP: f64 = 3.0;
/// Squares of the correlations from which on two paths count as sharing a bottleneck, and below which not any
/// more: 0.7 and 0.4.
const SHARED_FROM: f64 = 0.49;
const SHARED_TO: f64 = 0.16;

/// How long an interval lasts among paths of which the longest has this round trip.
pub(crate) fn interval(longest: Duration) -> Duration {
    (longest * ROUND_TRIPS).clamp(INTERVAL_MIN, INTERVAL_MAX)
}

/// The round trips of a path in the current interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delays {
    /// Nanoseconds.
    sum: u64,
    count: u32,
    ends_at: Duration,
}

impl Delays {
    /// Takes a round trip. Returns whether the interval is over.
    #[inline]
    pub(crate) fn sample(&mut self, now: Duration, rtt: Duration) -> bool {
        self.sum += u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX >> 32);
        self.count += 1;
        now >= self.ends_at
    }

    /// The mean, nanoseconds, and begins an interval that ends at a time.
    pub(crate) fn restart(&mut self, ends_at: Duration) -> Option<f64> {
        let mean = (self.count >= SAMPLES_MIN).then(|| self.sum as f64 / f64::from(self.count));
        *self = Self { ends_at, ..Self::default() };
        mean
    }
}

/// A path in one interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) path: PathId,
    /// Of the round trips: their mean and the shortest known, nanoseconds.
    pub(crate) mean: f64,
    pub(crate) shortest: f64,
}

/// How the round trips of a path have moved.
#[derive(Clone, Copy, Debug, Default)]
struct Movement {
    path: Option<PathId>,
    intervals: u16,
    level: f64,
    variance: f64,
}

impl Movement {
    /// Takes an interval. Returns how far it is from the level.
    fn take(&mut self, seen: &Seen) -> f64 {
        let mut off = seen.mean - self.level;
        if self.intervals >= MEMORY / 4 {
            let most = self.variance.sqrt() * CLIP;
            off = off.clamp(-most, most);
        }
        self.intervals = (self.intervals + 1).min(MEMORY);
        self.level += (seen.mean - self.level) / f64::from(self.intervals.min(LEVEL));
        self.variance += (off * off - self.variance) / f64::from(self.intervals);
        off
    }

    /// Whether a queue is what moves.
    fn is_a_queue(&self, seen: &Seen) -> bool {
        let least = MOVEMENT_MIN.max(seen.shortest / 64.0);
        self.variance >= least * least
    }
}

/// What is known of two paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Relation {
    #[default]
    Apart,
    /// Their queues have moved together. They are used as if they were apart, and one is cut alone now and
    /// then.
    Tried,
    /// They did so in the trial, too.
    Shared,
}

/// Two paths compared.
#[derive(Clone, Copy, Debug, Default)]
struct Together {
    relation: Relation,
    /// In this relation.
    intervals: u16,
    covariance: f64,
}

/// What is known of the bottlenecks of an association's paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coupling {
    movements: ByNumber<Movement>,
    /// By the smaller number, then by the larger one.
    pairs: [[Together; MAX_PATHS]; MAX_PATHS],
    /// Paths with the same item share a bottleneck, as far as the last interval tells.
    groups: ByNumber<Option<u8>>,
}

impl Coupling {
    /// Takes the paths that carried data in an interval. Returns those whose window is to be cut, to see
    /// which others feel it.
    pub(crate) fn compare(&mut self, seen: &ByNumber<Option<Seen>>) -> ByNumber<bool> {
        let mut cuts = ByNumber::<bool>::default();
        let mut off = ByNumber::<f64>::default();
        for (number, seen) in seen.iter() {
            let Some(seen) = seen else { continue };
            if self.movements[number].path != Some(seen.path) {
                self.begin(number, &seen);
            }
            off[number] = self.movements[number].take(&seen);
        }
        for (number, seen) in seen.iter() {
            self.groups[number] = seen.map(|_| number.0);
        }
        for (one, two, [first, second]) in pairs(seen) {
            let moves = [&self.movements[one], &self.movements[two]];
            let queues = moves[0].is_a_queue(&first) && moves[1].is_a_queue(&second);
            let both = moves[0].variance * moves[1].variance;
            let pair = &mut self.pairs[usize::from(one.0)][usize::from(two.0)];
            if pair.take(off[one] * off[two], both, queues) {
                cuts[two] = true;
            }
            if pair.relation == Relation::Shared {
                let (from, to) = (self.groups[two], self.groups[one]);
                self.groups.iter_mut().filter(|of| **of == from).for_each(|of| *of = to);
            }
        }
        cuts
    }

    /// The other paths that share the bottleneck of this one.
    pub(crate) fn mates(&self, number: PathNumber) -> impl Iterator<Item = PathNumber> + use<> {
        let group = self.groups.get(number).flatten();
        let is_mate = move |&(other, of): &(PathNumber, Option<u8>)| {
            of.is_some() && of == group && other != number
        };
        self.groups.iter().filter(is_mate).map(|(other, _)| other)
    }

    /// Another path has this number now.
    fn begin(&mut self, number: PathNumber, seen: &Seen) {
        self.movements[number] =
            Movement { path: Some(seen.path), level: seen.mean, ..Movement::default() };
        let number = usize::from(number.0);
        self.pairs[number] = Default::default();
        for row in &mut self.pairs {
            row[number] = Together::default();
        }
    }
}

/// The pairs of paths that carried data, each once, the smaller number first.
fn pairs(
    seen: &ByNumber<Option<Seen>>,
) -> impl Iterator<Item = (PathNumber, PathNumber, [Seen; 2])> {
    let used = seen.iter().filter_map(|(number, seen)| Some((number, seen?)));
    used.clone().flat_map(move |(one, first)| {
        let after = used.clone().filter(move |(two, _)| two.0 > one.0);
        after.map(move |(two, second)| (one, two, [first, second]))
    })
}

impl Together {
    /// Takes an interval. `product`: of what the two are off their levels. `both`: the product of their
    /// variances.
    /// `queues`: both are those of queues. Returns whether one of them is to be cut alone.
    fn take(&mut self, product: f64, both: f64, queues: bool) -> bool {
        self.intervals = (self.intervals + 1).min(AGAIN);
        self.covariance += (product - self.covariance) / f64::from(self.intervals.min(MEMORY));
        let least = both * if self.relation == Relation::Shared { SHARED_TO } else { SHARED_FROM };
        let square = self.covariance * self.covariance;
        let together = queues && self.covariance > 0.0 && square >= least;
        let next = match self.relation {
            _ if self.intervals < SEEN_MIN => self.relation,
            _ if !together => Relation::Apart,
            Relation::Apart => Relation::Tried,
            Relation::Tried => Relation::Shared,
            Relation::Shared if self.intervals < AGAIN => Relation::Shared,
            Relation::Shared => Relation::Tried,
        };
        if next != self.relation {
            *self = Self { relation: next, ..Self::default() };
        }
        self.relation == Relation::Tried && TRIALS.contains(&self.intervals)
    }
}

#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;
