//! One host: its memory, and the lane that ships, driven by the simulation.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_lane::{Arrival, Lane, LaneConfig, QpTable, Taken, Visit};
use polypath_paths::{
    Config, Handled, LaneIdentity, LocalAddress, MakePolicy, PathManager, PathOptions, PathStatus,
};
use polypath_transport::QueuePair;
use polypath_wire::icrc::FlowCrc;
use polypath_wire::packet::Packet;

use crate::case::LanePlan;
use crate::datagram::{Datagram, address};
use crate::io::{Came, Effect, Io};
use crate::judge::{Verdict, breach};

/// Bytes that packets of a host's queue pairs may take which arrived early: little, so that some are dropped.
const EARLY_MEMORY: u32 = 1 << 20;

/// What makes a host.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    /// Its number; its lane has the slot after it.
    pub number: usize,
    /// Tells its process from one that was there before.
    pub instance: u64,
    /// How many links it is on.
    pub links: usize,
    /// With IPv6 addresses.
    pub v6: bool,
    /// What it tells of its lane.
    pub lane: LanePlan,
    /// Makes the policy of its peers; `None`: the one that settings name.
    pub policy: Option<MakePolicy>,
    /// Bytes of memory.
    pub memory: usize,
}

/// A host with one lane.
#[derive(Debug)]
pub struct SimHost {
    /// Queue pairs, each with its number beside it, and paths.
    pub lane: Lane<u32>,
    /// What they see of the host.
    pub io: Io,
    /// Addresses and links, as the broker would tell.
    pub local: Vec<LocalAddress>,
    /// Not scheduled until then.
    pub paused_until: Duration,
    /// The socket.
    pub inbox: VecDeque<Datagram>,
    /// Packets that were not for any queue pair, or refused.
    pub refused: u64,
    /// Packets whose ICRC was wrong.
    pub corrupt: u64,
}

impl SimHost {
    /// A host with an address on each link.
    pub fn new(plan: &HostPlan, now: Duration) -> Self {
        let local: Vec<LocalAddress> = (0..plan.links)
            .map(|link| LocalAddress {
                ip: address(link, plan.number, plan.v6),
                prefix_len: if plan.v6 { 64 } else { 24 },
                ifindex: link as u32 + 2,
                link_up: true,
                usable: true,
                speed_mbps: 10_000,
            })
            .collect();
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&plan.instance.rotate_left(17).to_be_bytes());
        let identity = LaneIdentity { instance: plan.instance, slot: plan.number as u8 + 1 };
        let LanePlan { reach, receive_window } = plan.lane;
        let config = Config { reach, receive_window, ..Config::default() };
        let mut paths = PathManager::new(config, identity, seed);
        if let Some(make) = plan.policy {
            paths.set_policy(make);
        }
        let mut lane = Lane::new(paths, LaneConfig { early_bytes: EARLY_MEMORY });
        lane.begin(now);
        lane.set_local(&local);
        Self {
            lane,
            io: Io::new(now, plan.memory),
            local,
            paused_until: Duration::ZERO,
            inbox: VecDeque::new(),
            refused: 0,
            corrupt: 0,
        }
    }

    /// Does something with a queue pair of that number, if there is one.
    pub fn with<R>(
        &mut self,
        qpn: u32,
        work: impl FnOnce(&mut Visit<'_, u32, Io>) -> R,
    ) -> Option<R> {
        self.qp(qpn)?;
        self.lane.with(QpTable::<u32>::index_of(qpn), &mut self.io, work)
    }

    /// The queue pair of that number.
    pub fn qp(&self, qpn: u32) -> Option<&QueuePair> {
        self.lane.qps().by_qpn(qpn).map(|entry| &entry.qp)
    }

    /// Connects a queue pair between two addresses.
    pub(crate) fn attach(
        &mut self,
        qpn: u32,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        multipath: bool,
    ) {
        let options = PathOptions { multipath, ..PathOptions::default() };
        let attached = self.with(qpn, |visit| visit.attach(remote_qpn, local, remote, options));
        attached
            .expect("the queue pair was added")
            .expect("there is room for a simulation's queue pairs");
    }

    /// Takes a queue pair out, as bytes.
    pub(crate) fn take(&mut self, qpn: u32) -> Option<Vec<u8>> {
        self.qp(qpn)?;
        self.lane.take(QpTable::<u32>::index_of(qpn), &mut self.io).map(|(bytes, _)| bytes)
    }

    /// Sets the time.
    pub fn begin(&mut self, now: Duration) {
        self.io.now = now;
        self.lane.begin(now);
    }

    /// When it wants to run.
    pub fn deadline(&self) -> Option<Duration> {
        let lane = self.lane.next_deadline();
        let inbox = (!self.inbox.is_empty()).then_some(self.paused_until);
        let next = lane.into_iter().chain(inbox).min()?;
        Some(next.max(self.paused_until))
    }

    /// One round of the lane: receive, time out, send, acknowledge.
    pub fn run(&mut self, now: Duration) {
        self.begin(now);
        while let Some(datagram) = self.inbox.pop_front() {
            self.receive(&datagram);
        }
        self.lane.run(&mut self.io);
    }

    fn receive(&mut self, datagram: &Datagram) {
        let flow = &datagram.flow;
        let id = if flow.src.is_ipv4() { datagram.id } else { 0 };
        // Verification finds out the identification; here, unlike at a socket, it is known as well.
        if FlowCrc::new(flow).verify(&datagram.bytes, id) != Some(id) {
            self.corrupt += 1;
            return;
        }
        let Ok(packet) = Packet::parse(&datagram.bytes) else {
            self.refused += 1;
            return;
        };
        if datagram.corrupted {
            let qpn = packet.headers.bth.dest_qpn;
            let why = "its ICRC fits although bits were flipped";
            self.io.journal.push(Effect::WronglyAccepted { qpn, why });
        }
        let arrival = Arrival {
            src: flow.src,
            dst: flow.dst,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            len: datagram.bytes.len(),
            grh_len: datagram.bytes.len() as u16 + 8,
        };
        self.io.came = Came { sent: datagram.sent, forged: datagram.forged };
        let taken = self.lane.handle_packet(&arrival, &packet, &mut self.io);
        let accepted = matches!(taken, Ok(Taken::QueuePair | Taken::Control(Handled::Accepted)));
        self.refused += u64::from(!accepted);
    }

    /// Most paths that its data went by to one peer.
    pub(crate) fn carriers(&self) -> usize {
        let peers = self.lane.paths().status().peers.into_iter();
        let carriers =
            |paths: Vec<PathStatus>| paths.iter().filter(|p| p.counters.sent_bytes > 0).count();
        peers.map(|peer| carriers(peer.paths)).max().unwrap_or(0)
    }

    /// What holds inside a host after each of its steps.
    pub(crate) fn check(&self) -> Verdict {
        self.lane.check().or_else(|what| breach("a host's tables agree", what))
    }
}
