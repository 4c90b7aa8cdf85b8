//! Settings, named as Linux bonding names its own where it has them, and what the lane knows of itself.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::bytes::in_subnet;

use polypath_types::PeerAbilities;

/// Which path is preferred (bonding's `primary`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primary {
    /// Paths that leave by this interface.
    Interface(u32),
    /// Paths that leave from this local address.
    Address(IpAddr),
}

/// How the paths to a peer are used: its policy (bonding's `mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One carries the data, the others take over when it fails.
    #[default]
    ActiveBackup,
    /// All carry data: each burst uses the path by which it will have arrived first.
    Balance,
    /// All carry data: each queue pair keeps to one of them.
    Affinity(AffinityRule),
    /// Everything is sent by the two best ones, and the first copy to arrive counts.
    Redundant,
    /// The fewest and cheapest ones that carry the demand; the others are only probed.
    Efficient,
}

/// How the path that a queue pair keeps to is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AffinityRule {
    /// By a hash of the queue pair's number.
    #[default]
    Hash,
    /// Queue pairs get the paths in turn, in the order in which they first send.
    RoundRobin,
    /// The paths that leave by the interface of this index, while one of them can carry data.
    Interface(u32),
}

/// When traffic returns to the primary path once that lives again (bonding's `primary_reselect`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrimaryReselect {
    /// The primary path is used again as soon as it is up.
    #[default]
    Always,
    /// When it is up and its interface is faster than the active path's.
    Better,
    /// Only when the active path fails.
    Failure,
}

/// How the congestion window of a path is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// By losses and marks, as TCP CUBIC does (RFC 9438); but it grows beyond 1 MiB only while round trips
    /// are short, and respects what the peer's receive buffer takes.
    #[default]
    Cubic,
}

/// Settings of a lane's path manager. [`Config::default`] is what users get.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Offer and accept more than one path. Off: every peer is plain RoCEv2.
    pub multipath: bool,
    /// How the paths to a peer are used.
    pub mode: Mode,
    /// The costs of interfaces, by index. Others cost [`Config::COST`]. [`Mode::Efficient`] uses the cheapest
    /// paths first.
    pub costs: Vec<(u32, u16)>,
    /// Preferred path. None: traffic stays where it is until that path fails.
    pub primary: Option<Primary>,
    /// When to go back to the primary.
    pub primary_reselect: PrimaryReselect,
    /// How long a path that was dead must answer before it is used again. Doubled with each
    /// recent death of the same path (flapping), up to [`Config::updelay_max`]. Ignored while no
    /// other path lives.
    pub updelay: Duration,
    /// Longest delay that flapping leads to.
    pub updelay_max: Duration,
    /// How long a link must be down before its paths are given up. Silent cuts have no such delay.
    pub downdelay: Duration,
    /// Probe interval of a path while its association carries traffic.
    pub probe_busy: Duration,
    /// Probe interval when there has been no traffic for a while.
    pub probe_idle: Duration,
    /// Longest probe interval of a dead path.
    pub probe_dead: Duration,
    /// Interval of the comparative probes by which a suspected path is judged (at least; a long
    /// round trip lengthens it).
    pub trial_interval: Duration,
    /// Probes of a suspected path that must all stay unanswered, while another path answers,
    /// before it is taken for dead. 2..=8.
    pub trial_probes: u8,
    /// The peer was silent on every path for so long: [`crate::PathEvent::NoPath`]. Must be shorter
    /// than the patience of queue pairs, which else run out of retries before they are held.
    pub silent_after: Duration,
    /// How long queue pairs are held without any path before the peer is given up
    /// ([`crate::PathEvent::PeerLost`]) and their retry counters run again.
    pub hold: Duration,
    /// A host that passes new addresses on between ends that have both moved, if both ends name the same.
    pub rendezvous: Option<IpAddr>,
    /// An association without queue pairs is kept for so long.
    pub linger: Duration,
    /// How the congestion window of each path is found.
    pub congestion: CongestionControl,
    /// Congestion window of a new path, bytes of payload.
    pub initial_window: u32,
    /// What the receive buffer of a peer that says nothing of it takes for sure, bytes of payload.
    pub max_window: u32,
    /// How far the congestion window towards such a peer may grow while nothing is lost.
    pub max_window_found: u32,
    /// What we tell peers: bytes of payload that our lane's receive buffer takes at least. (The kernel
    /// accounts a packet's buffer, about twice its payload, against SO_RCVBUF.)
    pub receive_window: u32,
    /// What we tell peers: how far ahead of the expected packet our queue pairs keep what arrives early, in
    /// bytes, a power of two; that divided by the path MTU is what a peer may have in flight. 0: nothing is
    /// said, as an older version does, and peers keep to 256 packets.
    pub reach: u32,
    /// What we tell peers: whether our queue pairs take requests for parts of a READ for one request
    /// ([`PeerAbilities::joins_reads`]). An older version does not.
    pub joins_reads: bool,
    /// What we tell peers: whether our answers say that packets came with a mark of congestion
    /// ([`PeerAbilities::echoes_marks`]). An older version does not.
    pub echoes_marks: bool,
    /// What we tell peers: whether datagrams that come by two paths are taken once
    /// ([`PeerAbilities::drops_copies`]). An older version does not.
    pub drops_copies: bool,
    /// Whether packets to peers that echo marks may be marked by the network (RFC 3168).
    pub ecn: bool,
    /// How many source ports each pair of addresses gets, each of which makes a path: 1 to
    /// [`MAX_PORTS`](crate::MAX_PORTS). The larger setting of both ends counts. 0: nothing is said of it,
    /// as an older version does, and each pair makes one path.
    pub ports: u8,
    /// How much a path through shared memory may have in flight, bytes, as packets count in
    /// [`crate::PathManager::sent`]. 0: this lane can have no such paths, and does not announce them.
    pub local_window: u32,
    /// The same for a path over TCP, at most: beyond 1 MiB, its window grows while packets wait for less than
    /// 20 ms.
    pub tcp_window: u32,
    /// What the largest packet counts for in [`crate::PathManager::sent`]; the window never falls
    /// below two of them.
    pub mtu: u32,
}

