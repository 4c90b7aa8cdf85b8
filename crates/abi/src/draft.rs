//! Work requests that are collected between `ibv_wr_start` and `ibv_wr_complete`.

use core::cell::UnsafeCell;
use core::ops::Range;
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{AddressHandle, SendFlags, SendOp, Sge};

use crate::lock::RawLock;

/// Collects work requests between `ibv_wr_start` and `ibv_wr_complete`.
pub(crate) struct Builder {
    /// It is locked from start to complete or abort.
    pub(crate) lock: RawLock,
    pub(crate) draft: UnsafeCell<Draft>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { lock: RawLock::new(), draft: UnsafeCell::default() }
    }
}

#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) requests: Vec<Request>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) bytes: Vec<u8>,
    /// The first error, which `ibv_wr_complete` returns.
    pub(crate) error: c_int,
}

pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) data: Data,
    pub(crate) ud: Option<(Arc<AddressHandle>, u32, u32)>,
    pub(crate) xrc_srqn: u32,
}

/// The place of a request's data in the draft.
pub(crate) enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Draft {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = 0;
    }

    pub(crate) fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }

    pub(crate) fn set_data(&mut self, data: Data) {
        match self.requests.last_mut() {
            Some(request) => request.data = data,
            None => self.fail(libc::EINVAL),
        }
    }
}
