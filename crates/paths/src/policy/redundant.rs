//! Everything is sent by two paths, and the first copy to arrive counts: for what cannot wait until a loss
//! is repaired.
//!
//! The two paths are those by which a burst would arrive first if nothing else were on its way. The first
//! copy goes by the one of them by which it arrives first now. If that one is full, the other one carries the
//! only copy, and if both are full, the queue pair waits. A path that is only suspected of having died still
//! takes copies, because most suspicions are unfounded and a copy costs little.
//!
//! Answers go by the path that asked. So what was asked by two paths is answered by both, whatever the policy
//! of the other end.

use super::estimate::{arrival, arrival_behind, least_room};
use super::{Next, PathSet, Policy};
use crate::types::PathState;
use polypath_types::{Class, PathId, Want};

/// The bytes after which the policy is asked again.
const QUANTUM: u32 = 16 << 10;

/// Sends everything by the two best paths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redundant;

impl Policy for Redundant {
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        if let Class::Answer { asked_by } = want.class {
            return Next::By { path: asked_by, bytes: 0 };
        }
        let Some((one, other)) = two_best(want, set) else {
            return Next::By { path: set.main(), bytes: 0 };
        };
        let need = want.bytes.min(least_room(set.window(one), want.asks));
        let open = |path: &PathId| {
            set.room(*path) >= need || set.in_flight(*path) == 0 || want.class == Class::Urgent
        };
        // The copy alone may go by a path that is suspected.
        let first = |path: &PathId| set.state(*path) == Some(PathState::Up) && open(path);
        let arrives = |path: &PathId| arrival(set, *path, want.bytes.into());
        let Some(path) = [Some(one), other].into_iter().flatten().filter(first).min_by_key(arrives)
        else {
            return Next::Wait;
        };
        // All paths end in one receive buffer. What one path may have in flight fits into it.
        let total: u64 = set.members().map(|path| u64::from(set.in_flight(path))).sum();
        let spread = total > u64::from(set.in_flight(path));
        let overflows = spread && total + u64::from(want.bytes) > set.receive_window().into();
        if overflows && want.class == Class::Request {
            return Next::Wait;
        }
        match [Some(one), other].into_iter().flatten().find(|other| *other != path) {
            Some(copy) => Next::Twice { path, copy, bytes: QUANTUM },
            None => Next::By { path, bytes: QUANTUM },
        }
    }

    fn spreads(&self) -> bool {
        true
    }
}

/// The two paths by which a burst would arrive first if nothing else were on its way; those that are up come
/// before those that are suspected, and the second one has other addresses than the first if it can. `None`
/// if no path is up.
fn two_best(want: &Want, set: &PathSet<'_>) -> Option<(PathId, Option<PathId>)> {
    let rank = |path: PathId| {
        let suspected = match set.state(path)? {
            PathState::Up => false,
            PathState::Suspect => true,
            _ => return None,
        };
        Some((suspected, arrival_behind(set, path, 0, want.bytes.into()), path))
    };
    let (false, _, one) = set.members().filter_map(rank).min()? else { return None };
    let ends = |path| set.address(path).map(|address| (address.local, address.remote));
    let others = set.members().filter(|path| *path != one).filter_map(rank);
    let other = others.min_by_key(|&(suspected, arrival, path)| {
        (suspected, ends(path) == ends(one), arrival, path)
    });
    Some((one, other.map(|(.., path)| path)))
}
