//! A case: everything that a run follows from, as explicit data, so that it can be cut down.

use core::fmt;
use core::time::Duration;

use polypath_transport::{Access, QpType};

use crate::bout::Attack;
use crate::faults::{Fault, When};
use crate::io::SRQNS;
use crate::link_faults::LinkPlan;

/// No XRC shared receive queue has this number.
const NO_SRQN: u32 = 0x55_5555;

/// Everything that a run follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is left to chance: the fate of each packet, and process identities.
    pub seed: u64,
    /// IPv6 addresses, else IPv4.
    pub v6: bool,
    /// How many hosts there are, each on each link.
    pub hosts: usize,
    /// The links.
    pub links: Vec<LinkPlan>,
    /// Pairs of queue pairs.
    pub pairs: Vec<PairPlan>,
    /// What goes wrong, and when.
    pub faults: Vec<(When, Fault)>,
    /// The attackers, and when each of them forges packets.
    pub attacks: Vec<Attack>,
    /// What each host's lane tells its peers about itself; a host beyond the list tells the default.
    pub lanes: Vec<LanePlan>,
}

/// What a lane tells its peers of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePlan {
    /// How far ahead packets are kept that arrive early, bytes; 0: nothing is told, as by older versions.
    pub reach: u32,
    /// What its receive buffer takes, bytes.
    pub receive_window: u32,
}

impl Default for LanePlan {
    fn default() -> Self {
        let polypath_paths::Config { reach, receive_window, .. } =
            polypath_paths::Config::default();
        Self { reach, receive_window }
    }
}

/// Two queue pairs that talk to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairPlan {
    /// RC, UC or UD; `XrcSend`: XRC, the first end is the initiator, the second its target.
    pub service: QpType,
    /// They may use several paths; not of XRC.
    pub multipath: bool,
    /// The link by whose addresses they are connected.
    pub link: usize,
    /// Path MTU, bytes.
    pub mtu: u32,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Retries, 0–7.
    pub retry_cnt: u8,
    /// RNR retries, 7: for ever.
    pub rnr_retry: u8,
    /// Code of the RNR timer.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding.
    pub max_rd_atomic: u8,
    /// What overwrites the memory of a READ before it follows without a fence.
    pub unfenced: bool,
    /// Both ends.
    pub ends: [EndPlan; 2],
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPlan {
    /// The host that it is on.
    pub host: usize,
    /// Its number.
    pub qpn: u32,
    /// Its first PSN.
    pub psn: u32,
    /// Whether it takes receives from its host's shared receive queue. Has no meaning for XRC, whose
    /// requests name one.
    pub srq: bool,
    /// What it lets the peer do (`qp_access_flags`).
    pub access: Access,
    /// What it is to do, in this order.
    pub ops: Vec<Op>,
}

/// A work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Posted then, or as soon as there is room, counted from when the queue pairs are connected.
    pub at: Duration,
    /// What it does.
    pub kind: OpKind,
    /// Its length in bytes.
    pub len: u32,
    /// Where in the memory of the pair at the peer, which begins with the area (WRITE, READ), or which
    /// counter (shared atomics).
    pub offset: u32,
    /// What its payload or operands are made from.
    pub fill: u64,
    /// Asks for a completion.
    pub signaled: bool,
    /// Posted inline, if it is short enough.
    pub inline: bool,
    /// Asks for a solicited event.
    pub solicited: bool,
    /// Waits for READs and atomics before it, even if nothing demands that.
    pub fence: bool,
    /// The memory here, and that of its receive, is given in two pieces.
    pub split: bool,
    /// When its receive is posted, if it takes one; counted as [`Op::at`] is.
    pub receive_at: Duration,
    /// What is wrong with it.
    pub wrong: Option<Wrong>,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of verbs")]
pub enum OpKind {
    Send,
    SendImm,
    /// With a key of the peer's that is not valid afterwards.
    SendInv,
    Write,
    WriteImm,
    /// 8 bytes.
    AtomicWrite,
    /// To global visibility: of a range, or of the whole region.
    Flush,
    Read,
    /// On a counter that only this queue pair uses.
    FetchAdd,
    CompareSwap,
    /// Adds one to a counter that all share.
    SharedAdd,
    /// Makes a key of this end's invalid; sends nothing.
    LocalInv,
    /// Binds a memory window, which the peer's requests may then use; sends nothing.
    Bind,
}

