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
    if asks { (window / 4).max(ROOM) + ASK_MARGIN } else { ROOM.min(window / 2) }
}

/// In how many nanoseconds so many `bytes` more will have arrived by a path.
pub(super) fn arrival(set: &PathSet<'_>, path: PathId, bytes: u64) -> u64 {
    arrival_behind(set, path, set.in_flight(path).into(), bytes)
}

/// The same for a path that has `waiting` bytes to deliver before.
pub(super) fn arrival_behind(set: &PathSet<'_>, path: PathId, waiting: u64, bytes: u64) -> u64 {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let shortest = set.shortest_rtt(path).unwrap_or(ROUND_TRIP_MIN);
    let rate = set.rate(path).unwrap_or_else(|| {
        let round_trip = nanos(shortest.max(ROUND_TRIP_MIN));
        u64::from(set.window(path)).saturating_mul(1_000_000_000) / round_trip
    });
    let queue = waiting.saturating_add(bytes);
    let sending = u128::from(queue) * 1_000_000_000 / u128::from(rate.max(1));
    let time = (nanos(shortest) / 2).saturating_add(u64::try_from(sending).unwrap_or(u64::MAX));
    if path == set.main() { time } else { time.saturating_add(time / PREFERENCE) }
}
