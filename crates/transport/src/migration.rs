//! Automatic path migration (IBTA 17.2.8): the rules of the three states, as functions of values.
//!
//! A queue pair is MIGRATED (it has one path), REARM (an alternate path is loaded, and the peer is to
//! confirm that it has one, too) or ARMED (either end may change to the alternate path at any time).
//! `MigReq` is 1 in each packet of an end that is MIGRATED. So an end that is ARMED and receives `MigReq` 1
//! by its alternate path learns that the peer has migrated, and follows; an end in REARM that receives
//! `MigReq` 0 learns that the peer is in REARM or ARMED, and becomes ARMED. An RC queue pair becomes so only
//! by an answer to a question that it asked by the alternate path ([`crate::proof`]).
//!
//! Additions keep both ends together when packets are lost or overtake each other. An end that has
//! migrated and has not been heard by the new path yet says `MigReq` 1 even if a program has asked for
//! REARM meanwhile ([`Migration::mig_req`]); otherwise a peer that missed the migration could never
//! learn of it. And an end that is ARMED and receives `MigReq` 1 by its primary path goes back to REARM:
//! the peer has one path only, and it is this one.
//!
//! And an end in REARM follows a peer that goes on saying `MigReq` 1 by the alternate path while nothing
//! comes by the primary one ([`Migration::is_overtaken`]).

use core::time::Duration;

use crate::frozen::{Reader, ThawError, Writer};
use crate::proof::Watch;
use crate::state::ModifyError;
use polypath_telemetry::MigrationCause;
use polypath_types::{MigState, PathId, PeerId, QpState};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;

/// The time after which a queue pair that waits for its peer asks for the first time again. Each
/// further time it waits twice as long.
const ASK_FIRST: Duration = Duration::from_millis(10);
/// How often it asks by the primary path. A peer that has not answered by then does not migrate, or has
/// nothing loaded; its own questions, or any traffic, continue from there.
const ASKS_MAX: u32 = 10;
/// By the alternate path it asks for ever, because that path may come to life; from this question on, the
/// pauses (1.28 s) do not grow any more.
const LONGEST: u32 = 7;
/// Who has not been answered by the alternate path after so many questions (0.6 s) says so.
const UNPROVEN: u32 = 6;

/// By which of the paths of its queue pair a packet came. Both, if the two lead between the same
/// addresses, and nothing else tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CameBy {
    /// By the primary path.
    pub primary: bool,
    /// By the alternate path.
    pub alternate: bool,
    /// The two lead between the same addresses, and it was the source port that told by which of them the
    /// packet came. A port is no fence: the peer may have another one than its flow label asks for, and what
    /// is late by another port is late as by any network that reorders. So such a packet is news of the
    /// alternate path, and handled like others all the same.
    pub by_port: bool,
    /// The source port tells the two apart, and it was neither's: the peer has left one of the two for
    /// another port. It counts as one by the primary path, and shows nothing of which one the peer uses.
    pub other_port: bool,
}

impl CameBy {
    /// By the primary path only.
    pub const PRIMARY: Self =
        Self { primary: true, alternate: false, by_port: false, other_port: false };
}

/// What becomes of a packet and of the migration state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The packet is handled.
    Accept,
    /// The peer has an alternate path loaded, too: ARMED. The packet is handled.
    Arm,
    /// The peer has no alternate path any more: REARM. The packet is handled.
    Disarm,
    /// The peer has migrated: this end does so, too, and then handles the packet.
    Migrate,
    /// The packet came by a path that is not in use.
    Drop,
}

/// Whether a packet may be a question: a WRITE of no bytes.
pub(crate) fn is_question(packet: &Packet<'_>) -> bool {
    packet.headers.bth.opcode == Opcode::RC_WRITE_ONLY && packet.payload.is_empty()
}

