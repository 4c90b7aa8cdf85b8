//! Completion queues.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{CompletionQueue, Error, NetworkHeader, Result, Wc};

use crate::channel::CChannel;
use crate::context::{CContext, Tie, is_usable};
use crate::guard::{self, null_argument};
use crate::layout::{ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc};
use crate::lock::RawLock;
use crate::ours::{Object, Ours};
use crate::wait::Counter;

/// `IBV_WC_GRH`.
const WC_GRH: u32 = 1;
/// `IBV_WC_WITH_IMM`.
const WC_WITH_IMM: u32 = 1 << 1;
/// `IBV_WC_WITH_INV`.
const WC_WITH_INV: u32 = 1 << 3;

/// A completion queue. All are created in the extended form.
#[repr(C)]
pub(crate) struct CCq {
    pub(crate) public: UnsafeCell<ibv_cq_ex>,
    /// Room for function pointers that future headers may add.
    pub(crate) spare: [usize; 16],
    pub(crate) inner: Arc<dyn CompletionQueue>,
    pub(crate) token: u64,
    pub(crate) channel: *const CChannel,
    pub(crate) comp_given: AtomicU32,
    pub(crate) async_given: AtomicU32,
    /// State of the extended polling API.
    pub(crate) polling: Polling,
    pub(crate) tie: Tie,
}

// SAFETY: the public structure is the first field, and `create_cq` passes C its address.
unsafe impl Object for CCq {
    type Public = ibv_cq;
}

/// The state of `start_poll` … `end_poll`.
pub(crate) struct Polling {
    /// It is locked from `start_poll` to `end_poll`, unless the program promised to use one thread.
    pub(crate) lock: RawLock,
    pub(crate) single_threaded: bool,
    pub(crate) current: UnsafeCell<Option<Wc>>,
}

impl CCq {
    /// The traits' queue.
    pub(crate) fn inner(&self) -> &Arc<dyn CompletionQueue> {
        &self.inner
    }

    /// Its context.
    pub(crate) fn context(&self) -> &CContext {
        self.tie.context()
    }

    /// The C structure.
    pub(crate) fn public(&self) -> *mut ibv_cq_ex {
        self.public.get()
    }

    /// Notes that a completion event is delivered.
    pub(crate) fn completion_given(&self) {
        self.comp_given.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an asynchronous event is delivered.
    pub(crate) fn async_given(&self) {
        self.async_given.fetch_add(1, Ordering::Relaxed);
    }

    /// The counter of acknowledged completion events.
    ///
    /// # Safety
    /// `cq` is one of ours.
    pub(crate) unsafe fn completion_counter(cq: *mut ibv_cq) -> Counter {
        // SAFETY: the caller promises that the object lives, and these are its fields.
        unsafe {
            Counter {
                mutex: &raw mut (*cq).mutex,
                cond: &raw mut (*cq).cond,
                completed: &raw mut (*cq).comp_events_completed,
            }
        }
    }

    /// The counter of acknowledged asynchronous events.
    ///
    /// # Safety
    /// `cq` is one of ours.
    pub(crate) unsafe fn async_counter(cq: *mut ibv_cq) -> Counter {
        // SAFETY: the caller promises that the object lives, and these are its fields.
        unsafe {
            Counter {
                completed: &raw mut (*cq).async_events_completed,
                ..Self::completion_counter(cq)
            }
        }
    }
}

/// A completion queue of ours.
///
/// # Safety
/// `cq` must be one of ours, not destroyed.
pub(crate) unsafe fn cq_of<'a>(cq: *const ibv_cq) -> &'a CCq {
    debug_assert_eq!(offset_of!(CCq, public), 0);
    // SAFETY: our queues begin with the public structure.
    unsafe { &*cq.cast() }
}

/// `ibv_resize_cq`.
pub(crate) extern "C-unwind" fn resize_cq(cq: Ours<CCq>, cqe: c_int) -> c_int {
    guard::errno_of("ibv_resize_cq", || {
        let wanted = u32::try_from(cqe).ok().filter(|&cqe| cqe > 0);
        let wanted =
            wanted.ok_or_else(|| Error::invalid("a completion queue has at least one entry"))?;
        let now = cq.inner.resize(wanted)?;
        // SAFETY: this is a field of a live allocation, which programs only read.
        unsafe { (*cq.public.get()).base.cqe = c_int::try_from(now).unwrap_or(c_int::MAX) };
        Ok(())
    })
}

/// `ibv_destroy_cq`.
///
/// # Safety
/// `cq` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let (mut completions, mut asyncs) = (0, 0);
    // SAFETY: the trampoline passes only our queues. The wait for events is outside of the guard,
    // where nothing needs to be dropped: it is a cancellation point, like upstream's. After it
    // nobody else uses the queue.
    unsafe {
        let errno = guard::errno_of("ibv_destroy_cq", || {
            let this = cq_of(cq);
            this.inner.destroy()?;
            this.context().live().remove(&this.token);
            completions = this.comp_given.load(Ordering::Acquire);
            asyncs = this.async_given.load(Ordering::Acquire);
            Ok(())
        });
        if errno != 0 {
            return errno;
        }
        CCq::completion_counter(cq).wait(completions);
        CCq::async_counter(cq).wait(asyncs);
        guard::run(libc::EIO, || {
            let this = Box::from_raw(cq.cast::<CCq>());
            debug_assert!(this.spare.iter().all(|&word| word == 0));
            if let Some(channel) = this.channel.as_ref() {
                channel.used(-1);
            }
            0
        })
    }
}

