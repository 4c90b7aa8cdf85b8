//! `polypath lacp`: speaks LACP on interfaces of this network namespace.
//!
//! The protocol is [`polypath_lacp`]; this drives it: a packet socket for each interface, netlink for their
//! links, one epoll set. What it finds out goes to standard output, to a file, and to the brokers, which keep
//! members that may not carry traffic out of `802.3ad` bond devices.

mod arguments;
mod brokers;
mod report;
mod share;

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use polypath_ipc::lacp::LacpPort;
use polypath_lacp::{Actor, Event, PortNumber, ReceiveState, SLOW_PROTOCOLS_MULTICAST};

pub use arguments::{Interfaces, LacpArguments};

use crate::log::log;
use crate::netlink::{Dump, LinkMessage, Netlink};
use crate::sys::epoll::{Epoll, Interest};
use crate::sys::packet::{ETH_P_SLOW, FrameSocket};
use crate::sys::process::{Signals, now};
use crate::sys::{ethtool, would_block};

/// The longest frame that is read.
const FRAME_MAX: usize = 1518;

/// The number of frames that are taken from one interface before the others get their turn.
const TURN: usize = 32;

/// How long the partners may take to be told at the end.
const FAREWELL: Duration = Duration::from_secs(1);

const SIGNALS: u64 = u64::MAX;
const NETLINK: u64 = u64::MAX - 1;
/// From this on, the interfaces' sockets for ARP.
const ARP: u64 = 1 << 32;

