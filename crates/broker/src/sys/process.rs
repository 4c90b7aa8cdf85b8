//! What concerns the process as a whole: signals, clock, limits.

use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use super::own;

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
    /// From now on they come here and end nothing.
    pub(crate) fn new() -> io::Result<Self> {
        let set = hold_back_signals();
        // SAFETY: `set` is a set of signals, which is only read.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        own(fd).map(Self)
    }

    /// The name of the signal that came, if one did.
    pub(crate) fn take(&self) -> io::Result<Option<&'static str>> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The signal's number comes first.
        let term = info.starts_with(&libc::SIGTERM.to_ne_bytes());
        Ok(Some(if term { "SIGTERM" } else { "SIGINT" }))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// Blocks `SIGTERM` and `SIGINT`, unblocks all others (who started us may have had them blocked), and
/// ignores `SIGHUP` and `SIGPIPE`. Gives the two that are blocked.
fn hold_back_signals() -> libc::sigset_t {
    // The C library writes only as many bytes of it as there are signals.
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `set` is valid for writing, and all zeroes are a set; the rest are plain integers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut());
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        set.assume_init()
    }
}

/// Raises the soft limit on open files to the hard one: slots and clients are all descriptors.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
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
    hold_back_signals();
}

/// How the process is called, at most 15 bytes.
pub(crate) fn set_name(name: &CStr) {
    // It never fails: a longer name is cut.
    let _ = rustix::thread::set_name(name);
}

/// Has the kernel bury children by itself.
pub(crate) fn ignore_children() {
    // SAFETY: plain integers.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Waits until the other end of a socket is gone, or for `patience`.
pub(crate) fn wait_for_hang_up(fd: BorrowedFd<'_>, patience: Duration) {
    let mut list = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    let patience = Timespec::try_from(patience).ok();
    // An interruption ends the wait early: no signal has a handler.
    let _ = poll(&mut list, patience.as_ref());
}

/// Something that becomes readable when a process ends.
///
/// # Errors
/// `ESRCH`: it has ended already. `EINVAL`: it is not visible from here.
pub(crate) fn watch(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(Errno::INVAL)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
