//! Completion channels and their events.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;

use libc::{c_int, size_t, ssize_t};
use polypath_verbs::{Attend, CompletionChannel, Error};

use crate::context::{Tie, of};
use crate::guard;
use crate::layout::{ibv_comp_channel, ibv_context};

unsafe extern "C-unwind" {
    // Declared here because they are cancellation points: a cancelled thread is unwound from them.
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    fn ppoll(
        list: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// A completion channel.
#[repr(C)]
pub(crate) struct CChannel {
    public: UnsafeCell<ibv_comp_channel>,
    inner: Arc<dyn CompletionChannel>,
    /// The number of completion queues that use it.
    users: AtomicI32,
    _tie: Tie,
}

impl CChannel {
    /// The traits' channel.
    pub(crate) fn inner(&self) -> &Arc<dyn CompletionChannel> {
        &self.inner
    }

    /// Notes that a completion queue begins (1) or ends (-1) using it.
    pub(crate) fn used(&self, change: i32) {
        let users = self.users.fetch_add(change, Ordering::AcqRel) + change;
        // SAFETY: this is a field of a live allocation, which programs only read.
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

/// Waits for the next event of an eventfd. It uses one `read`, so that it blocks, is interrupted
/// and is cancelled like upstream's. Returns false with `errno` set.
///
/// # Safety
/// None of the caller's frames needs to be unwound.
pub(crate) unsafe fn next_event(fd: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: there is room for eight bytes.
    unsafe { read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// Waits for the channel's next event like [`next_event`], and lets the thread do the device's work
/// meanwhile, if the device wants that.
///
/// # Safety
/// `channel` is one of ours. None of the caller's frames needs to be unwound.
pub(crate) unsafe fn next_completion_event(channel: *mut ibv_comp_channel) -> bool {
    loop {
        // SAFETY: the caller promises it. Nothing here needs to be dropped: if the thread is cancelled, its
        // thread-local data tells the device that it is gone.
        unsafe {
            let inner = channel_of(channel).inner();
            let Attend::Wait { descriptor, timeout } = guard::run(Attend::Read, || inner.attend())
            else {
                let read = next_event((*channel).fd);
                guard::run((), || inner.leave());
                return read;
            };
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut list = [entry((*channel).fd), entry(descriptor)];
            let timeout = libc::timespec {
                tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let woken = ppoll(list.as_mut_ptr(), 2, &raw const timeout, core::ptr::null());
            if woken < 0 && guard::errno() == libc::EINTR && may_interrupt() {
                guard::run((), || inner.leave());
                guard::set_errno(libc::EINTR);
                return false;
            }
        }
    }
}

/// Signals of a thread's own faults, which do not come while it waits.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];

/// Whether a signal handler of the program interrupts a `read` (`signal(7)`). Which handler has just run is
/// not known, so one without `SA_RESTART` counts.
fn may_interrupt() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).any(|signal| {
        // SAFETY: zeros are a valid `sigaction`, which the call overwrites. It refuses numbers that are the C
        // library's own.
        let action = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let known = libc::sigaction(signal, core::ptr::null(), &raw mut action) == 0;
            known.then_some(action)
        };
        action.is_some_and(|action| {
            !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
                && action.sa_flags & libc::SA_RESTART == 0
        })
    })
}

/// `ibv_create_comp_channel`.
///
/// # Safety
/// `context` is one of ours.
pub(crate) unsafe extern "C-unwind" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    guard::pointer("ibv_create_comp_channel", || {
        // SAFETY: the trampoline passes only our contexts, and the program closes none that is in
        // use.
        let owner = unsafe { of(context) };
        let inner = owner.inner().create_channel()?;
        let public = ibv_comp_channel { context, fd: inner.fd(), refcnt: 0 };
        let channel = CChannel {
            public: UnsafeCell::new(public),
            inner,
            users: AtomicI32::new(0),
            _tie: Tie::new(owner),
        };
        Ok(Box::leak(Box::new(channel)).public.get())
    })
}

/// Implements `ibv_destroy_comp_channel`: `EBUSY` while completion queues use it.
///
/// # Safety
/// `channel` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_comp_channel(
    channel: *mut ibv_comp_channel,
) -> c_int {
    guard::errno_of("ibv_destroy_comp_channel", || {
        // SAFETY: the caller promises it. The box is the one that was leaked above.
        unsafe {
            if channel_of(channel).users.load(Ordering::Acquire) != 0 {
                return Err(Error::busy("completion queues still use this channel"));
            }
            drop(Box::from_raw(channel.cast::<CChannel>()));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::destroy_cq;
    use crate::cq_make::create_cq;
    use crate::double;
    use crate::open::close_device;

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

    static HANDLED: AtomicI32 = AtomicI32::new(0);

    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    /// Handles a signal with these flags.
    fn handle(signal: c_int, flags: c_int) {
        // SAFETY: the handler only counts.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = count as *const () as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(signal, &raw const action, core::ptr::null_mut()), 0);
        }
    }

    #[test]
    fn a_thread_that_attends_is_interrupted_as_by_a_read() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once. The thread uses only the channel, which lives.
        unsafe {
            let channel = create_comp_channel(context);
            let cq = create_cq(context, 4, core::ptr::null_mut(), channel, 0);
            double::be_attended(channel_of(channel).inner());
            let address = channel.expose_provenance();
            let (tell, told) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                tell.send(libc::pthread_self()).unwrap();
                let channel = core::ptr::with_exposed_provenance_mut(address);
                let first = (next_completion_event(channel), guard::errno());
                // Signals that were sent too many may interrupt the next call, too.
                while !next_completion_event(channel) && guard::errno() == libc::EINTR {}
                first
            });
            let id = told.recv().unwrap();
            // A handler that restarts calls: it goes on waiting, however often it is interrupted.
            handle(libc::SIGUSR1, libc::SA_RESTART);
            while HANDLED.load(Ordering::SeqCst) < 20 {
                libc::pthread_kill(id, libc::SIGUSR1);
                std::thread::yield_now();
            }
            assert!(double::is_attended(channel_of(channel).inner()), "it was interrupted");
            // One that does not. It may run before the thread waits, so it runs until that is over.
            handle(libc::SIGUSR2, 0);
            while double::is_attended(channel_of(channel).inner()) {
                libc::pthread_kill(id, libc::SIGUSR2);
                std::thread::yield_now();
            }
            libc::signal(libc::SIGUSR2, libc::SIG_IGN);
            double::complete(crate::cq::cq_of(cq).inner(), 1);
            assert_eq!(thread.join().unwrap(), (false, libc::EINTR));
            assert_eq!((destroy_cq(cq), destroy_comp_channel(channel)), (0, 0));
            close_device(context);
        }
    }
}
