//! All paths carry data: each burst goes where it will have arrived first.
//!
//! When a burst will have arrived by a path is estimated from what is known of the path: half of the shortest
//! round trip, and the time that the path needs for what is in flight there and for the burst itself, at the
//! rate that was measured. So queues count by what they delay, and small messages stay on the fastest path
//! while it has room.
//!
//! A path whose window is full is no reason to use another one at any price, because what is sent there is
//! needed before all that is sent later. If the full path would have delivered everything that the queue pair
//! has to send before the burst arrived by the other path, the queue pair waits. Earliest completion first
//! (ECF, CoNEXT 2017) decides in the same way.

use super::estimate::{Shares, arrival, least_room};
use super::{Next, PathSet, Policy};
use polypath_types::{Class, PathId, Want};

/// The bytes after which the estimate is made again. Fewer would cost time for small messages, and more would
/// leave the other paths idle.
const QUANTUM: u32 = 16 << 10;

/// Uses all paths together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance;

impl Policy for Balance {
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        match set.only_up() {
            Some(path) => alone(want, set, path),
            None => spread(want, set, set.up()),
        }
    }

    fn spreads(&self) -> bool {
        true
    }
}

/// By the only path that is up, of which there is nothing to estimate.
#[inline]
fn alone(want: &Want, set: &PathSet<'_>, path: PathId) -> Next {
    match want.class {
        Class::Answer { asked_by } => Next::By { path: asked_by, bytes: 0 },
        _ if fits(want, set, path) || goes_anyway(want, set, path) => {
            Next::By { path, bytes: u32::MAX }
        }
        _ => Next::Wait,
    }
}

/// The path among these, which are up, by which the next burst arrives first.
pub(super) fn spread<P>(want: &Want, set: &PathSet<'_>, among: P) -> Next
where
    P: Iterator<Item = PathId> + Clone,
{
    // READs are answered in their order, and by the path by which the requester expects them.
    if let Class::Answer { asked_by } = want.class {
        return Next::By { path: asked_by, bytes: 0 };
    }
    let shares = Shares::of(set, among.clone(), want.bytes);
    let mut up = 0;
    // When this burst arrives by the best path that has room.
    let mut open: Option<(u64, PathId)> = None;
    // When everything arrives by the best path that is full.
    let mut full: Option<u64> = None;
    for path in among {
        up += 1;
        let has_room = fits(want, set, path) && shares.take(set, path, need(want, set, path));
        if has_room || goes_anyway(want, set, path) {
            let arrival = arrival(set, path, want.bytes.into());
            if open.is_none_or(|(best, _)| arrival < best) {
                open = Some((arrival, path));
            }
        } else {
            let arrival = arrival(set, path, want.backlog);
            full = Some(full.map_or(arrival, |best| best.min(arrival)));
        }
    }
    let Some((arrival, path)) = open else {
        return if up == 0 { Next::By { path: set.main(), bytes: 0 } } else { Next::Wait };
    };
    if full.is_some_and(|all| all < arrival) && want.class == Class::Request {
        return Next::Wait;
    }
    Next::By { path, bytes: if up == 1 { u32::MAX } else { QUANTUM } }
}

/// Whether the window of a path has room for the next burst.
#[inline]
fn fits(want: &Want, set: &PathSet<'_>, path: PathId) -> bool {
    set.room(path) >= need(want, set, path)
}

/// The room that the next burst needs in the window of a path.
#[inline]
fn need(want: &Want, set: &PathSet<'_>, path: PathId) -> u32 {
    want.bytes.min(least_room(set.window(path), want.asks))
}

/// Whether the next burst waits for no room in the window of a path.
#[inline]
fn goes_anyway(want: &Want, set: &PathSet<'_>, path: PathId) -> bool {
    set.in_flight(path) == 0 || want.class == Class::Urgent
}
