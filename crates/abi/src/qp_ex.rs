//! The extended posting API: `ibv_wr_start`, `ibv_wr_send` and so on, `ibv_wr_complete`.
//!
//! Work requests are put together in a buffer of the queue pair, which is kept for the next time,
//! and handed over all or none.

use core::ffi::c_void;
use core::slice;

use libc::{c_int, size_t};
use polypath_verbs::{FlushScope, Placement, SendData, SendFlags, SendOp, SendRequest, UdTarget};
use smallvec::SmallVec;

use crate::ah::ah_of;
use crate::draft::{Data, Draft, Request};
use crate::guard;
use crate::layout::{Pointer, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::post::{only_type_2, sges, stage, unstage};
use crate::qp::{CQp, qp_of};
use crate::wait::{pthread_mutex_lock, pthread_mutex_unlock};

/// Most work requests between `ibv_wr_start` and `ibv_wr_complete`.
const REQUESTS_MAX: usize = 1 << 16;

/// Works on the draft of a queue pair.
///
/// # Safety
/// `qp` is one of ours, between start and complete or abort.
unsafe fn with_draft(qp: *mut ibv_qp_ex, work: impl FnOnce(&CQp, &mut Draft)) {
    // SAFETY: the caller's promise: the lock is held, so the draft is this thread's alone.
    unsafe {
        let this = qp_of(qp.cast());
        let draft = &mut *this.builder().draft.get();
        let panicked = guard::run(true, || {
            work(this, draft);
            false
        });
        if panicked {
            draft.fail(libc::EIO);
        }
    }
}

/// Begins a work request.
///
/// # Safety
/// As [`with_draft`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's promise.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
        with_draft(qp, |_, draft| {
            if draft.requests.len() == REQUESTS_MAX {
                return draft.fail(libc::ENOMEM);
            }
            let data = Data::Sges(0..0);
            draft.requests.push(Request { wr_id, op, flags, data, ud: None, xrc_srqn: 0 });
        });
    }
}

/// A function as the structure holds it.
macro_rules! slot {
    ($function:path) => {
        $function as *const c_void as Pointer
    };
}

/// Fills in the functions.
pub(crate) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = slot!(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = slot!(wr_atomic_fetch_add);
    qp.wr_bind_mw = slot!(wr_bind_mw);
    qp.wr_local_inv = slot!(wr_local_inv);
    qp.wr_rdma_read = slot!(wr_rdma_read);
    qp.wr_rdma_write = slot!(wr_rdma_write);
    qp.wr_rdma_write_imm = slot!(wr_rdma_write_imm);
    qp.wr_send = slot!(wr_send);
    qp.wr_send_imm = slot!(wr_send_imm);
    qp.wr_send_inv = slot!(wr_send_inv);
    qp.wr_send_tso = slot!(refuse);
    qp.wr_set_ud_addr = slot!(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = slot!(wr_set_xrc_srqn);
    qp.wr_set_inline_data = slot!(wr_set_inline_data);
    qp.wr_set_inline_data_list = slot!(wr_set_inline_data_list);
    qp.wr_set_sge = slot!(wr_set_sge);
    qp.wr_set_sge_list = slot!(wr_set_sge_list);
    qp.wr_start = slot!(wr_start);
    qp.wr_complete = slot!(wr_complete);
    qp.wr_abort = slot!(wr_abort);
    qp.wr_atomic_write = slot!(wr_atomic_write);
    qp.wr_flush = slot!(wr_flush);
}

/// Address of the function for slots that we do not know.
pub(crate) fn refusal() -> usize {
    (refuse as *const c_void).addr()
}

unsafe extern "C-unwind" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: called through a queue pair of ours; its mutex lives as long as it does.
    unsafe {
        pthread_mutex_lock(qp_of(qp.cast()).builder().lock.get());
        with_draft(qp, |_, draft| draft.clear());
    }
}

unsafe extern "C-unwind" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: called through a queue pair of ours, after wr_start.
    unsafe {
        with_draft(qp, discard);
        pthread_mutex_unlock(qp_of(qp.cast()).builder().lock.get());
    }
}

