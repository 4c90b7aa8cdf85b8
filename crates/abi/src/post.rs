//! Posts work requests: the hot path.
//!
//! A list of work requests is converted on the stack and passed on in batches. Scatter/gather lists
//! are not copied (`ibv_sge` has the traits' layout), unless they lie at odd addresses; inline data are,
//! if in several pieces.

use core::mem::{align_of, offset_of, size_of};
use core::slice;

use libc::c_int;
use polypath_verbs::{
    Access, MwBind, PostFailure, QpType, SendData, SendFlags, SendOp, SendRequest, Sge, UdTarget,
};
use smallvec::SmallVec;

use crate::ah::ah_of;
use crate::guard;
use crate::layout::{
    ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_send_wr, ibv_sge, wr_bind_mw,
};
use crate::qp::{CQp, qp_of};
use crate::unaligned::{Anywhere, elements};

/// The number of work requests that are passed on at once.
pub(crate) const BATCH: usize = 16;

/// The largest scatter/gather list that is read at all; it is above any device's limit.
const SGES_MAX: usize = 1024;

/// The largest amount of inline data in bytes that is gathered; it is above any device's limit.
const INLINE_MAX: usize = 1 << 16;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, len) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// A program's scatter/gather list.
///
/// # Safety
/// `list` has `count` elements that live as long as the result is used.
pub(crate) unsafe fn sges<'a>(
    list: *const ibv_sge,
    count: usize,
) -> Result<&'a [Anywhere<Sge>], c_int> {
    if count > 0 && (list.is_null() || count > SGES_MAX) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller promises it. Both types have the same layout, as asserted above.
    Ok(unsafe { elements(list.cast(), count) })
}

/// A scatter/gather list as it lies in memory, if it is aligned as the traits need it.
fn in_place(list: &[Anywhere<Sge>]) -> Option<&[Sge]> {
    let start = list.as_ptr().cast::<Sge>();
    // SAFETY: the elements have the same layout, and are aligned as the check says.
    start.is_aligned().then(|| unsafe { slice::from_raw_parts(start, list.len()) })
}

pub(crate) fn count(number: c_int) -> Result<usize, c_int> {
    usize::try_from(number).map_err(|_| libc::EINVAL)
}

/// A program's work request.
type Wr = Anywhere<ibv_send_wr>;

/// The operation of a work request. Binds are handled separately, see [`bind`].
fn operation(wr: &Wr) -> Result<SendOp, c_int> {
    let imm = wr.0.imm_data.to_ne_bytes();
    // SAFETY: the opcode says which part of the union the program has filled in, and all parts are
    // plain numbers.
    let (rdma, atomic) = unsafe { (wr.0.wr.rdma, wr.0.wr.atomic) };
    Ok(match wr.0.opcode {
        0 => SendOp::Write { va: rdma.remote_addr, rkey: rdma.rkey },
        1 => SendOp::WriteImm { va: rdma.remote_addr, rkey: rdma.rkey, imm },
        2 => SendOp::Send,
        3 => SendOp::SendImm(imm),
        4 => SendOp::Read { va: rdma.remote_addr, rkey: rdma.rkey },
        5 => SendOp::CompareSwap {
            va: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        6 => {
            SendOp::FetchAdd { va: atomic.remote_addr, rkey: atomic.rkey, add: atomic.compare_add }
        }
        7 => SendOp::LocalInv { rkey: wr.0.imm_data },
        9 => SendOp::SendInv { rkey: wr.0.imm_data },
        15 => SendOp::AtomicWrite { va: rdma.remote_addr, rkey: rdma.rkey },
        // TSO, a driver's own, and FLUSH, for which the structure has no room.
        10 | 11 | 14 => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    })
}

/// The name of the call in the log.
const POST_SEND: &str = "ibv_post_send";

/// `IBV_WR_BIND_MW`.
const OPCODE_BIND: u32 = 8;

/// Converts a work request to the traits' form. Its data stay where the program has them.
///
/// # Safety
/// `wr` is a work request for a queue pair of `qp_type`. What it points to lives as long as the
/// result is used. `gathered` is the result of [`gather`] for it, if it is posted alone.
unsafe fn request<'a>(
    qp_type: QpType,
    wr: &Wr,
    gathered: &'a Gathered,
) -> Result<SendRequest<'a>, c_int> {
    let op = operation(wr)?;
    let flags = SendFlags::from_bits_truncate(wr.0.send_flags);
    // SAFETY: the caller promises that the elements and the handle of `wr` can be read, and that
    // inline data live as long as the result is used. The type says which part of `wr` is filled
    // in.
    unsafe {
        let list = sges(wr.0.sg_list, count(wr.0.num_sge)?)?;
        let data = match (flags.contains(SendFlags::INLINE), list) {
            (false, _) => SendData::Sges(in_place(list).unwrap_or(&gathered.sges)),
            (true, []) => SendData::Inline(&[]),
            (true, [one]) => SendData::Inline(bytes(one.0)),
            (true, _) => SendData::Inline(&gathered.bytes),
        };
        let ud = if qp_type == QpType::Ud {
            let target = wr.0.wr.ud;
            if target.ah.is_null() {
                return Err(libc::EINVAL);
            }
            let ah = ah_of(target.ah).inner();
            Some(UdTarget { ah, qpn: target.remote_qpn, qkey: target.remote_qkey })
        } else {
            None
        };
        let xrc_srqn = if qp_type == QpType::XrcSend { wr.0.remote_srqn } else { 0 };
        Ok(SendRequest { wr_id: wr.0.wr_id, op, flags, data, ud, xrc_srqn })
    }
}

