//! The extended posting API: `ibv_wr_start`, `ibv_wr_send` and so on, `ibv_wr_complete`.
//!
//! Work requests are collected in a buffer of the queue pair, which is kept for later use. They are
//! posted all or none.

use core::ffi::c_void;
use core::slice;

use libc::{c_int, size_t};
use polypath_verbs::{FlushScope, Placement, SendData, SendFlags, SendOp, SendRequest, UdTarget};
use smallvec::SmallVec;

use crate::ah::CAh;
use crate::draft::{Data, Draft, Request};
use crate::guard;
use crate::layout::{Pointer, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::ours::Ours;
use crate::post::{only_type_2, sges, stage, unstage};
use crate::qp::CQp;
use crate::unaligned::elements;

/// The largest number of work requests between `ibv_wr_start` and `ibv_wr_complete`.
pub(crate) const REQUESTS_MAX: usize = 1 << 16;

/// Our queue pair between `wr_start` and `wr_complete` or `wr_abort`, as C passes it to the
/// functions in its structure. Its lock is held meanwhile, so its draft belongs to this thread
/// alone.
#[repr(transparent)]
struct Posting(Ours<CQp>);

impl Posting {
    /// Works on the draft of the queue pair.
    fn with_draft(&mut self, work: impl FnOnce(&CQp, &mut Draft)) {
        let qp = &*self.0;
        // SAFETY: the draft belongs to this thread alone (see `Posting`), and no other reference to
        // it exists while `self` is borrowed.
        let draft = unsafe { &mut *qp.builder().draft.get() };
        let panicked = guard::run(true, || {
            work(qp, draft);
            false
        });
        if panicked {
            draft.fail(libc::EIO);
        }
    }

    /// Begins a work request.
    fn begin(&mut self, op: SendOp) {
        let public: *mut ibv_qp_ex = self.0.public().cast();
        // SAFETY: all our queue pairs are created in the extended form, and the program has filled
        // in these fields before the call.
        let (wr_id, flags) = unsafe { ((*public).wr_id, (*public).wr_flags) };
        let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
        self.with_draft(|this, draft| {
            if draft.requests.len() == REQUESTS_MAX {
                // It is in no draft, so nothing else takes back its bind.
                unstage(this, op);
                return draft.fail(libc::ENOMEM);
            }
            let data = Data::Sges(0..0);
            draft.requests.push(Request { wr_id, op, flags, data, ud: None, xrc_srqn: 0 });
        });
    }

    fn fail(&mut self, errno: c_int) {
        self.with_draft(|_, draft| draft.fail(errno));
    }

    /// Ends the use of the draft.
    fn end(self) {
        self.0.builder().lock.unlock();
    }
}

/// A function in the form in which the structure stores it.
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

/// The address of the function for slots that we do not know.
pub(crate) fn refusal() -> usize {
    (refuse as *const c_void).addr()
}

extern "C-unwind" fn wr_start(qp: Ours<CQp>) {
    qp.builder().lock.lock();
    Posting(qp).with_draft(|_, draft| draft.clear());
}

extern "C-unwind" fn wr_abort(mut qp: Posting) {
    qp.with_draft(discard);
    qp.end();
}

/// Discards the draft, and what was staged for it.
fn discard(qp: &CQp, draft: &mut Draft) {
    for request in &draft.requests {
        unstage(qp, request.op);
    }
    draft.clear();
}

extern "C-unwind" fn wr_complete(mut qp: Posting) -> c_int {
    let mut errno = libc::EIO;
    qp.with_draft(|this, draft| {
        errno = match draft.error {
            0 => hand_over(this, draft),
            errno => errno,
        };
        if errno == 0 { draft.clear() } else { discard(this, draft) }
    });
    qp.end();
    errno
}

/// Posts the whole draft, or nothing.
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

/// Replaces every operation, setter and slot that is not supported. `ibv_wr_complete` returns the
/// error.
extern "C-unwind" fn refuse(mut qp: Posting) {
    qp.fail(libc::EOPNOTSUPP);
}

/// Defines an `ibv_wr_*` that begins a work request.
macro_rules! operation {
    ($name:ident($($arg:ident: $type:ty),*) => $op:expr) => {
        extern "C-unwind" fn $name(mut qp: Posting $(, $arg: $type)*) {
            qp.begin($op);
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

/// # Safety
/// `mw` and the region that `info` names are null or ours.
unsafe extern "C-unwind" fn wr_bind_mw(
    mut qp: Posting,
    mw: *mut ibv_mw,
    rkey: u32,
    info: Option<&ibv_mw_bind_info>,
) {
    let mut staged = Err(libc::EIO);
    qp.with_draft(|this, _| {
        staged = match info {
            // SAFETY: the program passes a window and a region of this device, or null.
            Some(info) => unsafe { only_type_2(mw).and_then(|()| stage(this, mw, rkey, info)) },
            None => Err(libc::EINVAL),
        };
    });
    match staged {
        Ok(op) => qp.begin(op),
        Err(errno) => qp.fail(errno),
    }
}

extern "C-unwind" fn wr_atomic_write(mut qp: Posting, rkey: u32, va: u64, value: Option<&[u8; 8]>) {
    qp.begin(SendOp::AtomicWrite { va, rkey });
    qp.with_draft(|_, draft| match value {
        Some(value) => {
            let start = draft.bytes.len();
            draft.bytes.extend_from_slice(value);
            draft.set_data(Data::Inline(start..draft.bytes.len()));
        }
        None => draft.fail(libc::EINVAL),
    });
}

extern "C-unwind" fn wr_flush(
    mut qp: Posting,
    rkey: u32,
    va: u64,
    len: size_t,
    placement: u8,
    level: u8,
) {
    let placement = Placement::from_bits(placement);
    let scope = match (level, u32::try_from(len)) {
        (0, Ok(len)) => Some(FlushScope::Range { va, len }),
        // The range is ignored.
        (1, _) => Some(FlushScope::Region),
        _ => None,
    };
    match (scope, placement) {
        (Some(scope), Some(placement)) => qp.begin(SendOp::Flush { rkey, scope, placement }),
        _ => qp.fail(libc::EINVAL),
    }
}

extern "C-unwind" fn wr_set_ud_addr(mut qp: Posting, ah: Option<Ours<CAh>>, qpn: u32, qkey: u32) {
    qp.with_draft(|_, draft| match (draft.requests.last_mut(), ah) {
        (Some(request), Some(ah)) => request.ud = Some((ah.inner().clone(), qpn, qkey)),
        _ => draft.fail(libc::EINVAL),
    });
}

extern "C-unwind" fn wr_set_xrc_srqn(mut qp: Posting, srqn: u32) {
    qp.with_draft(|_, draft| match draft.requests.last_mut() {
        Some(request) => request.xrc_srqn = srqn,
        None => draft.fail(libc::EINVAL),
    });
}

/// # Safety
/// `list` has `count` elements.
unsafe extern "C-unwind" fn wr_set_sge_list(mut qp: Posting, count: size_t, list: *const ibv_sge) {
    // SAFETY: the caller promises that the list has `count` elements.
    qp.with_draft(|_, draft| match unsafe { sges(list, count) } {
        Ok(list) => {
            let start = draft.sges.len();
            draft.sges.extend(list.iter().map(|sge| sge.0));
            draft.set_data(Data::Sges(start..draft.sges.len()));
        }
        Err(errno) => draft.fail(errno),
    });
}

extern "C-unwind" fn wr_set_sge(qp: Posting, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: it is one element.
    unsafe { wr_set_sge_list(qp, 1, &sge) };
}

extern "C-unwind" fn wr_set_inline_data(qp: Posting, addr: Pointer, length: size_t) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: it is one piece, of memory that can be read now.
    unsafe { wr_set_inline_data_list(qp, 1, &piece) };
}

/// # Safety
/// `list` has `count` pieces of memory that may be read now.
unsafe extern "C-unwind" fn wr_set_inline_data_list(
    mut qp: Posting,
    count: size_t,
    list: *const ibv_data_buf,
) {
    const BYTES_MAX: usize = 1 << 16;
    // SAFETY: the caller promises that the list has `count` pieces of readable memory.
    qp.with_draft(|_, draft| unsafe {
        let start = draft.bytes.len();
        for piece in elements(list, count).iter().map(|piece| piece.0) {
            if piece.length > BYTES_MAX - (draft.bytes.len() - start) {
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

#[cfg(test)]
mod tests {
    use core::mem::zeroed;

    use super::*;
    use crate::double::{self, Kit};
    use crate::layout::{ibv_mw_bind_info, ibv_qp_ex};
    use crate::memory::{alloc_mw, dealloc_mw};

    /// Calls a function of the extended structure.
    macro_rules! call {
        ($qp:expr, $slot:ident($($arg:expr),*) as fn($($type:ty),*) $(-> $ret:ty)?) => {{
            let qp: *mut ibv_qp_ex = $qp.cast();
            let function = core::mem::transmute::<
                crate::layout::Pointer,
                unsafe extern "C-unwind" fn(*mut ibv_qp_ex $(, $type)*) $(-> $ret)?,
            >((*qp).$slot);
            function(qp $(, $arg)*)
        }};
    }

    #[test]
    fn extended_requests_are_posted_all_or_none() {
        let kit = Kit::new(2);
        // SAFETY: objects of ours; the functions are called as the headers do.
        unsafe {
            let ex: *mut ibv_qp_ex = kit.qp.cast();
            for (count, errno) in [(2, 0), (3, libc::ENOMEM)] {
                call!(ex, wr_start() as fn());
                for wr_id in 0..count {
                    (*ex).wr_id = wr_id;
                    call!(ex, wr_rdma_write(7, 0x1000) as fn(u32, u64));
                    call!(ex, wr_set_sge(1, 2, 3) as fn(u32, u64, u32));
                }
                assert_eq!(call!(ex, wr_complete() as fn() -> c_int), errno);
            }
            call!(ex, wr_start() as fn());
            call!(ex, wr_send_tso() as fn());
            assert_eq!(call!(ex, wr_complete() as fn() -> c_int), libc::EOPNOTSUPP);
            call!(ex, wr_start() as fn());
            call!(ex, wr_send() as fn());
            call!(ex, wr_abort() as fn());
        }
        let posted = double::posted(&kit);
        assert_eq!(posted.len(), 2);
        assert_eq!(posted[1], "1 Write { va: 4096, rkey: 7 } 1 sges");
    }

    #[test]
    fn a_bind_beyond_the_longest_list_is_not_kept() {
        let kit = Kit::new(1);
        // SAFETY: objects of ours, each freed once; the functions are called as the headers do.
        unsafe {
            let ex: *mut ibv_qp_ex = kit.qp.cast();
            let mw = alloc_mw(kit.pd, 2);
            let info: ibv_mw_bind_info = zeroed();
            call!(ex, wr_start() as fn());
            for _ in 0..REQUESTS_MAX {
                call!(ex, wr_send() as fn());
            }
            call!(
                ex,
                wr_bind_mw(mw, 0x101, &info) as fn(*mut ibv_mw, u32, *const ibv_mw_bind_info)
            );
            assert_eq!(call!(ex, wr_complete() as fn() -> c_int), libc::ENOMEM);
            assert_eq!(dealloc_mw(mw), 0);
        }
        assert_eq!(double::posted(&kit), ["stage 3 0x101", "unstage 3"]);
    }

    #[test]
    fn a_bind_that_is_not_posted_after_all_is_not_kept() {
        let kit = Kit::new(1);
        // SAFETY: objects of ours, each freed once; the functions are called as the headers do.
        unsafe {
            let ex: *mut ibv_qp_ex = kit.qp.cast();
            let mw = alloc_mw(kit.pd, 2);
            let info: ibv_mw_bind_info = zeroed();
            call!(ex, wr_start() as fn());
            call!(
                ex,
                wr_bind_mw(mw, 0x101, &info) as fn(*mut ibv_mw, u32, *const ibv_mw_bind_info)
            );
            call!(ex, wr_abort() as fn());
            assert_eq!(dealloc_mw(mw), 0);
        }
        assert_eq!(double::posted(&kit), ["stage 3 0x101", "unstage 3"]);
    }

    #[test]
    fn flushes_and_atomic_writes_say_what_of_where() {
        const EINVAL: c_int = libc::EINVAL;
        let kit = Kit::new(3);
        let (global, persistent, unknown) = (1u8, 2u8, 4u8);
        // SAFETY: objects of ours; the functions are called as the headers do.
        unsafe {
            let ex: *mut ibv_qp_ex = kit.qp.cast();
            call!(ex, wr_start() as fn());
            (*ex).wr_id = 7;
            let word = [1u8, 2, 3, 4, 5, 6, 7, 8];
            let at = word.as_ptr().cast_mut().cast::<c_void>();
            call!(ex, wr_atomic_write(5, 64, at) as fn(u32, u64, *mut c_void));
            type Flush = (u32, u64, usize, u8, u8);
            let flush = |(rkey, va, len, placement, level): Flush| {
                call!(ex, wr_flush(rkey, va, len, placement, level) as fn(u32, u64, usize, u8, u8));
            };
            flush((5, 64, 8, global | persistent, 0));
            flush((5, 64, 1 << 40, global, 1));
            assert_eq!(call!(ex, wr_complete() as fn() -> c_int), 0);
            for wrong in
                [(5, 64, 8, unknown, 0), (5, 64, 8, global, 2), (5, 64, 1 << 40, global, 0)]
            {
                call!(ex, wr_start() as fn());
                flush(wrong);
                assert_eq!(call!(ex, wr_complete() as fn() -> c_int), EINVAL, "{wrong:?}");
            }
        }
        assert_eq!(
            double::posted(&kit),
            [
                "7 AtomicWrite { va: 64, rkey: 5 } inline [1, 2, 3, 4, 5, 6, 7, 8]",
                "7 Flush { rkey: 5, scope: Range { va: 64, len: 8 }, \
                 placement: Placement(GLOBAL | PERSISTENT) } 0 sges",
                "7 Flush { rkey: 5, scope: Region, placement: Placement(GLOBAL) } 0 sges",
            ]
        );
    }
}
