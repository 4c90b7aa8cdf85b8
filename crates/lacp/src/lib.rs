//! Link Aggregation Control Protocol (IEEE 802.1AX-2014, formerly 802.3ad), without I/O.
//!
//! An [`Actor`] is one system with its ports: half of a bond. It takes Ethernet frames
//! ([`Actor::handle_frame`]), links ([`Actor::link_changed`]) and the time, and gives frames
//! ([`Actor::poll_transmit`]), events ([`Actor::poll_event`]) and the next deadline. It decides which ports
//! may collect and distribute; it carries no traffic itself.
//!
//! Each port has the machines of clause 6.4, one in each file: `receive`, `periodic`, `mux`, `churn` and
//! `transmit`. `selection` puts ports into aggregators and chooses the active one. After each input the
//! machines run until none moves.
//!
//! Options have the names and defaults of Linux bonding ([`Config`]), and so does the key of a port, so that
//! a kernel's bond is a partner like any other.
#![forbid(unsafe_code)]

mod actor;
mod churn;
mod config;
mod mux;
mod pdu;
mod periodic;
mod port;
mod receive;
mod selection;
mod states;
mod transmit;
mod window;

pub use actor::{Actor, AddPortError, Event, FrameError};
pub use config::{AdSelect, Config, ConfigError, LacpRate, port_key};
pub use pdu::{
    FRAME_LEN, Lacpdu, Mac, Marker, ParseError, PortInfo, PortState, SLOW_PROTOCOLS_ETHERTYPE,
    SLOW_PROTOCOLS_MULTICAST, SlowFrame,
};
pub use port::{Counters, PortNumber, PortStatus};
pub use states::{ChurnState, MuxState, PeriodicState, ReceiveState, Selected};
