//! The engine's part of its process's report for `polypath status`.
//!
//! A lane is read in parts: under its lock, only the numbers of a few queue pairs or peers are
//! copied. Names, and which path belongs to whom, are looked up after that. So a report is not a
//! snapshot of one moment, but each queue pair and each path in it is.

use std::collections::{HashMap, hash_map};
use std::net::IpAddr;
use std::sync::Arc;

use polypath_ipc::message::Scope;
use polypath_ipc::status::{
    LaneStatus, PathStatus, PeerStatus, PolicyStatus, ProcessStatus, QpStatus,
};
use polypath_paths::{
    Mode, PathAddress, PathKind, PathManager, PathState, PathStatus as PathReport, PeerBrief,
};
use polypath_telemetry::{Errno, PathCounters, QpCounters};
use polypath_topology::rules::Origin;
use polypath_topology::{InForce, Table};
use polypath_transport::{MigrationStatus, PeerId};
use polypath_verbs::{MigState, QpState, QpType};
use smallvec::SmallVec;

use crate::clock;
use crate::context_inner::ContextInner;
use crate::engine_inner::EngineInner;
use crate::lane::noted::{Failure, Noted};
use crate::lane::send_errors::Way;
use crate::lane::{Entry, Lane, State, way_of};
use crate::path_settings;

/// The number of queue pairs that are copied at a time.
const QPS: usize = 32;
/// The number of peers that are copied at a time, with up to eight paths each.
const PEERS: usize = 8;

/// Reports what this engine knows, as much as `scope` says.
pub(crate) fn report(engine: &EngineInner, scope: Scope) -> ProcessStatus {
    let contexts = engine.contexts();
    let program = match scope {
        Scope::All => std::fs::read_to_string("/proc/self/comm").unwrap_or_default(),
        // It is asked for often, so the name at the start has to do.
        Scope::Traffic => engine.program.clone(),
    };
    let mut report = ProcessStatus {
        pid: std::process::id(),
        program: program.trim_end().to_owned(),
        devices: contexts.iter().map(|c| c.info.name.clone()).collect(),
        ..ProcessStatus::default()
    };
    let names = Names::new(&engine.table(), &contexts, engine.in_force());
    for lane in engine.lanes.iter() {
        add_lane(&mut report, lane, &names, scope);
    }
    report
}

fn add_lane(report: &mut ProcessStatus, lane: &Lane, names: &Names, scope: Scope) {
    let status = look(lane, |state| LaneStatus {
        slot: lane.slot,
        home: lane.home().map_or_else(String::new, |home| home.name.clone()),
        counters: state.io.counters,
        drops: state.io.drops,
        control_drops: state.core.paths().refusals(),
        ended_qps: state.io.ended,
        faults: state.io.sender.faults(),
    });
    report.lanes.push(status);
    let mut peers = HashMap::new();
    let mut told = HashMap::new();
    let mut from = PeerId(0);
    loop {
        let slice = peers_from(lane, from);
        let Some(last) = slice.last() else { break };
        from = PeerId(last.brief.peer.0.saturating_add(1));
        for peer in &slice {
            if scope == Scope::All {
                let policy = names.policy(&peer.brief);
                let remote = peer.brief.remote;
                report.peers.extend(policy.map(|policy| PeerStatus { remote, policy }));
                peers.insert(peer.brief.peer, PeerNames::of(peer, names));
            }
            for path in &peer.paths {
                let status = path.status(peer, names);
                match told.entry(path.report.path) {
                    hash_map::Entry::Vacant(place) => {
                        place.insert(report.paths.len());
                        report.paths.push(status);
                    }
                    // It is one of several peers', which are one process.
                    hash_map::Entry::Occupied(place) if status.state == "active" => {
                        report.paths[*place.get()].state = status.state;
                    }
                    hash_map::Entry::Occupied(_) => {}
                }
            }
        }
    }
    if scope == Scope::Traffic {
        return;
    }
    let (events, errors): (Vec<Noted>, Vec<Noted>) = look(lane, |state| {
        let journal = &state.io.journal;
        report.failovers.extend(journal.failovers().cloned());
        (journal.notes().cloned().collect(), journal.errors().cloned().collect())
    });
    report.events.extend(events.into_iter().map(Noted::occurrence));
    report.errors.extend(errors.into_iter().map(Noted::occurrence));
    // Index 0 is never a queue pair.
    let mut from = Some(1);
    while let Some(index) = from {
        let slice = qps_from(lane, index);
        from = slice.last().filter(|_| slice.len() == QPS).and_then(|qp| qp.index.checked_add(1));
        report.qps.extend(slice.into_iter().map(|qp| qp.status(&peers, names)));
    }
}