/// Decides about a packet that has arrived (IBTA 17.2.8.1, 9.6.1.5).
#[inline]
pub(crate) fn receive(state: MigState, mig_req: bool, by: CameBy) -> Step {
    match (state, mig_req) {
        (MigState::Armed, true) if by.alternate => Step::Migrate,
        _ if !by.primary => Step::Drop,
        (MigState::Armed, true) => Step::Disarm,
        (MigState::Rearm, false) => Step::Arm,
        _ => Step::Accept,
    }
}

/// Decides about a program's wish. `to` is the state that the queue pair enters, or stays in. Returns
/// whether the queue pair migrates (IBTA 11.2.5.2, 17.2.8.1).
///
/// # Errors
/// The wish is not legal in this state.
pub(crate) fn check_wish(
    now: MigState,
    wish: MigState,
    to: QpState,
    has_alternate: bool,
) -> Result<bool, ModifyError> {
    let refused = |why| Err(ModifyError::Migration { now, wish, why });
    match wish {
        MigState::Armed => refused("only the peer's packets lead to ARMED: ask for REARM"),
        MigState::Rearm if now == MigState::Armed => {
            refused("a new alternate path can be loaded without asking for REARM")
        }
        MigState::Rearm if to != QpState::Rts => refused("the queue pair has to be in RTS"),
        MigState::Rearm if !has_alternate => refused("load an alternate path (IBV_QP_ALT_PATH)"),
        MigState::Migrated if now == MigState::Rearm => {
            refused("the peer has not confirmed yet: wait for ARMED")
        }
        MigState::Migrated if !matches!(to, QpState::Rts | QpState::Sqd) => {
            refused("the queue pair has to be in RTS or SQD")
        }
        MigState::Rearm => Ok(false),
        MigState::Migrated => Ok(now == MigState::Armed),
    }
}

/// What happened to the paths of a queue pair, for who has lent it the alternate one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationNews {
    /// The queue pair uses its alternate path from now on. The former primary path is not used any more.
    Migrated(MigrationCause),
    /// The queue pair's traffic has left one path of its peer's set for another one, which the set has chosen
    /// or the program has asked for. Its peer is the same.
    Moved {
        /// The path left.
        from: PathId,
        /// The path taken.
        to: PathId,
        /// What has caused it.
        cause: MigrationCause,
    },
    /// The peer is a multi-path one, and the queue pair is kept armed ([`crate::QueuePair::keep_armed`]): its
    /// path set decides about paths from now on.
    PathSet,
    /// Both ends have an alternate path; either may migrate now.
    Armed,
    /// The alternate path was loaded, and nobody answers by it. It is asked on.
    Unproven,
    /// A migration was due, and the alternate path can't be used either.
    Failed,
    /// The alternate path can't be used (any more).
    AlternateLost,
}

/// What is known of the migrations of a queue pair, for `polypath status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    /// The migration state.
    pub state: MigState,
    /// Whether an alternate path is loaded.
    pub loaded: bool,
    /// How often it has migrated.
    pub count: u64,
    /// Why it migrated last, and when.
    pub last: Option<(MigrationCause, Duration)>,
}

/// The questions to a peer that has to confirm something.
#[derive(Clone, Copy, Debug, Default)]
struct Asking {
    /// When the next one is due; `None` if the peer has confirmed, or does not answer.
    at: Option<Duration>,
    last: Duration,
    asked: u32,
}

/// How many questions by the alternate path must be answered before a silent primary path is left. There
/// is one for each early probe of the primary path, so one lost probe does not decide. Answers that come
/// before the next question count as one: a peer that did not run for a moment answers all that waited at
/// once, and may do so before it acknowledges what came by the primary path.
const TRIAL_ANSWERS: u32 = 3;

/// How long an end in REARM must hear its peer only by the alternate path, and as one that has migrated,
/// before it follows. Packets that are late on a path that was left are older than that.
const OVERTAKEN: Duration = Duration::from_millis(20);

