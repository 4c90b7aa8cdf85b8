//! A case: explicit data that determines a run completely. It can be printed, repeated and reduced.

use core::fmt;
use core::time::Duration;

use polypath_paths::Mode;
use polypath_transport::{Access, QpType};

use crate::bout::Attack;
use crate::faults::{Fault, When};
use crate::io::SRQNS;
use crate::link_faults::LinkPlan;

/// A number that no XRC shared receive queue has.
const NO_SRQN: u32 = 0x55_5555;

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed of what is left to chance: the fate of each packet, and process identities.
    pub seed: u64,
    /// Whether hosts have IPv6 addresses; otherwise IPv4.
    pub v6: bool,
    /// The number of hosts. Each is on each link.
    pub hosts: usize,
    /// The links.
    pub links: Vec<LinkPlan>,
    /// The pairs of queue pairs.
    pub pairs: Vec<PairPlan>,
    /// The faults, and when each of them happens.
    pub faults: Vec<(When, Fault)>,
    /// The attackers, and when each of them forges packets.
    pub attacks: Vec<Attack>,
    /// The values that each host's lane tells its peers; a host beyond the list tells the default.
    pub lanes: Vec<LanePlan>,
}

/// The values that a lane tells its peers about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePlan {
    /// The distance, in bytes, from the next expected packet up to which early packets are kept; 0 if
    /// the lane tells nothing, as older versions do.
    pub reach: u32,
    /// The size of its receive buffer in bytes.
    pub receive_window: u32,
    /// How it uses the paths to a peer. (This is not told.)
    pub mode: Mode,
    /// How many source ports it wants for each pair of addresses; 0 if it tells nothing, as older versions
    /// do.
    pub ports: u8,
    /// The link that costs it more than the others, if one does. (This is not told, either.)
    pub dear_link: Option<usize>,
}

impl Default for LanePlan {
    fn default() -> Self {
        let polypath_paths::Config { reach, receive_window, mode, ports, .. } =
            polypath_paths::Config::default();
        Self { reach, receive_window, mode, ports, dear_link: None }
    }
}

/// Two queue pairs that are connected, or send to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairPlan {
    /// RC, UC or UD. `XrcSend` means XRC: the first end is the initiator, the second its target.
    pub service: QpType,
    /// Whether they may use several paths. XRC pairs do not.
    pub multipath: bool,
    /// The link whose addresses connect them.
    pub link: usize,
    /// The link of its alternate path, if it migrates: RC and UC, plain.
    pub alternate: Option<usize>,
    /// The flow labels of its two paths, which tell them apart if they are on the same link. 0: none.
    pub labels: [u32; 2],
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Local ACK timeout as a code: 4.096 µs × 2^`timeout`; 0 means none.
    pub timeout: u8,
    /// Number of retries, 0 to 7.
    pub retry_cnt: u8,
    /// Number of RNR retries, 0 to 7; 7 means without limit.
    pub rnr_retry: u8,
    /// RNR NAK timer as a code (IBTA table 45).
    pub min_rnr_timer: u8,
    /// The number of READs and atomics that may be outstanding.
    pub max_rd_atomic: u8,
    /// Whether a request that overwrites the memory of an earlier READ follows it without a fence.
    pub unfenced: bool,
    /// The two ends.
    pub ends: [EndPlan; 2],
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPlan {
    /// The number of the host that it is on.
    pub host: usize,
    /// Its queue pair number.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: u32,
    /// Whether it takes receives from its host's shared receive queue. It has no meaning for XRC, whose
    /// requests name a queue.
    pub srq: bool,
    /// The rights that it gives to the peer (`qp_access_flags`).
    pub access: Access,
    /// The work requests that it posts, in this order.
    pub ops: Vec<Op>,
}

/// A work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The time when it is posted, counted from when the queue pairs are connected. If there is no room
    /// then, it is posted as soon as there is.
    pub at: Duration,
    /// The operation.
    pub kind: OpKind,
    /// Its length in bytes.
    pub len: u32,
    /// The offset in bytes in the peer's memory of the pair, which begins with the area (WRITE, READ),
    /// or the index of the counter (shared atomics).
    pub offset: u32,
    /// The seed of its payload or operands.
    pub fill: u64,
    /// Whether it asks for a completion.
    pub signaled: bool,
    /// Whether it is posted inline, if it is short enough.
    pub inline: bool,
    /// Whether it asks for a solicited event.
    pub solicited: bool,
    /// Whether it waits for the READs and atomics before it, even if nothing requires that.
    pub fence: bool,
    /// Whether the local memory, and that of its receive, is given as two scatter/gather elements.
    pub split: bool,
    /// The time when its receive is posted, if it takes one; counted like [`Op::at`].
    pub receive_at: Duration,
    /// The mistake in it; `None` if it is correct.
    pub wrong: Option<Wrong>,
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of verbs")]
pub enum OpKind {
    Send,
    SendImm,
    /// SEND that makes a key of the peer invalid.
    SendInv,
    Write,
    WriteImm,
    /// Writes 8 bytes.
    AtomicWrite,
    /// FLUSH to global visibility, of a range or of the whole region.
    Flush,
    Read,
    /// Adds to a counter that only this queue pair uses.
    FetchAdd,
    CompareSwap,
    /// Adds one to a counter that all queue pairs share.
    SharedAdd,
    /// Makes a key of this end invalid. It sends no packet.
    LocalInv,
    /// Binds a memory window, which the peer's requests may then use. It sends no packet.
    Bind,
}