/// The program's memory of an inline element. Its key is ignored.
///
/// # Safety
/// The element describes readable memory that lives as long as the result is used.
unsafe fn bytes<'a>(sge: Sge) -> &'a [u8] {
    if sge.len == 0 {
        return &[];
    }
    let start = core::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: the element says that this many bytes can be read, and it is not empty.
    unsafe { slice::from_raw_parts(start, sge.len as usize) }
}

/// What is copied of a work request that is posted alone.
#[derive(Default)]
struct Gathered {
    /// Its inline data.
    bytes: SmallVec<[u8; 256]>,
    /// Its elements, if they don't lie as the traits need them.
    sges: SmallVec<[Sge; 4]>,
}

/// Joins inline data of several pieces, or copies the elements.
///
/// # Safety
/// As [`bytes`], for every element of inline data.
unsafe fn gather(wr: &Wr) -> Result<Gathered, c_int> {
    let mut gathered = Gathered::default();
    // SAFETY: the list has as many elements as `wr` says, each of which is readable now if it is inline.
    unsafe {
        let list = sges(wr.0.sg_list, count(wr.0.num_sge)?)?;
        if !is_inline(wr) {
            gathered.sges.extend(list.iter().map(|sge| sge.0));
            return Ok(gathered);
        }
        for sge in list.iter().map(|sge| sge.0) {
            if gathered.bytes.len() + sge.len as usize > INLINE_MAX {
                return Err(libc::EINVAL);
            }
            gathered.bytes.extend_from_slice(bytes(sge));
        }
    }
    Ok(gathered)
}

/// Whether a work request carries its data itself.
fn is_inline(wr: &Wr) -> bool {
    wr.0.send_flags & SendFlags::INLINE.bits() != 0
}

/// Whether a work request must be posted separately: a bind, inline data that must be joined, or
/// elements that must be copied.
fn alone(wr: &Wr) -> bool {
    wr.0.opcode == OPCODE_BIND
        || (is_inline(wr) && wr.0.num_sge > 1)
        || !{ wr.0.sg_list }.is_aligned()
}

/// Logs why `call` failed, and returns the errno.
pub(crate) fn failure(call: &str, error: &PostFailure) -> c_int {
    crate::log::line(format_args!("{call}: {}", error.error));
    error.error.errno
}

/// Posts one work request that must be posted separately.
///
/// # Safety
/// As [`request`].
unsafe fn post_alone(qp: &CQp, wr: &Wr) -> Result<(), c_int> {
    // SAFETY: the opcode says which part of `wr` is filled in. What it points to is ours or null.
    unsafe {
        if wr.0.opcode == OPCODE_BIND {
            let wr_bind_mw { mw, rkey, bind_info } = wr.0.bind_mw;
            only_type_2(mw)?;
            let flags = SendFlags::from_bits_truncate(wr.0.send_flags);
            return bind(POST_SEND, qp, mw, rkey, &bind_info, (wr.0.wr_id, flags));
        }
        let gathered = gather(wr)?;
        let request = request(qp.qp_type(), wr, &gathered)?;
        qp.inner().post_send(&[request], false).map_err(|error| failure(POST_SEND, &error))
    }
}

