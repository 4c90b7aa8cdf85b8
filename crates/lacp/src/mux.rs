//! The mux machine with coupled or independent control (IEEE 802.1AX-2014, clause 6.4.15).

use core::time::Duration;

use crate::pdu::PortState;
use crate::port::Port;
use crate::states::{MuxState, Selected};

/// Aggregate_Wait_Time: how long a port waits for others that may join the same aggregator.
const AGGREGATE_WAIT: Duration = Duration::from_secs(2);

impl Port {
    /// Moves by one state, if it has to. `ready` says that no port of its aggregator waits for others any
    /// more. Returns whether it moved.
    pub(crate) fn run_mux(&mut self, ready: bool, coupled: bool, now: Duration) -> bool {
        use MuxState as S;
        let selected = self.selected == Selected::Selected;
        let unselected = self.selected == Selected::Unselected;
        let partner = self.partner.state;
        let in_sync = selected && partner.has(PortState::SYNCHRONIZATION);
        // Without LACP nobody says that it collects.
        let collects = partner.has(PortState::COLLECTING);
        let to = match self.mux {
            S::Detached if !unselected => S::Waiting,
            S::Waiting if unselected => S::Detached,
            S::Waiting if selected && ready => S::Attached,
            S::Attached if !selected => S::Detached,
            S::Attached if in_sync && coupled => S::CollectingDistributing,
            S::Attached if in_sync => S::Collecting,
            S::CollectingDistributing if !in_sync => S::Attached,
            S::Collecting if !in_sync => S::Attached,
            S::Collecting if collects => S::Distributing,
            S::Distributing if !in_sync || !collects => S::Collecting,
            _ => return false,
        };
        self.mux = to;
        self.wait_while = (to == S::Waiting).then_some(now + AGGREGATE_WAIT);
        let (attached, collecting, distributing) = match to {
            S::Detached | S::Waiting => (false, false, false),
            S::Attached => (true, false, false),
            S::Collecting => (true, true, false),
            S::CollectingDistributing | S::Distributing => (true, true, true),
        };
        self.actor.state.set(PortState::SYNCHRONIZATION, attached);
        self.actor.state.set(PortState::COLLECTING, collecting);
        self.actor.state.set(PortState::DISTRIBUTING, distributing);
        if to != S::Waiting {
            self.ntt = true;
        }
        true
    }

    /// Ends the wait whose time has come. Returns whether it did.
    pub(crate) fn run_wait(&mut self, now: Duration) -> bool {
        let ended = self.wait_while.is_some_and(|at| at <= now);
        if ended {
            self.wait_while = None;
        }
        ended
    }
}