/// What an answer by the alternate path shows of the primary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// Nothing: it answers no question of this comparison, or one that was answered before.
    Nothing,
    /// The primary path is silent while the alternate one is not: both are to be asked again.
    Silent,
    /// The primary path is dead.
    Dead,
}

/// The comparison of a silent primary path with the alternate one.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// When there last was progress by the primary path.
    since: Duration,
    asked: u32,
    answered: u32,
    /// How many had been asked when the latest answer that counts came.
    heard: u32,
}

/// What a queue pair knows about its migrations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Migration {
    /// The alternate path, as the host knows it.
    pub(crate) alternate: Option<PeerId>,
    /// It has migrated, and nothing has come by the new path yet.
    pub(crate) unconfirmed: bool,
    /// It has to migrate before the call ends.
    pub(crate) due: Option<MigrationCause>,
    /// The peer is to be told, at the next turn.
    pub(crate) fresh: bool,
    /// It has migrated, and at the next turn, which has the time, timers and retries begin anew.
    pub(crate) moved: Option<MigrationCause>,
    asking: Asking,
    pub(crate) watch: Watch,
    trial: Option<Trial>,
    /// It has migrated: when it first heard by the new path something that need not come from a peer that has
    /// followed.
    doubt: Option<Duration>,
    /// Since when the peer was heard only by the alternate path, as one that has migrated.
    ahead: Option<Duration>,
    /// With a multi-path peer: the active path, as the program knows it.
    pub(crate) active: Option<PathId>,
    /// With a multi-path peer: it is armed again after each migration.
    pub(crate) rearms: bool,
    pub(crate) count: u64,
    pub(crate) last: Option<(MigrationCause, Duration)>,
}

impl Migration {
    /// The `MigReq` bit of packets that are sent now.
    #[inline]
    pub(crate) fn mig_req(&self, state: MigState) -> bool {
        state == MigState::Migrated || self.unconfirmed
    }

    /// Writes it.
    pub(crate) fn freeze(&self, now: Duration, out: &mut Writer) {
        out.flag(self.unconfirmed);
        out.u64(self.count);
        let last = self.moved.map(|cause| (cause, now)).or(self.last);
        out.option(last, |out, (cause, at)| {
            out.u8(MigrationCause::ALL.iter().position(|c| *c == cause).unwrap_or(0) as u8);
            out.u64(u64::try_from(now.saturating_sub(at).as_nanos()).unwrap_or(u64::MAX));
        });
    }

    /// Reads what belongs to a queue pair in this migration state.
    ///
    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(
        state: MigState,
        now: Duration,
        from: &mut Reader<'_>,
    ) -> Result<Self, ThawError> {
        let (unconfirmed, count) = (from.flag()?, from.u64()?);
        let last = from.option(|from| {
            let (cause, ago) = (from.u8()?, from.u64()?);
            let cause = MigrationCause::ALL.get(usize::from(cause));
            let cause = *cause.ok_or_else(|| from.wrong("there is no such cause"))?;
            Ok((cause, now.saturating_sub(Duration::from_nanos(ago))))
        })?;
        let mut migration = Self { unconfirmed, count, last, ..Self::default() };
        if migration.waits(state) {
            migration.begin();
        }
        Ok(migration)
    }

    /// Whether it waits for a packet of the peer.
    pub(crate) fn waits(&self, state: MigState) -> bool {
        self.unconfirmed || state == MigState::Rearm
    }

    /// Begins to ask the peer.
    pub(crate) fn begin(&mut self) {
        self.settle();
        self.fresh = true;
    }

    /// Stops asking.
    pub(crate) fn settle(&mut self) {
        self.fresh = false;
        self.asking = Asking::default();
        self.watch.end();
    }

    /// In REARM: the peer has asked by the alternate path. So it is time to ask, too, unless it was just
    /// done.
    pub(crate) fn was_asked(&mut self, now: Duration) {
        let Asking { last, asked, .. } = self.asking;
        if asked > 0 && now.saturating_sub(last) >= ASK_FIRST {
            self.begin();
        }
    }

