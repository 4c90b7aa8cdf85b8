//! The periodic transmission machine (IEEE 802.1AX-2014, clause 6.4.13).

use core::time::Duration;

use crate::pdu::PortState;
use crate::port::Port;
use crate::states::PeriodicState;

/// Fast_Periodic_Time.
const FAST: Duration = Duration::from_secs(1);

/// Slow_Periodic_Time.
const SLOW: Duration = Duration::from_secs(30);

impl Port {
    /// Moves by timer, and by what the partner asks for. Returns whether anything changed.
    pub(crate) fn run_periodic(&mut self, now: Duration) -> bool {
        use PeriodicState as S;
        let passive = |state: PortState| !state.has(PortState::ACTIVITY);
        let silent = !self.enabled
            || self.leaving
            || !self.lacp_enabled()
            || (passive(self.actor.state) && passive(self.partner.state));
        let to = match self.partner.state.has(PortState::TIMEOUT) {
            _ if silent => S::NoPeriodic,
            true => S::Fast,
            false => S::Slow,
        };
        let due = self.periodic_at.is_some_and(|at| at <= now);
        if to == self.periodic && !due {
            return false;
        }
        // PERIODIC_TX follows the timer, and the change from slow to fast; from silence or fast to slow
        // nothing is said at once.
        if to != S::NoPeriodic && (due || (self.periodic, to) == (S::Slow, S::Fast)) {
            self.ntt = true;
        }
        self.periodic = to;
        self.periodic_at = match to {
            S::NoPeriodic => None,
            S::Fast => Some(now + FAST),
            S::Slow => Some(now + SLOW),
        };
        true
    }
}
