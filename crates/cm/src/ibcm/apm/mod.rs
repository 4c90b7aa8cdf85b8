//! Automatic path migration of a connection (IBTA 12.8): the alternate path on which both ends
//! agreed, and the messages about it.
//!
//! The active end loads paths by LAP, the passive end answers by APR. The passive end suggests
//! addresses by SAP, the active end answers by SPR, and may follow with a LAP. This layer sends,
//! repeats and matches the messages; the layer above chooses paths and judges them.
//!
//! Only peers that are known to want it get such messages: the active end's REQ says so by the SAP
//! bit, the passive end's REP by the LAP bit.

mod messages;
mod told;
mod transactions;

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::cm::{ApStatus, SprStatus};

pub(super) use messages::cm_path;
pub(crate) use messages::{LapPath, Suggestion};
pub(crate) use told::Told;

use super::mad::Mad;
use crate::apm::AlternatePath;

/// The number of consecutive failures after which only an event starts another attempt.
const FAILURES_MAX: u32 = 5;

/// The least time between two transactions of a connection. Each failure doubles it.
const PAUSE: Duration = Duration::from_millis(100);

/// What a connection knows of migration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Migration {
    /// Whether this end's application wants it.
    pub(crate) enabled: bool,
    /// Whether the peer wants it too.
    pub(crate) peer: bool,
    /// The path that this end's REQ offers. It becomes the alternate one if the REP accepts it.
    pub(crate) offered: Option<AlternatePath>,
    /// Whether this end refused the path of the REQ.
    pub(crate) refused_offer: bool,
    /// The alternate path that both ends agreed on and this end's queue pair has loaded.
    pub(crate) alternate: Option<AlternatePath>,
    /// Whether the application named the alternate path. It stays as long as its address works.
    pub(crate) is_chosen: bool,
    /// How often the connection has migrated. The end with the lower number is behind.
    pub(crate) epoch: u32,
    /// The peer's number of migrations, while this end has to follow it.
    pub(super) follows: Option<u32>,
    /// The migrations that the host and the application told.
    pub(super) by_host: u32,
    pub(super) by_application: u32,
    /// The LAP or SAP that waits for its answer.
    pub(super) pending: Option<Transaction>,
    /// The number of the latest transaction of this end; the first one is random.
    pub(super) number: Option<u32>,
    /// The latest transaction of the peer, with its answer.
    pub(super) answered: Option<(u64, Mad)>,
    /// The time when this layer has something to do.
    pub(super) timer: Option<Duration>,
    /// Whether the peer may have loaded a path that this end does not know, because an answer got
    /// lost.
    pub(crate) is_unsure: bool,
    /// The time before which no transaction starts.
    pub(crate) not_before: Duration,
    /// Refusals and time-outs since the last success or event.
    pub(crate) failures: u32,
    /// Pairs of addresses that were refused since the last event.
    pub(crate) refused: Vec<(IpAddr, IpAddr)>,
    /// The address that the peer suggested last.
    pub(crate) preferred: Option<IpAddr>,
    /// The address that this end suggested since the last event.
    pub(crate) suggested: Option<IpAddr>,
    /// Whether the peer refuses suggestions.
    pub(crate) is_deaf: bool,
    /// The latest answers of the peer, for people.
    pub(crate) last_apr: Option<ApStatus>,
    pub(crate) last_spr: Option<SprStatus>,
}

/// A LAP or SAP that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) tid: u64,
    pub(super) mad: Mad,
    pub(super) about: About,
    pub(super) attempt: u8,
    pub(super) timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Lap(AlternatePath),
    Sap(IpAddr),
}

impl Migration {
    /// Whether messages about paths may be sent at all.
    pub(crate) fn is_on(&self) -> bool {
        self.enabled && self.peer
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether a LAP waits for its answer.
    pub(super) fn is_lap(&self) -> bool {
        matches!(self.pending, Some(Transaction { about: About::Lap(_), .. }))
    }

    /// Forgets what earlier failures taught, because something has changed.
    pub(crate) fn refresh(&mut self) {
        self.failures = 0;
        self.refused.clear();
        self.suggested = None;
    }

    /// Counts a failure. Returns the time of the next attempt; none if there were too many.
    pub(crate) fn fail(&mut self, now: Duration) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + PAUSE * (1 << self.failures.min(FAILURES_MAX));
        (self.failures < FAILURES_MAX).then_some(self.not_before)
    }

    /// Notes the peer's number of migrations, which this end has when it has followed.
    pub(crate) fn follow(&mut self, epoch: u32) {
        self.follows = Some(epoch);
    }

    /// Leaves out a pair of addresses until something changes.
    pub(crate) fn refuse(&mut self, pair: (IpAddr, IpAddr)) {
        const REFUSED_MAX: usize = 64;
        if self.refused.len() < REFUSED_MAX && !self.refused.contains(&pair) {
            self.refused.push(pair);
        }
    }
}