impl Config {
    /// The cost of an interface that the settings give none.
    pub const COST: u16 = 1;

    /// What we tell peers that we can do.
    pub(crate) fn abilities(&self) -> PeerAbilities {
        PeerAbilities {
            reach: self.reach,
            joins_reads: self.joins_reads,
            echoes_marks: self.echoes_marks,
            drops_copies: self.drops_copies,
            local: self.local_window > 0,
            tcp: self.tcp_window > 0,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            multipath: true,
            mode: Mode::ActiveBackup,
            costs: Vec::new(),
            primary: None,
            primary_reselect: PrimaryReselect::Always,
            updelay: Duration::from_millis(200),
            updelay_max: Duration::from_secs(10),
            downdelay: Duration::ZERO,
            probe_busy: Duration::from_millis(100),
            probe_idle: Duration::from_millis(500),
            probe_dead: Duration::from_millis(250),
            trial_interval: Duration::from_micros(250),
            trial_probes: 4,
            silent_after: Duration::from_millis(400),
            hold: Duration::from_secs(15),
            rendezvous: None,
            linger: Duration::from_secs(5),
            congestion: CongestionControl::Cubic,
            initial_window: 64 << 10,
            max_window: 128 << 10,
            max_window_found: 1 << 20,
            receive_window: 128 << 10,
            reach: 16 << 20,
            joins_reads: true,
            echoes_marks: true,
            drops_copies: true,
            ecn: true,
            ports: 1,
            local_window: 0,
            tcp_window: 0,
            mtu: 4096 + 128,
        }
    }
}