/// Reads one part of a lane.
fn look<R>(lane: &Lane, work: impl FnOnce(&State) -> R) -> R {
    lane.look(|state| {
        #[cfg(test)]
        let began = tests::worked();
        let result = work(state);
        #[cfg(test)]
        tests::LOOKS.with_borrow_mut(|looks| looks.push(tests::worked() - began));
        result
    })
}

/// Names that belong to numbers.
struct Names {
    interfaces: HashMap<u32, String>,
    /// The names of devices by the addresses of their contexts.
    devices: HashMap<*const ContextInner, String>,
    /// The reasons of policies.
    in_force: InForce,
}

impl Names {
    fn new(table: &Table, contexts: &[Arc<ContextInner>], in_force: InForce) -> Self {
        let interfaces = table.ports.iter().map(|port| (port.ifindex, port.name.clone()));
        let devices = contexts.iter().map(|c| (Arc::as_ptr(c), c.info.name.clone()));
        Self { interfaces: interfaces.collect(), devices: devices.collect(), in_force }
    }

    /// How the paths to a peer are used; `None` if there is only one.
    fn policy(&self, peer: &PeerBrief) -> Option<PolicyStatus> {
        let (set, origin) = self.in_force.of_peer(peer.remote);
        let choice = path_settings::choice(peer.mode?, Some(set));
        Some(PolicyStatus { choice, origin, own: false })
    }

    /// How a queue pair of its own uses its paths.
    fn own_policy(&self, qpn: u32, mode: Mode) -> PolicyStatus {
        let (set, origin) = self.in_force.queue_pairs.get(&qpn).copied().unzip();
        let choice = path_settings::choice(mode, set);
        PolicyStatus { choice, origin: origin.unwrap_or(Origin::Default), own: true }
    }

    fn interface(&self, path: &PathReport) -> String {
        if matches!(path.address.kind, PathKind::Local { .. }) {
            return polypath_topology::LOCAL.to_owned();
        }
        self.interfaces.get(&path.address.ifindex).map_or_else(|| "?".to_owned(), String::clone)
    }

    /// The port of a kernel's bond by which the path leaves; empty if that is not known.
    fn bond_port(&self, path: &PathReport) -> String {
        let name = path.leaves_by.and_then(|port| self.interfaces.get(&port));
        name.cloned().unwrap_or_default()
    }

    fn path(&self, path: &PathReport) -> String {
        format!("{}>{}@{}", path.address.local, path.address.remote, self.interface(path))
    }

    /// A path over UDP.
    fn address(&self, address: &PathAddress) -> String {
        let interface = self.interfaces.get(&address.ifindex).map_or("?", String::as_str);
        format!("{}>{}@{interface}", address.local, address.remote)
    }
}

/// The word for a kind of path.
fn kind(kind: PathKind) -> &'static str {
    match kind {
        PathKind::Udp => "roce",
        PathKind::Local { .. } => "local",
        PathKind::Tcp { .. } => "tcp",
    }
}

/// A peer, copied under the lane's lock.
struct PeerCopy {
    brief: PeerBrief,
    paths: SmallVec<[PathCopy; 2]>,
}

impl PeerCopy {
    /// The rank of the best kind of paths that are up; other kinds carry no data.
    fn least_rank(&self) -> u8 {
        let up = self.paths.iter().filter(|path| path.report.state == PathState::Up);
        up.map(|path| path.report.address.kind.rank()).min().unwrap_or(0)
    }
}

struct PathCopy {
    report: PathReport,
    source_port: u16,
    sent_bytes: u64,
    send_errors: SmallVec<[(Errno, u64); 2]>,
}

fn peers_from(lane: &Lane, from: PeerId) -> Vec<PeerCopy> {
    let mut copies = Vec::with_capacity(PEERS);
    look(lane, |state| {
        let paths = state.core.paths();
        for brief in paths.peers_from(from).take(PEERS) {
            // Paths between the same addresses have their errors together: the first one shows them.
            let mut shown: SmallVec<[Way; 8]> = SmallVec::new();
            let copy = |mut report: PathReport| {
                let way = way_of(&report.address);
                let first = !shown.contains(&way);
                shown.push(way);
                let errors = || state.io.send_errors.counters(&way);
                let source_port = state.io.source_port(report.path, &report.address);
                let sent_bytes = state.io.sent_bytes(report.path, &report.address);
                if let Some(ifindex) = state.io.own_port(&report.address) {
                    (report.address.ifindex, report.leaves_by) = (ifindex, None);
                }
                PathCopy {
                    source_port,
                    sent_bytes,
                    send_errors: if first { errors() } else { SmallVec::new() },
                    report,
                }
            };
            copies.push(PeerCopy { brief, paths: paths.paths_of(brief.peer).map(copy).collect() });
        }
    });
    copies
}

