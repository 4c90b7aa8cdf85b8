//! What `polypath lacp` tells of the interfaces on which it speaks.

use serde::{Deserialize, Serialize};

use crate::text::cut_to;

/// The longest name of a state in bytes. Longer ones are truncated.
const STATE_MAX: usize = 32;

/// An interface on which LACP is spoken, with the states of IEEE 802.1AX.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LacpPort {
    /// The index of the interface.
    pub ifindex: u32,
    /// Its name.
    pub interface: String,
    /// Whether it may carry traffic: its actor distributes.
    pub distributing: bool,
    /// The aggregator that it belongs to.
    pub aggregator: Option<u16>,
    /// Whether that is the active one: `selected`, `standby`, or `unselected`.
    pub selected: String,
    /// The state of the receive machine, such as `current`.
    pub receive: String,
    /// The state of the mux machine, such as `collecting distributing`.
    pub mux: String,
    /// The state of the actor churn machine: `monitor`, `none`, `churned`.
    pub actor_churn: String,
    /// That of the partner churn machine.
    pub partner_churn: String,
    /// What it says of itself.
    pub actor: LacpEnd,
    /// What it believes of its partner.
    pub partner: LacpEnd,
}

/// One end of a link, as LACPDUs tell of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LacpEnd {
    /// The priority of its system.
    pub system_priority: u16,
    /// The address of its system.
    pub system: [u8; 6],
    /// Its operational key.
    pub key: u16,
    /// The priority of its port.
    pub port_priority: u16,
    /// The number of its port.
    pub port: u16,
    /// The state of its port, as a byte of LACPDUs has it: activity, timeout, aggregation, synchronization,
    /// collecting, distributing, defaulted, expired, from bit 0.
    pub state: u8,
}

impl LacpPort {
    /// Truncates texts that are too long.
    #[must_use]
    pub fn cut(mut self) -> Self {
        let Self { interface, selected, receive, mux, actor_churn, partner_churn, .. } = &mut self;
        for text in [interface, selected, receive, mux, actor_churn, partner_churn] {
            cut_to(text, STATE_MAX);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let port = LacpPort { mux: "ä".repeat(40), ..LacpPort::default() }.cut();
        assert_eq!(port.mux, "ä".repeat(16));
        assert!(port.cut().receive.is_empty());
    }
}
