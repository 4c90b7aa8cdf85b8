//! A model of what IBTA chapter 12 and RDMA CM promise. It runs beside the real connection manager.
//!
//! The model knows which end each message is for. It never looks up a communication id, so that it
//! notices a MAD that finds the wrong connection. For everything given to a connection manager (a
//! command, a MAD, the passing of time) it says which MADs have to be sent at once ([`Model::due`]) and
//! which events each application has to get ([`Model::queue`]). Nothing else may happen.

mod commands;
mod half;
mod mads;
mod requests;
mod timers;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeSet;

use polypath_cm::{FileId, OutgoingMad};
use polypath_wire::cm::{Mraed, RejectReason, Rejected};

use super::case::{AttemptPlan, CmCase, Service};
pub(super) use half::{Cma, Half, State};

use crate::datagram::address;
use crate::judge::pattern;

/// The number by which applications call the first end. Listeners have smaller numbers.
pub(super) const FIRST_HALF: u64 = 0x1000;

/// One end of a connection, as its index in [`Model::halves`].
pub(super) type HalfId = usize;

/// A communication id, in a MAD that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    /// That of one end. It is learnt from the MAD if it is not known yet.
    Of(HalfId),
    /// This number.
    Raw(u32),
}

/// The kind of a MAD, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Req,
    Rep,
    /// `list`: with the addresses of the sender, because it has several.
    Rtu {
        list: bool,
    },
    Mra(Mraed),
    Rej {
        rejected: Rejected,
        reason: RejectReason,
        private: Vec<u8>,
    },
    Dreq,
    Drep,
    SidrReq,
    SidrRep {
        status: u8,
        private: Vec<u8>,
    },
    Apr,
}

/// A MAD that has to be sent.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Due {
    /// The number of the host that sends it.
    pub(super) host: usize,
    pub(super) what: What,
    /// The sender's communication id.
    pub(super) local: Id,
    /// The receiver's communication id.
    pub(super) remote: Id,
    /// The source and destination addresses.
    pub(super) way: (IpAddr, IpAddr),
    /// Whether other addresses of the same two hosts are right as well.
    pub(super) any_way: bool,
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} to {}: ", self.host, self.way.1)?;
        match &self.what {
            What::Rej { rejected, reason, private } => {
                write!(f, "Rej {reason:?} of {rejected:?}, {} bytes", private.len())?;
            }
            What::SidrRep { status, private } => {
                write!(f, "SidrRep {status}, {} bytes", private.len())?;
            }
            what => write!(f, "{what:?}")?,
        }
        write!(f, ", {:?} to {:?}", self.local, self.remote)
    }
}

/// A MAD that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The number of the host that sent it.
    pub(super) host: usize,
    pub(super) out: OutgoingMad,
    pub(super) what: What,
    pub(super) from: Id,
    pub(super) to: Id,
    pub(super) way: (IpAddr, IpAddr),
}

/// The parameters of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Param {
    None,
    /// Only private data.
    Private {
        ud: bool,
        private: Vec<u8>,
    },
    /// The peer's queue pair number and the numbers of its parameters; `None` is not checked.
    Conn {
        qpn: u32,
        numbers: [Option<u8>; 4],
        private: Vec<u8>,
    },
    /// The queue pair number of a datagram service.
    Ud {
        qpn: u32,
        private: Vec<u8>,
    },
}

/// The id that an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Half(HalfId),
    Listener(usize),
}

/// An event that an application has to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) owner: Owner,
    pub(super) kind: u32,
    pub(super) status: i32,
    /// The new connection that a request announces.
    pub(super) child: Option<HalfId>,
    pub(super) param: Param,
}

/// A listening id.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    pub(super) host: usize,
    pub(super) life: u32,
    pub(super) file: FileId,
    pub(super) service: Service,
    /// The link whose address it listens on; `None` means all addresses.
    pub(super) link: Option<usize>,
    pub(super) id: u32,
    pub(super) bound: bool,
    /// Whether its device was removed.
    pub(super) removed: bool,
    /// Whether it was told that its address is gone.
    pub(super) address_lost: bool,
    pub(super) listening: bool,
    /// The number of requests that may still wait.
    pub(super) backlog: u32,
    pub(super) reported: u32,
    pub(super) destroyed: bool,
}

/// A request for a service without a listener, which waits a moment for one.
#[derive(Clone, Debug)]
struct Early {
    host: usize,
    until: Duration,
    /// The end that asks; `None` if the request was forged.
    from: Option<HalfId>,
    forged: Option<u32>,
    service: Service,
    way: (IpAddr, IpAddr),
}

/// The state of every end of every connection, and what has to happen.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) case: CmCase,
    pub(super) halves: Vec<Half>,
    pub(super) listeners: Vec<Listener>,
    early: Vec<Early>,
    /// The number of times each host was started again.
    pub(super) life: Vec<u32>,
    /// Addresses that are gone, by host and link.
    pub(super) lost: BTreeSet<(usize, usize)>,
    /// The files of processes whose device was removed.
    pub(super) without_device: BTreeSet<FileId>,
    /// MADs that have to be sent now.
    pub(super) due: Vec<Due>,
    /// The events that applications have not read yet.
    pub(super) queue: Vec<(FileId, Expected)>,
}

