//! Alternate paths (automatic path migration) of programs: their address vectors.

use std::net::IpAddr;

use polypath_topology::gids::gid_of;
use polypath_topology::{DeviceSpec, PortSpec};
use polypath_verbs::{AhAttr, Error, QpAttr, QpAttrMask, Result};

use super::Qp;
use crate::address::{self, Resolved};
use crate::lane::QpVisit;
use crate::migration;
use crate::other_port;

/// The address vector between these addresses, the local one first: this one if it leads there, else this one
/// with other GIDs.
fn vector(spec: &DeviceSpec, ah: AhAttr, (local, remote): (IpAddr, IpAddr)) -> AhAttr {
    let leads = |to: Resolved| (to.local, to.remote) == (local, remote);
    if address::resolve(spec, &ah).is_ok_and(leads) {
        return ah;
    }
    let of_port = |(number, port): (u8, &PortSpec)| Some((number, port.gid_index(&gid_of(local))?));
    match spec.numbered_ports().find_map(of_port) {
        Some((port_num, sgid_index)) => {
            AhAttr { dgid: gid_of(remote), sgid_index, port_num, is_global: true, ..ah }
        }
        None => ah,
    }
}

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

    /// What the program sees of its paths if its peer is a multi-path one, and if it has loaded an alternate
    /// path: the active one of the path set and the best other one. While no path lives, the active one is
    /// that of before; while there is no other, the alternate one is what the program loaded.
    pub(super) fn show_set(&self, visit: &mut QpVisit<'_>, attr: &mut QpAttr) {
        if !visit.qp.is_multipath() || attr.alt_port_num == 0 {
            return;
        }
        let (before, spec) = (visit.qp.active_path(), self.context.spec());
        let paths = visit.host.paths_and_out().0;
        let two = paths.two_paths(self.qpn);
        let ends = |path| paths.path(path).map(|address| (address.local, address.remote));
        let active = two.map(|two| two.active).or(before).and_then(ends);
        let other = two.and_then(|two| two.other).and_then(ends);
        if let Some(other) = other {
            attr.alt_ah = vector(&spec, attr.alt_ah, other);
            attr.alt_port_num = attr.alt_ah.port_num;
        }
        if let Some(active) = active {
            attr.ah = vector(&spec, attr.ah, active);
            attr.port_num = attr.ah.port_num;
        }
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
