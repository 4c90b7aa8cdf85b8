//! What an engine tells `polypath status` of its process.

use polypath_ipc::Table;
use polypath_ipc::status::{Counter, LaneStatus, PathStatus, ProcessStatus, QpStatus};
use polypath_paths::{PathState, PeerStatus, Status};
use polypath_verbs::{QpState, QpType};

use crate::engine::Inner;
use crate::lane::{Entry, Lane, LaneIo, way_of};

/// Everything this engine knows.
pub(crate) fn report(engine: &Inner) -> ProcessStatus {
    let mut report = ProcessStatus {
        pid: std::process::id(),
        program: std::fs::read_to_string("/proc/self/comm")
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
        devices: engine.contexts().iter().map(|c| c.info.name.clone()).collect(),
        ..ProcessStatus::default()
    };
    let table = engine.table();
    for lane in engine.lanes.iter() {
        add_lane(&mut report, lane, &table);
    }
    report
}

fn add_lane(report: &mut ProcessStatus, lane: &Lane, table: &Table) {
    lane.enter(|state| {
        let paths = state.core.paths().status();
        report.lanes.push(LaneStatus { slot: lane.slot, counters: state.io.counters });
        report.qps.extend(state.core.qps().iter().map(|(_, entry)| qp(entry, &paths, table)));
        for peer in &paths.peers {
            report.paths.extend(peer_paths(peer, &state.io, table));
        }
        report.drops.extend(Counter::all(&state.io.drops));
        report.drops.extend(Counter::all(&paths.refusals));
        report.failovers.extend(state.io.failovers.iter().cloned());
        report.events.extend(state.io.events.iter().cloned());
        report.errors.extend(state.io.explanations.iter().cloned());
    });
}

fn qp(entry: &Entry, paths: &Status, table: &Table) -> QpStatus {
    let attr = entry.qp.query();
    let config = entry.qp.config();
    let peer = entry.peer().and_then(|id| paths.peers.iter().find(|p| p.peer == id));
    let active = peer.and_then(|p| p.paths.iter().find(|path| Some(path.path) == p.active));
    QpStatus {
        qpn: config.qpn,
        dest_qpn: attr.dest_qpn,
        kind: match config.qp_type {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
            QpType::XrcSend => "XRC_SEND",
            QpType::XrcRecv => "XRC_RECV",
        }
        .to_owned(),
        state: match attr.state {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        }
        .to_owned(),
        device: entry.own.context.info.name.clone(),
        peer: peer.map(|p| p.remote.to_string()).unwrap_or_default(),
        path_mtu: attr.path_mtu,
        multipath: entry.qp.is_multipath(),
        active_path: active.map(|path| name(path, table)).unwrap_or_default(),
        live_paths: peer.map_or(0, |p| {
            let live = p.paths.iter().filter(|path| is_live(path.state)).count();
            u32::try_from(live).unwrap_or(u32::MAX)
        }),
        counters: Counter::all(entry.qp.counters()).filter(|counter| counter.value != 0).collect(),
        last_error: entry.own.last_error.borrow().clone(),
    }
}

const fn is_live(state: PathState) -> bool {
    matches!(state, PathState::Up | PathState::Suspect)
}

fn interface(path: &polypath_paths::PathStatus, table: &Table) -> String {
    table.port(path.address.ifindex).map_or_else(|| "?".to_owned(), |port| port.name.clone())
}

fn name(path: &polypath_paths::PathStatus, table: &Table) -> String {
    format!("{}>{}@{}", path.address.local, path.address.remote, interface(path, table))
}

fn peer_paths<'a>(
    peer: &'a PeerStatus,
    io: &'a LaneIo,
    table: &'a Table,
) -> impl Iterator<Item = PathStatus> + 'a {
    peer.paths.iter().map(|path| PathStatus {
        local: path.address.local,
        remote: path.address.remote,
        interface: interface(path, table),
        state: match path.state {
            _ if peer.active == Some(path.path) => "active".to_owned(),
            PathState::Up => "standby".to_owned(),
            other => other.to_string(),
        },
        rtt_us: path.rtt.map(|rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
        sent_bytes: io.sent_bytes(path.path, &path.address),
        send_errors: io.send_errors.counters(&way_of(&path.address)),
        received_bytes: path.received_bytes,
        lost_bytes: path.lost_bytes,
        failovers: u32::try_from(path.deaths).unwrap_or(u32::MAX),
        last_blackout_us: peer
            .last_blackout
            .map(|(blackout, _)| u64::try_from(blackout.as_micros()).unwrap_or(u64::MAX)),
    })
}
