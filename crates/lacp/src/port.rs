//! What a port knows, and how it begins.

use core::time::Duration;

use crate::config::{Config, port_key};
use crate::pdu::{Mac, Marker, PortInfo, PortState};
use crate::states::{ChurnState, MuxState, PeriodicState, ReceiveState, Selected};
use crate::window::Window;

/// A port's number within its actor, from 1.
pub type PortNumber = u16;

/// The priority of a port, as in Linux.
const PORT_PRIORITY: u16 = 255;

/// What a port has counted since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// LACPDUs received.
    pub lacpdus_received: u64,
    /// LACPDUs sent.
    pub lacpdus_sent: u64,
    /// Marker PDUs received.
    pub markers_received: u64,
    /// Marker responses sent.
    pub marker_responses_sent: u64,
    /// Frames of slow protocols that were not understood.
    pub illegal_received: u64,
    /// LACPDUs of our own system that came back.
    pub loopbacks: u64,
    /// Markers that were not answered, because too many came.
    pub markers_dropped: u64,
    /// Times that the actor was found to churn.
    pub actor_churned: u64,
    /// Times that the partner was found to churn.
    pub partner_churned: u64,
}

/// What events tell of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) collecting: bool,
    pub(crate) distributing: bool,
    pub(crate) receive: Option<ReceiveState>,
    pub(crate) looped: bool,
    pub(crate) actor_churned: bool,
    pub(crate) partner_churned: bool,
}

/// A port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) number: PortNumber,
    pub(crate) mac: Mac,
    /// Whether the link is up.
    pub(crate) enabled: bool,
    pub(crate) speed_mbps: u32,
    pub(crate) full_duplex: bool,
    /// Whether it has only to say good-bye.
    pub(crate) leaving: bool,
    /// Whether it heard its own system, and nobody else since.
    pub(crate) looped: bool,
    pub(crate) actor: PortInfo,
    pub(crate) partner: PortInfo,
    pub(crate) partner_admin: PortInfo,
    pub(crate) selected: Selected,
    /// The aggregator that it belongs to.
    pub(crate) aggregator: Option<u16>,
    /// Need to transmit.
    pub(crate) ntt: bool,
    pub(crate) receive: ReceiveState,
    pub(crate) current_while: Option<Duration>,
    pub(crate) periodic: PeriodicState,
    pub(crate) periodic_at: Option<Duration>,
    pub(crate) mux: MuxState,
    /// When waiting for other ports ends; `None` once it has ended (Ready_N).
    pub(crate) wait_while: Option<Duration>,
    pub(crate) actor_churn: ChurnState,
    pub(crate) actor_churn_at: Option<Duration>,
    pub(crate) partner_churn: ChurnState,
    pub(crate) partner_churn_at: Option<Duration>,
    pub(crate) lacpdu_window: Window,
    pub(crate) marker_window: Window,
    pub(crate) markers: Vec<Marker>,
    pub(crate) counters: Counters,
    /// What the user was told last.
    pub(crate) reported: Reported,
}

impl Port {
    /// A port whose link is down (receive machine: INITIALIZE, then PORT_DISABLED).
    pub(crate) fn new(number: PortNumber, mac: Mac, config: &Config) -> Self {
        let mut state = PortState::AGGREGATION;
        state.set(PortState::ACTIVITY, config.lacp_active);
        state.set(PortState::TIMEOUT, config.lacp_rate == crate::config::LacpRate::Fast);
        // A default partner that is in sync and can't be aggregated makes the port a plain link.
        let mut partner_state = PortState::default();
        let link =
            PortState::SYNCHRONIZATION.with(PortState::COLLECTING).with(PortState::DISTRIBUTING);
        partner_state.set(link, !config.lacp_strict);
        let mut port = Self {
            number,
            mac,
            enabled: false,
            speed_mbps: 0,
            full_duplex: true,
            leaving: false,
            looped: false,
            actor: PortInfo {
                system_priority: config.ad_actor_sys_prio,
                system: config.ad_actor_system,
                key: port_key(config.ad_user_port_key, 0, true),
                port_priority: PORT_PRIORITY,
                port: number,
                state,
            },
            partner: PortInfo::default(),
            partner_admin: PortInfo { state: partner_state, ..PortInfo::default() },
            selected: Selected::Unselected,
            aggregator: None,
            ntt: false,
            receive: ReceiveState::PortDisabled,
            current_while: None,
            periodic: PeriodicState::NoPeriodic,
            periodic_at: None,
            mux: MuxState::Detached,
            wait_while: None,
            actor_churn: ChurnState::Monitor,
            actor_churn_at: None,
            partner_churn: ChurnState::Monitor,
            partner_churn_at: None,
            lacpdu_window: Window::default(),
            marker_window: Window::default(),
            markers: Vec::new(),
            counters: Counters::default(),
            reported: Reported::default(),
        };
        port.record_default();
        port.partner.state.set(PortState::SYNCHRONIZATION, false);
        port
    }

