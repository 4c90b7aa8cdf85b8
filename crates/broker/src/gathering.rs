//! Collects the reports of all processes for one `polypath status`.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long processes have for the first part of their report, and for each further part.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// The longest time for a whole report, even if its parts keep arriving.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// The largest number of reports that are collected at a time.
const GATHERINGS_MAX: usize = 16;

/// One request, and the processes that have not answered it yet.
#[derive(Debug)]
struct Gathering {
    /// The connection that sent the request.
    asker: u64,
    /// The event streams that still have to answer, with their process ids.
    missing: BTreeMap<u64, u32>,
    deadline: Duration,
    /// The latest time to which the deadline can be moved.
    latest: Duration,
}

/// A request whose reports are complete, and the processes that gave none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) asker: u64,
    pub(crate) silent: Vec<u32>,
}

/// All requests in progress, by number.
#[derive(Debug, Default)]
pub(crate) struct Gatherings {
    open: BTreeMap<u64, Gathering>,
    last: u64,
}

impl Gatherings {
    /// Begins a request. Returns its number, or `None` if there are too many.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        asker: u64,
        missing: BTreeMap<u64, u32>,
    ) -> Option<u64> {
        if self.open.len() == GATHERINGS_MAX {
            return None;
        }
        self.last += 1;
        let (deadline, latest) = (now + PATIENCE, now + PATIENCE_MAX);
        self.open.insert(self.last, Gathering { asker, missing, deadline, latest });
        Some(self.last)
    }

    /// Notes a part of this event stream's report. Returns the asking connection, if the report is
    /// still needed.
    pub(crate) fn heard(&mut self, now: Duration, number: u64, stream: u64) -> Option<u64> {
        let gathering = self.open.get_mut(&number)?;
        if !gathering.missing.contains_key(&stream) {
            return None;
        }
        gathering.deadline = (now + PATIENCE).min(gathering.latest);
        Some(gathering.asker)
    }

    /// Notes that an event stream has answered.
    pub(crate) fn answered(&mut self, number: u64, stream: u64) {
        if let Some(gathering) = self.open.get_mut(&number) {
            gathering.missing.remove(&stream);
        }
    }

    /// Forgets a connection that is gone: it asks nothing, and no answer is expected from it.
    pub(crate) fn forget(&mut self, connection: u64) {
        self.open.retain(|_, gathering| gathering.asker != connection);
        for gathering in self.open.values_mut() {
            gathering.missing.remove(&connection);
        }
    }

    /// Removes the requests that are complete or out of time.
    pub(crate) fn finished(&mut self, now: Duration) -> Vec<Finished> {
        let is_done = |g: &Gathering| g.missing.is_empty() || g.deadline <= now;
        let numbers: Vec<u64> =
            self.open.iter().filter(|(_, g)| is_done(g)).map(|(number, _)| *number).collect();
        let take = |number: u64| {
            let gathering = self.open.remove(&number)?;
            let mut silent: Vec<u32> = gathering.missing.into_values().collect();
            silent.sort_unstable();
            silent.dedup();
            Some(Finished { asker: gathering.asker, silent })
        };
        numbers.into_iter().filter_map(take).collect()
    }

    /// The time at which the next request runs out of time.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|gathering| gathering.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn streams(list: &[(u64, u32)]) -> BTreeMap<u64, u32> {
        list.iter().copied().collect()
    }

    #[test]
    fn all_answers_end_it_early() {
        let mut gatherings = Gatherings::default();
        let number = gatherings.begin(START, 1, streams(&[(2, 20), (3, 30)])).unwrap();
        assert_eq!(gatherings.heard(START, number, 2), Some(1));
        gatherings.answered(number, 2);
        assert_eq!(gatherings.heard(START, number, 2), None, "only one report each");
        assert!(gatherings.finished(START).is_empty());
        gatherings.answered(number, 3);
        assert_eq!(gatherings.finished(START), [Finished { asker: 1, silent: vec![] }]);
        assert_eq!(gatherings.next_deadline(), None);
    }

    #[test]
    fn the_silent_are_named_when_time_is_up() {
        let mut gatherings = Gatherings::default();
        gatherings.begin(START, 1, streams(&[(2, 20), (3, 30), (4, 20)]));
        assert_eq!(gatherings.next_deadline(), Some(START + PATIENCE));
        let finished = gatherings.finished(START + PATIENCE);
        assert_eq!(finished, [Finished { asker: 1, silent: vec![20, 30] }]);
    }

    #[test]
    fn who_keeps_telling_has_more_time_but_not_for_ever() {
        let mut gatherings = Gatherings::default();
        let number = gatherings.begin(START, 1, streams(&[(2, 20)])).unwrap();
        let mut now = START;
        while gatherings.heard(now, number, 2).is_some() {
            now += PATIENCE / 2;
            let done = gatherings.finished(now);
            assert_eq!(done.is_empty(), now < START + PATIENCE_MAX, "{now:?}");
        }
        assert_eq!(now, START + PATIENCE_MAX);
    }

    #[test]
    fn the_dead_are_not_waited_for() {
        let mut gatherings = Gatherings::default();
        gatherings.begin(START, 1, streams(&[(2, 20)]));
        gatherings.begin(START, 9, streams(&[(2, 20), (3, 30)]));
        gatherings.forget(2);
        gatherings.forget(9);
        assert_eq!(gatherings.finished(START), [Finished { asker: 1, silent: vec![] }]);
        assert_eq!(gatherings.next_deadline(), None);
    }

    #[test]
    fn there_is_a_limit() {
        let mut gatherings = Gatherings::default();
        for asker in 0..GATHERINGS_MAX as u64 {
            assert!(gatherings.begin(START, asker, BTreeMap::new()).is_some());
        }
        assert_eq!(gatherings.begin(START, 99, BTreeMap::new()), None);
    }
}
