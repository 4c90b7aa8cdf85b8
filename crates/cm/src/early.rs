//! Requests that arrive a moment before their listener.
//!
//! Programs that agree by other means to connect now, as perftest does, race: one listens and one
//! connects, and the request may arrive before the listener is there. A rejection cannot be taken
//! back. So a request for a service that nobody listens on waits a moment before it is rejected.

use core::time::Duration;
use std::collections::VecDeque;

use polypath_wire::cm::{CmMad, CmMessage};

use crate::env::MadAddress;

/// How long a request waits for its listener. On a busy machine it can take the scheduler many
/// turns until the listener is there: 30 ms were too few. And perftest before 26.04 crashes when it
/// is rejected.
pub(crate) const GRACE: Duration = Duration::from_millis(200);
/// The largest number of requests that wait; further ones are rejected at once.
const MAX_WAITING: usize = 64;

#[derive(Debug)]
pub(crate) struct Early {
    until: Duration,
    pub(crate) service_id: u64,
    pub(crate) from: MadAddress,
    pub(crate) mad: Vec<u8>,
}

/// The waiting requests, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Waiting(VecDeque<Early>);

impl Waiting {
    /// Keeps a request for a service that nobody listens on. Returns true if the request now waits
    /// or already waited, and the caller has nothing to do.
    pub(crate) fn keep(
        &mut self,
        now: Duration,
        from: MadAddress,
        mad: &[u8],
        is_served: impl Fn(u64) -> bool,
    ) -> bool {
        let Some(service_id) = requested_service(mad).filter(|_| from.source_qpn == 1) else {
            return false;
        };
        if is_served(service_id) {
            return false;
        }
        if self.0.iter().any(|e| e.from == from && e.mad == mad) {
            return true;
        }
        if self.0.len() == MAX_WAITING {
            return false;
        }
        self.0.push_back(Early { until: now + GRACE, service_id, from, mad: mad.to_vec() });
        true
    }

    /// Takes out the requests whose time is over, or whose service has a listener by now.
    pub(crate) fn due(&mut self, now: Duration, is_served: impl Fn(u64) -> bool) -> Vec<Early> {
        let (due, waiting) =
            self.0.drain(..).partition(|e| e.until <= now || is_served(e.service_id));
        self.0 = waiting;
        Vec::from(due)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.0.front().map(|e| e.until)
    }
}

fn requested_service(mad: &[u8]) -> Option<u64> {
    match CmMad::parse(mad).ok()?.message {
        CmMessage::Req(req) => Some(req.service_id),
        CmMessage::SidrReq(req) => Some(req.service_id),
        _ => None,
    }
}
