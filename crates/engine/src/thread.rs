//! Threads of our own.

use std::hint::black_box;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Starts a thread that takes no signals: those are the application's. But a fault is its own, and ends
/// the process if it is blocked.
///
/// # Errors
/// What `pthread_create(3)` gives.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    start(name, body).map(drop)
}

/// The same, for who waits for the thread's end.
///
/// Returns when the thread has begun and has a heap of its own. libfabric and UCX write other code over the
/// first bytes of `munmap` while the program runs, and a thread that is just in there dies; and glibc
/// trims a thread's heap by `munmap` when it allocates for the first time. So that is over before
/// the verb returns for which the thread is started.
///
/// # Errors
/// The same.
#[allow(unsafe_code)]
pub(crate) fn start(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (begin, has_begun) = mpsc::sync_channel(1);
    let body = move || {
        drop(black_box(Box::new([0_u8; 64])));
        // Who started it waits for this.
        let _ = begin.send(());
        body();
    };
    // SAFETY: both sets are plain data on this stack; the caller's mask is restored below. The new
    // thread inherits the full mask, so that no signal can arrive before it could block them.
    let started = unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut());
        started
    }?;
    // It can't end before.
    let _ = has_begun.recv();
    Ok(started)
}

/// How late a sleep may end, as `PR_SET_TIMERSLACK(2const)` has it; 50 µs usually.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// Makes the calling thread one that is woken for little and soon, and whose short sleeps are short.
///
/// A program that polls its memory, and not a completion queue, waits for this thread with every
/// message. Where a sandbox forbids it, that costs time and nothing else.
#[allow(unsafe_code)]
pub(crate) fn request_prompt_wakeups() {
    // SAFETY: a plain number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
    let _ = polypath_ipc::sched::request_short_slices();
}