/// Throws the draft away, and what was staged for it.
fn discard(qp: &CQp, draft: &mut Draft) {
    for request in &draft.requests {
        unstage(qp, request.op);
    }
    draft.clear();
}

unsafe extern "C-unwind" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let mut errno = libc::EIO;
    // SAFETY: called through a queue pair of ours, after wr_start.
    unsafe {
        with_draft(qp, |this, draft| {
            errno = match draft.error {
                0 => hand_over(this, draft),
                errno => errno,
            };
            if errno == 0 { draft.clear() } else { discard(this, draft) }
        });
        pthread_mutex_unlock(qp_of(qp.cast()).builder().lock.get());
    }
    errno
}

/// Posts the whole draft, or nothing of it.
fn hand_over(qp: &CQp, draft: &Draft) -> c_int {
    let list: SmallVec<[SendRequest<'_>; 16]> = draft
        .requests
        .iter()
        .map(|request| {
            let (data, inline) = match &request.data {
                Data::Sges(range) => (SendData::Sges(&draft.sges[range.clone()]), false),
                Data::Inline(range) => (SendData::Inline(&draft.bytes[range.clone()]), true),
            };
            let flags = if inline { request.flags | SendFlags::INLINE } else { request.flags };
            let ud = request.ud.as_ref();
            let ud = ud.map(|(ah, qpn, qkey)| UdTarget { ah, qpn: *qpn, qkey: *qkey });
            let Request { wr_id, op, xrc_srqn, .. } = *request;
            SendRequest { wr_id, op, flags, data, ud, xrc_srqn }
        })
        .collect();
    match qp.inner().post_send(&list, true) {
        Ok(()) => 0,
        Err(failure) => {
            if crate::log::enabled() {
                crate::log::line(format_args!("ibv_wr_complete: {}", failure.error));
            }
            failure.error.errno
        }
    }
}

/// Every operation, setter and slot that we do not have: `ibv_wr_complete` tells.
unsafe extern "C-unwind" fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: called through a queue pair of ours, after wr_start.
    unsafe { with_draft(qp, |_, draft| draft.fail(libc::EOPNOTSUPP)) };
}

/// One `ibv_wr_*` that begins a work request.
macro_rules! operation {
    ($name:ident($($arg:ident: $type:ty),*) => $op:expr) => {
        unsafe extern "C-unwind" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: called through a queue pair of ours, after wr_start.
            unsafe { begin(qp, $op) };
        }
    };
}

operation!(wr_atomic_cmp_swp(rkey: u32, va: u64, compare: u64, swap: u64)
    => SendOp::CompareSwap { va, rkey, compare, swap });
operation!(wr_atomic_fetch_add(rkey: u32, va: u64, add: u64) => SendOp::FetchAdd { va, rkey, add });
operation!(wr_local_inv(rkey: u32) => SendOp::LocalInv { rkey });
operation!(wr_rdma_read(rkey: u32, va: u64) => SendOp::Read { va, rkey });
operation!(wr_rdma_write(rkey: u32, va: u64) => SendOp::Write { va, rkey });
operation!(wr_rdma_write_imm(rkey: u32, va: u64, imm: u32)
    => SendOp::WriteImm { va, rkey, imm: imm.to_ne_bytes() });
operation!(wr_send() => SendOp::Send);
operation!(wr_send_imm(imm: u32) => SendOp::SendImm(imm.to_ne_bytes()));
operation!(wr_send_inv(rkey: u32) => SendOp::SendInv { rkey });

unsafe extern "C-unwind" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: called through a queue pair of ours, after wr_start, with a window and what to bind
    // it to.
    unsafe {
        let mut staged = Err(libc::EIO);
        with_draft(qp, |this, _| {
            staged = match info.as_ref() {
                Some(info) => only_type_2(mw).and_then(|()| stage(this, mw, rkey, info)),
                None => Err(libc::EINVAL),
            };
        });
        match staged {
            Ok(op) => begin(qp, op),
            Err(errno) => with_draft(qp, |_, draft| draft.fail(errno)),
        }
    }
}

