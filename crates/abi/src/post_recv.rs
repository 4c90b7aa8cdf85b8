//! `ibv_post_recv`, and what it shares with `ibv_post_srq_recv`.

use libc::c_int;
use polypath_verbs::{PostFailure, RecvWr};
use smallvec::SmallVec;

use crate::guard;
use crate::layout::{ibv_qp, ibv_recv_wr};
use crate::post::{BATCH, count, failure, sges};
use crate::qp::qp_of;

/// `ibv_post_recv`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the headers call it with our queue pair, and arguments as `post_receives` requires.
    unsafe { post_receives("ibv_post_recv", list, bad, |batch| qp_of(qp).inner().post_recv(batch)) }
}

/// Passes a list of receives to `post` in batches, as part of `call`. If `post` panics, the first is
/// reported as bad.
///
/// # Safety
/// `list` is a list of receive work requests; `bad` is null or writable.
pub(crate) unsafe fn post_receives(
    call: &str,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&[RecvWr]) -> Result<(), PostFailure>,
) -> c_int {
    // SAFETY: the caller promises what `post_recv_list` requires. `bad` is null or writable.
    unsafe {
        match guard::run(Err((list, libc::EIO)), || post_recv_list(call, list, post)) {
            Ok(()) => 0,
            Err((refused, errno)) => {
                if !bad.is_null() {
                    *bad = refused;
                }
                errno
            }
        }
    }
}

/// Passes a list of receives to `post`. On failure, returns the first rejected one and the errno.
///
/// # Safety
/// It is a list of receive work requests.
unsafe fn post_recv_list(
    call: &str,
    mut wr: *mut ibv_recv_wr,
    post: impl Fn(&[RecvWr]) -> Result<(), PostFailure>,
) -> Result<(), (*mut ibv_recv_wr, c_int)> {
    // SAFETY: each element of the list is a work request that says where its elements are. Null
    // ends the list.
    unsafe {
        while !wr.is_null() {
            let mut batch: SmallVec<[RecvWr; BATCH]> = SmallVec::new();
            let first = wr;
            let mut refused = None;
            while !wr.is_null() && batch.len() < BATCH {
                match count((*wr).num_sge).and_then(|count| sges((*wr).sg_list, count)) {
                    Ok(list) => {
                        batch.push(RecvWr { wr_id: (*wr).wr_id, sges: SmallVec::from_slice(list) });
                    }
                    Err(errno) => {
                        refused = Some(errno);
                        break;
                    }
                }
                wr = (*wr).next;
            }
            if let Err(error) = post(&batch) {
                let mut at = first;
                for _ in 0..error.index {
                    at = (*at).next;
                }
                return Err((at, failure(call, &error)));
            }
            if let Some(errno) = refused {
                return Err((wr, errno));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use polypath_verbs::Error;

    use super::*;
    use crate::log::tests::lines_of;

    #[test]
    fn a_panic_is_an_error_of_the_first_receive() {
        let sg_list = core::ptr::null_mut();
        let mut wr = ibv_recv_wr { wr_id: 1, next: core::ptr::null_mut(), sg_list, num_sge: 0 };
        let mut bad = core::ptr::null_mut();
        // SAFETY: it is a list of one work request without elements.
        let errno = unsafe { post_receives("", &mut wr, &mut bad, |_| panic!("a defect")) };
        assert_eq!((errno, bad), (libc::EIO, &raw mut wr));
    }

    #[test]
    fn the_log_names_the_call_that_failed() {
        let sg_list = core::ptr::null_mut();
        let mut wr = ibv_recv_wr { wr_id: 1, next: core::ptr::null_mut(), sg_list, num_sge: 0 };
        let mut bad = core::ptr::null_mut();
        let full = |_: &[RecvWr]| Err(PostFailure { index: 0, error: Error::no_memory("full") });
        let lines = lines_of(|| {
            // SAFETY: it is a list of one work request without elements.
            let errno = unsafe { post_receives("ibv_post_srq_recv", &mut wr, &mut bad, full) };
            assert_eq!((errno, bad), (libc::ENOMEM, &raw mut wr));
        });
        assert_eq!(lines, ["ibv_post_srq_recv: full (errno 12)"]);
    }
}
