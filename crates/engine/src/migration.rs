//! Carries out what the broker's connection manager wants done with the paths of queue pairs, and tells it
//! what became of them. Programs that use rdma_cm know nothing of it: the two connection managers agree on
//! an alternate path, and load and renew it.

use std::net::IpAddr;

use polypath_ipc::migration::{AlternatePath, PathNews, PathOrder};
use polypath_paths::PathOptions;
use polypath_topology::gids::gid_of;
use polypath_verbs::{AhAttr, Error, MigState, QpAttr, QpAttrMask, QpState, Result};

use crate::engine_inner::EngineInner;
use crate::lane::path_book::Untold;
use crate::lane::{Lane, QpVisit, State, index_of};

impl EngineInner {
    /// Carries out an order of the broker. Another engine of this process may have the queue pair.
    pub(crate) fn obey(&self, order: &PathOrder) {
        let (PathOrder::Load { qpn, .. }
        | PathOrder::Migrate { qpn, .. }
        | PathOrder::Leave { qpn, .. }) = *order;
        let lane = self.lanes.iter().find(|lane| u32::from(lane.slot) == qpn >> 16);
        let Some(lane) = lane.filter(|lane| !lane.has_failed() && !lane.is_closed()) else {
            return;
        };
        lane.enter(|State { core, io, .. }| {
            let done = core.with(index_of(qpn), io, |visit| match *order {
                PathOrder::Load { qpn, path } => load_or_wait(visit, qpn, &path),
                PathOrder::Migrate { local, remote, flow_label, .. } => {
                    follow(visit, qpn, End { pair: (local, remote), flow_label });
                    Ok(())
                }
                PathOrder::Leave { local, remote, .. } => {
                    leave(visit, qpn, (local, remote));
                    Ok(())
                }
            });
            if let Some(Err(error)) = done {
                io.refuse_alternate(qpn, &error);
            }
        });
    }
}

impl Lane {
    /// Takes what the broker is to be told of the paths of queue pairs, at most `most`.
    pub(crate) fn take_path_news(&self, most: usize) -> Vec<PathNews> {
        if self.has_failed() || self.is_closed() || !self.has_path_news() {
            return Vec::new();
        }
        self.enter(|State { core, io, .. }| {
            let mut news = Vec::new();
            while let Some((qpn, untold)) = io.paths.pop() {
                let now = core.with(index_of(qpn), io, |visit| both(visit, qpn)[0]).flatten();
                // Without a path, the queue pair is gone.
                if let Some(End { pair: (local, remote), flow_label }) = now {
                    news.push(match untold {
                        Untold::Moved => PathNews::Migrated { qpn, local, remote, flow_label },
                        Untold::Failed => PathNews::AlternateFailed { qpn },
                        Untold::PathSet => PathNews::PathSet { qpn },
                    });
                }
                if news.len() == most {
                    break;
                }
            }
            news
        })
    }

    /// Puts back what could not be told.
    pub(crate) fn put_back_path_news(&self, news: &[PathNews]) {
        self.enter(|State { io, .. }| {
            for news in news {
                match *news {
                    PathNews::Migrated { qpn, .. } => io.paths.tell(qpn, Untold::Moved),
                    PathNews::AlternateFailed { qpn } => io.paths.tell(qpn, Untold::Failed),
                    PathNews::PathSet { qpn } => io.paths.tell(qpn, Untold::PathSet),
                }
            }
        });
    }
}

/// What tells a path of a queue pair from others.
#[derive(Clone, Copy, PartialEq, Eq)]
struct End {
    /// The addresses, the local one first.
    pair: (IpAddr, IpAddr),
    flow_label: u32,
}

/// The paths of a queue pair: the primary and the alternate one.
fn both(visit: &mut QpVisit<'_>, qpn: u32) -> [Option<End>; 2] {
    let (paths, _) = visit.host.paths_and_out();
    paths.both_paths(qpn).map(|path| {
        let address = paths.path(path?)?;
        Some(End { pair: (address.local, address.remote), flow_label: address.flow_label })
    })
}

