//! `ibv_post_recv`, and what it shares with `ibv_post_srq_recv`.

use libc::c_int;
use polypath_verbs::{PostFailure, RecvWr};
use smallvec::SmallVec;

use crate::guard;
use crate::layout::{ibv_qp, ibv_recv_wr};
use crate::post::{BATCH, count, failure, sges};
use crate::qp::qp_of;
use crate::unaligned::Anywhere;

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
                    bad.write_unaligned(refused);
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
                let ibv_recv_wr { wr_id, next, sg_list, num_sge } = Anywhere::of(wr).0;
                match count(num_sge).and_then(|count| sges(sg_list, count)) {
                    Ok(list) => {
                        let sges = list.iter().map(|sge| sge.0).collect();
                        batch.push(RecvWr { wr_id, sges });
                    }
                    Err(errno) => {
                        refused = Some(errno);
                        break;
                    }
                }
                wr = next;
            }
            if let Err(error) = post(&batch) {
                let mut at = first;
                for _ in 0..error.index {
                    at = Anywhere::of(at).0.next;
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
    use crate::layout::ibv_sge;
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

    /// As programs have it that keep work requests in packed structures.
    #[repr(C, packed)]
    struct Odd {
        before: u8,
        first: ibv_recv_wr,
        second: ibv_recv_wr,
        sges: [ibv_sge; 2],
        bad: *mut ibv_recv_wr,
    }

    #[test]
    fn a_list_may_lie_at_odd_addresses() {
        let null = core::ptr::null_mut();
        let wr =
            |wr_id| ibv_recv_wr { wr_id, next: null, sg_list: core::ptr::null_mut(), num_sge: 2 };
        let sge = |addr| ibv_sge { addr, length: 5, lkey: 6 };
        let sges = [sge(10), sge(20)];
        let mut odd = Odd { before: 0, first: wr(1), second: wr(2), sges, bad: null };
        let elements = (&raw mut odd.sges).cast::<ibv_sge>();
        (odd.first.next, odd.first.sg_list) = (&raw mut odd.second, elements);
        odd.second.sg_list = elements;
        let post = |batch: &[RecvWr]| {
            let read: Vec<_> =
                batch.iter().map(|wr| (wr.wr_id, wr.sges[0].addr, wr.sges[1].addr)).collect();
            assert_eq!(read, [(1, 10, 20), (2, 10, 20)]);
            Err(PostFailure { index: 1, error: Error::no_memory("full") })
        };
        // SAFETY: it is a list of two work requests with two elements each.
        let errno = unsafe { post_receives("", &raw mut odd.first, &raw mut odd.bad, post) };
        let second = &raw mut odd.second;
        assert_eq!((errno, { odd.bad }, odd.before), (libc::ENOMEM, second, 0));
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
