//! The member of a bond that a queue pair sends by, as its program wants it.

use polypath_topology::{BOND, DeviceSpec};
use polypath_verbs::{Error, Result};

use super::Qp;
use crate::clock;

/// The members of a bond, in the order of their numbers. Those of a bond of the kernel's are its ports.
///
/// # Errors
/// `EOPNOTSUPP` if the device is no bond.
fn members(spec: &DeviceSpec) -> Result<Vec<u32>> {
    if spec.kind != BOND.kind() {
        return Err(Error::unsupported(format!(
            "{} is no bond: choose one with --device bond:eth0+eth1",
            spec.name
        )));
    }
    Ok(spec.links())
}

/// The number of an interface among the members; 0 if it is none.
fn number(members: &[u32], ifindex: Option<u32>) -> u8 {
    let at = members.iter().position(|member| Some(*member) == ifindex);
    at.and_then(|at| u8::try_from(at + 1).ok()).unwrap_or(0)
}

impl Qp {
    /// Makes it send by this member, from 1 on, while that carries.
    pub(super) fn keep_to_member(&self, port: u8) -> Result<()> {
        let members = members(&self.context.spec())?;
        let member = usize::from(port).checked_sub(1).and_then(|at| members.get(at)).copied();
        let Some(member) = member else {
            let count = members.len();
            return Err(Error::invalid(format!("the bond has ports 1 to {count}, not {port}")));
        };
        self.lane.enter(|state| {
            state.core.paths_mut().keep_to(clock::now(), self.qpn, Some(member));
        });
        Ok(())
    }

    /// The member that was set, and the one that it last sent by; 0 for none.
    pub(super) fn members_in_use(&self) -> Result<(u8, u8)> {
        let members = members(&self.context.spec())?;
        let last = self.with(|visit| visit.host.own.last_path.get())?;
        let (set, last) = self.lane.enter(|state| {
            let paths = state.core.paths();
            let by = || paths.path(last).map(|path| path.ifindex);
            (paths.kept_to(self.qpn).or(state.home), paths.lag_member(last).or_else(by))
        });
        Ok((number(&members, set), number(&members, last)))
    }
}