/// Loads the path, at once or when the queue pair is in RTS.
fn load_or_wait(visit: &mut QpVisit<'_>, qpn: u32, path: &AlternatePath) -> Result<()> {
    match visit.qp.state() {
        QpState::Rts => load(visit, qpn, path),
        QpState::Init | QpState::Rtr | QpState::Sqd => {
            visit.host.own.pending_alternate.set(Some(*path));
            Ok(())
        }
        state => Err(Error::invalid(format!("in {state:?} it takes no alternate path"))),
    }
}

/// Loads the path into a queue pair in RTS and arms it, as a program would by `ibv_modify_qp`. If its peer is
/// a multi-path one, it stays armed by itself from now on.
pub(crate) fn load(visit: &mut QpVisit<'_>, qpn: u32, path: &AlternatePath) -> Result<()> {
    let state = visit.qp.query().path_mig_state;
    let [primary, alternate] = both(visit, qpn);
    let wanted = Some(End { pair: (path.local, path.remote), flow_label: path.flow_label });
    visit.qp.keep_armed(&mut visit.host);
    if wanted == alternate && wanted != primary && state != MigState::Migrated {
        return Ok(());
    }
    let mut attr = QpAttr::new(QpState::Rts);
    attr.alt_ah = AhAttr {
        is_global: true,
        dgid: gid_of(path.remote),
        flow_label: path.flow_label,
        sgid_index: path.gid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        port_num: path.port_num,
        ..AhAttr::default()
    };
    (attr.alt_port_num, attr.alt_pkey_index) = (path.port_num, path.pkey_index);
    attr.alt_timeout = path.ack_timeout;
    let mut mask = QpAttrMask::ALT_PATH;
    if state != MigState::Armed {
        attr.path_mig_state = MigState::Rearm;
        mask |= QpAttrMask::PATH_MIG_STATE;
    }
    let refused = |error| Error::invalid(format!("the alternate path is refused: {error}"));
    visit.qp.check_modify(&attr, mask).map_err(refused)?;
    let options = PathOptions {
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        multipath: false,
    };
    set_alternate(visit, (path.local, path.remote), options)?;
    visit.qp.modify(&attr, mask, &mut visit.host).map_err(refused)
}

/// Gives an attached queue pair a path set between these addresses, the local one first, in reserve.
pub(crate) fn set_alternate(
    visit: &mut QpVisit<'_>,
    (local, remote): (IpAddr, IpAddr),
    options: PathOptions,
) -> Result<()> {
    let set = visit.set_alternate(local, remote, options);
    set.map_err(|error| Error::no_memory(error.to_string()))
}

/// Follows the peer to this path, if it is the loaded one. A program may use other flow labels than the
/// connection managers; they count only if the addresses do not tell the two paths apart.
fn follow(visit: &mut QpVisit<'_>, qpn: u32, to: End) {
    let [primary, alternate] = both(visit, qpn);
    let [from, by] = [primary, alternate].map(|end| end.map(|end| end.pair));
    let differs = if from == by { primary != Some(to) } else { from != Some(to.pair) };
    let leads = if from == by { alternate == Some(to) } else { by == Some(to.pair) };
    if differs && leads {
        visit.qp.follow_peer(&mut visit.host);
    }
    // The connection manager waits to hear where the queue pair is, also if that is nothing new.
    let io = visit.host.paths_and_out().1;
    io.paths.tell(qpn, Untold::Moved);
    io.journal.call();
}

/// Migrates to the path between these addresses if it is the loaded one and known to work, as a program
/// would by `ibv_modify_qp`. Else the connection manager finds the queue pair where it was, and tries again
/// at its next turn.
fn leave(visit: &mut QpVisit<'_>, qpn: u32, to: (IpAddr, IpAddr)) {
    let [_, alternate] = both(visit, qpn);
    if alternate.map(|end| end.pair) != Some(to)
        || visit.qp.query().path_mig_state != MigState::Armed
    {
        return;
    }
    let mut attr = QpAttr::new(QpState::Rts);
    attr.path_mig_state = MigState::Migrated;
    // What refuses it, such as a state that the queue pair has got meanwhile, is reason enough to stay.
    let _ = visit.qp.modify(&attr, QpAttrMask::PATH_MIG_STATE, &mut visit.host);
}
