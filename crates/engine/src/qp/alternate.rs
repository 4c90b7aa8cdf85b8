//! Alternate paths (automatic path migration): their address vectors, and loading one on behalf of the
//! program.

use polypath_ipc::message::AlternatePath;
use polypath_telemetry::{Event, Qpn};
use polypath_verbs::{AhAttr, Error, MigState, QpAttr, QpAttrMask, QpState, Result};

use super::Qp;
use crate::address::{self, Resolved};
use crate::context_inner::ContextInner;
use crate::lane::{Lane, QpVisit, State};

impl Qp {
    /// Resolves the alternate address vector, if one is set.
    pub(super) fn resolve_alternate(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<Resolved>> {
        if !mask.contains(QpAttrMask::ALT_PATH) {
            return Ok(None);
        }
        resolve(&self.context, attr).map(Some)
    }

    /// Gives the queue pair the alternate path. It must be attached.
    pub(super) fn load(visit: &mut QpVisit<'_>, to: Resolved) -> Result<()> {
        let loaded = visit.set_alternate(to.local, to.remote, to.options());
        loaded.map_err(|e| Error::no_memory(e.to_string()))
    }

    /// Gives a thawed queue pair its alternate path back. If that is not to be had here, it is not ready
    /// to migrate any more; it works as well without.
    pub(super) fn reload(&self, visit: &mut QpVisit<'_>, attr: &QpAttr) {
        if attr.alt_port_num == 0 {
            return;
        }
        let way = address::resolve(&self.context.spec(), &attr.alt_ah);
        if way.and_then(|to| Self::load(visit, to)).is_err() {
            visit.clear_alternate();
        }
    }
}

impl Lane {
    /// Gives a queue pair of this lane an alternate path and asks for REARM, as its program would by
    /// `ibv_modify_qp`. One that is ARMED stays so, with the new path. Before RTS, the path is kept until
    /// then.
    pub(crate) fn load_alternate(&self, qpn: u32, alternate: AlternatePath) {
        self.on_qp(qpn, |visit| {
            if matches!(visit.qp.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
                visit.host.own.pending_alternate.set(Some(alternate));
                return Ok(());
            }
            apply(visit, &alternate)
        });
    }

    /// Makes a queue pair of this lane migrate, if it is ready to.
    pub(crate) fn migrate(&self, qpn: u32) {
        self.on_qp(qpn, |visit| {
            if visit.qp.query().path_mig_state != MigState::Armed {
                return Ok(()); // It has just done so by itself, or cannot yet.
            }
            modify(visit, &QpAttr::new(QpState::Rts), QpAttrMask::PATH_MIG_STATE)
        });
    }

    fn on_qp(&self, qpn: u32, work: impl FnOnce(&mut QpVisit<'_>) -> Result<()>) {
        self.enter(|State { core, io, .. }| {
            if core.qps().by_qpn(qpn).is_none() {
                return; // It has been destroyed meanwhile.
            }
            core.with(index_of(qpn), io, |visit| {
                if let Err(error) = work(visit) {
                    refuse(visit, qpn, &error);
                }
            });
        });
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower 16 bits are the index")]
const fn index_of(qpn: u32) -> u16 {
    qpn as u16
}

/// Loads the alternate path that came before the queue pair was in RTS.
pub(super) fn apply_pending(visit: &mut QpVisit<'_>, qpn: u32) {
    if let Some(alternate) = visit.host.own.pending_alternate.take()
        && let Err(error) = apply(visit, &alternate)
    {
        refuse(visit, qpn, &error);
    }
}

fn refuse(visit: &mut QpVisit<'_>, qpn: u32, error: &Error) {
    visit.host.out.note(Event::AlternateRefused { qpn: Qpn(qpn), text: error.to_string() });
}

fn apply(visit: &mut QpVisit<'_>, alternate: &AlternatePath) -> Result<()> {
    let mut attr = QpAttr::new(QpState::Rts);
    attr.alt_ah = AhAttr {
        dgid: alternate.dgid,
        flow_label: alternate.flow_label,
        sgid_index: alternate.sgid_index,
        hop_limit: alternate.hop_limit,
        traffic_class: alternate.traffic_class,
        is_global: true,
        port_num: alternate.port_num,
        ..AhAttr::default()
    };
    attr.alt_port_num = alternate.port_num;
    attr.alt_pkey_index = alternate.pkey_index;
    attr.alt_timeout = alternate.timeout;
    let mut mask = QpAttrMask::ALT_PATH;
    if visit.qp.query().path_mig_state != MigState::Armed {
        attr.path_mig_state = MigState::Rearm;
        mask |= QpAttrMask::PATH_MIG_STATE;
    }
    let to = resolve(&visit.host.own.context, &attr)?;
    visit.qp.check_modify(&attr, mask).map_err(|e| Error::invalid(e.to_string()))?;
    Qp::load(visit, to)?;
    modify(visit, &attr, mask)
}

fn modify(visit: &mut QpVisit<'_>, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
    let modified = visit.qp.modify(attr, mask, &mut visit.host);
    modified.map_err(|e| Error::invalid(e.to_string()))
}

/// Checks the alternate attributes against the device.
fn resolve(context: &ContextInner, attr: &QpAttr) -> Result<Resolved> {
    if attr.alt_port_num != attr.alt_ah.port_num {
        return Err(Error::invalid(format!(
            "alt_port_num is {}, alt_ah_attr.port_num {}: both name the port of the alternate path",
            attr.alt_port_num, attr.alt_ah.port_num
        )));
    }
    if attr.alt_port_num != 1 {
        return Err(Error::invalid("the device has one port, number 1"));
    }
    if attr.alt_pkey_index != 0 {
        return Err(Error::invalid("the P_Key table has one entry, index 0"));
    }
    address::resolve(&context.spec(), &attr.alt_ah)
}
