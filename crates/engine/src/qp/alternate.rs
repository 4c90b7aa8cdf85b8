//! Alternate paths (automatic path migration) of programs: their address vectors.

use polypath_verbs::{Error, QpAttr, QpAttrMask, Result};

use super::Qp;
use crate::address::{self, Resolved};
use crate::lane::QpVisit;
use crate::migration;
use crate::other_port;

impl Qp {
    /// Resolves the alternate address vector, if one is set. If it is that of another port than
    /// `alt_port_num`, it becomes the one by that port.
    pub(super) fn resolve_alternate(
        &self,
        attr: &mut QpAttr,
        mask: QpAttrMask,
    ) -> Result<Option<Resolved>> {
        if !mask.contains(QpAttrMask::ALT_PATH) {
            return Ok(None);
        }
        if attr.alt_port_num != attr.alt_ah.port_num {
            let prefix =
                |ip| self.with(|visit| visit.host.paths_and_out().0.prefix_len(ip)).ok().flatten();
            let (spec, port) = (self.context.spec(), attr.alt_port_num);
            attr.alt_ah = other_port::by_port(&spec, &attr.alt_ah, port, prefix)?;
        }
        if attr.alt_pkey_index != 0 {
            return Err(Error::invalid("the P_Key table has one entry, index 0"));
        }
        address::resolve(&self.context.spec(), &attr.alt_ah).map(Some)
    }

    /// Loads the path that the connection manager wanted loaded before the queue pair was in RTS.
    pub(super) fn load_waiting(&self, visit: &mut QpVisit<'_>) {
        let Some(path) = visit.host.own.pending_alternate.take() else { return };
        if let Err(error) = migration::load(visit, self.qpn, &path) {
            visit.host.paths_and_out().1.refuse_alternate(self.qpn, &error);
        }
    }

    /// Gives the queue pair the alternate path. It must be attached.
    pub(super) fn load(visit: &mut QpVisit<'_>, to: Resolved) -> Result<()> {
        migration::set_alternate(visit, (to.local, to.remote), to.options())
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
