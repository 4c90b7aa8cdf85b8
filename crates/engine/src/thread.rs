//! Threads of our own.

use std::io;

/// Starts a thread that takes no signals: those are the application's.
#[allow(unsafe_code)]
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: both sets are plain data on this stack; the caller's mask is restored below. The new
    // thread inherits the full mask, so that no signal can arrive before it could block them.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut());
        started.map(drop)
    }
}

/// The shortest time slice that Linux gives.
const SLICE_NS: u64 = 100_000;
/// How late a sleep may end, as `PR_SET_TIMERSLACK(2const)` has it; 50 µs usually.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// Makes the calling thread one that is woken for little and soon.
///
/// Its time slices are short: it gets a processor when it is woken, and not only when the program that
/// polls there has used up a slice of milliseconds. A program that polls its memory, and not a completion
/// queue, waits for this thread with every message. Linux has this since 6.12 (`sched_setattr(2)`,
/// `sched_runtime` of an ordinary thread, for which no privilege is needed) and ignores it before.
/// Threads of other scheduling policies are left as they are. And its short sleeps are short.
///
/// All this fails only where a sandbox forbids it: that costs time and nothing else.
#[allow(unsafe_code)]
pub(crate) fn be_prompt() {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: all zeroes are a value of this plain C structure, which the kernel fills with at most
    // `size` bytes and then reads; thread 0 is the calling one. The timer slack is a plain number.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS);
        let mut attr: libc::sched_attr = core::mem::zeroed();
        let read = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0);
        if read == 0 && attr.sched_policy == libc::SCHED_OTHER.cast_unsigned() {
            attr.sched_runtime = SLICE_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}
