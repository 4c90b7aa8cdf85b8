//! The engine's own threads.

use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::num::NonZeroU64;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Starts a thread that receives no signals, because those are for the application. Only the
/// signals of its own faults are not blocked, because a blocked one would end the process.
///
/// # Errors
/// Those of `pthread_create(3)`.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    start(name, body).map(drop)
}

/// Does the same for a caller that waits for the thread's end.
///
/// Returns when the thread has begun and has its own heap. libfabric and UCX overwrite the first
/// bytes of `munmap` with other code while the program runs, and a thread that is just executing
/// them dies. glibc trims a thread's heap with `munmap` when the thread first allocates. So this
/// must be over before the verb returns that started the thread.
///
/// # Errors
/// Those of [`spawn`].
#[allow(unsafe_code)]
pub(crate) fn start(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (begin, has_begun) = mpsc::sync_channel(1);
    let body = move || {
        drop(black_box(Box::new([0_u8; 64])));
        // The caller waits for this.
        let _ = begin.send(());
        body();
    };
    // SAFETY: both sets are plain data on this stack, and the caller's mask is restored below. The
    // new thread inherits the full mask, so that no signal can arrive before it blocks them.
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
    // The thread can't end before this.
    let _ = has_begun.recv();
    Ok(started)
}

/// The number of the processor that the calling thread runs on; 0 if the system does not tell.
///
/// The C library is asked, because rustix finds the vDSO by the auxiliary vector in /proc, and valgrind runs
/// programs without it.
#[allow(unsafe_code)]
pub(crate) fn processor() -> usize {
    // SAFETY: it takes and touches nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// How late a sleep may end (`PR_SET_TIMERSLACK(2const)`); usually 50 µs.
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1_000);

/// Makes the kernel wake the calling thread promptly, and end its short sleeps on time.
///
/// A program that polls its memory instead of a completion queue depends on this thread for every
/// message. If a sandbox forbids these settings, only speed is lost.
pub(crate) fn request_prompt_wakeups() {
    let _ = rustix::thread::set_current_timer_slack(TIMER_SLACK_NS);
    let _ = polypath_ipc::sched::request_short_slices();
}

/// Lets other threads have the processor of the calling thread, which waits for something that they may
/// bring.
///
/// A yield gives away the rest of a thread's slice. The thread gets short slices, so that it is not kept
/// from its processor for long if a thread that never sleeps wants it, too.
pub(crate) fn let_others_run() {
    thread_local!(static PREPARED: Cell<bool> = const { Cell::new(false) });
    // Threads that end are past their thread-local variables.
    if !PREPARED.try_with(|prepared| prepared.replace(true)).unwrap_or(true) {
        let _ = polypath_ipc::sched::request_short_slices();
    }
    std::thread::yield_now();
}
