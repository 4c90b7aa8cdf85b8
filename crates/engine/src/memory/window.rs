//! Memory windows: keys to part of a region, which are bound and unbound on the data path
//! (IBTA 10.6.7).

use std::collections::VecDeque;
use std::sync::Arc;

use polypath_transport::{Access, Fault};

use super::region::{Grant, Region};

/// The largest number of posted and not yet executed binds of a window; further posts are rejected.
pub const STAGED_BINDS_MAX: usize = 64;

/// The type of a window, with the numbers of `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WindowType {
    /// Bound by `ibv_bind_mw` to the protection domain; the device chooses the key.
    Type1 = 1,
    /// Bound by a posted bind to one queue pair; the consumer chooses the low 8 bits of the key.
    Type2 = 2,
}

/// The parameters of a bind (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindInfo {
    /// The key of the region.
    pub region: u32,
    /// The address of the first byte, in the addresses of the region.
    pub addr: u64,
    /// The length in bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// The rights of the window.
    pub access: Access,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: u32,
    pub(super) kind: WindowType,
    /// The current key, which is valid for access only if `bound` is set.
    pub(super) key: u32,
    pub(super) bound: Option<Bound>,
    /// Binds that were posted, oldest first, with the number of the queue pair that will execute
    /// them, and the key that the window will get.
    pub(super) staged: VecDeque<(u32, u32, BindInfo)>,
}

#[derive(Debug)]
pub(super) struct Bound {
    pub(super) region: Arc<Region>,
    pub(super) grant: Grant,
}

impl Window {
    /// Checks a bind to `region` and returns the rights of the window (IBTA 10.6.7.2.2).
    pub(super) fn grant(
        &self,
        qpn: u32,
        key: u32,
        region: &Region,
        info: &BindInfo,
    ) -> Result<Grant, Fault> {
        if region.pd() != self.pd {
            return Err(Fault::Key);
        }
        if !region.access().contains(Access::MW_BIND) {
            return Err(Fault::Rights);
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if info.access.intersects(writes) && !region.access().contains(Access::LOCAL_WRITE) {
            return Err(Fault::Rights);
        }
        let zero_based = info.access.contains(Access::ZERO_BASED);
        // The addresses of a type 1 window can't be zero-based.
        if zero_based && self.kind == WindowType::Type1 {
            return Err(Fault::Rights);
        }
        let offset = info.addr.wrapping_sub(region.iova());
        if offset > region.len() || info.len > region.len() - offset {
            return Err(Fault::Range);
        }
        Ok(Grant {
            key,
            pd: self.pd,
            base: region.grant.base.wrapping_add(offset),
            start: if zero_based { 0 } else { info.addr },
            len: info.len,
            access: info.access,
            qpn: (self.kind == WindowType::Type2).then_some(qpn),
            window: true,
            backing: region.grant.backing,
        })
    }
}