unsafe extern "C-unwind" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    va: u64,
    value: *const [u8; 8],
) {
    // SAFETY: called through a queue pair of ours, after wr_start, with 8 bytes that may be read now.
    unsafe {
        begin(qp, SendOp::AtomicWrite { va, rkey });
        with_draft(qp, |_, draft| match value.as_ref() {
            Some(value) => {
                let start = draft.bytes.len();
                draft.bytes.extend_from_slice(value);
                draft.set_data(Data::Inline(start..draft.bytes.len()));
            }
            None => draft.fail(libc::EINVAL),
        });
    }
}

unsafe extern "C-unwind" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    va: u64,
    len: size_t,
    placement: u8,
    level: u8,
) {
    let placement = Placement::from_bits(placement);
    let scope = match (level, u32::try_from(len)) {
        (0, Ok(len)) => Some(FlushScope::Range { va, len }),
        // The range means nothing.
        (1, _) => Some(FlushScope::Region),
        _ => None,
    };
    // SAFETY: called through a queue pair of ours, after wr_start.
    unsafe {
        match (scope, placement) {
            (Some(scope), Some(placement)) => begin(qp, SendOp::Flush { rkey, scope, placement }),
            _ => with_draft(qp, |_, draft| draft.fail(libc::EINVAL)),
        }
    }
}

unsafe extern "C-unwind" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: called through a queue pair of ours, after wr_start, with a handle of ours or null.
    unsafe {
        with_draft(qp, |_, draft| match (draft.requests.last_mut(), ah.is_null()) {
            (Some(request), false) => request.ud = Some((ah_of(ah).inner().clone(), qpn, qkey)),
            _ => draft.fail(libc::EINVAL),
        });
    }
}

unsafe extern "C-unwind" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: called through a queue pair of ours, after wr_start.
    unsafe {
        with_draft(qp, |_, draft| match draft.requests.last_mut() {
            Some(request) => request.xrc_srqn = srqn,
            None => draft.fail(libc::EINVAL),
        });
    }
}

unsafe extern "C-unwind" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: called through a queue pair of ours, after wr_start; one element.
    unsafe { wr_set_sge_list(qp, 1, &sge) };
}

unsafe extern "C-unwind" fn wr_set_sge_list(
    qp: *mut ibv_qp_ex,
    count: size_t,
    list: *const ibv_sge,
) {
    // SAFETY: called through a queue pair of ours, after wr_start, with `count` elements.
    unsafe {
        with_draft(qp, |_, draft| match sges(list, count) {
            Ok(list) => {
                let start = draft.sges.len();
                draft.sges.extend_from_slice(list);
                draft.set_data(Data::Sges(start..draft.sges.len()));
            }
            Err(errno) => draft.fail(errno),
        });
    }
}

unsafe extern "C-unwind" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: Pointer, length: size_t) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: called through a queue pair of ours, after wr_start; one piece.
    unsafe { wr_set_inline_data_list(qp, 1, &piece) };
}

unsafe extern "C-unwind" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: size_t,
    list: *const ibv_data_buf,
) {
    const BYTES_MAX: usize = 1 << 16;
    // SAFETY: called through a queue pair of ours, after wr_start, with `count` pieces of memory
    // that may be read now.
    unsafe {
        with_draft(qp, |_, draft| {
            let start = draft.bytes.len();
            let pieces = if count == 0 { &[] } else { slice::from_raw_parts(list, count) };
            for piece in pieces {
                if draft.bytes.len() - start + piece.length > BYTES_MAX {
                    return draft.fail(libc::EINVAL);
                }
                if piece.length > 0 {
                    let bytes = slice::from_raw_parts(piece.addr.cast::<u8>(), piece.length);
                    draft.bytes.extend_from_slice(bytes);
                }
            }
            draft.set_data(Data::Inline(start..draft.bytes.len()));
        });
    }
}
