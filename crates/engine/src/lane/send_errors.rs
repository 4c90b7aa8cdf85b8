//! Counters of packets that this host could not send, by way and reason.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use polypath_telemetry::Errno;
use smallvec::SmallVec;

/// The largest number of ways whose errors are recorded.
const MAX_WAYS: usize = 4096;
/// The number of reasons that are counted separately for one way.
const MAX_REASONS: usize = 8;
/// How long an error explains later failures. This is longer than most queue pairs retry.
const RECENT: Duration = Duration::from_secs(30);
/// The same error of the same way is not reported again within this time.
const QUIET: Duration = Duration::from_secs(30);

/// Local and remote address, and interface (0 if the routes choose it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) ifindex: u32,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    errno: i32,
    packets: u64,
    last: Duration,
    told: Option<Duration>,
}

/// The packets that a lane could not send.
#[derive(Debug, Default)]
pub(crate) struct SendErrors(BTreeMap<Way, Vec<Refusal>>);

impl SendErrors {
    /// Counts packets that could not be sent. Returns true if this should be reported.
    pub(crate) fn note(&mut self, now: Duration, way: Way, errno: i32, packets: u64) -> bool {
        if self.0.len() >= MAX_WAYS && !self.0.contains_key(&way) {
            self.0.retain(|_, list| list.iter().any(|r| now < r.last + RECENT));
            if self.0.len() >= MAX_WAYS {
                return false;
            }
        }
        let list = self.0.entry(way).or_default();
        let at = list.iter().position(|r| r.errno == errno).or_else(|| {
            (list.len() < MAX_REASONS).then(|| {
                list.push(Refusal { errno, packets: 0, last: now, told: None });
                list.len() - 1
            })
        });
        let Some(refusal) = at.and_then(|at| list.get_mut(at)) else { return false };
        refusal.packets += packets;
        refusal.last = now;
        let tell = refusal.told.is_none_or(|told| now >= told + QUIET);
        if tell {
            refusal.told = Some(now);
        }
        tell
    }

    /// The errno of the latest error of a way, if it is recent.
    pub(crate) fn recent(&self, now: Duration, way: &Way) -> Option<i32> {
        let list = self.0.get(way)?;
        let latest = list.iter().max_by_key(|r| r.last)?;
        (now < latest.last + RECENT).then_some(latest.errno)
    }

    /// The packets of a way that could not be sent, by reason.
    pub(crate) fn counters(&self, way: &Way) -> SmallVec<[(Errno, u64); 2]> {
        let list = self.0.get(way).map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|r| (Errno(r.errno), r.packets)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(n: u32) -> Way {
        let remote = IpAddr::from((0x0a00_0000 | n).to_be_bytes());
        Way { local: [10, 0, 0, 1].into(), remote, ifindex: 3 }
    }

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn refusals_are_counted_by_way_and_reason_and_told_once_in_a_while() {
        let mut errors = SendErrors::default();
        assert!(errors.note(s(1), way(2), libc::EPERM, 3));
        assert!(!errors.note(s(2), way(2), libc::EPERM, 4));
        assert!(errors.note(s(3), way(2), libc::ENOBUFS, 1));
        assert!(errors.note(s(3), way(3), libc::EPERM, 1));
        assert!(errors.note(s(40), way(2), libc::EPERM, 1));
        let counted = errors.counters(&way(2));
        assert_eq!(counted.as_slice(), [(Errno(libc::EPERM), 8), (Errno(libc::ENOBUFS), 1)]);
    }

    #[test]
    fn the_latest_error_explains_what_follows_soon_after() {
        let mut errors = SendErrors::default();
        errors.note(s(1), way(2), libc::EPERM, 1);
        errors.note(s(2), way(2), libc::ENETUNREACH, 1);
        assert_eq!(errors.recent(s(3), &way(2)), Some(libc::ENETUNREACH));
        assert_eq!(errors.recent(s(3), &way(3)), None);
        assert_eq!(errors.recent(s(60), &way(2)), None);
    }

    #[test]
    fn ways_and_reasons_are_bounded() {
        let mut errors = SendErrors::default();
        for n in 0..MAX_WAYS as u32 * 2 {
            errors.note(s(1), way(n), libc::EPERM, 1);
        }
        assert_eq!(errors.0.len(), MAX_WAYS);
        // Old errors make room.
        assert!(errors.note(s(100), way(u32::MAX >> 8), libc::EPERM, 1));
        assert_eq!(errors.0.len(), 1);
        for errno in 1..100 {
            errors.note(s(100), way(7), errno, 1);
        }
        assert_eq!(errors.counters(&way(7)).len(), MAX_REASONS);
    }
}