impl OpKind {
    /// Whether it takes a receive work request at the peer.
    pub const fn takes_receive(self) -> bool {
        self.is_send() || matches!(self, Self::WriteImm)
    }

    /// Whether it sends its payload to a receive work request.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    /// Whether it is an RDMA WRITE or an ATOMIC WRITE.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::AtomicWrite)
    }

    /// Whether it accesses a word of 8 bytes, whatever its length says.
    pub const fn is_word(self) -> bool {
        self.is_atomic() || matches!(self, Self::AtomicWrite)
    }

    /// Whether READ responses answer it.
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::AtomicWrite | Self::Flush)
    }

    /// Whether it is carried out locally, so that no packet is sent for it.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInv | Self::Bind)
    }

    /// Whether it is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap | Self::SharedAdd)
    }

    /// Whether it can use a memory window of the peer.
    pub const fn takes_window(self) -> bool {
        self.is_write() || self.brings_data() || matches!(self, Self::Flush)
    }

    /// Whether its window may be made invalid while it is outstanding. It is then either executed or
    /// refused.
    pub const fn may_lose_window(self) -> bool {
        self.is_atomic() || matches!(self, Self::Write | Self::AtomicWrite | Self::Flush)
    }

    /// Whether it brings data back: READs and atomics.
    pub const fn brings_data(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }
}

/// A mistake in a work request. Each ends in the error that the specification names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The remote key, or the key to make invalid, does not exist or is not valid any more: remote
    /// access error.
    Key,
    /// The remote range goes beyond the region: remote access error.
    Range,
    /// The region does not allow the operation: remote access error.
    Rights,
    /// The local key does not exist: local protection error.
    LocalKey,
    /// The receive is shorter than the message: local length error at the responder, remote invalid
    /// request error at the requester.
    ShortReceive,
    /// The local key of the receive does not exist: local protection error at the responder, remote
    /// operation error at the requester.
    ReceiveKey,
    /// The number of the XRC shared receive queue does not exist: remote access error.
    Queue,
    /// No receive is ever posted for it: RNR retries exceeded, if they are limited.
    NoReceive,
    /// The Q_Key is not that of the receiver, which drops the message silently (UD).
    QKey,
    /// It is no valid work request (an inline READ, too much inline data): the call that posts it
    /// refuses it.
    Post,
}

impl PairPlan {
    /// Whether the service is reliable (RC or XRC), so that a completion means that the data has
    /// arrived.
    pub fn is_reliable(&self) -> bool {
        self.service == QpType::Rc || self.service.is_xrc()
    }

    /// The type of the queue pair of one end.
    pub fn qp_type(&self, end: usize) -> QpType {
        match (self.service, end) {
            (QpType::XrcSend, 1) => QpType::XrcRecv,
            (service, _) => service,
        }
    }

    /// Whether an end takes its receives from a queue that other queue pairs use as well.
    pub fn shares_receives(&self, end: usize) -> bool {
        self.ends[end].srq || self.service.is_xrc()
    }
}

impl Op {
    /// Whether it writes to memory where the order of data does not matter.
    pub fn is_relaxed(&self) -> bool {
        self.kind.is_write() && self.fill >> 44 & 1 == 1
    }

    /// XRC: the number of the shared receive queue that it is for.
    pub fn queue(&self) -> u32 {
        SRQNS[(self.fill >> 40 & 1) as usize]
    }

    /// XRC: the number of the shared receive queue that it names, which is wrong for [`Wrong::Queue`].
    pub fn srqn(&self) -> u32 {
        if self.wrong == Some(Wrong::Queue) { NO_SRQN } else { self.queue() }
    }

    /// Whether it takes a receive at the peer and is a valid work request.
    pub fn takes_receive(&self) -> bool {
        self.kind.takes_receive() && self.wrong != Some(Wrong::Post)
    }

