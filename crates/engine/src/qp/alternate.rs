//! Alternate paths (automatic path migration): their address vectors, and loading one on behalf of the
//! program.

use polypath_verbs::{AhAttr, Error, MigState, QpAttr, QpAttrMask, QpState, Result};

use super::Qp;
use crate::address::{self, Resolved};
use crate::lane::QpVisit;

/// An alternate path for a queue pair, as the connection manager found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alternate {
    /// Where it leads.
    pub(crate) ah: AhAttr,
    /// The local port, from 1.
    pub(crate) port_num: u8,
    pub(crate) pkey_index: u16,
    /// The local ACK timeout of the path, 0 to 31: 4.096 µs × 2^timeout.
    pub(crate) timeout: u8,
}

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
        if attr.alt_port_num != attr.alt_ah.port_num {
            return Err(Error::invalid(format!(
                "alt_port_num is {}, alt_ah_attr.port_num {}: both name the port of the alternate path",
                attr.alt_port_num, attr.alt_ah.port_num
            )));
        }
        if attr.alt_pkey_index != 0 {
            return Err(Error::invalid("the P_Key table has one entry, index 0"));
        }
        address::resolve(&self.context.spec(), &attr.alt_ah).map(Some)
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

/// Loads an alternate path and asks for REARM, as a program would by `ibv_modify_qp`. A queue pair that
/// is ARMED stays so, with the new alternate path.
pub(crate) fn load_alternate(
    qp: &dyn polypath_verbs::QueuePair,
    alternate: &Alternate,
) -> Result<()> {
    let now = qp.query()?;
    if now.state != QpState::Rts {
        return Err(Error::new(
            libc::EAGAIN,
            format!("the queue pair is in {:?}: load the alternate path in RTS", now.state),
        ));
    }
    let mut attr = QpAttr::new(QpState::Rts);
    attr.alt_ah = AhAttr { port_num: alternate.port_num, ..alternate.ah };
    attr.alt_port_num = alternate.port_num;
    attr.alt_pkey_index = alternate.pkey_index;
    attr.alt_timeout = alternate.timeout;
    let mut mask = QpAttrMask::ALT_PATH;
    if now.path_mig_state != MigState::Armed {
        attr.path_mig_state = MigState::Rearm;
        mask |= QpAttrMask::PATH_MIG_STATE;
    }
    qp.modify(&attr, mask)
}
