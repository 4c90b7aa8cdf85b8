//! The receive machine (IEEE 802.1AX-2014, clause 6.4.12, and its functions of clause 6.4.9).

use core::time::Duration;

use crate::pdu::{Lacpdu, PortState};
use crate::port::Port;
use crate::states::{ReceiveState, Selected};

/// Short_Timeout_Time.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Long_Timeout_Time.
const LONG_TIMEOUT: Duration = Duration::from_secs(90);

/// The bits of our state that the partner must have right.
const NTT_BITS: PortState = PortState(
    PortState::ACTIVITY.0
        | PortState::TIMEOUT.0
        | PortState::AGGREGATION.0
        | PortState::SYNCHRONIZATION.0,
);

impl Port {
    /// Moves by link and timer. Returns whether anything changed.
    pub(crate) fn run_receive(&mut self, now: Duration) -> bool {
        use ReceiveState as S;
        let expired = self.current_while.is_some_and(|at| at <= now);
        let to = match self.receive {
            state if !self.enabled => (state != S::PortDisabled).then_some(S::PortDisabled),
            S::PortDisabled if self.lacp_enabled() => Some(S::Expired),
            S::PortDisabled => Some(S::LacpDisabled),
            S::LacpDisabled if self.lacp_enabled() => Some(S::PortDisabled),
            state if !self.lacp_enabled() => (state != S::LacpDisabled).then_some(S::LacpDisabled),
            S::Expired if expired => Some(S::Defaulted),
            S::Current if expired => Some(S::Expired),
            _ => None,
        };
        if let Some(to) = to {
            self.enter(to, now);
        }
        to.is_some()
    }

    fn enter(&mut self, to: ReceiveState, now: Duration) {
        self.receive = to;
        self.current_while = None;
        match to {
            ReceiveState::PortDisabled => {
                self.partner.state.set(PortState::SYNCHRONIZATION, false);
            }
            ReceiveState::Expired => {
                self.partner.state.set(PortState::SYNCHRONIZATION, false);
                self.partner.state.set(PortState::TIMEOUT, true);
                self.actor.state.set(PortState::EXPIRED, true);
                self.current_while = Some(now + SHORT_TIMEOUT);
            }
            ReceiveState::LacpDisabled => {
                self.selected = Selected::Unselected;
                self.record_default();
                self.partner.state.set(PortState::AGGREGATION, false);
                self.actor.state.set(PortState::EXPIRED, false);
            }
            ReceiveState::Defaulted => {
                // update_Default_Selected.
                if !self.partner.same_port(&self.partner_admin) {
                    self.selected = Selected::Unselected;
                }
                self.record_default();
                self.actor.state.set(PortState::EXPIRED, false);
            }
            ReceiveState::Current => {
                self.actor.state.set(PortState::EXPIRED, false);
                let short = self.actor.state.has(PortState::TIMEOUT);
                self.current_while = Some(now + if short { SHORT_TIMEOUT } else { LONG_TIMEOUT });
            }
        }
    }

    /// Takes a LACPDU. Returns false if it came from our own system, and so was not taken.
    pub(crate) fn receive(&mut self, pdu: &Lacpdu, now: Duration) -> bool {
        if !self.enabled || !self.lacp_enabled() {
            return true;
        }
        if pdu.actor.system == self.actor.system {
            self.counters.loopbacks += 1;
            // A partner that is heard counts more than an echo.
            self.looped |= self.receive != ReceiveState::Current;
            return false;
        }
        self.looped = false;
        // A frame may be read before the news that the link is up.
        self.run_receive(now);
        self.update_selected(pdu);
        self.update_ntt(pdu);
        self.record(pdu);
        self.enter(ReceiveState::Current, now);
        true
    }

    fn update_selected(&mut self, pdu: &Lacpdu) {
        if !pdu.actor.same_port(&self.partner) {
            self.selected = Selected::Unselected;
        }
    }

    fn update_ntt(&mut self, pdu: &Lacpdu) {
        let bits = |state: PortState| state.only(NTT_BITS);
        if !pdu.partner.same_port(&self.actor) || bits(pdu.partner.state) != bits(self.actor.state)
        {
            self.ntt = true;
        }
    }

    /// recordPDU: the partner counts as in sync only if it means this port, and LACP is kept up by one side.
    fn record(&mut self, pdu: &Lacpdu) {
        let matched =
            pdu.partner.same_port(&self.actor) || !pdu.actor.state.has(PortState::AGGREGATION);
        let active = pdu.actor.state.has(PortState::ACTIVITY)
            || (self.actor.state.has(PortState::ACTIVITY)
                && pdu.partner.state.has(PortState::ACTIVITY));
        self.partner = pdu.actor;
        let sync = matched && active && pdu.actor.state.has(PortState::SYNCHRONIZATION);
        self.partner.state.set(PortState::SYNCHRONIZATION, sync);
        self.actor.state.set(PortState::DEFAULTED, false);
    }
}
