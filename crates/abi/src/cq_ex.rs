//! The extended polling API: `ibv_start_poll`, `ibv_wc_read_*` and so on.

use core::ffi::c_void;

use libc::c_int;
use polypath_verbs::Wc;

use crate::cq::{CCq, cq_of, flags, immediate, service_level};
use crate::guard::{self};
use crate::layout::{Pointer, ibv_cq_ex};

/// A function in the form in which the structure stores it.
macro_rules! slot {
    ($function:path) => {
        $function as *const c_void as Pointer
    };
}

/// Fills in the functions.
pub(crate) fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = slot!(start_poll);
    cq.next_poll = slot!(next_poll);
    cq.end_poll = slot!(end_poll);
    cq.read_opcode = slot!(read_opcode);
    cq.read_vendor_err = slot!(read_vendor_err);
    cq.read_byte_len = slot!(read_byte_len);
    cq.read_imm_data = slot!(read_imm_data);
    cq.read_qp_num = slot!(read_qp_num);
    cq.read_src_qp = slot!(read_src_qp);
    cq.read_wc_flags = slot!(read_wc_flags);
    cq.read_slid = slot!(read_zero);
    cq.read_sl = slot!(read_sl);
    cq.read_dlid_path_bits = slot!(read_zero);
    cq.read_completion_ts = slot!(read_timestamp);
    cq.read_cvlan = slot!(read_zero);
    cq.read_flow_tag = slot!(read_zero);
    cq.read_tm_info = slot!(read_tm_info);
    cq.read_completion_wallclock_ns = slot!(read_timestamp);
}

/// Takes the next completion: 0, or `ENOENT` if there is none.
///
/// # Safety
/// Only the caller polls this queue.
unsafe fn advance(cq: &CCq) -> c_int {
    guard::run(libc::EIO, || {
        let mut found = None;
        match cq.inner().poll(1, &mut |wc| found = Some(*wc)) {
            Ok(0) => libc::ENOENT,
            Ok(_) => {
                // SAFETY: the caller promises it, and there is no reference into the cell.
                unsafe {
                    if let Some(wc) = &found {
                        (*cq.public()).status = wc.completion.status as u32;
                        (*cq.public()).wr_id = wc.completion.wr_id;
                    }
                    *cq.polling.current.get() = found;
                }
                0
            }
            Err(error) => error.errno,
        }
    })
}

/// `ibv_start_poll`'s slot.
unsafe extern "C-unwind" fn start_poll(cq: *mut ibv_cq_ex, attr: *const u32) -> c_int {
    // SAFETY: the headers call it with one of our queues. The attributes begin with their mask.
    unsafe {
        if !attr.is_null() && *attr != 0 {
            return libc::EINVAL;
        }
        let cq = cq_of(cq.cast());
        lock(cq);
        let errno = advance(cq);
        if errno != 0 {
            unlock(cq);
        }
        errno
    }
}

/// `ibv_next_poll`'s slot.
unsafe extern "C-unwind" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the headers call it with one of our queues, between start_poll and end_poll.
    unsafe { advance(cq_of(cq.cast())) }
}

/// `ibv_end_poll`'s slot.
unsafe extern "C-unwind" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the headers call it with one of our queues, after start_poll.
    unsafe { unlock(cq_of(cq.cast())) };
}

fn lock(cq: &CCq) {
    if !cq.polling.single_threaded {
        cq.polling.lock.lock();
    }
}

fn unlock(cq: &CCq) {
    if !cq.polling.single_threaded {
        cq.polling.lock.unlock();
    }
}

/// The completion that `ibv_wc_read_*` read.
///
/// # Safety
/// Called between start_poll and end_poll.
unsafe fn current(cq: *mut ibv_cq_ex) -> Option<Wc> {
    // SAFETY: the caller promises it, so nobody else polls meanwhile.
    unsafe { *cq_of(cq.cast()).polling.current.get() }
}

/// One `ibv_wc_read_*`.
macro_rules! read {
    ($name:ident -> $type:ty, |$wc:ident| $value:expr) => {
        unsafe extern "C-unwind" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the headers call it between start_poll and end_poll.
            unsafe { current(cq) }.map_or(0, |$wc| $value)
        }
    };
}

read!(read_opcode -> u32, |wc| wc.completion.opcode as u32);
read!(read_vendor_err -> u32, |wc| wc.completion.vendor_err);
read!(read_byte_len -> u32, |wc| wc.completion.byte_len);
read!(read_imm_data -> u32, |wc| immediate(&wc));
read!(read_qp_num -> u32, |wc| wc.completion.qpn);
read!(read_src_qp -> u32, |wc| wc.completion.src_qpn);
read!(read_wc_flags -> u32, |wc| flags(&wc));
read!(read_sl -> u8, |wc| service_level(&wc));
read!(read_timestamp -> u64, |wc| wc.timestamp);

/// Reads a field that RoCE does not have.
extern "C-unwind" fn read_zero(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

/// Implements `ibv_wc_read_tm_info`. There is no tag matching.
unsafe extern "C-unwind" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut [u64; 2]) {
    if !info.is_null() {
        // SAFETY: the headers' structure has 16 bytes.
        unsafe { *info = [0; 2] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::{destroy_cq, poll_cq};
    use crate::cq_make::create_cq;
    use crate::double;
    use crate::layout::ibv_wc;
    use crate::open::close_device;

    #[test]
    fn both_polling_apis_take_completions_in_order() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let cq = create_cq(context, 4, core::ptr::null_mut(), core::ptr::null_mut(), 0);
            let inner = cq_of(cq).inner();
            (1..=3).for_each(|wr_id| double::complete(inner, wr_id));
            let mut wc = [ibv_wc::default(); 1];
            assert_eq!(poll_cq(cq, 1, wc.as_mut_ptr()), 1);
            assert_eq!((wc[0].wr_id, wc[0].sl), (1, 10));
            let ex: *mut ibv_cq_ex = cq.cast();
            let no_attr = 0_u32;
            assert_eq!(start_poll(ex, &no_attr), 0);
            assert_eq!(((*ex).wr_id, read_byte_len(ex), read_sl(ex)), (2, 20, 10));
            assert_eq!(next_poll(ex), 0);
            assert_eq!((*ex).wr_id, 3);
            assert_eq!(next_poll(ex), libc::ENOENT);
            end_poll(ex);
            assert_eq!(start_poll(ex, &no_attr), libc::ENOENT);
            assert_eq!(start_poll(ex, &1), libc::EINVAL);
            assert_eq!(destroy_cq(cq), 0);
            close_device(context);
        }
    }
}