/// Rejects windows of type 1. Only `ibv_bind_mw` binds them, because it chooses their keys.
///
/// # Safety
/// `mw` is null or ours.
pub(crate) unsafe fn only_type_2(mw: *const ibv_mw) -> Result<(), c_int> {
    const TYPE_2: c_int = 2;
    // SAFETY: it is null, or our window, whose public structure can be read.
    match unsafe { mw.as_ref() } {
        Some(window) if window.mw_type == TYPE_2 => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

/// Stores the parameters of a window's bind, which will be posted next.
///
/// # Safety
/// `mw` and the region are null or ours.
pub(crate) unsafe fn stage(
    qp: &CQp,
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, c_int> {
    // SAFETY: the caller promises that both are null or ours, so their structures can be read.
    unsafe {
        let Some(window) = mw.as_ref() else { return Err(libc::EINVAL) };
        let region = match info.mr.as_ref() {
            Some(mr) => mr.rkey,
            None if info.length == 0 => 0,
            None => return Err(libc::EINVAL),
        };
        let access = Access::from_bits(info.mw_access_flags).ok_or(libc::EINVAL)?;
        let bind = MwBind { region, addr: info.addr, len: info.length, access };
        let pd = qp.pd_number().ok_or(libc::EINVAL)?;
        let (context, qpn) = (qp.context().inner(), qp.inner().number());
        let staged = context.stage_bind(pd, qpn, window.handle, rkey, &bind);
        let rkey = staged.map_err(|error| error.errno)?;
        Ok(SendOp::BindMw { mw: window.handle, rkey })
    }
}

/// Undoes [`stage`].
pub(crate) fn unstage(qp: &CQp, op: SendOp) {
    if let SendOp::BindMw { mw, rkey } = op {
        qp.context().inner().unstage_bind(qp.inner().number(), mw, rkey);
    }
}

/// Posts a bind, as part of `call`.
///
/// # Safety
/// As [`stage`].
unsafe fn bind(
    call: &str,
    qp: &CQp,
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
    (wr_id, flags): (u64, SendFlags),
) -> Result<(), c_int> {
    // SAFETY: the caller promises that the window and the region are as `stage` requires.
    let op = unsafe { stage(qp, mw, rkey, info)? };
    let request =
        SendRequest { wr_id, op, flags, data: SendData::Sges(&[]), ud: None, xrc_srqn: 0 };
    qp.inner().post_send(&[request], false).map_err(|error| {
        unstage(qp, op);
        failure(call, &error)
    })
}

/// Posts a list from `wr` on. On failure, returns the first rejected work request and the errno.
///
/// # Safety
/// As [`request`], for the whole list.
unsafe fn post_list(qp: &CQp, mut wr: *mut ibv_send_wr) -> Result<(), (*mut ibv_send_wr, c_int)> {
    let qp_type = qp.qp_type();
    let nothing = Gathered::default();
    // SAFETY: each element of the list is a work request as `request` requires. Null ends the list.
    unsafe {
        while !wr.is_null() {
            if alone(Wr::of(wr)) {
                post_alone(qp, Wr::of(wr)).map_err(|errno| (wr, errno))?;
                wr = Wr::of(wr).0.next;
                continue;
            }
            let mut batch: SmallVec<[SendRequest<'_>; BATCH]> = SmallVec::new();
            let first = wr;
            let mut refused = None;
            while !wr.is_null() && batch.len() < BATCH && !alone(Wr::of(wr)) {
                match request(qp_type, Wr::of(wr), &nothing) {
                    Ok(request) => batch.push(request),
                    Err(errno) => {
                        refused = Some(errno);
                        break;
                    }
                }
                wr = Wr::of(wr).0.next;
            }
            if let Err(error) = qp.inner().post_send(&batch, false) {
                let mut bad = first;
                for _ in 0..error.index {
                    bad = Wr::of(bad).0.next;
                }
                return Err((bad, failure(POST_SEND, &error)));
            }
            if let Some(errno) = refused {
                return Err((wr, errno));
            }
        }
    }
    Ok(())
}

/// `ibv_post_send`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the headers call it through the context of one of our queue pairs, with a list of
    // work requests for it. `bad` is null or writable.
    unsafe {
        match guard::run(Err((list, libc::EIO)), || post_list(qp_of(qp), list)) {
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

/// The function in `ibv_bind_mw`'s slot, for windows of type 1, whose key the library chooses.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    attr: *const ibv_mw_bind,
) -> c_int {
    const TYPE_1: c_int = 1;
    guard::run(libc::EIO, || {
        // SAFETY: the headers pass a queue pair, a window and attributes. Each is ours or null,
        // which is rejected first.
        unsafe {
            let (Some(attr), false) = (attr.as_ref(), qp.is_null() || mw.is_null()) else {
                return libc::EINVAL;
            };
            if (*mw).mw_type != TYPE_1 {
                return libc::EINVAL;
            }
            // The low byte of a key is the program's and changes with every bind (IBTA 10.6.7.2).
            let rkey = (*mw).rkey & !0xff | (*mw).rkey.wrapping_add(1) & 0xff;
            let flags = SendFlags::from_bits_truncate(attr.send_flags);
            let work = (attr.wr_id, flags);
            match bind("ibv_bind_mw", qp_of(qp), mw, rkey, &attr.bind_info, work) {
                Ok(()) => {
                    (*mw).rkey = rkey;
                    0
                }
                Err(errno) => errno,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use core::mem::zeroed;
    use core::ptr::null_mut;

    use super::*;
    use crate::double::{self, Kit};
    use crate::layout::ibv_mw_bind;
    use crate::log::tests::lines_of;
    use crate::memory::{alloc_mw, dealloc_mw};

    /// A list of sends with these ids, each of one element.
    fn sends(names: core::ops::Range<u64>, sge: *mut ibv_sge) -> Vec<ibv_send_wr> {
        let mut list: Vec<ibv_send_wr> = names
            .map(|wr_id| {
                // SAFETY: zero is valid for every field.
                let mut wr: ibv_send_wr = unsafe { zeroed() };
                (wr.wr_id, wr.opcode, wr.sg_list, wr.num_sge) = (wr_id, 2, sge, 1);
                wr
            })
            .collect();
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        list
    }

    #[test]
    fn a_long_list_is_posted_in_order_and_the_first_refused_is_named() {
        let kit = Kit::new(20);
        let mut sge = ibv_sge::default();
        let mut list = sends(100..130, &mut sge);
        list[25].opcode = 99;
        let mut bad = null_mut();
        // SAFETY: objects of ours and a list that lives.
        unsafe {
            assert_eq!(post_send(kit.qp, list.as_mut_ptr(), &mut bad), libc::EINVAL);
            assert_eq!(bad, &raw mut list[25]);
        }
        let posted = double::posted(&kit);
        assert_eq!(posted.len(), 25);
        assert!(posted[24].starts_with("124 Send"));
    }

    #[test]
    fn a_full_queue_names_the_first_that_did_not_fit() {
        let kit = Kit::new(4);
        let mut sge = ibv_sge::default();
        let mut list = sends(0..6, &mut sge);
        let mut bad = null_mut();
        // SAFETY: objects of ours and a list that lives.
        unsafe {
            assert_eq!(post_send(kit.qp, list.as_mut_ptr(), &mut bad), libc::ENOMEM);
            assert_eq!((*bad).wr_id, 4);
        }
    }

    #[test]
    fn the_log_names_the_call_that_failed() {
        let kit = Kit::new(0);
        let mut sge = ibv_sge::default();
        let mut list = sends(0..1, &mut sge);
        // SAFETY: objects of ours, each freed once; zero is valid for every field.
        let lines = lines_of(|| unsafe {
            assert_eq!(post_send(kit.qp, list.as_mut_ptr(), null_mut()), libc::ENOMEM);
            let mw = alloc_mw(kit.pd, 1);
            let attr: ibv_mw_bind = zeroed();
            assert_eq!(bind_mw(kit.qp, mw, &attr), libc::ENOMEM);
            assert_eq!(dealloc_mw(mw), 0);
        });
        assert_eq!(lines, ["ibv_post_send: full (errno 12)", "ibv_bind_mw: full (errno 12)"]);
    }

    #[test]
    fn inline_data_is_taken_from_the_programs_memory_in_one_piece() {
        let kit = Kit::new(8);
        let text = *b"abcdef";
        let at = |offset| text.as_ptr().wrapping_add(offset).expose_provenance() as u64;
        let mut pieces = [
            ibv_sge { addr: at(0), length: 2, lkey: 0 },
            ibv_sge { addr: at(4), length: 2, lkey: 0 },
        ];
        let mut one = sends(1..2, &mut pieces[0]);
        one[0].send_flags = SendFlags::INLINE.bits();
        let mut two = sends(2..3, &mut pieces[0]);
        (two[0].send_flags, two[0].num_sge) = (SendFlags::INLINE.bits(), 2);
        one[0].next = two.as_mut_ptr();
        // SAFETY: objects of ours and a list that lives.
        unsafe { assert_eq!(post_send(kit.qp, one.as_mut_ptr(), null_mut()), 0) };
        assert_eq!(
            double::posted(&kit),
            ["1 Send inline [97, 98]", "2 Send inline [97, 98, 101, 102]"]
        );
    }

    /// As programs have it that keep work requests in packed structures.
    #[repr(C, packed)]
    struct Odd {
        before: u8,
        first: ibv_send_wr,
        second: ibv_send_wr,
        sges: [ibv_sge; 2],
        bad: *mut ibv_send_wr,
    }

    #[test]
    fn a_list_may_lie_at_odd_addresses() {
        let kit = Kit::new(8);
        let text = *b"abcdef";
        let at = |offset| text.as_ptr().wrapping_add(offset).expose_provenance() as u64;
        let sges = [
            ibv_sge { addr: at(0), length: 2, lkey: 0 },
            ibv_sge { addr: at(4), length: 1, lkey: 0 },
        ];
        let [first, second, third] = &sends(1..4, null_mut())[..] else { unreachable!() };
        let mut odd = Odd { before: 0, first: *first, second: *second, sges, bad: null_mut() };
        let mut last = *third;
        let elements = (&raw mut odd.sges).cast::<ibv_sge>();
        (odd.first.next, odd.first.sg_list) = (&raw mut odd.second, elements);
        (odd.second.next, odd.second.sg_list) = (&raw mut last, elements);
        (odd.second.num_sge, odd.second.send_flags) = (2, SendFlags::INLINE.bits());
        (last.num_sge, last.opcode) = (0, 99);
        // SAFETY: objects of ours and a list that lives.
        let status = unsafe { post_send(kit.qp, &raw mut odd.first, &raw mut odd.bad) };
        assert_eq!((status, { odd.bad }, odd.before), (libc::EINVAL, &raw mut last, 0));
        assert_eq!(double::posted(&kit), ["1 Send 1 sges", "2 Send inline [97, 98, 101]"]);
    }

    #[test]
    fn a_bound_window_of_type_1_has_a_new_key() {
        let kit = Kit::new(8);
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let mw = alloc_mw(kit.pd, 1);
            let mut attr: ibv_mw_bind = zeroed();
            assert_eq!(bind_mw(kit.qp, mw, &attr), 0);
            assert_eq!((*mw).rkey, 0x101);
            attr.bind_info.length = 1; // of no region
            assert_eq!(bind_mw(kit.qp, mw, &attr), libc::EINVAL);
            assert_eq!((*mw).rkey, 0x101);
            assert_eq!(dealloc_mw(mw), 0);
        }
        assert_eq!(double::posted(&kit), ["stage 3 0x101", "0 BindMw { mw: 3, rkey: 257 } 0 sges"]);
    }

    #[test]
    fn a_posted_bind_is_for_windows_of_type_2() {
        let kit = Kit::new(8);
        // SAFETY: objects of ours, each freed once; zero is valid for every field.
        unsafe {
            for (mw_type, errno) in [(1, libc::EINVAL), (2, 0)] {
                let mw = alloc_mw(kit.pd, mw_type);
                let mut wr: ibv_send_wr = zeroed();
                wr.opcode = OPCODE_BIND;
                (wr.bind_mw.mw, wr.bind_mw.rkey) = (mw, (*mw).rkey + 1);
                let mut bad = null_mut();
                assert_eq!(post_send(kit.qp, &mut wr, &mut bad), errno);
                assert_eq!(dealloc_mw(mw), 0);
            }
        }
    }
}