    /// In REARM: an answer came by the alternate path. Returns whether it is one to a question.
    pub(crate) fn is_proof(&self) -> bool {
        self.asking.asked > 0 && !self.unconfirmed
    }

    /// A question goes by the alternate path, because there was no progress by the primary one since then.
    pub(crate) fn compare(&mut self, since: Duration) {
        match &mut self.trial {
            Some(trial) if trial.since == since => trial.asked += 1,
            trial => *trial = Some(Trial { since, asked: 1, answered: 0, heard: 0 }),
        }
    }

    /// A question by the alternate path was answered, and by the primary path there was no progress since
    /// then. Returns what that shows.
    pub(crate) fn compared(&mut self, since: Duration) -> Compared {
        let trial = self.trial.as_mut().filter(|t| t.since == since && t.heard < t.asked);
        let Some(trial) = trial else { return Compared::Nothing };
        trial.heard = trial.asked;
        trial.answered += 1;
        if trial.answered < TRIAL_ANSWERS { Compared::Silent } else { Compared::Dead }
    }

    /// In REARM: the peer was heard by the alternate path, with `MigReq` 1. Returns whether to follow it.
    ///
    /// The peer was ARMED, so it had heard that this end has loaded its alternate path; but what would have
    /// told this end the same of the peer was lost with the primary path.
    pub(crate) fn is_overtaken(&mut self, now: Duration) -> bool {
        now.saturating_sub(*self.ahead.get_or_insert(now)) >= OVERTAKEN
    }

    /// Something came by the primary path.
    #[inline]
    pub(crate) fn heard_by_primary(&mut self) {
        self.ahead = None;
        self.watch.heard_by_primary();
    }

    /// Forgets what was noticed of the paths before a migration.
    pub(crate) fn forget_paths(&mut self) {
        (self.trial, self.ahead, self.doubt) = (None, None, None);
    }

    /// It has migrated, and something came by the new path. Returns whether that shows that the peer has
    /// followed, or has led: a peer that has not may ask by its alternate path, or may have answered such a
    /// question that was asked before. It says `MigReq` 0 then, and its answers are soon over.
    pub(crate) fn is_followed(&mut self, now: Duration, mig_req: bool, asks: bool) -> bool {
        mig_req || !asks && now.saturating_sub(*self.doubt.get_or_insert(now)) >= OVERTAKEN
    }

