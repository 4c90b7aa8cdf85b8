//! System calls for the whole process: signals, clock, limits.

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

/// The time since boot, which all processors share (`CLOCK_MONOTONIC`).
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Whether no process has this number any more. If another one has got it, it seems to be there.
pub(crate) fn has_ended(pid: u32) -> bool {
    match watch(pid) {
        // It is readable when the process has ended and nobody has waited for it yet.
        Ok(fd) => {
            let mut list = [PollFd::new(&fd, PollFlags::IN)];
            poll(&mut list, Some(&Timespec::default())) == Ok(1)
        }
        Err(error) => error.raw_os_error() == Some(libc::ESRCH),
    }
}

/// `SIGTERM` and `SIGINT` as a readable descriptor.
#[derive(Debug)]
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Redirects these signals to the descriptor. From now on they no longer end the process.
    pub(crate) fn new() -> io::Result<Self> {
        let set = hold_back_signals();
        // SAFETY: `set` is a set of signals, which is only read.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        own(fd).map(Self)
    }

    /// The name of the signal that arrived, if there is one.
    pub(crate) fn take(&self) -> io::Result<Option<&'static str>> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The signal's number is the first field.
        let term = info.starts_with(&libc::SIGTERM.to_ne_bytes());
        Ok(Some(if term { "SIGTERM" } else { "SIGINT" }))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// Blocks `SIGTERM` and `SIGINT`, unblocks all others (the starting process may have blocked them),
/// and ignores `SIGHUP` and `SIGPIPE`. Returns the two that are blocked.
fn hold_back_signals() -> libc::sigset_t {
    // The C library only writes as many bytes of it as signals need.
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

/// Raises the soft limit on open files to the hard one, because slots and clients all need
/// descriptors.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    Ok(raise_limit(Resource::Nofile)?)
}

/// Raises a soft limit to the hard one.
fn raise_limit(resource: Resource) -> Result<(), Errno> {
    let limit = getrlimit(resource);
    setrlimit(resource, Rlimit { current: limit.maximum, ..limit })
}

/// Leaves behind what was set for the program that started the broker, because the broker serves others,
/// too: limits on processor time, memory and the size of files, a low priority, and the choice of
/// processors, of which it takes those of process 1. Who is not allowed to leave one keeps it; soft limits
/// are raised to the hard ones.
pub(crate) fn leave_limits() {
    for resource in [Resource::Cpu, Resource::As, Resource::Data, Resource::Fsize] {
        let none = Rlimit { current: None, maximum: None };
        let _kept = setrlimit(resource, none).or_else(|_| raise_limit(resource));
    }
    // SAFETY: plain integers; `all` is as large as is said, and all ones or zeroes are a set of processors.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) > 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
        let mut all = MaybeUninit::<libc::cpu_set_t>::zeroed();
        if libc::sched_getaffinity(1, size_of::<libc::cpu_set_t>(), all.as_mut_ptr()) < 0 {
            all.as_mut_ptr().cast::<u8>().write_bytes(0xff, size_of::<libc::cpu_set_t>());
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), all.as_ptr());
    }
}

/// Takes ownership of a descriptor whose number the parent passed.
///
/// # Errors
/// `EBADF` if it is not open, or is a standard one.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: fcntl shows that it is open. The command line passed it to us to own, and nothing
    // else in this process was opened by number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Forks. Returns true in the child. The process must have only one thread, so that all locks are
/// free in the child.
pub(crate) fn fork() -> io::Result<bool> {
    // SAFETY: the caller's only thread is the child's only thread, so the state of locks and
    // buffers in memory is valid there too.
    match unsafe { libc::fork() } {
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// Makes this process, which was just forked, a keeper of descriptors. It closes all but `channel`
/// and the standard ones, and is renamed to `name`. Signals that end the broker do not end it,
/// because the broker tells it.
///
/// The owners of the descriptors that are closed here are in the parent's frames, to which this
/// process never returns.
pub(crate) fn become_keeper(name: &CStr, channel: RawFd) {
    set_name(name);
    let channel = channel.cast_unsigned();
    let close = |first: u32, last: u32| {
        if first <= last {
            // SAFETY: these are plain integers, and nobody uses these descriptors any more, as
            // explained above.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    close(3, channel - 1);
    close(channel + 1, u32::MAX);
    hold_back_signals();
}

/// Sets the process's name, at most 15 bytes.
pub(crate) fn set_name(name: &CStr) {
    // It never fails: a longer name is truncated.
    let _ = rustix::thread::set_name(name);
}

/// Makes the kernel collect children that end.
pub(crate) fn ignore_children() {
    // SAFETY: plain integers.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Waits until the other end of a socket is gone, or for `patience`.
pub(crate) fn wait_for_hang_up(fd: BorrowedFd<'_>, patience: Duration) {
    let mut list = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    let patience = Timespec::try_from(patience).ok();
    // An interruption ends the wait early, because no signal has a handler.
    let _ = poll(&mut list, patience.as_ref());
}

/// A descriptor that becomes readable when a process ends.
///
/// # Errors
/// `ESRCH` if it has already ended; `EINVAL` if it is not visible from here.
pub(crate) fn watch(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(Errno::INVAL)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
