//! One host: its memory, and the lane that ships, driven by the simulation.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_lane::{Arrival, Lane, LaneConfig, QpTable, Taken, Visit};
use polypath_paths::{
    Config, Handled, LaneIdentity, LocalAddress, MakePolicy, PathKind, PathManager, PathOptions,
    PathStatus, Usage,
};
use polypath_transport::QueuePair;
use polypath_wire::icrc::FlowCrc;
use polypath_wire::packet::Packet;

use crate::case::LanePlan;
use crate::datagram::{Datagram, address};
use crate::io::{Came, Effect, Io};
use crate::judge::{Verdict, breach};

/// The number of bytes that early packets of a host's queue pairs may take. It is small, so that some
/// packets are dropped.
const EARLY_MEMORY: u32 = 1 << 20;

/// The properties of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    /// Its number. The number of its lane's slot is one more.
    pub number: usize,
    /// Distinguishes its process from an earlier one on the same host.
    pub instance: u64,
    /// The number of links that it is on.
    pub links: usize,
    /// Whether it has IPv6 addresses; otherwise IPv4.
    pub v6: bool,
    /// The values that its lane tells peers about itself.
    pub lane: LanePlan,
    /// Creates the policy for each of its peers; `None` means the policy that the settings name.
    pub policy: Option<MakePolicy>,
    /// The size of its memory in bytes.
    pub memory: usize,
}

/// A host with one lane.
#[derive(Debug)]
pub struct SimHost {
    /// Its queue pairs, each with its number as the owner's data, and its paths.
    pub lane: Lane<u32>,
    /// The host as its lane and queue pairs see it.
    pub io: Io,
    /// Its addresses and links, as the broker would report them.
    pub local: Vec<LocalAddress>,
    /// How it uses its paths, as a command would set it.
    pub usage: Usage,
    /// The virtual time until which its process does not run.
    pub paused_until: Duration,
    /// Datagrams that its socket has received and nobody has read.
    pub inbox: VecDeque<Datagram>,
    /// The number of packets that were refused, or that were for no queue pair.
    pub refused: u64,
    /// The number of packets whose ICRC was wrong.
    pub corrupt: u64,
}

impl SimHost {
    /// Creates a host with an address on each link.
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
        let LanePlan { reach, receive_window, mode, ports, dear_link } = plan.lane;
        let costs = dear_link.map(|link| (link as u32 + 2, 10)).into_iter().collect();
        // An older version announces neither.
        let joins_reads = reach > 0;
        let config =
            Config { reach, joins_reads, receive_window, mode, costs, ports, ..Config::default() };
        let usage = Usage::of(&config);
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
            usage,
            paused_until: Duration::ZERO,
            inbox: VecDeque::new(),
            refused: 0,
            corrupt: 0,
        }
    }

    /// Calls `work` with the queue pair of that number. Returns `None` if there is none.
    pub fn with<R>(
        &mut self,
        qpn: u32,
        work: impl FnOnce(&mut Visit<'_, u32, Io>) -> R,
    ) -> Option<R> {
        self.qp(qpn)?;
        self.lane.with(QpTable::<u32>::index_of(qpn), &mut self.io, work)
    }

    /// The queue pair of that number, if there is one.
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
        options: PathOptions,
    ) {
        let attached = self.with(qpn, |visit| visit.attach(remote_qpn, local, remote, options));
        attached
            .expect("the queue pair was added")
            .expect("there is room for a simulation's queue pairs");
    }

    /// Freezes a queue pair and takes it out of the lane, as bytes.
    pub(crate) fn take(&mut self, qpn: u32) -> Option<Vec<u8>> {
        self.qp(qpn)?;
        self.lane.take(QpTable::<u32>::index_of(qpn), &mut self.io).map(|(bytes, _)| bytes)
    }

    /// Sets the virtual time.
    pub fn begin(&mut self, now: Duration) {
        self.io.now = now;
        self.lane.begin(now);
    }

    /// The time when it wants to run next.
    pub fn deadline(&self) -> Option<Duration> {
        let lane = self.lane.next_deadline();
        let inbox = (!self.inbox.is_empty()).then_some(self.paused_until);
        let next = lane.into_iter().chain(inbox).min()?;
        Some(next.max(self.paused_until))
    }

    /// Runs one round of the lane: it receives, handles timeouts, sends and acknowledges.
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
        // The identification is known here, unlike at a socket, where the verification has to find it.
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
            kind: PathKind::Udp,
            src_port: flow.src_port,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
            len: datagram.bytes.len(),
        };
        self.io.came = Came { sent: datagram.sent, forged: datagram.forged };
        let taken = self.lane.handle_packet(&arrival, &packet, &mut self.io);
        let accepted = matches!(taken, Ok(Taken::QueuePair | Taken::Control(Handled::Accepted)));
        self.refused += u64::from(!accepted);
    }

    /// The largest number of paths that carried its data to one peer.
    pub(crate) fn carriers(&self) -> usize {
        let peers = self.lane.paths().status().peers.into_iter();
        let carriers =
            |paths: Vec<PathStatus>| paths.iter().filter(|p| p.counters.sent_bytes > 0).count();
        peers.map(|peer| carriers(peer.paths)).max().unwrap_or(0)
    }

    /// Checks what must hold inside a host after each step.
    pub(crate) fn check(&self) -> Verdict {
        self.lane.check().or_else(|what| breach("a host's tables agree", what))
    }
}