/// The reason why LACP can't be spoken.
#[derive(Debug, thiserror::Error)]
pub enum LacpError {
    /// There is no such interface.
    #[error(
        "interface `{0}` does not exist in this network namespace; `ip link` shows those that do"
    )]
    NoInterface(String),
    /// It belongs to a bond of the kernel's, which speaks LACP itself.
    #[error(
        "interface `{0}` is a port of a bond, team or bridge of the kernel's; release it first"
    )]
    Enslaved(String),
    /// It has no Ethernet address.
    #[error("interface `{0}` is no Ethernet interface")]
    NotEthernet(String),
    /// The right to open packet sockets is missing.
    #[error(
        "LACP needs the right to send frames: run this as root of the network namespace (CAP_NET_RAW)"
    )]
    NoRight,
    /// A driver does not change the hardware address while the interface is up.
    #[error(
        "interface `{0}` can't get the hardware address of the first one while it is up: set it down, \
         start this, and set it up again"
    )]
    Busy(String),
    /// An option.
    #[error(transparent)]
    Config(#[from] polypath_lacp::ConfigError),
    /// More interfaces than a bond may have.
    #[error(transparent)]
    Port(#[from] polypath_lacp::AddPortError),
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl LacpError {
    /// The error of opening a packet socket.
    fn of_frames(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NoRight,
            _ => Self::Io { doing: "opening a packet socket", source },
        }
    }
}

/// An error of a system call, with what was being done.
fn io(doing: &'static str) -> impl Fn(io::Error) -> LacpError {
    move |source| LacpError::Io { doing, source }
}

/// An interface.
struct Member {
    ifindex: u32,
    number: PortNumber,
    socket: FrameSocket,
}

/// What runs.
struct Driver {
    actor: Actor,
    members: Vec<Member>,
    names: Vec<String>,
    netlink: Netlink,
    epoll: Epoll,
    brokers: brokers::Brokers,
    /// The address that the interfaces share.
    share: Option<share::Share>,
    /// What the file of `--state` says.
    written: String,
}

/// Speaks LACP until `SIGTERM` or `SIGINT`; then tells the partners that the interfaces leave.
///
/// The process should have nothing else to do, because this blocks signals.
///
/// # Errors
/// [`LacpError`].
pub fn speak(arguments: &LacpArguments) -> Result<(), LacpError> {
    let signals = Signals::new().map_err(io("taking signals"))?;
    let mut driver = Driver::new(arguments)?;
    let done = driver.run(&signals, arguments.state.as_deref());
    // Whatever ends it, partners are told, and the interfaces get back what they had.
    let left = driver.leave();
    done.and(left)
}

impl Driver {
    fn new(arguments: &LacpArguments) -> Result<Self, LacpError> {
        let mut netlink = Netlink::new().map_err(io("opening netlink"))?;
        let links = netlink.dump().map_err(io("reading interfaces"))?.links;
        let names = arguments.interfaces.0.clone();
        let of = |name: &String| {
            let link = links.iter().find(|link| link.name == *name);
            let link = link.ok_or_else(|| LacpError::NoInterface(name.clone()))?;
            match link {
                LinkMessage { enslaved: true, .. } => Err(LacpError::Enslaved(name.clone())),
                LinkMessage { ethernet: true, .. } if link.mac != [0; 6] => Ok(link),
                _ => Err(LacpError::NotEthernet(name.clone())),
            }
        };
        let links = names.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let system = links.first().map(|link| link.mac).unwrap_or_default();
        let mut actor = Actor::new(arguments.config(system))?;
        let epoll = Epoll::new().map_err(io("setting up"))?;
        epoll.add(netlink.changes(), NETLINK, Interest::Read).map_err(io("setting up"))?;
        let mut members = Vec::new();
        for (token, link) in (0..).zip(&links) {
            let opened = FrameSocket::open(link.ifindex, ETH_P_SLOW);
            let socket = opened.map_err(LacpError::of_frames)?;
            socket.join(link.ifindex, SLOW_PROTOCOLS_MULTICAST).map_err(io("setting up"))?;
            epoll.add(socket.as_fd(), token, Interest::Read).map_err(io("setting up"))?;
            let number = actor.add_port(link.mac)?;
            members.push(Member { ifindex: link.ifindex, number, socket });
        }
        let share = arguments
            .share_address
            .then(|| share::Share::begin(&links, &mut netlink, (&epoll, ARP)))
            .transpose()?;
        let brokers = brokers::Brokers::new();
        let written = String::new();
        Ok(Self { actor, members, names, netlink, epoll, brokers, share, written })
    }

    /// Speaks LACP until a signal ends it.
    fn run(&mut self, signals: &Signals, state: Option<&Path>) -> Result<(), LacpError> {
        self.epoll.add(signals.fd().as_fd(), SIGNALS, Interest::Read).map_err(io("setting up"))?;
        self.look_at_links()?;
        let mut buffer = [0; FRAME_MAX];
        loop {
            self.carry_out(state)?;
            let timeout = self.actor.next_deadline().map(|at| at.saturating_sub(now()));
            for event in self.epoll.wait(timeout).map_err(io("waiting"))? {
                match event.token {
                    SIGNALS => {
                        if signals.take().map_err(io("reading signals"))?.is_some() {
                            return Ok(());
                        }
                    }
                    NETLINK => self.look_at_links()?,
                    arp if arp >= ARP => {
                        self.hear(usize::try_from(arp - ARP).unwrap_or(usize::MAX))?;
                    }
                    member => {
                        let member = usize::try_from(member).unwrap_or(usize::MAX);
                        self.receive(member, &mut buffer)?;
                    }
                }
            }
            self.actor.handle_timeout(now());
        }
    }

    /// Tells the actor how the links are.
    fn look_at_links(&mut self) -> Result<(), LacpError> {
        self.netlink.take_changes().map_err(io("reading netlink"))?;
        let Dump { links, addresses, .. } =
            self.netlink.dump().map_err(io("reading interfaces"))?;
        if let Some(share) = &mut self.share {
            let ipv4 = |ip: IpAddr| if let IpAddr::V4(ip) = ip { Some(ip) } else { None };
            share.set_own(addresses.iter().filter_map(|it| ipv4(it.ip)).collect());
        }
        let socket = self.netlink.any_socket();
        for member in &self.members {
            let link = links.iter().find(|link| link.ifindex == member.ifindex);
            let up = link.is_some_and(|link| link.up);
            let known = link.and_then(|link| ethtool::settings(socket, &link.name));
            let (speed, full) = known.unwrap_or((0, true));
            self.actor.link_changed(now(), member.number, up, speed, full);
        }
        Ok(())
    }

    /// Takes the ARP packets that wait at an interface.
    fn hear(&mut self, at: usize) -> Result<(), LacpError> {
        self.share.as_ref().map_or(Ok(()), |share| share.receive(at, &mut self.netlink))
    }

    /// Takes the frames that wait at an interface.
    fn receive(&mut self, at: usize, buffer: &mut [u8]) -> Result<(), LacpError> {
        let Some(member) = self.members.get(at) else { return Ok(()) };
        take_frames(&member.socket, buffer, |frame| {
            // What is dropped is counted there.
            let _ = self.actor.handle_frame(now(), member.number, frame);
        })
    }

    /// Sends what is due, and tells what has happened.
    fn carry_out(&mut self, state: Option<&Path>) -> Result<(), LacpError> {
        self.send();
        while let Some(event) = self.actor.poll_event() {
            if let Some(line) = self.line(event) {
                // Without a reader it goes on.
                let _ = writeln!(io::stdout(), "{line}");
            }
        }
        // Events do not tell everything: the states of the partner are told, too.
        self.brokers.tell(self.ports());
        let Some(path) = state else { return Ok(()) };
        let report = report::report(&self.actor, &self.names);
        if report != self.written {
            write_state(path, &report)?;
            self.written = report;
        }
        Ok(())
    }

    /// The interfaces as brokers are told of them.
    fn ports(&self) -> Vec<LacpPort> {
        let status = self.actor.status();
        let members = self.members.iter().zip(&self.names);
        let of = |(member, name): (&Member, &String)| {
            let port = status.iter().find(|port| port.port == member.number);
            let told = port.map(report::told).unwrap_or_default();
            LacpPort { ifindex: member.ifindex, interface: name.clone(), ..told }
        };
        members.map(of).collect()
    }

    fn send(&mut self) {
        while let Some((number, frame)) = self.actor.poll_transmit(now()) {
            let Some(member) = self.members.iter().find(|member| member.number == number) else {
                continue;
            };
            // A frame that is lost is sent again in time.
            if let Err(error) = member.socket.send(&frame) {
                log!("sending a LACPDU: {error}");
            }
        }
    }

    /// The line for an event; `None` if it says nothing new.
    fn line(&self, event: Event) -> Option<String> {
        let name = |port: PortNumber| {
            let at = self.members.iter().position(|member| member.number == port);
            at.and_then(|at| self.names.get(at)).map_or("?", String::as_str)
        };
        Some(match event {
            Event::Port { port, collecting, distributing } => {
                let state = match (collecting, distributing) {
                    (true, true) => "collecting and distributing",
                    (true, false) => "collecting",
                    (false, true) => "distributing",
                    (false, false) => "neither collecting nor distributing",
                };
                format!("{}: {state}", name(port))
            }
            Event::Receive { port, state } => {
                let state = match state {
                    ReceiveState::PortDisabled => "no link",
                    ReceiveState::Expired => "the partner is silent, or not heard yet",
                    ReceiveState::LacpDisabled => "half duplex: no LACP",
                    ReceiveState::Defaulted => "no partner",
                    ReceiveState::Current => "the partner is heard",
                };
                format!("{}: {state}", name(port))
            }
            Event::Loopback { port, looped: true } => {
                format!("{}: hears this system itself: the cable leads back", name(port))
            }
            Event::Loopback { port, looped: false } => {
                format!("{}: hears another system", name(port))
            }
            Event::Churn { port, actor, partner } => {
                let which = match (actor, partner) {
                    (true, true) => "both ends are",
                    (true, false) => "this end is",
                    (false, true) => "the partner is",
                    (false, false) => return Some(format!("{}: in sync", name(port))),
                };
                format!("{}: {which} not in sync for a minute", name(port))
            }
            Event::Aggregator { active: Some(id) } => format!("aggregator {id} is active"),
            Event::Aggregator { active: None } => "no aggregator is active".to_owned(),
            Event::Carrier { up: true } => "carrier: up".to_owned(),
            Event::Carrier { up: false } => "carrier: down".to_owned(),
        })
    }

    /// Tells the partners that the interfaces leave.
    fn leave(mut self) -> Result<(), LacpError> {
        if let Some(mut share) = self.share.take() {
            share.end(&mut self.netlink);
        }
        let until = now() + FAREWELL;
        for number in self.members.iter().map(|member| member.number).collect::<Vec<_>>() {
            self.actor.remove_port(now(), number);
        }
        loop {
            self.send();
            let next = self.actor.next_deadline().filter(|at| *at <= until);
            let Some(at) = next.filter(|_| self.actor.port_count() > 0) else { return Ok(()) };
            self.epoll_pause(at.saturating_sub(now()))?;
        }
    }

    /// Waits, whatever happens meanwhile.
    fn epoll_pause(&self, pause: Duration) -> Result<(), LacpError> {
        Epoll::new().and_then(|nothing| nothing.wait(Some(pause))).map_err(io("waiting")).map(drop)
    }
}

/// Takes frames that wait at a socket, as many as one turn allows.
fn take_frames(
    socket: &FrameSocket,
    buffer: &mut [u8],
    mut handle: impl FnMut(&[u8]),
) -> Result<(), LacpError> {
    for _ in 0..TURN {
        match socket.receive(buffer) {
            Err(error) if would_block(&error) => break,
            // The socket tells once that its link went down; netlink tells the same.
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => break,
            Err(error) => return Err(io("receiving")(error)),
            Ok(0) => {}
            Ok(len) => handle(&buffer[..len]),
        }
    }
    Ok(())
}

/// Replaces a file as a whole, so that readers see no half of it.
fn write_state(path: &Path, text: &str) -> Result<(), LacpError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.map_err(io("writing the file of --state"))
}
