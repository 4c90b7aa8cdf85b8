//! An actor: a system with its ports, driven by its host.

use core::fmt;
use core::time::Duration;

use crate::config::{Config, ConfigError, port_key};
use crate::pdu::{FRAME_LEN, Mac, ParseError, SlowFrame};
use crate::port::{Port, PortNumber, PortStatus};
use crate::selection::{self, Active};
use crate::states::{ReceiveState, Selected};

/// The greatest number of ports.
const PORTS_MAX: usize = 256;

/// How often the machines of all ports run after one input. They settle after a few rounds.
const ROUNDS_MAX: usize = 64;

/// What the user wants to know. Between two calls of [`Actor::poll_event`] only the last state counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A port may or may not carry traffic now.
    Port {
        /// Its number.
        port: PortNumber,
        /// Whether it may receive.
        collecting: bool,
        /// Whether it may send.
        distributing: bool,
    },
    /// The receive machine moved: the partner was heard, is silent, is given up; or the link changed.
    Receive {
        /// The port.
        port: PortNumber,
        /// The machine's state.
        state: ReceiveState,
    },
    /// A port hears its own system (true), or does not any more.
    Loopback {
        /// The port.
        port: PortNumber,
        /// Whether it does.
        looped: bool,
    },
    /// An end was not in sync for a minute, or is again.
    Churn {
        /// The port.
        port: PortNumber,
        /// Whether this end churns.
        actor: bool,
        /// Whether the partner churns.
        partner: bool,
    },
    /// Another aggregator is the active one.
    Aggregator {
        /// Its identifier, if there is one.
        active: Option<u16>,
    },
    /// The bond has a carrier: at least `min_links` ports distribute.
    Carrier {
        /// Whether it has.
        up: bool,
    },
}

/// The reason why a frame changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// There is no such port.
    NoSuchPort,
    /// It is not understood.
    Parse(ParseError),
    /// It came from this system: the cable leads back.
    Loopback,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchPort => write!(f, "no such port"),
            Self::Parse(error) => error.fmt(f),
            Self::Loopback => write!(f, "sent by this system itself: the cable leads back to it"),
        }
    }
}

impl core::error::Error for FrameError {}

/// The reason why a port can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddPortError {
    /// There are as many as there can be.
    TooMany,
}

impl fmt::Display for AddPortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a bond has at most {PORTS_MAX} ports")
    }
}

impl core::error::Error for AddPortError {}

/// A system that aggregates links.
///
/// After each call that takes the time, the host must call [`poll_transmit`](Self::poll_transmit) until it
/// gives nothing, and [`handle_timeout`](Self::handle_timeout) when
/// [`next_deadline`](Self::next_deadline) has come.
/// The time may be counted from any moment, and never goes back.
#[derive(Clone, Debug)]
pub struct Actor {
    config: Config,
    ports: Vec<Port>,
    active: Active,
    reported_active: Option<u16>,
    reported_carrier: bool,
}

