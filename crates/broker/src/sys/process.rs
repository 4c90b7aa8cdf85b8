//! What concerns the process as a whole: signals, clock, limits.

use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use super::{check, own, would_block};

/// Time since boot, as all cores count it (`CLOCK_MONOTONIC`).
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// `SIGTERM` and `SIGINT` as something to read.
#[derive(Debug)]
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Blocks the two, unblocks all others (who started us may have had them blocked), and ignores
    /// `SIGHUP` and `SIGPIPE`.
    pub(crate) fn new() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before anything reads it; the rest are plain
        // integers.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut());
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        own(fd).map(Self)
    }

    /// The name of the signal that came, if one did.
    pub(crate) fn take(&self) -> io::Result<Option<&'static str>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` has room for `size` bytes.
        let got = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return if would_block(&error) { Ok(None) } else { Err(error) };
        }
        // SAFETY: a read from a signalfd that does not fail fills the whole structure.
        let info = unsafe { info.assume_init() };
        let term = info.ssi_signo == libc::SIGTERM.cast_unsigned();
        Ok(Some(if term { "SIGTERM" } else { "SIGINT" }))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// Raises the soft limit on open files to the hard one: slots and clients are all descriptors.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for reading and writing.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))
    }
}

/// Takes over a descriptor that our parent passed by number.
///
/// # Errors
/// `EBADF` if there is none. The standard ones can't be taken.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, as fcntl found, and was passed on the command line for us to own; nothing
    // else in this process has been opened by number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Forks; true in the child. The process must have one thread, so that the child finds every lock free.
pub(crate) fn fork() -> io::Result<bool> {
    // SAFETY: the caller's one thread is the child's one thread: all that its memory says of locks and
    // buffers is true there too.
    match unsafe { libc::fork() } {
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// Makes this process, just forked, one that only keeps descriptors: it lets go of all but `channel` and
/// the standard ones, is called `name`, and what ends the broker by signal does not end it: it hears of
/// that from the broker.
///
/// The owners of the descriptors closed here live in the parent's frames, which are never returned to.
pub(crate) fn become_keeper(name: &CStr, channel: RawFd) {
    set_name(name);
    let channel = channel.cast_unsigned();
    let close = |first: u32, last: u32| {
        if first <= last {
            // SAFETY: plain integers; nobody uses these descriptors any more, as said above.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    close(3, channel - 1);
    close(channel + 1, u32::MAX);
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before anything reads it; the rest are plain integers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut());
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// How the process is called, at most 15 bytes.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the name ends with NUL and is only read.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Has the kernel bury children by itself.
pub(crate) fn ignore_children() {
    // SAFETY: plain integers.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Waits until the other end of a socket is gone, or for `patience`.
pub(crate) fn wait_for_hang_up(fd: BorrowedFd<'_>, patience: Duration) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    let patience = libc::c_int::try_from(patience.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `poll` is one valid entry. An interruption ends the wait early: no signal has a handler.
    unsafe { libc::poll(&raw mut poll, 1, patience) };
}

/// Something that becomes readable when a process ends.
///
/// # Errors
/// `ESRCH`: it has ended already. `EINVAL`: it is not visible from here.
pub(crate) fn watch(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    own(fd as RawFd)
}
