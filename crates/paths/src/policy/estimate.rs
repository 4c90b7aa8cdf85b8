//! Estimates of when something will have arrived by a path, and what room it needs there.

use core::time::Duration;

use super::PathSet;
use polypath_types::PathId;

/// What a path can take at once to be worth a burst, bytes, or all that the burst has. Windows that open by a
/// packet at a time would split bursts into packets.
const ROOM: u32 = 16 << 10;
/// Room that a request needs beyond its quarter, because it is divided into packets.
const ASK_MARGIN: u32 = 8 << 10;
/// A path whose rate was not measured is assumed to carry a window in each round trip, and the round trip is
/// assumed to be at least this long: shorter ones say more of the processors than of the link.
const ROUND_TRIP_MIN: Duration = Duration::from_micros(100);
/// Another path than the main one is used if it is better by this share: one in 8. Otherwise two equal paths
/// would take turns although one is enough.
const PREFERENCE: u64 = 8;

/// The room that a burst needs in a window, or a request for a part of a READ. A request is not sent for less
/// than a quarter of the window, so a path with less room is full for it.
pub(super) fn least_room(window: u32, asks: bool) -> u32 {
    if asks { ((window / 4).max(ROOM) + ASK_MARGIN).min(window) } else { ROOM.min(window / 2) }
}

/// Bytes per second that a path delivers: measured, or as its window and its round trip allow.
fn rate(set: &PathSet<'_>, path: PathId) -> u64 {
    set.rate(path).unwrap_or_else(|| {
        let shortest = set.shortest_rtt(path).unwrap_or(ROUND_TRIP_MIN).max(ROUND_TRIP_MIN);
        u64::from(set.window(path)).saturating_mul(1_000_000_000) / nanos(shortest)
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How much of the peer's receive buffer each path may fill. All paths end in it, and what one path may have
/// in flight fits into it. So when they do not fit together, each gets a share that is proportional to its
/// rate. A path that had the buffer for itself leaves room for the others in this way.
///
/// With one path there is nothing to divide: its window alone decides. The window may have grown beyond what
/// is known of the buffer, where the peer has told nothing of it.
pub(super) struct Shares {
    /// Bytes of the buffer, and the rates of all paths together; `None` while there is room for all, or with
    /// one path.
    tight: Option<(u64, u64)>,
}

impl Shares {
    /// For paths that are used, and so many `bytes` more than they have in flight.
    pub(super) fn of<P>(set: &PathSet<'_>, used: P, bytes: u32) -> Self
    where
        P: Iterator<Item = PathId> + Clone,
    {
        let buffer = u64::from(set.receive_window());
        let total: u64 = used.clone().map(|path| u64::from(set.in_flight(path))).sum();
        let is_tight = total + u64::from(bytes) > buffer && used.clone().nth(1).is_some();
        let rates = || used.map(|path| rate(set, path)).fold(0, u64::saturating_add);
        Self { tight: is_tight.then(|| (buffer, rates())) }
    }

    /// Whether the share of a path takes so many `bytes` more.
    pub(super) fn take(&self, set: &PathSet<'_>, path: PathId, bytes: u32) -> bool {
        let Some((buffer, rates)) = self.tight else { return true };
        let share = u128::from(buffer) * u128::from(rate(set, path)) / u128::from(rates.max(1));
        u128::from(set.in_flight(path)) + u128::from(bytes) <= share
    }
}

/// In how many nanoseconds so many `bytes` more will have arrived by a path.
pub(super) fn arrival(set: &PathSet<'_>, path: PathId, bytes: u64) -> u64 {
    arrival_behind(set, path, set.in_flight(path).into(), bytes)
}

/// The same for a path that has `waiting` bytes to deliver before.
pub(super) fn arrival_behind(set: &PathSet<'_>, path: PathId, waiting: u64, bytes: u64) -> u64 {
    let shortest = set.shortest_rtt(path).unwrap_or(ROUND_TRIP_MIN);
    let rate = rate(set, path);
    let queue = waiting.saturating_add(bytes);
    let sending = u128::from(queue) * 1_000_000_000 / u128::from(rate.max(1));
    let time = (nanos(shortest) / 2).saturating_add(u64::try_from(sending).unwrap_or(u64::MAX));
    if path == set.main() { time } else { time.saturating_add(time / PREFERENCE) }
}
