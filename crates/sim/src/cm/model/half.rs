//! One end of a connection, or of the resolution of a service.

use core::time::Duration;

use polypath_cm::FileId;

use super::{HalfId, What};
use crate::cm::abi::Attr;

/// The state of a connection (IBTA 12.9.5, 12.9.6, 12.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum State {
    /// Nothing was sent yet.
    Fresh,
    ReqSent,
    MraReqRcvd,
    /// A request came, and the application decides.
    ReqRcvd,
    RepSent,
    MraRepRcvd,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    Timewait,
    Idle,
    SidrReqSent,
    SidrReqRcvd,
    SidrRepSent,
}

/// The state of the application's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) enum Cma {
    /// It has no address.
    Free,
    /// It has an address, but no connection yet.
    Resolved,
    Connect,
    Disconnect,
    /// The device was removed.
    Removed,
}

/// A MAD that is sent again until something answers it.
#[derive(Clone, Debug)]
pub(in crate::cm) struct Retry {
    pub(super) what: What,
    pub(super) at: Duration,
    pub(super) timeout: Duration,
    /// The number of times it was sent, without the times when it was refused.
    pub(super) sent: u32,
    /// The time when it was first sent.
    pub(super) since: Duration,
    /// Whether it was refused and is sent again.
    pub(super) refused: bool,
}

/// One end of a connection, or of the resolution of a service.
#[derive(Clone, Debug)]
pub(in crate::cm) struct Half {
    pub(in crate::cm) host: usize,
    pub(in crate::cm) life: u32,
    pub(in crate::cm) file: FileId,
    pub(in crate::cm) attempt: usize,
    pub(in crate::cm) active: bool,
    pub(in crate::cm) ud: bool,
    /// The other end, once its communication id is known here.
    pub(in crate::cm) peer: Option<HalfId>,
    /// Its communication id, once it was seen.
    pub(in crate::cm) comm: Option<u32>,
    /// The number of the application's id.
    pub(in crate::cm) id: Option<u32>,
    /// The number that the application gave to it.
    pub(in crate::cm) uid: u64,
    /// Whether the application has given it its own number. Until then it gets no events.
    pub(in crate::cm) named: bool,
    /// Whether the application holds the id.
    pub(in crate::cm) owned: bool,
    /// Whether the connection manager has forgotten it.
    pub(in crate::cm) forgotten: bool,
    pub(in crate::cm) cma: Cma,
    pub(in crate::cm) state: State,
    pub(super) retry: Option<Retry>,
    /// The time when its time-wait ends.
    pub(super) until: Option<Duration>,
    /// Until when the request of its peer, with which it has ended, is not taken for another one.
    pub(super) remembered: Option<Duration>,
    /// The longest time that it waits for an answer.
    pub(super) longest: Duration,
    /// The listener that was asked, if a request announced it.
    pub(super) listener: Option<usize>,
    /// The number of events that the application has got.
    pub(in crate::cm) reported: u32,
    /// The message that it repeats if it is asked again: the answer to a request for its service, or a
    /// late refusal.
    pub(super) answered: Option<What>,
    /// The attributes that its queue pair was told.
    pub(in crate::cm) attr: Option<Attr>,
    /// The kinds of the events that its application got.
    pub(in crate::cm) told: Vec<u32>,
    /// The number of addresses that it has to tell its peer.
    pub(super) ways: usize,
    /// Whether it was told that its address is gone.
    pub(super) address_lost: bool,
    /// Whether a request was sent for it.
    pub(in crate::cm) asked: bool,
}

impl Half {
    pub(super) fn new(place: (usize, u32, FileId), attempt: usize, ud: bool, state: State) -> Self {
        let (host, life, file) = place;
        Self {
            host,
            life,
            file,
            attempt,
            active: state == State::Fresh,
            ud,
            peer: None,
            comm: None,
            id: None,
            uid: 0,
            named: false,
            owned: false,
            forgotten: false,
            cma: Cma::Free,
            state,
            retry: None,
            until: None,
            remembered: None,
            longest: Duration::ZERO,
            listener: None,
            reported: 0,
            answered: None,
            attr: None,
            told: Vec::new(),
            ways: 0,
            address_lost: false,
            asked: false,
        }
    }

    /// Whether the host knows this connection by its peer's numbers.
    pub(in crate::cm) fn knows_peer(&self) -> bool {
        let ended = matches!(self.state, State::Fresh | State::Idle | State::Timewait);
        !self.forgotten && !ended && self.peer.is_some()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        if self.forgotten {
            return None;
        }
        self.until.or_else(|| self.retry.as_ref().map(|r| r.at))
    }
}