    /// When there is something to ask, see [`Migration::is_due`] and [`Watch::look`].
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.asking.at.into_iter().chain(self.watch.deadline()).min()
    }

    /// Whether to ask the peer now.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.asking.at.is_some_and(|at| at <= now)
    }

    /// The peer is asked now, by the primary path.
    pub(crate) fn asked(&mut self, now: Duration) {
        let n = self.asking.asked;
        let at = (n < ASKS_MAX).then(|| now + ASK_FIRST * (1 << n.min(16)));
        self.asking = Asking { at, last: now, asked: n + 1 };
    }

    /// The peer is asked now, by the alternate path. Returns whether it is time to say that it does not
    /// answer.
    pub(crate) fn asked_by_alternate(&mut self, now: Duration) -> bool {
        let n = self.asking.asked;
        let at = Some(now + ASK_FIRST * (1 << n.min(LONGEST)));
        self.asking = Asking { at, last: now, asked: n.saturating_add(1) };
        n == UNPROVEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MigState::{Armed, Migrated, Rearm};

    const STATES: [MigState; 3] = [Migrated, Rearm, Armed];
    const ALTERNATE: CameBy = CameBy { primary: false, alternate: true, ..CameBy::PRIMARY };
    const BOTH: CameBy = CameBy { alternate: true, ..CameBy::PRIMARY };
    const NEITHER: CameBy = CameBy { primary: false, ..CameBy::PRIMARY };

    /// IBTA 17.2.8.1 and figure 203, written down state by state: state, MigReq, what becomes of a packet
    /// that came by the primary path, by the alternate one, by both, by neither.
    #[test]
    fn packets_move_the_state_as_the_table_says() {
        use Step::{Accept, Arm, Disarm, Drop, Migrate};
        let table = [
            (Migrated, false, [Accept, Drop, Accept, Drop]),
            (Migrated, true, [Accept, Drop, Accept, Drop]),
            (Rearm, false, [Arm, Drop, Arm, Drop]),
            (Rearm, true, [Accept, Drop, Accept, Drop]),
            (Armed, false, [Accept, Drop, Accept, Drop]),
            (Armed, true, [Disarm, Migrate, Migrate, Drop]),
        ];
        for (state, mig_req, steps) in table {
            let ways = [CameBy::PRIMARY, ALTERNATE, BOTH, NEITHER];
            for (by, step) in ways.into_iter().zip(steps) {
                assert_eq!(receive(state, mig_req, by), step, "{state:?} {mig_req} {by:?}");
            }
        }
    }

    /// The wishes that the Linux kernel's software adapters grant (`rvt_modify_qp`).
    #[test]
    fn programs_get_what_the_table_says() {
        let queue_pair =
            [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];
        for now in STATES {
            for wish in STATES {
                for to in queue_pair {
                    let rts = to == QpState::Rts;
                    let expected = match (now, wish) {
                        (_, Armed) | (Armed, Rearm) | (Rearm, Migrated) => None,
                        (Migrated | Rearm, Rearm) => rts.then_some(false),
                        (Migrated, Migrated) => (rts || to == QpState::Sqd).then_some(false),
                        (Armed, Migrated) => (rts || to == QpState::Sqd).then_some(true),
                    };
                    let got = check_wish(now, wish, to, true);
                    assert_eq!(got.ok(), expected, "{now:?} to {wish:?} in {to:?}");
                }
            }
        }
        assert!(check_wish(Migrated, Rearm, QpState::Rts, false).is_err());
    }

    #[test]
    fn who_has_not_been_heard_by_the_new_path_says_so_even_in_rearm() {
        let mut m = Migration::default();
        for state in STATES {
            assert_eq!(m.mig_req(state), state == Migrated);
        }
        m.unconfirmed = true;
        assert!(STATES.into_iter().all(|state| m.mig_req(state) && m.waits(state)));
    }

    #[test]
    fn a_silent_peer_is_asked_more_and_more_rarely_and_not_for_ever() {
        let (mut m, mut now, mut asked) = (Migration::default(), Duration::ZERO, 0);
        m.begin();
        m.asked(now);
        let mut pause = Duration::ZERO;
        while let Some(at) = m.deadline() {
            assert!(!m.is_due(at - Duration::from_nanos(1)) && at - now > pause);
            (pause, now) = (at - now, at);
            assert!(m.is_due(now));
            m.asked(now);
            asked += 1;
        }
        assert_eq!(asked, ASKS_MAX);
        assert!(now < Duration::from_secs(15), "{now:?}");
    }

    #[test]
    fn a_silent_alternate_path_is_asked_for_ever_and_told_of_once() {
        let (mut m, mut now, mut told) = (Migration::default(), Duration::ZERO, 0);
        m.begin();
        assert!(!m.is_proof(), "nothing was asked");
        for _ in 0..100 {
            told += u32::from(m.asked_by_alternate(now));
            let at = m.deadline().unwrap();
            assert!(at - now <= Duration::from_secs(2));
            now = at;
        }
        assert!(told == 1 && m.is_proof());
        m.was_asked(now - Duration::from_millis(1));
        assert!(m.fresh, "the pause to the next question is long");
        m.fresh = false;
        m.asked_by_alternate(now);
        m.was_asked(now + Duration::from_millis(1));
        assert!(!m.fresh, "it has just asked");
    }
}