impl PathCopy {
    fn status(&self, peer: &PeerCopy, names: &Names) -> PathStatus {
        let (path, least) = (&self.report, peer.least_rank());
        let peer = &peer.brief;
        let micros =
            |time: core::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        PathStatus {
            local: path.address.local,
            remote: path.address.remote,
            kind: kind(path.address.kind).to_owned(),
            interface: names.interface(path),
            bond_port: names.bond_port(path),
            source_port: self.source_port,
            state: match path.state {
                _ if peer.active == Some(path.path) => "active".to_owned(),
                // Paths stand by for those of a better kind.
                PathState::Up if peer.spreads && path.address.kind.rank() <= least => {
                    "active".to_owned()
                }
                PathState::Up => "standby".to_owned(),
                other => other.to_string(),
            },
            window: path.window.into(),
            in_flight: path.in_flight.into(),
            rtt_us: path.rtt.map(micros),
            coupled: path.coupled,
            counters: PathCounters { sent_bytes: self.sent_bytes, ..path.counters },
            send_errors: self.send_errors.to_vec(),
            last_blackout_us: peer.last_blackout.map(micros),
        }
    }
}

/// The part of a peer that its queue pairs show.
struct PeerNames {
    remote: IpAddr,
    /// The path that the traffic uses; empty if no path lives.
    active: String,
    live_paths: u32,
    policy: Option<PolicyStatus>,
}

impl PeerNames {
    fn of(peer: &PeerCopy, names: &Names) -> Self {
        let reports = || peer.paths.iter().map(|path| &path.report);
        let is_active = |path: &&PathReport| peer.brief.active == Some(path.path);
        let is_live = |path: &&PathReport| matches!(path.state, PathState::Up | PathState::Suspect);
        Self {
            remote: peer.brief.remote,
            active: reports().find(is_active).map(|path| names.path(path)).unwrap_or_default(),
            live_paths: u32::try_from(reports().filter(is_live).count()).unwrap_or(u32::MAX),
            policy: names.policy(&peer.brief),
        }
    }
}

/// A queue pair, copied under the lane's lock.
struct QpCopy {
    index: u16,
    qpn: u32,
    dest_qpn: u32,
    qp_type: QpType,
    state: QpState,
    path_mtu: u32,
    multipath: bool,
    peer: Option<PeerId>,
    own_mode: Option<Mode>,
    context: *const ContextInner,
    counters: QpCounters,
    migration: MigrationCopy,
    last_error: Option<Failure>,
}

fn qps_from(lane: &Lane, from: u16) -> Vec<QpCopy> {
    let mut copies = Vec::with_capacity(QPS);
    look(lane, |state| {
        let slice = state.core.qps().iter_from(from).take(QPS);
        copies.extend(slice.map(|(index, entry)| QpCopy::of(index, entry, state.core.paths())));
    });
    copies
}

impl QpCopy {
    fn of(index: u16, entry: &Entry, paths: &PathManager) -> Self {
        let attr = entry.qp.query();
        let config = entry.qp.config();
        Self {
            index,
            qpn: config.qpn,
            dest_qpn: attr.dest_qpn,
            qp_type: config.qp_type,
            state: attr.state,
            path_mtu: attr.path_mtu,
            multipath: entry.qp.is_multipath(),
            peer: entry.peer(),
            own_mode: paths.own_mode(config.qpn),
            context: Arc::as_ptr(&entry.own.context),
            counters: *entry.qp.counters(),
            migration: MigrationCopy::of(entry, paths),
            last_error: entry.own.last_error.get(),
        }
    }

