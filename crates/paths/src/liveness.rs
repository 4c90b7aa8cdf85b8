//! Judges from probes and their answers whether a path lives.
//!
//! A path is suspected when data or probes on it are late. That alone means little: the peer's process
//! may not be running. So all paths are probed at once and compared (a *trial*): a path that answers
//! none of several probes, while another has answered most of its own since, is dead. If nobody
//! answers, nothing is decided. The peer reads all paths from one socket in order of arrival, so that a
//! busy peer delays all answers alike.
//!
//! The functions here take samples and return a verdict; they change nothing.
//! [`probing`](crate::probing) takes the samples, sends the probes and carries the verdicts out.

use core::time::Duration;

use crate::clock::Clock;
use crate::path::{Path, Probes};
use crate::types::PathState;

/// Trial rounds at the full rate; then fewer and fewer, down to one per [`TRIAL_SLOW`].
pub(crate) const TRIAL_ROUNDS_FAST: u32 = 10;
const TRIAL_SLOW: Duration = Duration::from_millis(50);
/// An answer is late after the usual round trip and at least so long.
const LATE_MIN: Duration = Duration::from_millis(20);
/// Without any answer for so long, a peer was not just slow.
const SILENCE: Duration = Duration::from_millis(20);
/// How long a dead path's answers may lag while it proves itself.
const RECOVERY_LATE: Duration = Duration::from_millis(60);
/// For how long packets that keep coming by a suspected path speak for it.
const HEARD_MAX: Duration = Duration::from_millis(100);
/// The least time by which the other path's answer must be older than now to count.
const MARGIN_MIN: Duration = Duration::from_millis(1);

/// What is known of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    pub(crate) state: PathState,
    /// Both ends refuse packets sent before it was given up last.
    pub(crate) fenced: bool,
    /// The usual round trip; zero if none was measured.
    pub(crate) rtt: Duration,
    /// The shortest round trip; zero if none was measured.
    pub(crate) shortest: Duration,
    /// The longest that an answer should take.
    pub(crate) patience: Duration,
    /// The same if it is suspected, and silent when it never is.
    pub(crate) patience_suspected: Duration,
    /// When data or an acknowledgement last came by it.
    pub(crate) heard_at: Duration,
    pub(crate) probes: &'a Probes,
}

impl Path {
    pub(crate) fn sample(&self, now: Duration) -> Sample<'_> {
        Sample {
            state: self.state_soon(),
            fenced: self.fenced(),
            rtt: self.rtt.smoothed().unwrap_or_default(),
            shortest: self.rtt.shortest().unwrap_or_default(),
            patience: self.patience(now),
            patience_suspected: self.patience_suspected(now),
            heard_at: self.heard_at,
            probes: &self.probes,
        }
    }
}

/// How long the path may leave a regular probe unanswered; `None` if an unanswered probe changes
/// nothing.
fn late_after(path: &Sample<'_>) -> Option<Duration> {
    match path.state {
        PathState::Up => Some(path.patience.max(LATE_MIN)),
        PathState::Recovering => Some(path.patience.max(RECOVERY_LATE)),
        _ => None,
    }
}

/// When to look whether the oldest probe is late.
pub(crate) fn late_at(path: &Sample<'_>) -> Option<Duration> {
    Some(path.probes.oldest()? + late_after(path)?)
}

/// Whether a probe has been unanswered for too long. Then a path that is up is suspected, and a path
/// that was to prove itself has not.
pub(crate) fn is_late(clock: &Clock, path: &Sample<'_>) -> bool {
    let Some(oldest) = path.probes.oldest() else { return false };
    clock.is_settled() && late_after(path).is_some_and(|limit| clock.waited(oldest) >= limit)
}

/// Whether a suspected path has died: none of its probes was answered in time, while one of the `others`
/// has answered `wanted` of as many. (It may itself have lost one.)
///
/// Answers of the peer wait behind what it has sent before. So a path by which data keeps coming is not
/// taken for dead yet. If it carries in one direction only, the peer notices that itself, since it misses
/// acknowledgements; this end waits at most [`HEARD_MAX`] for that.
pub(crate) fn is_dead<'a>(
    now: Duration,
    wanted: usize,
    path: &Sample<'_>,
    mut others: impl Iterator<Item = Sample<'a>>,
) -> bool {
    if path.state != PathState::Suspect {
        return false;
    }
    let Some(enough_at) = path.probes.enough_at else { return false };
    let patience = path.patience_suspected.max(MARGIN_MIN);
    let suspected_at = path.probes.suspected_at;
    let heard = path.heard_at > suspected_at
        && now < path.heard_at + patience
        && now < suspected_at + HEARD_MAX;
    !heard
        && now >= enough_at + patience
        && others.any(|other| {
            let fit = other.state == PathState::Up
                || (other.state == PathState::Recovering && other.fenced);
            // The other path answers sooner if its way is shorter; the margin makes up for that.
            let margin = patience.max(path.shortest).saturating_sub(other.rtt).max(MARGIN_MIN);
            let answered = other.probes.answered(path.probes.suspected_at, wanted);
            fit && answered.is_some_and(|at| now >= at + margin)
        })
}