    /// The length in bytes of its receive, whose buffer has `room` bytes; `None` if no receive is ever
    /// posted.
    pub fn receive_len(&self, room: u32) -> Option<u32> {
        match self.wrong {
            Some(Wrong::NoReceive | Wrong::Post) => None,
            Some(Wrong::ShortReceive) => {
                Some(self.len - 1 - (self.fill % u64::from(self.len)) as u32 / 2)
            }
            _ if self.fill & 1 == 0 => Some(room),
            // The receive is just large enough.
            _ => Some(self.len),
        }
    }
}

impl Case {
    /// The number of work requests of all queue pairs.
    pub fn ops(&self) -> usize {
        self.pairs.iter().flat_map(|p| &p.ends).map(|e| e.ops.len()).sum()
    }

    /// Whether packets of a single path arrive in the order of sending, and once.
    pub fn keeps_order(&self) -> bool {
        let stirs = |f: &Fault| {
            matches!(f, Fault::LinkFaults { link_faults, .. }
                if link_faults.double + link_faults.overtake + link_faults.straggle > 0)
        };
        !self.links.iter().any(|l| l.reorders) && !self.faults.iter().any(|(_, f)| stirs(f))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.v6 { "IPv6" } else { "IPv4" };
        writeln!(f, "{} hosts, {family}, random stream {:#x}", self.hosts, self.seed)?;
        for (i, l) in self.lanes.iter().enumerate().take(self.hosts) {
            let (reach, window, mode) = (l.reach, l.receive_window, l.mode);
            write!(f, "host {i}: {mode:?}, reach {reach}, receive window {window} bytes")?;
            if l.ports != 1 {
                write!(f, ", {} source ports", l.ports)?;
            }
            match l.dear_link {
                Some(link) => writeln!(f, ", link {link} costs more")?,
                None => writeln!(f)?,
            }
        }
        for (i, l) in self.links.iter().enumerate() {
            write!(f, "link {i}: delay {:?}, jitter {:?}", l.delay, l.jitter)?;
            let (rate, queue) = (l.rate_mbps, l.queue);
            if rate > 0 {
                let marks = if l.marks { ", marks" } else { "" };
                write!(f, ", {rate} Mbit/s with {queue} bytes of queue{marks}")?;
            }
            writeln!(f, "{}", if l.reorders { ", reorders" } else { "" })?;
        }
        for (i, p) in self.pairs.iter().enumerate() {
            let several = if p.multipath { "multi-path" } else { "plain" };
            writeln!(
                f,
                "pair {i}: {several} {} by link {}{}, MTU {}, timeout {}, retries {}, RNR retries {} \
                 of {}, {} READs{}",
                service(p.service),
                p.link,
                p.alternate.map_or_else(String::new, |link| match p.labels {
                    [0, 0] => format!(" (or {link})"),
                    [label, other] => format!(" with label {label:#x} (or {link} with {other:#x})"),
                }),
                p.mtu,
                p.timeout,
                p.retry_cnt,
                p.rnr_retry,
                p.min_rnr_timer,
                p.max_rd_atomic,
                if p.unfenced { ", unfenced" } else { "" }
            )?;
            for e in &p.ends {
                let srq = if e.srq { ", SRQ" } else { "" };
                writeln!(
                    f,
                    "  {:#08x} on host {}, PSN {}, allows {}{srq}",
                    e.qpn,
                    e.host,
                    e.psn,
                    names(&format!("{:?}", e.access))
                )?;
                e.ops.iter().enumerate().try_for_each(|(i, op)| writeln!(f, "    {i}: {op}"))?;
            }
        }
        for (when, fault) in &self.faults {
            writeln!(f, "{when}: {fault}")?;
        }
        self.attacks.iter().try_for_each(|attack| writeln!(f, "{attack}"))?;
        Ok(())
    }
}

const fn service(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend | QpType::XrcRecv => "XRC",
    }
}

/// Turns the `Debug` text of a set of flags, `Flags(A | B)`, into `A, B`.
fn names(flags: &str) -> String {
    let inner = flags.split_once('(').map_or(flags, |(_, rest)| rest.trim_end_matches(')'));
    inner.replace(" | ", ", ")
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}, {} bytes", self.at, self.kind, self.len)?;
        if !self.kind.is_send() {
            write!(f, " at {}", self.offset)?;
        }
        let flags = [
            (self.signaled, "signaled"),
            (self.inline, "inline"),
            (self.solicited, "solicited"),
            (self.fence, "fence"),
            (self.split, "split"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, ", {name}"))?;
        if self.kind.takes_receive() {
            write!(f, ", receive at {:?}", self.receive_at)?;
        }
        match self.wrong {
            Some(wrong) => write!(f, ", wrong: {wrong}"),
            None => Ok(()),
        }
    }
}