impl OpKind {
    /// Takes a receive work request at the peer.
    pub const fn takes_receive(self) -> bool {
        self.is_send() || matches!(self, Self::WriteImm)
    }

    /// Sends its payload to a receive work request.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    /// RDMA WRITE or ATOMIC WRITE.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::AtomicWrite)
    }

    /// Of 8 bytes, whatever the case says.
    pub const fn is_word(self) -> bool {
        self.is_atomic() || matches!(self, Self::AtomicWrite)
    }

    /// Its answer is made of READ responses.
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::AtomicWrite | Self::Flush)
    }

    /// Nothing is sent for it.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInv | Self::Bind)
    }

    /// An atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap | Self::SharedAdd)
    }

    /// Whether it can use a memory window of the peer.
    pub const fn takes_window(self) -> bool {
        self.is_write() || self.brings_data() || matches!(self, Self::Flush)
    }

    /// The window may be made invalid while it is outstanding: it is then executed, or refused.
    pub const fn may_lose_window(self) -> bool {
        self.is_atomic() || matches!(self, Self::Write | Self::AtomicWrite | Self::Flush)
    }

    /// READ or atomic: data comes back.
    pub const fn brings_data(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }
}

/// What may be wrong with a work request; each ends in the error that the specification names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The remote key is of nothing, or not any more, also that to make invalid: remote access error.
    Key,
    /// The remote range is beyond the region: remote access error.
    Range,
    /// The region does not allow it: remote access error.
    Rights,
    /// The local key is of nothing: local protection error.
    LocalKey,
    /// The receive is shorter than the message: local length error there, invalid request here.
    ShortReceive,
    /// The receive's local key is of nothing: local protection error there, remote operation error here.
    ReceiveKey,
    /// The number of the XRC shared receive queue is of nothing: remote access error.
    Queue,
    /// There never is a receive: RNR retries exceeded, if they are limited.
    NoReceive,
    /// The Q_Key is not the receiver's: dropped silently (UD).
    QKey,
    /// Not a work request at all (an inline READ, too much inline data): refused when posted.
    Post,
}

impl PairPlan {
    /// RC or XRC: what was sent has arrived when it completes.
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

    /// An end takes its receives from where others do as well.
    pub fn shares_receives(&self, end: usize) -> bool {
        self.ends[end].srq || self.service.is_xrc()
    }
}

impl Op {
    /// XRC: the shared receive queue that it is for.
    pub fn queue(&self) -> u32 {
        SRQNS[(self.fill >> 40 & 1) as usize]
    }

    /// XRC: the shared receive queue that it names.
    pub fn srqn(&self) -> u32 {
        if self.wrong == Some(Wrong::Queue) { NO_SRQN } else { self.queue() }
    }

    /// Whether it takes a receive, and is a work request at all.
    pub fn takes_receive(&self) -> bool {
        self.kind.takes_receive() && self.wrong != Some(Wrong::Post)
    }

    /// The size of its receive, for which there is `room`, if there ever is one.
    pub fn receive_len(&self, room: u32) -> Option<u32> {
        match self.wrong {
            Some(Wrong::NoReceive | Wrong::Post) => None,
            Some(Wrong::ShortReceive) => {
                Some(self.len - 1 - (self.fill % u64::from(self.len)) as u32 / 2)
            }
            _ if self.fill & 1 == 0 => Some(room),
            // Just large enough.
            _ => Some(self.len),
        }
    }
}

impl Case {
    /// Work requests of all queue pairs.
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
            writeln!(f, "host {i}: reach {}, receive window {} bytes", l.reach, l.receive_window)?;
        }
        for (i, l) in self.links.iter().enumerate() {
            write!(f, "link {i}: delay {:?}, jitter {:?}", l.delay, l.jitter)?;
            let (rate, queue) = (l.rate_mbps, l.queue);
            if rate > 0 {
                write!(f, ", {rate} Mbit/s with {queue} bytes of queue")?;
            }
            writeln!(f, "{}", if l.reorders { ", reorders" } else { "" })?;
        }
        for (i, p) in self.pairs.iter().enumerate() {
            let several = if p.multipath { "multi-path" } else { "plain" };
            writeln!(
                f,
                "pair {i}: {several} {} by link {}, MTU {}, timeout {}, retries {}, RNR retries {} \
                 of {}, {} READs{}",
                service(p.service),
                p.link,
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

/// `A, B` of what a set of flags prints for programmers: `Flags(A | B)`.
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