    /// recordDefault of clause 6.4.9.
    pub(crate) fn record_default(&mut self) {
        self.partner = self.partner_admin;
        self.actor.state.set(PortState::DEFAULTED, true);
    }

    /// Whether LACP runs: it needs a full duplex link.
    pub(crate) fn lacp_enabled(&self) -> bool {
        self.full_duplex
    }

    /// Whether it may share an aggregator.
    pub(crate) fn individual(&self) -> bool {
        !self.lacp_enabled()
            || self.partner.system == [0; 6]
            || !self.partner.state.has(PortState::AGGREGATION)
            || !self.actor.state.has(PortState::AGGREGATION)
    }

    /// Whether it has a partner, as opposed to defaults.
    pub(crate) fn has_partner(&self) -> bool {
        self.partner.system != [0; 6]
    }

    /// What there is to tell of it.
    pub(crate) fn report(&self) -> Reported {
        Reported {
            collecting: self.actor.state.has(PortState::COLLECTING),
            distributing: self.actor.state.has(PortState::DISTRIBUTING),
            receive: Some(self.receive),
            looped: self.looped,
            actor_churned: self.actor_churn == ChurnState::Churned,
            partner_churned: self.partner_churn == ChurnState::Churned,
        }
    }

    /// Whether it distributes.
    pub(crate) fn distributes(&self) -> bool {
        self.actor.state.has(PortState::DISTRIBUTING)
    }

    /// The earliest of its timers.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        let timers = [
            self.current_while,
            self.periodic_at,
            self.wait_while,
            self.actor_churn_at,
            self.partner_churn_at,
        ];
        timers.into_iter().flatten().min()
    }

    pub(crate) fn status(&self) -> PortStatus {
        PortStatus {
            port: self.number,
            mac: self.mac,
            enabled: self.enabled,
            speed_mbps: self.speed_mbps,
            full_duplex: self.full_duplex,
            looped: self.looped,
            selected: self.selected,
            aggregator: self.aggregator,
            receive: self.receive,
            periodic: self.periodic,
            mux: self.mux,
            actor_churn: self.actor_churn,
            partner_churn: self.partner_churn,
            actor: self.actor,
            partner: self.partner,
            counters: self.counters,
        }
    }
}

/// A port, as `/proc/net/bonding` would show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Its number.
    pub port: PortNumber,
    /// Its address.
    pub mac: Mac,
    /// Whether its link is up.
    pub enabled: bool,
    /// Its speed in Mbit/s; 0 if unknown.
    pub speed_mbps: u32,
    /// Whether it is full duplex.
    pub full_duplex: bool,
    /// Whether it hears its own system: the cable leads back to this host.
    pub looped: bool,
    /// Whether it belongs to the active aggregator.
    pub selected: Selected,
    /// The aggregator that it belongs to.
    pub aggregator: Option<u16>,
    /// State of the receive machine.
    pub receive: ReceiveState,
    /// State of the periodic machine.
    pub periodic: PeriodicState,
    /// State of the mux machine.
    pub mux: MuxState,
    /// State of the actor churn machine.
    pub actor_churn: ChurnState,
    /// State of the partner churn machine.
    pub partner_churn: ChurnState,
    /// What it says of itself.
    pub actor: PortInfo,
    /// What it believes of its partner.
    pub partner: PortInfo,
    /// What it counted.
    pub counters: Counters,
}
