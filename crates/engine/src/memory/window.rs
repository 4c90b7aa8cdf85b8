//! Memory windows: keys to part of a region, bound and unbound on the data path (IBTA 10.6.7).

use std::collections::VecDeque;
use std::sync::Arc;

use polypath_transport::{Access, Fault};

use super::region::{Grant, Region};

/// Posted and not yet executed binds of a window; a post beyond is refused.
pub const STAGED_BINDS_MAX: usize = 64;

/// `enum ibv_mw_type`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WindowType {
    /// Bound by `ibv_bind_mw` to the protection domain; the key is the device's choice.
    Type1 = 1,
    /// Bound by a posted bind to one queue pair; the low 8 bits of the key are the consumer's choice.
    Type2 = 2,
}

/// What a bind asks for (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindInfo {
    /// Key of the region.
    pub region: u32,
    /// First byte, as the region's addresses count.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// Rights of the window.
    pub access: Access,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: u32,
    pub(super) kind: WindowType,
    /// The current key, valid for access only if `bound`.
    pub(super) key: u32,
    pub(super) bound: Option<Bound>,
    /// Binds that were posted, oldest first, by the key they will give.
    pub(super) staged: VecDeque<(u32, BindInfo)>,
}

#[derive(Debug)]
pub(super) struct Bound {
    pub(super) region: Arc<Region>,
    pub(super) grant: Grant,
}

impl Window {
    /// Checks a bind of `region` and gives what the window then allows (IBTA 10.6.7.2.2).
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
        // Neither may a window be shared by local requests, nor a type 1 window count from zero.
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
