//! Completion channels and their events.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;

use libc::{c_int, size_t, ssize_t};
use polypath_verbs::{CompletionChannel, Error};

use crate::context::{Target, Tie, of};
use crate::cq::CCq;
use crate::guard;
use crate::layout::{Pointer, ibv_comp_channel, ibv_context, ibv_cq};

unsafe extern "C-unwind" {
    /// Declared anew because it is a cancellation point: a cancelled thread is unwound from here.
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
}

/// A completion channel.
#[repr(C)]
pub(crate) struct CChannel {
    public: UnsafeCell<ibv_comp_channel>,
    inner: Arc<dyn CompletionChannel>,
    /// Completion queues that use it.
    users: AtomicI32,
    _tie: Tie,
}

impl CChannel {
    /// The traits' channel.
    pub(crate) fn inner(&self) -> &Arc<dyn CompletionChannel> {
        &self.inner
    }

    /// A completion queue begins (1) or ceases (-1) to use it.
    pub(crate) fn used(&self, change: i32) {
        let users = self.users.fetch_add(change, Ordering::AcqRel) + change;
        // SAFETY: a field of a live allocation that programs only look at.
        unsafe { (*self.public.get()).refcnt = users };
    }
}

/// A channel of ours.
///
/// # Safety
/// `channel` must be one of ours, not destroyed.
pub(crate) unsafe fn channel_of<'a>(channel: *const ibv_comp_channel) -> &'a CChannel {
    // SAFETY: ours begin with the public structure.
    unsafe { &*channel.cast() }
}

/// Waits for the next event of an eventfd: one `read`, so that it blocks, is interrupted and is
/// cancelled as upstream's does. Gives false with `errno` set.
///
/// # Safety
/// None of the caller's frames may need to be unwound.
pub(crate) unsafe fn next_event(fd: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: eight bytes of room.
    unsafe { read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is one of ours.
pub(crate) unsafe extern "C-unwind" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    guard::pointer("ibv_create_comp_channel", || {
        // SAFETY: the caller's promise.
        let inner = unsafe { of(context) }.inner().create_channel()?;
        let public = ibv_comp_channel { context, fd: inner.fd(), refcnt: 0 };
        let channel = CChannel {
            public: UnsafeCell::new(public),
            inner,
            users: AtomicI32::new(0),
            // SAFETY: as above.
            _tie: unsafe { Tie::new(context) },
        };
        Ok(Box::leak(Box::new(channel)).public.get())
    })
}

/// `ibv_destroy_comp_channel`: `EBUSY` while completion queues use it.
///
/// # Safety
/// `channel` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_comp_channel(
    channel: *mut ibv_comp_channel,
) -> c_int {
    guard::errno_of("ibv_destroy_comp_channel", || {
        // SAFETY: the caller's promise; the box is the one leaked above.
        unsafe {
            if channel_of(channel).users.load(Ordering::Acquire) != 0 {
                return Err(Error::busy("completion queues still use this channel"));
            }
            drop(Box::from_raw(channel.cast::<CChannel>()));
        }
        Ok(())
    })
}

/// Takes the event that was read for. `None`: its completion queue is gone, wait for the next.
///
/// # Safety
/// `channel` is one of ours.
unsafe fn take(channel: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    // SAFETY: the caller's promise. What the live table holds lives as long as the lock is held,
    // and then until the event that is counted here is acknowledged.
    unsafe {
        let live = of((*channel).context).live();
        let token = channel_of(channel).inner.take()?;
        let Some(&Target::Cq(cq)) = live.get(&token) else { return None };
        (*cq).completion_given();
        Some(cq.cast())
    }
}

/// `ibv_get_cq_event`.
///
/// # Safety
/// `channel` is one of ours; `cq` and `cq_context` are writable.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut Pointer,
) -> c_int {
    loop {
        // SAFETY: the caller's promise; nothing is alive here that would have to be dropped.
        unsafe {
            if !next_event((*channel).fd) {
                return -1;
            }
            if let Some(found) = guard::run(None, || take(channel)) {
                *cq = found;
                *cq_context = (*found).cq_context;
                return 0;
            }
        }
    }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` is one of ours.
pub(crate) unsafe extern "C-unwind" fn ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: the caller's promise.
    unsafe { CCq::completion_counter(cq).acknowledge(count) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::context::close_device;
    use crate::cq::{cq_of, create_cq, destroy_cq};
    use crate::double;

    #[test]
    fn a_channel_of_another_open_context_is_refused() {
        let (context, other) = (double::open(), double::open());
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let channel = create_comp_channel(other);
            guard::set_errno(0);
            let cq = create_cq(context, 4, core::ptr::null_mut(), channel, 0);
            assert!(cq.is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            assert_eq!((*channel).refcnt, 0);
            let cq = create_cq(other, 4, core::ptr::null_mut(), channel, 0);
            assert!(!cq.is_null());
            assert_eq!((destroy_cq(cq), destroy_comp_channel(channel)), (0, 0));
            close_device(context);
            close_device(other);
        }
    }

    #[test]
    fn destroying_a_queue_waits_for_its_events_to_be_acknowledged() {
        let context = double::open();
        let mut name = 7_u8;
        let cq_context: Pointer = (&raw mut name).cast();
        // SAFETY: objects of ours, each freed once; the thread only uses the queue that lives.
        unsafe {
            let channel = create_comp_channel(context);
            let cq = create_cq(context, 4, cq_context, channel, 0);
            assert_eq!((*channel).refcnt, 1);
            assert_eq!(destroy_comp_channel(channel), libc::EBUSY);
            double::complete(cq_of(cq).inner(), 1);
            let (mut from, mut given) = (core::ptr::null_mut(), core::ptr::null_mut());
            assert_eq!(get_cq_event(channel, &mut from, &mut given), 0);
            assert_eq!((from, given), (cq, cq_context));

            let acknowledged = AtomicBool::new(false);
            let address = cq.expose_provenance();
            std::thread::scope(|scope| {
                let acknowledged = &acknowledged;
                let waiting = scope.spawn(move || {
                    let cq: *mut ibv_cq = core::ptr::with_exposed_provenance_mut(address);
                    // SAFETY: the queue of above, destroyed once.
                    assert_eq!(destroy_cq(cq), 0);
                    assert!(acknowledged.load(Ordering::SeqCst), "it did not wait");
                });
                acknowledged.store(true, Ordering::SeqCst);
                ack_cq_events(cq, 1);
                waiting.join().unwrap();
            });
            assert_eq!(destroy_comp_channel(channel), 0);
            close_device(context);
        }
    }

    #[test]
    fn an_event_of_a_queue_that_is_gone_is_nobodys() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let channel = create_comp_channel(context);
            let cq = create_cq(context, 4, core::ptr::null_mut(), channel, 0);
            double::complete(cq_of(cq).inner(), 1);
            assert_eq!(destroy_cq(cq), 0);
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            let (mut from, mut given) = (core::ptr::null_mut(), core::ptr::null_mut());
            assert_eq!(get_cq_event(channel, &mut from, &mut given), -1);
            assert_eq!(guard::errno(), libc::EAGAIN);
            assert_eq!(destroy_comp_channel(channel), 0);
            close_device(context);
        }
    }
}