    fn status(self, peers: &HashMap<PeerId, PeerNames>, names: &Names) -> QpStatus {
        let peer = self.peer.and_then(|peer| peers.get(&peer));
        QpStatus {
            qpn: self.qpn,
            dest_qpn: self.dest_qpn,
            kind: match self.qp_type {
                QpType::Rc => "RC",
                QpType::Uc => "UC",
                QpType::Ud => "UD",
                QpType::XrcSend => "XRC_SEND",
                QpType::XrcRecv => "XRC_RECV",
            }
            .to_owned(),
            state: match self.state {
                QpState::Reset => "RESET",
                QpState::Init => "INIT",
                QpState::Rtr => "RTR",
                QpState::Rts => "RTS",
                QpState::Sqd => "SQD",
                QpState::Sqe => "SQE",
                QpState::Err => "ERR",
            }
            .to_owned(),
            device: names.devices.get(&self.context).cloned().unwrap_or_default(),
            peer: peer.map(|peer| peer.remote.to_string()).unwrap_or_default(),
            path_mtu: self.path_mtu,
            multipath: self.multipath,
            active_path: peer.map(|peer| peer.active.clone()).unwrap_or_default(),
            live_paths: peer.map_or(0, |peer| peer.live_paths),
            policy: peer.and_then(|peer| peer.policy).map(|policy| {
                self.own_mode.map_or(policy, |mode| names.own_policy(self.qpn, mode))
            }),
            migration: self.migration.status(names),
            counters: self.counters,
            last_error: self.last_error.map(|failure| failure.to_string()).unwrap_or_default(),
        }
    }
}

/// The migration of a queue pair, copied under the lane's lock.
struct MigrationCopy {
    status: MigrationStatus,
    alternate: Option<PathAddress>,
    /// The alternate path has the addresses of the primary one, and another source port.
    by_port: bool,
}

impl MigrationCopy {
    fn of(entry: &Entry, paths: &PathManager) -> Self {
        let both = paths.both_paths(entry.qp.config().qpn);
        let [primary, alternate] = both.map(|path| path.and_then(|path| paths.path(path)).copied());
        let ends = |address: &PathAddress| (address.local, address.remote);
        let by_port = primary.zip(alternate).is_some_and(|(primary, alternate)| {
            ends(&primary) == ends(&alternate) && primary.source_port != alternate.source_port
        });
        Self { status: entry.qp.migration(), alternate, by_port }
    }