/// Whether a path that was dead has answered for long enough to be used again. `alone`: no path carries
/// anything, so that there is nothing to lose. `updelay`: how long it must answer otherwise.
pub(crate) fn is_proven(
    now: Duration,
    since: Duration,
    updelay: Duration,
    alone: bool,
    path: &Sample<'_>,
) -> bool {
    path.state == PathState::Recovering && path.fenced && (alone || now >= since + updelay)
}

/// Whether a silence of so long, after which a path with this patience is heard first, was more than
/// slowness. If so, what is outstanding must be asked for.
pub(crate) fn was_silent(silence: Duration, patience: Duration) -> bool {
    silence >= SILENCE.max(patience)
}

/// How long after the `rounds`th round of a trial the next one comes. `rtt`: the shortest round trip of all
/// paths; `least`: the setting.
pub(crate) fn trial_interval(rounds: u32, rtt: Duration, least: Duration) -> Duration {
    let base = (rtt / 4).clamp(least, TRIAL_SLOW);
    let slow = rounds.saturating_sub(TRIAL_ROUNDS_FAST).min(8);
    (base * (1 << slow)).min(TRIAL_SLOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use PathState::{Dead, Down, Probing, Recovering, Suspect, Up};

    const MS: Duration = Duration::from_millis(1);
    /// When the path was suspected, and the last of its four probes went out.
    const SUSPECTED: Duration = Duration::from_millis(1000);
    const ENOUGH: Duration = Duration::from_millis(1002);

    /// Probes sent each half millisecond from `SUSPECTED` on, of which the first `answered` were answered so
    /// long after they were sent.
    fn probes(answered: u32, after: Duration) -> Probes {
        let mut probes = Probes::default();
        probes.suspect(SUSPECTED);
        probes.enough_at = Some(ENOUGH);
        let sent: Vec<_> = (0..4).map(|n| SUSPECTED + MS * n / 2).collect();
        for at in &sent {
            probes.send(*at);
        }
        for (n, at) in (0..answered).zip(&sent) {
            probes.answer(*at + after, n);
        }
        probes
    }

    fn sample(state: PathState, rtt: Duration, probes: &Probes) -> Sample<'_> {
        let (patience, patience_suspected) = (rtt * 2, rtt * 2);
        let heard_at = Duration::ZERO;
        let (fenced, shortest) = (true, rtt);
        Sample { state, fenced, rtt, shortest, patience, patience_suspected, heard_at, probes }
    }

    #[test]
    fn a_suspected_path_dies_when_another_has_answered_most_and_it_none_in_time() {
        let silent = probes(0, MS);
        // The state of the other, how many probes it answered how late, when we look, and whether the first
        // is dead then.
        for (state, answered, after, now, dead) in [
            (Up, 4, MS, 1004, true),
            (Up, 3, MS, 1004, true),
            (Up, 2, MS, 1004, false),
            (Up, 0, MS, 2000, false),
            (Up, 4, MS, 1003, false),
            (Up, 4, MS * 5, 1006, false),
            (Up, 4, MS * 5, 1007, true),
            (Recovering, 4, MS, 1004, true),
            (Suspect, 4, MS, 1004, false),
            (Probing, 4, MS, 1004, false),
            (Dead, 4, MS, 1004, false),
            (Down, 4, MS, 1004, false),
        ] {
            let of_other = probes(answered, after);
            let (path, other) = (sample(Suspect, MS, &silent), sample(state, MS, &of_other));
            let verdict = is_dead(MS * now, 3, &path, [path, other].into_iter());
            assert_eq!(verdict, dead, "{state:?} {answered} {after:?} {now}");
        }
    }

    #[test]
    fn a_path_by_which_data_keeps_coming_is_given_more_time() {
        let (silent, answers) = (probes(0, MS), probes(4, MS / 10));
        let other = sample(Up, MS / 10, &answers);
        let dead = |now, heard| {
            let path = Sample { heard_at: MS * heard, ..sample(Suspect, MS, &silent) };
            is_dead(MS * now, 3, &path, [other].into_iter())
        };
        assert!(dead(1010, 999), "what came before it was suspected says nothing");
        assert!(!dead(1010, 1009));
        assert!(dead(1011, 1009), "nothing more has come");
        assert!(dead(1100, 1100), "but not for ever");
    }

    #[test]
    fn the_other_path_must_be_fenced_if_it_was_dead_itself() {
        let (silent, answers) = (probes(0, MS), probes(4, MS));
        let path = sample(Suspect, MS, &silent);
        let other = Sample { fenced: false, ..sample(Recovering, MS, &answers) };
        assert!(!is_dead(MS * 1004, 3, &path, [other].into_iter()));
    }

    #[test]
    fn a_path_of_long_round_trips_is_given_the_time_for_one() {
        let (silent, answers) = (probes(0, MS), probes(4, MS / 10));
        let path = sample(Suspect, MS * 50, &silent);
        let dead = |now| is_dead(MS * now, 3, &path, [sample(Up, MS / 10, &answers)].into_iter());
        assert!(!dead(1100));
        assert!(dead(1103));
    }

    #[test]
    fn a_path_that_was_silent_is_given_the_time_by_which_its_way_is_longer() {
        let (silent, answers) = (probes(0, MS), probes(4, MS));
        let path = Sample { patience_suspected: MS, ..sample(Suspect, MS * 20, &silent) };
        let dead = |now| is_dead(MS * now, 3, &path, [sample(Up, MS, &answers)].into_iter());
        assert!(!dead(1020));
        assert!(dead(1021));
    }

    #[test]
    fn a_path_that_is_not_suspected_or_was_not_asked_enough_is_not_judged() {
        let (mut silent, answers) = (probes(0, MS), probes(4, MS));
        let other = sample(Up, MS, &answers);
        for state in [Up, Probing, Dead, Recovering, Down] {
            let path = sample(state, MS, &silent);
            assert!(!is_dead(MS * 2000, 3, &path, [other].into_iter()), "{state:?}");
        }
        silent.enough_at = None;
        assert!(!is_dead(MS * 2000, 3, &sample(Suspect, MS, &silent), [other].into_iter()));
    }

    #[test]
    fn a_probe_is_late_after_its_patience_if_the_lane_ran_meanwhile() {
        let mut probes = Probes::default();
        probes.send(SUSPECTED);
        // State, patience, how long it is unanswered, whether that is late.
        for (state, patience, waited, late) in [
            (Up, 1, 19, false),
            (Up, 1, 20, true),
            (Up, 40, 39, false),
            (Up, 40, 40, true),
            (Recovering, 1, 59, false),
            (Recovering, 1, 60, true),
            (Suspect, 1, 1000, false),
            (Probing, 1, 1000, false),
            (Dead, 1, 1000, false),
            (Down, 1, 1000, false),
        ] {
            let path = Sample { patience: MS * patience, ..sample(state, MS, &probes) };
            let mut clock = Clock::default();
            clock.reach(SUSPECTED + MS * waited);
            assert_eq!(is_late(&clock, &path), late, "{state:?} {patience} {waited}");
            // Had the lane not run for the most of it, nothing would follow.
            let mut slept = Clock::default();
            slept.advance(SUSPECTED + MS * waited, Some(SUSPECTED));
            assert!(!is_late(&slept, &path));
        }
        let path = sample(Up, MS, &probes);
        assert_eq!(late_at(&path), Some(SUSPECTED + MS * 20));
        let answered = Probes::default();
        assert_eq!(late_at(&sample(Up, MS, &answered)), None, "nothing is awaited");
    }

    #[test]
    fn a_path_that_was_dead_is_used_once_it_has_proved_itself_or_nothing_else_is_left() {
        let probes = Probes::default();
        let proven = |state, fenced, alone, now: u32| {
            let path = Sample { fenced, ..sample(state, MS, &probes) };
            is_proven(MS * now, MS * 100, MS * 200, alone, &path)
        };
        assert!(!proven(Recovering, true, false, 299));
        assert!(proven(Recovering, true, false, 300));
        assert!(proven(Recovering, true, true, 100), "there is nothing to lose");
        assert!(!proven(Recovering, false, true, 1000), "old packets could still arrive");
        assert!(!proven(Dead, true, true, 1000));
    }

    #[test]
    fn trials_begin_fast_and_become_rare() {
        let interval = |rounds, rtt| trial_interval(rounds, rtt, MS / 2);
        assert_eq!(interval(0, Duration::ZERO), MS / 2);
        assert_eq!(interval(0, MS * 8), MS * 2);
        assert_eq!(interval(TRIAL_ROUNDS_FAST, MS), MS / 2);
        assert_eq!(interval(TRIAL_ROUNDS_FAST + 3, MS), MS * 4);
        assert_eq!(interval(1000, MS), TRIAL_SLOW);
        assert_eq!(interval(0, MS * 1000), TRIAL_SLOW);
    }

    #[test]
    fn only_what_is_longer_than_slowness_was_a_silence() {
        assert!(!was_silent(MS * 19, MS));
        assert!(was_silent(MS * 20, MS));
        assert!(!was_silent(MS * 20, MS * 30));
    }
}