/// How a lane uses its paths. These settings may change while it works
/// ([`PathManager::set_usage`](crate::PathManager::set_usage)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How the paths to a peer are used, unless `peers` says otherwise.
    pub mode: Mode,
    /// The same for the peers in some subnets. The first entry with the peer's address counts.
    pub peers: Vec<PeerMode>,
    /// The same for single queue pairs, by their numbers, whatever is said of their peers.
    pub queue_pairs: BTreeMap<u32, Mode>,
    /// As in [`Config::costs`].
    pub costs: Vec<(u32, u16)>,
    /// As in [`Config::primary`].
    pub primary: Option<Primary>,
    /// As in [`Config::primary_reselect`].
    pub primary_reselect: PrimaryReselect,
    /// As in [`Config::updelay`].
    pub updelay: Duration,
    /// As in [`Config::downdelay`].
    pub downdelay: Duration,
    /// As in [`Config::hold`].
    pub hold: Duration,
    /// As in [`Config::rendezvous`].
    pub rendezvous: Option<IpAddr>,
    /// As in [`Config::ecn`].
    pub ecn: bool,
    /// As in [`Config::ports`]. A change counts for associations that there are, too.
    pub ports: u8,
    /// Whether paths through shared memory are used, if this lane can have any. While they are not, those
    /// that there are count as taken down by hand.
    pub local: bool,
    /// The same for paths over TCP.
    pub tcp: bool,
}

impl Usage {
    /// The usage that the settings of a new lane say.
    pub fn of(config: &Config) -> Self {
        Self {
            mode: config.mode,
            peers: Vec::new(),
            queue_pairs: BTreeMap::new(),
            costs: config.costs.clone(),
            primary: config.primary,
            primary_reselect: config.primary_reselect,
            updelay: config.updelay,
            downdelay: config.downdelay,
            hold: config.hold,
            rendezvous: config.rendezvous,
            ecn: config.ecn,
            ports: config.ports,
            local: config.local_window > 0,
            tcp: config.tcp_window > 0,
        }
    }

    /// How the paths to a peer with this address are used.
    pub(crate) fn mode_of(&self, remote: IpAddr) -> Mode {
        self.peers.iter().find(|peer| peer.covers(remote)).map_or(self.mode, |peer| peer.mode)
    }

    /// Whether any peer is sent everything by two paths.
    pub(crate) fn has_redundant(&self) -> bool {
        let mut modes = self.peers.iter().map(|peer| peer.mode).chain([self.mode]);
        modes.any(|mode| mode == Mode::Redundant)
    }
}

/// How the paths to the peers of a subnet are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerMode {
    /// An address of the subnet.
    pub ip: IpAddr,
    /// The length of its prefix in bits.
    pub prefix_len: u8,
    /// The policy of peers whose address is in the subnet. A peer's address is the one that its queue
    /// pairs were connected to.
    pub mode: Mode,
}

impl PeerMode {
    fn covers(&self, remote: IpAddr) -> bool {
        in_subnet(remote, self.ip, self.prefix_len)
    }
}

/// Who this lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneIdentity {
    /// Random; tells a restarted process from its predecessor.
    pub instance: u64,
    /// Top byte of all its queue pair numbers.
    pub slot: u8,
}

/// One address of this host, as the broker's table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address (IPv4-mapped IPv6 is taken as IPv4).
    pub ip: IpAddr,
    /// Length of its subnet's prefix.
    pub prefix_len: u8,
    /// Its interface.
    pub ifindex: u32,
    /// The interface is up and has a carrier.
    pub link_up: bool,
    /// Not taken down by the administrator (`polypath path down`) and a member of this device.
    pub usable: bool,
    /// Link speed in Mbit/s; 0 if unknown.
    pub speed_mbps: u32,
}

/// What a queue pair or address handle asks of its paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathOptions {
    /// 20 bits. Not zero: chooses the UDP source port, as `ibv_flow_label_to_udp_sport` does.
    pub flow_label: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL; 0 is taken as 64.
    pub hop_limit: u8,
    /// The queue pair is of a multi-path device.
    pub multipath: bool,
}

/// Paths that are taken down by hand: all between a local and a remote address. `None` stands for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownRule {
    /// This host's address.
    pub local: Option<IpAddr>,
    /// The peer's address.
    pub remote: Option<IpAddr>,
}

impl DownRule {
    pub(crate) fn canonical(&self) -> Self {
        let canonical = |ip: IpAddr| ip.to_canonical();
        Self { local: self.local.map(canonical), remote: self.remote.map(canonical) }
    }

    pub(crate) fn covers(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.local.is_none_or(|ip| ip == local) && self.remote.is_none_or(|ip| ip == remote)
    }
}
