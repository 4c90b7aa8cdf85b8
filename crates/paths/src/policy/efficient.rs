//! As few paths as carry the demand, the cheapest first. The others are probed, and otherwise silent.
//!
//! Paths are ranked by the cost that the settings give their interfaces. Of equal ones the primary one comes
//! first, then the fastest interface. The first ones of this order are *in use*, and data is balanced among
//! them.
//!
//! Another path comes into use when those in use were full for a while: a request had to wait for room, and
//! since then each of them has always had half of its window in flight, for [`ROUNDS`] round trips and at
//! least [`FULL_MIN`]. This covers all queue pairs of the peer together, and no rate has to be known for it.
//! The time is longer than the start of a connection, in which windows are small and grow, and than a single
//! large message.
//!
//! The last path goes out of use when the demand was for [`CALM`] well below what the others have carried
//! when they were full. What they have carried is forgotten after a minute, so that fewer paths are tried
//! again. After a second without traffic one path is enough.

use core::cmp::Reverse;
use core::time::Duration;

use super::balance::spread;
use super::{Choice, Next, PathSet, Policy, active_backup};
use crate::types::MAX_PATHS;
use polypath_types::{Class, PathId, Want};

/// How long the paths in use must be full before another one comes into use: so many of the longest of their
/// shortest round trips, and at least this time.
const ROUNDS: u32 = 16;
const FULL_MIN: Duration = Duration::from_millis(50);
/// How long the demand must be low before a path goes out of use.
const CALM: Duration = Duration::from_secs(1);
/// The demand is measured over this time.
const DEMAND_OVER: Duration = Duration::from_millis(100);
/// How long it is known what a number of paths carried.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Bytes after which the policy is asked again, so that it hears of a full path.
const QUANTUM: u32 = 16 << 10;

/// Uses the cheapest paths that carry the demand.
#[derive(Clone, Debug)]
pub(crate) struct Efficient {
    /// The number of paths in use, at least 1.
    width: usize,
    /// The paths that are up, in their order, when it was last looked.
    ranking: Ranking,
    /// What the first paths of the order carried when they were full, bytes per second, and when that was
    /// measured: the first one, the first two, and so on.
    carried: [Option<(u64, Duration)>; MAX_PATHS],
    /// What had been sent when the paths in use became full; `None` if one of them is not.
    full_from: Option<Mark>,
    /// When a request last had to wait.
    waited_at: Option<Duration>,
    /// What had been sent when the demand was last measured.
    demand_from: Mark,
    /// Since when fewer paths could have carried the demand.
    calm_since: Duration,
}

/// The bytes that all paths had sent at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Duration,
    sent: u64,
}

impl Mark {
    fn of(set: &PathSet<'_>) -> Self {
        let sent = set.members().map(|path| set.sent_bytes(path)).sum();
        Self { at: set.now(), sent }
    }

    /// Bytes per second from then until `end`.
    fn rate_until(self, end: Self) -> u64 {
        let nanos = end.at.saturating_sub(self.at).as_nanos().max(1);
        let bytes = u128::from(end.sent.saturating_sub(self.sent));
        u64::try_from(bytes * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }
}

/// The paths that are up, the one that is used first at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ranking {
    paths: [PathId; MAX_PATHS],
    len: usize,
}

impl Ranking {
    const EMPTY: Self = Self { paths: [PathId::NONE; MAX_PATHS], len: 0 };

    fn of(set: &PathSet<'_>) -> Self {
        let mut ranking = Self::EMPTY;
        for path in set.up().take(MAX_PATHS) {
            ranking.paths[ranking.len] = path;
            ranking.len += 1;
        }
        ranking.paths[..ranking.len].sort_unstable_by_key(|path| {
            let speed = Reverse(set.speed_mbps(*path));
            let order = (set.cost(*path), !set.is_primary(*path), speed, set.number(*path));
            (!set.is_local(*path), order)
        });
        ranking
    }

    fn first(&self, n: usize) -> &[PathId] {
        &self.paths[..n.min(self.len)]
    }
}

