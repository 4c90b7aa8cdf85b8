//! A case of the connection manager: explicit data that determines a run completely.

use core::fmt;
use core::time::Duration;

use polypath_wire::cm::PortSpace;

use crate::link_faults::{LinkFaults, LinkPlan};

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmCase {
    /// The seed of what is left to chance: the fate of each packet, and the contents of private data.
    pub seed: u64,
    /// Whether hosts have IPv6 addresses; otherwise IPv4.
    pub v6: bool,
    /// The number of hosts. Each is on each link and has a connection manager.
    pub hosts: usize,
    /// The links.
    pub links: Vec<LinkPlan>,
    /// Whether hosts tell each other all their addresses, as multi-path devices do.
    pub multi_path: bool,
    /// The largest number of connections that a connection manager holds.
    pub max_connections: usize,
    /// The listening ids.
    pub listeners: Vec<ListenPlan>,
    /// Connections and resolutions of services that applications ask for.
    pub attempts: Vec<AttemptPlan>,
    /// The faults, and when each of them happens.
    pub faults: Vec<(Duration, CmFault)>,
}

/// A process of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the host.
    pub host: usize,
    /// The number of the process on that host.
    pub process: usize,
}

/// A service that a process can listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// Whether it is a datagram service, which SIDR resolves; otherwise it takes connections.
    pub ud: bool,
    /// Whether it is one of XRC: initiators connect to a target.
    pub xrc: bool,
    /// Its port.
    pub port: u16,
}

impl Service {
    /// The port space of its ids.
    pub(super) fn space(self) -> PortSpace {
        match (self.ud, self.xrc) {
            (true, _) => PortSpace::Udp,
            (_, true) => PortSpace::Ib,
            _ => PortSpace::Tcp,
        }
    }

    /// The type of queue pair of the ids of either end, a number of `enum ibv_qp_type`.
    pub(super) fn qp_type(self, listens: bool) -> u8 {
        match (self.space(), listens) {
            (PortSpace::Udp, _) => 4,
            (PortSpace::Ib, false) => 9,
            (PortSpace::Ib, true) => 10,
            _ => 2,
        }
    }
}

/// A process listens on a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenPlan {
    /// The process that listens.
    pub place: Place,
    /// Port space and port.
    pub service: Service,
    /// The link whose address it listens on; `None` means all addresses.
    pub link: Option<usize>,
    /// The number of requests that may wait unread.
    pub backlog: u32,
    /// The time when it begins to listen.
    pub at: Duration,
    /// The time when the listening id is destroyed, if that is before the end of the run.
    pub until: Option<Duration>,
}

/// A process connects to a service, or resolves it, and both ends act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptPlan {
    /// The time when it begins.
    pub at: Duration,
    /// The place that connects.
    pub place: Place,
    /// The number of the host that it connects to.
    pub to: usize,
    /// The service that it asks for.
    pub service: Service,
    /// The link whose addresses are used.
    pub link: usize,
    /// Responder resources, initiator depth, retries and RNR retries of the request.
    pub numbers: [u8; 4],
    /// The end that connects. Its `decide_after` is the time from the response to its confirmation.
    pub active: EndPlan,
    /// The end that listens. Its `decide_after` is the time from the request to the decision.
    pub passive: EndPlan,
    /// The decision of the listening end.
    pub decision: Decision,
    /// The time from the active end's confirmation to when the passive end's queue pair sees data, if it
    /// does. The RTU may come later, or never.
    pub data_after: Option<Duration>,
}

/// The plan of an application for its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPlan {
    /// The number of its queue pair.
    pub qpn: u32,
    /// The number of bytes of private data. A command with more than there is room for is refused.
    pub private_len: usize,
    /// The time that it takes to answer.
    pub decide_after: Duration,
    /// The time and the way in which it ends the connection by itself, whatever the state. The time
    /// counts from when the request was sent or seen.
    pub quit: Option<(Duration, Quit)>,
    /// The time when it moves its id to another event channel, counted from when the request was sent
    /// or seen.
    pub migrate_after: Option<Duration>,
    /// The time from when it is told of a disconnection until it agrees to it, if it does.
    pub agree_after: Option<Duration>,
    /// The time from the end of the connection until it destroys its id.
    pub destroy_after: Duration,
}

/// The answer of a listening application to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It accepts.
    Accept,
    /// It rejects, with private data.
    Reject,
    /// It destroys the new id.
    Destroy,
    /// It does nothing.
    Ignore,
}

/// The way in which an application ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quit {
    /// `rdma_disconnect`.
    Disconnect,
    /// `rdma_destroy_id`.
    Destroy,
}