    fn status(self, names: &Names) -> Option<polypath_ipc::status::MigrationStatus> {
        let Self { status, alternate, by_port } = self;
        if !status.loaded {
            return None;
        }
        let state = match status.state {
            MigState::Migrated => "MIGRATED",
            MigState::Rearm => "REARM",
            MigState::Armed => "ARMED",
        };
        Some(polypath_ipc::status::MigrationStatus {
            state: state.to_owned(),
            alternate: alternate.map(|address| names.address(&address)).unwrap_or_default(),
            alternate_port: alternate.filter(|_| by_port).map(|address| address.source_port),
            count: status.count,
            last: status
                .last
                .map(|(cause, at)| (cause.name().to_owned(), clock::realtime_ns(at) / 1000)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use polypath_telemetry::{Event, Qpn};
    use polypath_topology::{MP, Selection};
    use polypath_verbs::{
        Access, AhAttr, Context, CqRequest, QpAttr, QpAttrMask as M, QpRequest, QueuePair,
        SendData, SendFlags, SendOp, SendRequest,
    };

    use super::*;
    use crate::context::OpenDevice;
    use crate::devices;

    const QUEUE_PAIRS: usize = 10_000;
    const PEER_COUNT: usize = 500;

    thread_local! {
        /// How long each read held the lane.
        pub(super) static LOOKS: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
    }

    /// The processor time of this thread. On a busy machine no other clock measures the cost of
    /// work.
    pub(super) fn worked() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid, and every Linux has this clock.
        #[allow(unsafe_code)]
        unsafe {
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time)
        };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn remote(peer: usize) -> std::net::Ipv4Addr {
        [198, 18, (peer / 250) as u8, (peer % 250) as u8 + 1].into()
    }

    fn connect(qp: &dyn QueuePair, peer: usize) {
        let mut attr = QpAttr::new(QpState::Init);
        attr.port_num = 1;
        attr.access = Access::empty();
        qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
        attr.state = QpState::Rtr;
        attr.path_mtu = 1024;
        attr.dest_qpn = 0x02_0001;
        attr.max_dest_rd_atomic = 1;
        attr.ah = AhAttr {
            dgid: remote(peer).to_ipv6_mapped().octets(),
            sgid_index: 1,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        qp.modify(&attr, M::STATE | rtr).unwrap();
    }

    /// An engine and its only device; nobody drives its lane.
    fn device() -> (Arc<EngineInner>, Arc<OpenDevice>) {
        let lane = Lane::still(9).unwrap();
        lane.begin_anew(&path_settings::local_addresses(&crate::fuzz::table(), &Selection::of(MP)));
        let selection = Selection::parse("roce:eth0").unwrap();
        let engine = EngineInner::alone(crate::fuzz::table(), selection, lane);
        let context = devices::first(&engine);
        (engine, context)
    }

    fn request(context: &dyn Context) -> QpRequest {
        let request = CqRequest { cqe: 16, channel: None, token: 1, ignore_overrun: false };
        let cq = context.create_cq(&request).unwrap();
        QpRequest {
            pd: Some(context.alloc_pd().unwrap()),
            qp_type: QpType::Rc,
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            sq_sig_all: true,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            token: 2,
        }
    }

    #[test]
    fn the_report_says_why_a_queue_pair_failed() {
        let (engine, context) = device();
        let qp = context.create_qp(&request(context.as_ref())).unwrap();
        connect(qp.as_ref(), 0);
        let mut attr = QpAttr::new(QpState::Rts);
        attr.timeout = 14;
        let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        qp.modify(&attr, M::STATE | rts).unwrap();
        let read = SendRequest {
            wr_id: 1,
            op: SendOp::Read { va: 0, rkey: 1 },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&[]),
            ud: None,
            xrc_srqn: 0,
        };
        qp.post_send(&[read], false).unwrap();
        let status = report(&engine, Scope::All);
        let why = "a READ, atomic, ATOMIC WRITE or FLUSH was posted, but max_rd_atomic is 0";
        let text = format!("QP {:#08x} to 0x020001: {why}", qp.number());
        assert_eq!(status.qps[0].last_error, text);
        let qpn = Qpn(qp.number());
        assert_eq!(status.errors[0].event, Event::QueuePairError { qpn, text });
        let traffic = report(&engine, Scope::Traffic);
        let journal = [traffic.events.len(), traffic.errors.len(), traffic.failovers.len()];
        assert_eq!((journal, traffic.qps.len()), ([0; 3], 0));
        qp.destroy().unwrap();
    }

    #[test]
    fn a_scrape_of_ten_thousand_queue_pairs_holds_the_lock_for_a_few_of_them_at_a_time() {
        let (engine, context) = device();
        let request = request(context.as_ref());
        let qps: Vec<_> = (0..QUEUE_PAIRS)
            .map(|n| {
                let qp = context.create_qp(&request).unwrap();
                connect(qp.as_ref(), n % PEER_COUNT);
                qp
            })
            .collect();

        engine.lanes.iter().for_each(|lane| lane.enter(|state| state.io.counters.sent_packets = 5));
        drop(report(&engine, Scope::All));
        LOOKS.take();
        let began = worked();
        let status = report(&engine, Scope::All);
        let whole = worked() - began;
        let mut looks = LOOKS.take();
        // The longest says more of what else the machine does.
        looks.sort_unstable();
        let held = looks.get(looks.len() / 2).copied().unwrap_or_default();
        println!(
            "a scrape works for {whole:?}, which is {:.1} % of one processor every 100 ms; the lane is held \
             for {held:?}, half of the times for less",
            whole.as_secs_f64() * 1e3
        );
        assert!(looks.len() >= QUEUE_PAIRS / QPS + PEER_COUNT / PEERS, "{} looks", looks.len());
        assert!(held < whole / 20, "{held:?} of {whole:?}");

        assert_eq!((status.qps.len(), status.paths.len()), (QUEUE_PAIRS, PEER_COUNT));
        let numbers: std::collections::HashSet<u32> = status.qps.iter().map(|qp| qp.qpn).collect();
        assert!(qps.iter().all(|qp| numbers.contains(&qp.number())));
        for qp in &status.qps {
            assert_eq!((qp.state.as_str(), qp.device.as_str()), ("RTR", "roce0"));
            assert_eq!(qp.active_path, format!("192.0.2.1>{}@eth0", qp.peer));
        }

        LOOKS.take();
        let began = worked();
        let traffic = report(&engine, Scope::Traffic);
        println!("the traffic alone works for {:?}", worked() - began);
        // The lane's counters, the peers, and that no peer follows.
        assert_eq!(LOOKS.take().len(), 1 + PEER_COUNT.div_ceil(PEERS) + 1);
        assert_eq!(traffic.qps, []);
        assert_eq!(traffic.devices, status.devices);
        assert_eq!(traffic.lanes, status.lanes);
        assert_eq!(traffic.paths, status.paths);
        assert_eq!(traffic.lanes[0].counters.sent_packets, 5);
        qps.iter().for_each(|qp| qp.destroy().unwrap());
    }
}