/// Converts a completion to the C structure.
pub(crate) fn convert(wc: &Wc) -> ibv_wc {
    let c = &wc.completion;
    ibv_wc {
        wr_id: c.wr_id,
        status: c.status as u32,
        opcode: c.opcode as u32,
        vendor_err: c.vendor_err,
        byte_len: c.byte_len,
        imm_data: immediate(wc),
        qp_num: c.qpn,
        src_qp: c.src_qpn,
        wc_flags: flags(wc),
        pkey_index: 0,
        slid: 0,
        sl: service_level(wc),
        dlid_path_bits: 0,
    }
}

/// Immediate data in network order, or the invalidated key in host order.
pub(crate) fn immediate(wc: &Wc) -> u32 {
    match (wc.completion.imm, wc.completion.invalidated_rkey) {
        (Some(imm), _) => u32::from_ne_bytes(imm),
        (None, Some(rkey)) => rkey,
        (None, None) => 0,
    }
}

/// `sl`: RoCE has no service levels. Adapters report here by which header a datagram came (IBTA
/// A17.4.5.1): 8 for UDP, and 1 for IPv6 or 2 for IPv4. UCX before 1.18 drops datagrams without it.
pub(crate) fn service_level(wc: &Wc) -> u8 {
    match wc.completion.grh {
        Some(NetworkHeader::Ipv4) => 8 | 2,
        Some(NetworkHeader::Ipv6) => 8 | 1,
        None => 0,
    }
}

/// `wc_flags`.
pub(crate) fn flags(wc: &Wc) -> u32 {
    let c = &wc.completion;
    let grh = if c.grh.is_some() { WC_GRH } else { 0 };
    let imm = if c.imm.is_some() { WC_WITH_IMM } else { 0 };
    let inv = if c.invalidated_rkey.is_some() { WC_WITH_INV } else { 0 };
    grh | imm | inv
}

/// The function in `ibv_poll_cq`'s slot.
///
/// # Safety
/// It is called as the headers do.
pub(crate) unsafe extern "C-unwind" fn poll_cq(
    cq: *mut ibv_cq,
    entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let Ok(limit) = usize::try_from(entries) else { return -1 };
    guard::run(-1, || {
        let mut at = 0;
        // SAFETY: the caller has room for `entries` completions, and no more are written.
        let polled = unsafe {
            cq_of(cq).inner.poll(limit, &mut |completion| {
                wc.add(at).write_unaligned(convert(completion));
                at += 1;
            })
        };
        match polled {
            Ok(_) => c_int::try_from(at).unwrap_or(c_int::MAX),
            Err(_) => -1,
        }
    })
}

/// `ibv_req_notify_cq`'s slot, which the headers call through the queue's own context.
pub(crate) extern "C-unwind" fn req_notify_cq(cq: Ours<CCq>, solicited: c_int) -> c_int {
    guard::errno_of("ibv_req_notify_cq", || cq.inner.arm(solicited != 0))
}

/// `ibv_modify_cq`'s slot, which the headers call through the queue's own context.
pub(crate) extern "C-unwind" fn modify_cq(
    cq: Option<Ours<CCq>>,
    attr: Option<&ibv_modify_cq_attr>,
) -> c_int {
    const MODERATE: u32 = 1;
    guard::errno_of("ibv_modify_cq", || {
        let cq = cq.ok_or_else(|| null_argument("cq"))?;
        let attr = attr.ok_or_else(|| null_argument("attr"))?;
        if attr.attr_mask & !MODERATE != 0 {
            return Err(Error::invalid("ibv_modify_cq_attr has an unknown attr_mask"));
        }
        if attr.attr_mask & MODERATE != 0 {
            cq.inner.moderate(attr.cq_count, attr.cq_period)?;
        }
        Ok(())
    })
}

/// Checks a completion queue that is passed as an argument.
///
/// # Safety
/// `cq` is null or a completion queue of any provider.
pub(crate) unsafe fn argument<'a>(cq: *const ibv_cq) -> Result<&'a CCq> {
    // SAFETY: the queue of any provider begins with its context, which identifies its provider.
    unsafe {
        if cq.is_null() {
            return Err(null_argument("a completion queue"));
        }
        if !is_usable((*cq).context) {
            return Err(Error::invalid("the completion queue belongs to another device"));
        }
        Ok(cq_of(cq))
    }
}