#[allow(missing_docs, reason = "fields say what they are")]
/// Something that happens to the network, to a host, or to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmFault {
    /// A link silently drops what one host sends to another, or stops doing so.
    Cut { link: usize, from: usize, to: usize, cut: bool },
    /// A link loses, doubles, holds back and corrupts MADs.
    LinkFaults { link: usize, link_faults: LinkFaults },
    /// A process does nothing for `time`. If `deaf`, it only reads no events.
    Pause { place: Place, time: Duration, deaf: bool },
    /// A process dies: the kernel closes its file.
    Kill { place: Place },
    /// The device of a process is removed.
    Removal { place: Place },
    /// The address of a host on a link goes away, or comes back.
    Address { host: usize, link: usize, there: bool },
    /// A host starts again, with all its processes and its connection manager.
    Reboot { host: usize },
    /// A MAD that was sent to a host before comes again. The latest `back` MADs of the whole run are
    /// skipped.
    Replay { host: usize, back: u64 },
    /// An attacker sends a MAD to a host that looks like one of a connection, but is not.
    Forge { host: usize, attempt: usize, what: Forgery },
}

/// A MAD that must change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// A DREQ with both communication ids right, but for another queue pair.
    DreqOfOtherQp,
    /// A DREQ with the wrong communication id of the peer.
    DreqFromOther,
    /// A REP from another connection of the peer than the one that has answered.
    RepFromOther,
    /// An RTU with the wrong communication id of the peer.
    RtuFromOther,
    /// A REJ with the wrong communication id of the peer.
    RejFromOther,
    /// An MRA with the wrong communication id of the peer.
    MraFromOther,
    /// A DREP with the wrong communication id of the peer.
    DrepFromOther,
    /// A DREQ that is right, but does not come from QP1.
    DreqNotFromQp1,
    /// A REQ for a service that no process has.
    ReqForNobody,
    /// A REQ from another address that uses the peer's queue pair again.
    ReqStale,
    /// A LAP, which is answered by an APR: there are no alternate paths.
    Lap,
    /// A SIDR_REP for another service.
    SidrRepOfOther,
    /// Random bytes, as many as a MAD has or another number.
    Noise(u64),
}

/// Returns `, WHAT after TIME`, or nothing if there is no time.
pub(crate) fn after(what: &str, time: Option<Duration>) -> String {
    time.map(|time| format!(", {what} after {time:?}")).unwrap_or_default()
}

impl fmt::Display for CmCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.v6 { "IPv6" } else { "IPv4" };
        let several = if self.multi_path { ", several ways" } else { "" };
        writeln!(
            f,
            "{} hosts, {family}{several}, at most {} connections, random stream {:#x}",
            self.hosts, self.max_connections, self.seed
        )?;
        for (i, l) in self.links.iter().enumerate() {
            let reorders = if l.reorders { ", reorders" } else { "" };
            writeln!(f, "link {i}: delay {:?}, jitter {:?}{reorders}", l.delay, l.jitter)?;
        }
        for (i, l) in self.listeners.iter().enumerate() {
            write!(f, "listener {i}: {} on {}, backlog {}", l.place, l.service, l.backlog)?;
            if let Some(link) = l.link {
                write!(f, ", by link {link} only")?;
            }
            write!(f, ", from {:?}", l.at)?;
            match l.until {
                Some(until) => writeln!(f, " until {until:?}")?,
                None => writeln!(f)?,
            }
        }
        for (i, a) in self.attempts.iter().enumerate() {
            let [resources, depth, retries, rnr_retries] = a.numbers;
            writeln!(
                f,
                "attempt {i}: at {:?} {} asks host {} for {} by link {}, with {resources} responder \
                 resources, initiator depth {depth}, {retries} retries, {rnr_retries} RNR retries; {}{}",
                a.at,
                a.place,
                a.to,
                a.service,
                a.link,
                a.decision,
                after("data", a.data_after)
            )?;
            writeln!(f, "  active: {}\n  passive: {}", a.active, a.passive)?;
        }
        self.faults.iter().try_for_each(|(at, fault)| writeln!(f, "at {at:?}: {fault}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of host {}", self.process, self.host)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.space() {
            PortSpace::Udp => "UDP",
            PortSpace::Ib => "XRC",
            PortSpace::Tcp | PortSpace::Ipoib => "TCP",
        };
        write!(f, "{kind} {}", self.port)
    }
}

impl fmt::Display for EndPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quit = self.quit.map(|(time, how)| after(&how.to_string(), Some(time)));
        write!(
            f,
            "QP {:#x}, {} bytes of private data, answers after {:?}{}{}{}, destroys its id {:?} \
             after the end",
            self.qpn,
            self.private_len,
            self.decide_after,
            quit.unwrap_or_default(),
            after("moves to another channel", self.migrate_after),
            after("agrees to the end", self.agree_after),
            self.destroy_after
        )
    }
}
