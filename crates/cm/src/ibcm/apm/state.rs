//! What a connection knows of migration, and what the peer asks for.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::cm::{ApStatus, SprStatus};

use super::super::endpoints::Endpoints;
use super::told::Told;
use crate::apm::AlternatePath;

/// A whole message.
type Mad = [u8; 256];

/// The number of consecutive failures after which only an event starts another attempt.
const FAILURES_MAX: u32 = 5;

/// The least time between two transactions of a connection. Each failure doubles it.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The pauses between attempts with further flow labels grow to 51 s. After so long without a failure they
/// begin anew.
const LABEL_DOUBLINGS: u32 = 9;
const LABELS_CALM: Duration = Duration::from_secs(120);

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
    pub(in super::super) follows: Option<u32>,
    /// The migrations that the host and the application told.
    pub(in super::super) by_host: u32,
    pub(in super::super) by_application: u32,
    /// The LAP or SAP that waits for its answer.
    pub(in super::super) pending: Option<Transaction>,
    /// The number of the latest transaction of this end; the first one is random.
    pub(in super::super) number: Option<u32>,
    /// The latest transaction of the peer, with its answer.
    pub(in super::super) answered: Option<(u64, Mad)>,
    /// The peer's LAP that gets its answer when this end has followed the peer.
    pub(in super::super) asked: Option<(LapPath, Told)>,
    /// The time when this layer has something to do.
    pub(in super::super) timer: Option<Duration>,
    /// Whether the peer may have loaded a path that this end does not know, because an answer got
    /// lost.
    pub(crate) is_unsure: bool,
    /// The time before which no transaction starts.
    pub(crate) not_before: Duration,
    /// Refusals and time-outs since the last success or event.
    pub(crate) failures: u32,
    /// The latest flow labels of paths that the connection has used, or that were agreed on. Of paths between
    /// the same addresses, these are told apart; others are an application's own business.
    pub(in super::super) labels: Vec<u32>,
    /// How many flow labels in a row led nowhere, and when the latest one was given up.
    label_failures: (u32, Duration),
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
pub(in super::super) struct Transaction {
    pub(in super::super) tid: u64,
    pub(in super::super) mad: Mad,
    pub(in super::super) about: About,
    pub(in super::super) attempt: u8,
    pub(in super::super) timeout: Duration,
    /// The peer asked by an MRA for more time (`IB_CM_MRA_LAP_RCVD`). From then on the message is
    /// repeated in that time.
    pub(in super::super) is_postponed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum About {
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
    pub(in super::super) fn is_lap(&self) -> bool {
        matches!(self.pending, Some(Transaction { about: About::Lap(_), .. }))
    }

    /// Forgets what earlier failures taught, because something has changed.
    pub(crate) fn refresh(&mut self) {
        self.failures = 0;
        self.label_failures = (0, Duration::ZERO);
        self.refused.clear();
        self.suggested = None;
    }

    /// Counts a failure. Returns the time of the next attempt; none if there were too many.
    pub(crate) fn fail(&mut self, now: Duration) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + PAUSE * (1 << self.failures.min(FAILURES_MAX));
        (self.failures < FAILURES_MAX).then_some(self.not_before)
    }

    /// Notes the flow label of a path that the connection uses, or that is agreed on.
    pub(crate) fn knows_label(&mut self, flow_label: u32) {
        const LABELS_MAX: usize = 16;
        self.labels.retain(|known| *known != flow_label);
        if self.labels.len() == LABELS_MAX {
            self.labels.remove(0);
        }
        self.labels.push(flow_label);
    }

    /// Counts a failure of a path that differs from the one in use by its flow label only. Returns the time
    /// of the next attempt: there are always further labels, which may lead another way.
    pub(crate) fn fail_by_label(&mut self, now: Duration) -> Duration {
        let (failures, at) = self.label_failures;
        let failures = if now.saturating_sub(at) > LABELS_CALM { 1 } else { failures + 1 };
        self.label_failures = (failures.min(LABEL_DOUBLINGS), now);
        self.not_before = now + PAUSE * (1 << self.label_failures.0);
        self.not_before
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

/// A path that the peer asks for by LAP, seen from this end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LapPath {
    pub(crate) tid: u64,
    /// Where the answer goes.
    pub(crate) answer_to: Endpoints,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) flow_label: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) ack_timeout: u8,
}

/// An address that the peer suggests by SAP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suggestion {
    pub(crate) tid: u64,
    /// Where the answer goes.
    pub(crate) answer_to: Endpoints,
    pub(crate) address: IpAddr,
}