impl Actor {
    /// A system without ports.
    ///
    /// # Errors
    /// [`ConfigError`] says which option is wrong.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            ports: Vec::new(),
            active: Active::default(),
            reported_active: None,
            reported_carrier: false,
        })
    }

    /// Adds a port whose link is down. `mac` is the source of its frames.
    ///
    /// # Errors
    /// [`AddPortError::TooMany`].
    pub fn add_port(&mut self, mac: Mac) -> Result<PortNumber, AddPortError> {
        if self.ports.len() >= PORTS_MAX {
            return Err(AddPortError::TooMany);
        }
        let taken = |number| self.ports.iter().any(|port| port.number == number);
        let number = (1..).find(|number| !taken(*number)).ok_or(AddPortError::TooMany)?;
        self.ports.push(Port::new(number, mac, &self.config));
        Ok(number)
    }

    /// Removes a port, once it has told its partner: a last LACPDU says that it can't be aggregated. The
    /// limit of LACPDUs may hold it back for a second; [`port_count`](Self::port_count) says when all are
    /// gone.
    pub fn remove_port(&mut self, now: Duration, port: PortNumber) {
        if let Some(port) = self.port(port) {
            port.leave();
            port.aggregator = None;
            port.selected = Selected::Unselected;
        }
        self.bury();
        self.run(now);
    }

    /// Says how a link is. `speed_mbps` is in Mbit/s, 0 if unknown.
    pub fn link_changed(
        &mut self,
        now: Duration,
        port: PortNumber,
        up: bool,
        speed_mbps: u32,
        full_duplex: bool,
    ) {
        let user = self.config.ad_user_port_key;
        let Some(port) = self.port(port) else { return };
        let key = port_key(user, speed_mbps, full_duplex);
        if (port.enabled, port.speed_mbps, port.full_duplex) == (up, speed_mbps, full_duplex) {
            return;
        }
        // A port that comes up speaks at once, and so does one whose key the partner has wrong.
        port.ntt |= up;
        if port.actor.key != key {
            port.selected = Selected::Unselected;
            port.actor.key = key;
        }
        if port.enabled != up {
            port.looped = false;
        }
        (port.enabled, port.speed_mbps, port.full_duplex) = (up, speed_mbps, full_duplex);
        self.bury();
        self.run(now);
    }

    /// Takes a frame that a port received, from its Ethernet header on.
    ///
    /// # Errors
    /// [`FrameError`], if the frame was dropped. It is counted.
    pub fn handle_frame(
        &mut self,
        now: Duration,
        port: PortNumber,
        frame: &[u8],
    ) -> Result<(), FrameError> {
        let port = self.port(port).ok_or(FrameError::NoSuchPort)?;
        let taken = match SlowFrame::parse(frame) {
            Ok(SlowFrame::Lacpdu(pdu)) => {
                port.counters.lacpdus_received += 1;
                if port.receive(&pdu, now) { Ok(()) } else { Err(FrameError::Loopback) }
            }
            Ok(SlowFrame::Marker(marker)) => {
                port.take_marker(marker);
                Ok(())
            }
            Err(error) => {
                port.counters.illegal_received += 1;
                Err(FrameError::Parse(error))
            }
        };
        self.run(now);
        taken
    }

    /// Lets timers expire.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.run(now);
    }

    /// The next frame to send, and the port to send it by.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<(PortNumber, [u8; FRAME_LEN])> {
        let sent = self.ports.iter_mut().find_map(|port| Some((port.number, port.transmit(now)?)));
        if sent.is_some() {
            self.bury();
        }
        sent
    }

    /// When [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) have to be
    /// called next, unless something else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let timers = |port: &Port| if port.leaving { None } else { port.next_timer() };
        let all = self.ports.iter().flat_map(|port| [timers(port), port.transmit_at()]);
        all.flatten().min()
    }

    /// The next thing to tell the user.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.ports.iter_mut().filter(|port| !port.leaving).find_map(event_of) {
            return Some(event);
        }
        if self.reported_active != self.active.id {
            self.reported_active = self.active.id;
            return Some(Event::Aggregator { active: self.active.id });
        }
        let up = self.carrier();
        if self.reported_carrier != up {
            self.reported_carrier = up;
            return Some(Event::Carrier { up });
        }
        None
    }

    /// Whether the bond has a carrier: at least `min_links` ports distribute.
    #[must_use]
    pub fn carrier(&self) -> bool {
        let distributing = self.ports.iter().filter(|port| port.distributes()).count();
        distributing >= usize::from(self.config.min_links.max(1))
    }

    /// The active aggregator, if any port has a link.
    #[must_use]
    pub fn active_aggregator(&self) -> Option<u16> {
        self.active.id
    }

    /// The ports, including those that have still to tell their partners that they leave.
    #[must_use]
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// The options.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All ports.
    #[must_use]
    pub fn status(&self) -> Vec<PortStatus> {
        self.ports.iter().map(Port::status).collect()
    }

    fn port(&mut self, number: PortNumber) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.number == number && !port.leaving)
    }

    /// Removes ports that have said good-bye, or can't.
    fn bury(&mut self) {
        self.ports.retain(|port| !port.leaving || (port.ntt && port.enabled));
    }

    /// Runs all machines until none moves.
    fn run(&mut self, now: Duration) {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for port in self.ports.iter_mut().filter(|port| !port.leaving) {
                moved |= port.run_receive(now);
                moved |= port.run_periodic(now);
                moved |= port.run_wait(now);
            }
            moved |= selection::select(&mut self.ports);
            moved |= selection::choose(&mut self.ports, &mut self.active, self.config.ad_select);
            for at in 0..self.ports.len() {
                let ready = selection::is_ready(&self.ports, self.ports[at].aggregator);
                let port = &mut self.ports[at];
                if !port.leaving {
                    moved |= port.run_mux(ready, self.config.coupled_control, now);
                    moved |= port.run_churn(now);
                }
            }
            if !moved {
                break;
            }
        }
        for port in &mut self.ports {
            port.silence();
        }
    }
}

fn event_of(port: &mut Port) -> Option<Event> {
    let now = port.report();
    let told = &mut port.reported;
    let port = port.number;
    if told.receive != now.receive {
        let first = told.receive.is_none();
        told.receive = now.receive;
        // A port that begins without a link is no news.
        if let Some(state) =
            now.receive.filter(|state| !(first && *state == ReceiveState::PortDisabled))
        {
            return Some(Event::Receive { port, state });
        }
    }
    if told.looped != now.looped {
        told.looped = now.looped;
        return Some(Event::Loopback { port, looped: now.looped });
    }
    if (told.actor_churned, told.partner_churned) != (now.actor_churned, now.partner_churned) {
        (told.actor_churned, told.partner_churned) = (now.actor_churned, now.partner_churned);
        let (actor, partner) = (now.actor_churned, now.partner_churned);
        return Some(Event::Churn { port, actor, partner });
    }
    if (told.collecting, told.distributing) != (now.collecting, now.distributing) {
        (told.collecting, told.distributing) = (now.collecting, now.distributing);
        let (collecting, distributing) = (now.collecting, now.distributing);
        return Some(Event::Port { port, collecting, distributing });
    }
    None
}
