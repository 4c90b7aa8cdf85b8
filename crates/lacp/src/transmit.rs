//! The transmit machine (IEEE 802.1AX-2014, clause 6.4.16) and the marker responder (clause 6.5.4).

use core::time::Duration;

use crate::pdu::{FRAME_LEN, Lacpdu, Marker, PortState};
use crate::port::Port;
use crate::states::PeriodicState;

/// Markers of a port that wait for their answer. More than this are dropped.
const MARKERS_MAX: usize = 8;

impl Port {
    /// The time from which it has something to send.
    pub(crate) fn transmit_at(&self) -> Option<Duration> {
        let lacpdu = self.ntt.then(|| self.lacpdu_window.open_at());
        let marker = (!self.markers.is_empty()).then(|| self.marker_window.open_at());
        lacpdu.into_iter().chain(marker).min()
    }

    /// Forgets what must not be said: a port that is down or silent sends nothing.
    pub(crate) fn silence(&mut self) {
        if !self.enabled {
            self.markers.clear();
        }
        if !self.leaving && self.periodic == PeriodicState::NoPeriodic {
            self.ntt = false;
        }
    }

    /// Takes a Marker PDU of the partner.
    pub(crate) fn take_marker(&mut self, marker: Marker) {
        self.counters.markers_received += 1;
        // The answer to a question that we never ask, or an echo of our own.
        if marker.response || !self.enabled {
            return;
        }
        if self.markers.len() < MARKERS_MAX {
            self.markers.push(Marker { response: true, ..marker });
        } else {
            self.counters.markers_dropped += 1;
        }
    }

    /// The next frame that may leave now.
    pub(crate) fn transmit(&mut self, now: Duration) -> Option<[u8; FRAME_LEN]> {
        if self.ntt && self.lacpdu_window.open_at() <= now {
            self.ntt = false;
            self.lacpdu_window.record(now);
            self.counters.lacpdus_sent += 1;
            let pdu = Lacpdu { actor: self.actor, partner: self.partner };
            return Some(pdu.to_frame(self.mac));
        }
        if !self.markers.is_empty() && self.marker_window.open_at() <= now {
            self.marker_window.record(now);
            self.counters.marker_responses_sent += 1;
            return Some(self.markers.remove(0).to_frame(self.mac));
        }
        None
    }

    /// Makes its last LACPDU tell the partner to stop: it can't be aggregated and is not in sync.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        let gone = PortState::AGGREGATION
            .with(PortState::SYNCHRONIZATION)
            .with(PortState::COLLECTING)
            .with(PortState::DISTRIBUTING);
        self.actor.state.set(gone, false);
        // Who never spoke need not say good-bye.
        self.ntt = self.enabled && self.periodic != PeriodicState::NoPeriodic;
        self.markers.clear();
    }
}