impl Efficient {
    pub(crate) fn new() -> Self {
        Self {
            width: 1,
            ranking: Ranking::EMPTY,
            carried: [None; MAX_PATHS],
            full_from: None,
            waited_at: None,
            demand_from: Mark::default(),
            calm_since: Duration::ZERO,
        }
    }

    /// The number of paths in use.
    fn in_use(&self) -> usize {
        self.width.min(self.ranking.len)
    }

    /// Looks whether the order of the paths has changed, whether those in use are still full, and whether
    /// the time over which the demand is measured has ended.
    fn observe(&mut self, set: &PathSet<'_>) {
        let ranking = Ranking::of(set);
        if ranking != self.ranking {
            self.ranking = ranking;
            self.carried = [None; MAX_PATHS];
            self.full_from = None;
        }
        if let Some(from) = self.full_from {
            self.check_full(set, from);
        }
        let passed = set.now().saturating_sub(self.demand_from.at);
        if passed >= CALM {
            // Nothing was sent for so long.
            self.width = 1;
            self.calm_since = set.now();
            self.demand_from = Mark::of(set);
        } else if passed >= DEMAND_OVER {
            self.measure_demand(set);
        }
    }

    /// The paths in use are full since `from`, unless one of them is not any more.
    fn check_full(&mut self, set: &PathSet<'_>, from: Mark) {
        let used = self.ranking.first(self.width);
        if used.iter().any(|path| set.in_flight(*path) < set.window(*path) / 2) {
            self.full_from = None;
            return;
        }
        let rtt = used.iter().filter_map(|path| set.shortest_rtt(*path)).max().unwrap_or_default();
        if set.now().saturating_sub(from.at) < (rtt * ROUNDS).max(FULL_MIN) {
            return;
        }
        let now = Mark::of(set);
        let n = self.in_use();
        if n < self.ranking.len {
            self.carried[n - 1] = Some((from.rate_until(now), now.at));
            self.width = n + 1;
            self.calm_since = now.at;
        }
        self.full_from = None;
    }

    /// A request has to wait, because the paths in use are full.
    fn waits(&mut self, set: &PathSet<'_>) {
        self.waited_at = Some(set.now());
        if self.full_from.is_none() {
            self.full_from = Some(Mark::of(set));
        }
    }

    /// Gives the last path up if the others could have carried the demand for a while.
    fn measure_demand(&mut self, set: &PathSet<'_>) {
        let now = Mark::of(set);
        let demand = self.demand_from.rate_until(now);
        self.demand_from = now;
        let fewer = self.in_use().saturating_sub(1);
        let Some(index) = fewer.checked_sub(1) else {
            self.calm_since = now.at;
            return;
        };
        let known = self.carried[index].filter(|(_, at)| now.at.saturating_sub(*at) < KNOWN_FOR);
        let waited = self.waited_at.is_some_and(|at| now.at.saturating_sub(at) < DEMAND_OVER);
        if known.map_or(waited, |(carried, _)| demand > carried / 4 * 3) {
            self.calm_since = now.at;
        } else if now.at.saturating_sub(self.calm_since) >= CALM {
            self.width = fewer;
            self.calm_since = now.at;
        }
    }
}

impl Policy for Efficient {
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        self.observe(set);
        let used = self.ranking.first(self.width).iter().copied();
        match spread(want, set, used) {
            Next::By { path, bytes } if self.width < self.ranking.len => {
                Next::By { path, bytes: bytes.min(QUANTUM) }
            }
            Next::Wait => {
                if want.class == Class::Request {
                    self.waits(set);
                }
                Next::Wait
            }
            next => next,
        }
    }

    fn spreads(&self) -> bool {
        true
    }

    /// The main path is the cheapest one that is up.
    fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        let usual = active_backup::choose(set);
        let ranking = Ranking::of(set);
        let Some(&best) = ranking.first(1).first() else { return usual };
        match usual {
            Choice::NoPath => usual,
            Choice::Move(_) => Choice::Move(best),
            _ if best == set.main() => Choice::Stay,
            Choice::Prefer(_) => Choice::Prefer(best),
            Choice::Stay if set.cost(best) < set.cost(set.main()) => Choice::Prefer(best),
            Choice::Stay => Choice::Stay,
        }
    }
}