impl Model {
    pub(super) fn new(case: &CmCase) -> Self {
        Self {
            case: case.clone(),
            halves: Vec::new(),
            listeners: Vec::new(),
            early: Vec::new(),
            life: vec![0; case.hosts],
            lost: BTreeSet::new(),
            without_device: BTreeSet::new(),
            due: Vec::new(),
            queue: Vec::new(),
        }
    }

    pub(super) fn plan(&self, half: HalfId) -> &AttemptPlan {
        &self.case.attempts[self.halves[half].attempt]
    }

    /// The private data that one end sends in its request or its answer.
    pub(super) fn private(&self, half: HalfId) -> Vec<u8> {
        let (h, plan) = (&self.halves[half], self.plan(half));
        let end = if h.active { &plan.active } else { &plan.passive };
        let salt = (h.attempt as u64) << 8 | u64::from(h.active);
        pattern(end.private_len as u32, self.case.seed ^ salt << 16)
    }

    /// The addresses of one end and of its peer.
    pub(super) fn way(&self, half: HalfId) -> (IpAddr, IpAddr) {
        let plan = self.plan(half);
        let ends = [plan.place.host, plan.to].map(|h| address(plan.link, h, self.case.v6));
        if self.halves[half].active { (ends[0], ends[1]) } else { (ends[1], ends[0]) }
    }

    /// The host that has an address, if it is one of ours.
    pub(super) fn host_of(&self, ip: IpAddr) -> Option<usize> {
        let (links, v6) = (self.case.links.len(), self.case.v6);
        (0..self.case.hosts).find(|h| (0..links).any(|l| address(l, *h, v6) == ip))
    }

    pub(super) fn destination(&self, attempt: usize) -> (SocketAddr, SocketAddr) {
        let plan = &self.case.attempts[attempt];
        let ip = |host| address(plan.link, host, self.case.v6);
        (SocketAddr::new(ip(plan.place.host), 0), SocketAddr::new(ip(plan.to), plan.service.port))
    }

    /// The number of addresses that a host has now and tells its peers.
    fn own_ways(&self, host: usize) -> usize {
        let there = (0..self.case.links.len()).filter(|l| !self.lost.contains(&(host, *l)));
        if self.case.multi_path { there.count() } else { 0 }
    }

    /// The RTU that one end sends.
    fn rtu_of(&self, half: HalfId) -> What {
        What::Rtu { list: self.halves[half].ways > 1 }
    }

    /// Notes that a MAD from one end to its peer is due.
    fn send(&mut self, from: HalfId, what: What) {
        let peer = self.halves[from].peer.map_or(Id::Raw(0), Id::Of);
        self.send_to(from, what, peer, self.way(from));
    }

    fn send_to(&mut self, from: HalfId, what: What, remote: Id, way: (IpAddr, IpAddr)) {
        let any_way = self.case.multi_path && matches!(what, What::Dreq | What::Drep);
        let host = self.halves[from].host;
        self.due.push(Due { host, what, local: Id::Of(from), remote, way, any_way });
    }

    /// Notes that an answer of a host is due that belongs to no connection of its own.
    fn answer(&mut self, host: usize, what: What, ids: (Id, Id), way: (IpAddr, IpAddr)) {
        self.due.push(Due { host, what, local: ids.0, remote: ids.1, way, any_way: false });
    }

    /// Notes an event of a connection for its application, if the application has the id and has not
    /// been told of the end yet.
    fn tell(&mut self, half: HalfId, kind: u32, status: i32, param: Param) {
        let h = &self.halves[half];
        let wants = match kind {
            super::abi::event::TIMEWAIT_EXIT => h.cma == Cma::Disconnect,
            _ => h.cma == Cma::Connect,
        };
        if h.owned && h.named && wants {
            self.push(half, kind, status, param);
        }
    }

    fn push(&mut self, half: HalfId, kind: u32, status: i32, param: Param) {
        let owner = Owner::Half(half);
        let event = Expected { owner, kind, status, child: None, param };
        self.queue.push((self.halves[half].file, event));
    }

    /// The number of connections that a connection manager holds now.
    fn held(&self, host: usize) -> usize {
        self.here(host).filter(|(_, h)| h.state != State::Fresh).count()
    }

    /// The ends of connections that a host's connection manager knows now.
    pub(super) fn here(&self, host: usize) -> impl Iterator<Item = (HalfId, &Half)> {
        let life = self.life[host];
        let known = move |h: &Half| h.host == host && h.life == life && !h.forgotten;
        self.halves.iter().enumerate().filter(move |(_, h)| known(h))
    }

    fn is_here(&self, half: HalfId, host: usize) -> bool {
        let h = &self.halves[half];
        h.host == host && h.life == self.life[host] && !h.forgotten
    }

    /// A host starts again: it loses all connections, and all processes with their events.
    pub(super) fn reboot(&mut self, host: usize) {
        let life = self.life[host];
        let gone: Vec<FileId> = self
            .halves
            .iter()
            .filter(|h| h.host == host && h.life == life)
            .map(|h| h.file)
            .chain(
                self.listeners.iter().filter(|l| l.host == host && l.life == life).map(|l| l.file),
            )
            .collect();
        self.queue.retain(|(file, _)| !gone.contains(file));
        self.early.retain(|e| e.host != host);
        self.life[host] += 1;
    }
}
