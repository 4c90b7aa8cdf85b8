//! The windows of paths that share a bottleneck grow and become smaller together.

use core::time::Duration;

use polypath_types::{PathId, PathKind};

use crate::congestion::Cut;
use crate::coupling::{Seen, interval};
use crate::id::{AssociationId, ByNumber};
use crate::manager::PathManager;
use crate::path::Role;

impl PathManager {
    /// Compares the paths of an association whose interval is over, and lets those that share a bottleneck
    /// share their growth.
    pub(crate) fn compare_delays(&mut self, now: Duration, index: AssociationId) {
        let Some(a) = self.associations.get_mut(index) else { return };
        let mut longest = Duration::ZERO;
        for (_, path) in a.paths() {
            let rtt = self.paths.get(path).and_then(|p| p.rtt.smoothed());
            longest = longest.max(rtt.unwrap_or_default());
        }
        let ends_at = now + interval(longest);
        let mut seen = ByNumber::<Option<Seen>>::default();
        let mut used = 0;
        for (number, path) in a.paths() {
            let Some(p) = self.paths.get_mut(path) else { continue };
            let Some(mean) = p.delays.restart(ends_at) else { continue };
            let shortest = p.rtt.shortest().unwrap_or_default().as_nanos() as f64;
            if p.address.kind == PathKind::Udp {
                seen[number] = Some(Seen { path, mean, shortest });
                used += 1;
            }
        }
        // Most peers have one path that carries data, and need no memory for this.
        if used < 2 && a.coupling.is_none() {
            return;
        }
        let coupling = a.coupling.get_or_insert_default();
        let cuts = coupling.compare(&seen);
        for (number, seen) in seen.iter() {
            if let Some(p) = seen.and_then(|seen| self.paths.get_mut(seen.path)) {
                p.congestion.share(1 + coupling.mates(number).count() as u32);
                if cuts[number] {
                    p.congestion.cut(now, Cut::Loss, &p.rtt);
                }
            }
        }
    }

    /// Makes the windows smaller of those paths that share the bottleneck of this one, which has lost a
    /// packet or had one marked: one flow would have become smaller as a whole.
    pub(crate) fn cut_mates(&mut self, now: Duration, path: PathId, cut: Cut) {
        let Some(p) = self.paths.get(path).filter(|p| p.congestion.sharers() > 1) else { return };
        let Role::Member { association, id } = p.role else { return };
        let Some(a) = self.associations.get(association) else { return };
        let Some(coupling) = &a.coupling else { return };
        for number in coupling.mates(id) {
            let mate = a.paths.get(number).flatten().and_then(|mate| self.paths.get_mut(mate));
            if let Some(mate) = mate {
                mate.congestion.cut(now, cut, &mate.rtt);
            }
        }
    }
}
