//! The churn detection machines (IEEE 802.1AX-2014, clause 6.4.17): an end that is not in sync for a minute
//! is told to the user, because the two ends then do not agree about what to aggregate.

use core::time::Duration;

use crate::pdu::PortState;
use crate::port::Port;
use crate::states::ChurnState;

/// Churn_Detection_Time.
const CHURN_DETECTION: Duration = Duration::from_secs(60);

impl Port {
    /// Moves both machines. Returns whether anything changed.
    pub(crate) fn run_churn(&mut self, now: Duration) -> bool {
        let in_sync = |state: PortState| state.has(PortState::SYNCHRONIZATION);
        let before =
            (self.actor_churn, self.actor_churn_at, self.partner_churn, self.partner_churn_at);
        let (enabled, actor, partner) =
            (self.enabled, in_sync(self.actor.state), in_sync(self.partner.state));
        if step(&mut self.actor_churn, &mut self.actor_churn_at, enabled, actor, now) {
            self.counters.actor_churned += 1;
        }
        if step(&mut self.partner_churn, &mut self.partner_churn_at, enabled, partner, now) {
            self.counters.partner_churned += 1;
        }
        before != (self.actor_churn, self.actor_churn_at, self.partner_churn, self.partner_churn_at)
    }
}

/// One machine. Returns whether it found churn.
fn step(
    state: &mut ChurnState,
    at: &mut Option<Duration>,
    enabled: bool,
    in_sync: bool,
    now: Duration,
) -> bool {
    if !enabled {
        (*state, *at) = (ChurnState::Monitor, None);
    } else if in_sync {
        (*state, *at) = (ChurnState::None, None);
    } else if *state == ChurnState::None || (*state == ChurnState::Monitor && at.is_none()) {
        (*state, *at) = (ChurnState::Monitor, Some(now + CHURN_DETECTION));
    } else if at.is_some_and(|at| at <= now) {
        (*state, *at) = (ChurnState::Churned, None);
        return true;
    }
    false
}
