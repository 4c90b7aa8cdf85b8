//! A replacement for the kernel's `/dev/infiniband/rdma_cm`, below the real librdmacm.
//!
//! `open()` of that path returns one end of a socket pair whose other end belongs to the broker.
//! Each datagram from there is one complete event, so the descriptor polls as the device does, and
//! `GET_EVENT` is one `recv()` (blocking, `O_NONBLOCK`, `EINTR` and cancellation work as usual).
//! The broker answers every other command that librdmacm gives by `write()`, see [`command`].
//!
//! For ordinary files this costs one load per `write()`: a bit tells whether a descriptor may be
//! such a socket. The bit alone is not enough, because the descriptor may have been closed and
//! opened again without our knowledge. So the socket's inode is compared too.
//!
//! `POLYPATH_RDMA_CM` decides where the path leads ([`who`]): to us, to the kernel, whose device is
//! then left alone, or to both by source address ([`both`]). Duplicates of the descriptor (`dup()`)
//! are plain sockets; librdmacm makes none.

pub(crate) mod both;
pub(crate) mod command;
pub(crate) mod ids;
pub(crate) mod layout;
mod moving;
mod who;

use core::cell::Cell;
use core::ffi::{CStr, c_char};
use core::mem::zeroed;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

use libc::{c_int, c_void, size_t, ssize_t};
use polypath_ipc::settings::RdmaCm;
use polypath_ipc::{Client, socket};

use crate::broker::GoesOn;
use crate::guard::{self, set_errno};
use crate::lock::Lock;
use crate::{broker, log};
use both::{Outside, Ucma, World};
use ids::{EventFate, Ids};

/// The path that we replace.
const PATH: &CStr = c"/dev/infiniband/rdma_cm";

/// The largest number of descriptors that can be ours.
const FDS_MAX: usize = 1 << 16;

/// The longest event. `rdma_ucm_event_resp` has 336 bytes; the rest is room for additions in later
/// kernels.
const EVENT_MAX: usize = 512;

/// One bit for each descriptor: whether it may be one of ours.
static MAYBE: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];

/// The open files by descriptor.
pub(crate) static FILES: Lock<Option<HashMap<c_int, File>>> = Lock::new(None);

/// The files that this process has opened, and not inherited. This lock is taken last, also by those who hold
/// the one of the connection to the broker.
pub(crate) static OWN: Lock<Vec<(c_int, File)>> = Lock::new(Vec::new());

/// The ids of all files, because ids move between files.
pub(crate) static IDS: Lock<Ids> = Lock::new(Ids::new());

/// An open file.
#[derive(Clone, Copy)]
pub(crate) struct File {
    /// The broker's number of it.
    pub(crate) number: u64,
    /// Our number of it, if it also reaches the kernel's devices.
    pub(crate) both: Option<u64>,
    /// The identity of the socket.
    inode: (u64, u64),
}

/// Whether a descriptor may be one of ours. This is one load.
#[inline]
pub(crate) fn maybe(fd: c_int) -> bool {
    let Ok(at) = usize::try_from(fd) else { return false };
    at < FDS_MAX && MAYBE[at / 64].load(Ordering::Relaxed) & 1 << (at % 64) != 0
}

fn mark(fd: c_int, on: bool) {
    let Ok(at) = usize::try_from(fd) else { return };
    let bit = 1 << (at % 64);
    if on {
        MAYBE[at / 64].fetch_or(bit, Ordering::Relaxed);
    } else {
        MAYBE[at / 64].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Calls `fstat` by system call, so that our own replacement is not involved.
fn inode(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: zeroes are valid for the structure, which the kernel fills in.
    unsafe {
        let mut status: libc::stat = zeroed();
        let failed = libc::syscall(libc::SYS_fstat, fd, &raw mut status) != 0;
        (!failed).then_some((status.st_dev, status.st_ino))
    }
}

/// The file behind a descriptor, if it is still one of ours.
pub(crate) fn file(fd: c_int) -> Option<File> {
    if !maybe(fd) {
        return None;
    }
    let mut files = FILES.lock();
    let files = files.get_or_insert_default();
    let known = files.get(&fd).copied();
    match known {
        Some(file) if inode(fd) == Some(file.inode) || moving::is_away() => Some(file),
        _ => {
            files.remove(&fd);
            mark(fd, false);
            None
        }
    }
}

/// Whether we open this path.
///
/// # Safety
/// `path` is a C string.
#[inline]
pub(crate) unsafe fn is_path(path: *const c_char) -> bool {
    // SAFETY: the caller promises it. The comparison ends at the string's end.
    let same = unsafe { libc::strcmp(path, PATH.as_ptr()) } == 0;
    same && who::serves() != Ok(RdmaCm::Kernel)
}

/// Notes that this process has opened a file, or that its socket has another inode now.
fn own(fd: c_int, file: File) {
    let mut own = OWN.lock();
    own.retain(|(other, _)| *other != fd);
    own.push((fd, file));
}

/// The files that this process has open, by descriptor.
fn open_files() -> Vec<(c_int, File)> {
    let mut own = OWN.lock();
    own.retain(|(fd, file)| inode(*fd) == Some(file.inode));
    own.clone()
}

/// Whether a file may go on at another broker. If nobody has the other end of its event socket, its broker
/// has closed it, or has left nothing. The thread of those that also reach the kernel's devices has that
/// socket.
fn may_go_on(fd: c_int, file: &File) -> bool {
    file.both.is_some() || !has_hung_up(fd)
}

/// Whether any file may.
fn any_may_go_on() -> bool {
    open_files().iter().any(|(fd, file)| may_go_on(*fd, file))
}

/// Goes on with the open files at the broker that has taken the place of one that was killed. It has what
/// was written down of their ids, and its end of each event socket.
fn resume(client: &mut Client) {
    let (apm, tcp) = (who::apm().unwrap_or_default(), polypath_engine::tcp_port());
    for (fd, file) in open_files() {
        if may_go_on(fd, &file)
            && let Err(error) = client.cm_resume(file.number, apm, tcp)
        {
            log::warn(format_args!("rdma_cm ids are lost: {error}"));
        }
    }
}

/// Whether the other end of a file's event socket is closed.
fn has_hung_up(fd: c_int) -> bool {
    let mut ask = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: this is one valid structure.
    let answered = unsafe { libc::poll(&raw mut ask, 1, 0) };
    answered == 1 && ask.revents & libc::POLLHUP != 0
}

/// Whether a descriptor is one of ours.
pub(crate) fn is_open(fd: c_int) -> bool {
    guard::run(false, || file(fd).is_some())
}

/// Opens the device. Returns a descriptor, or -1 with `errno`.
pub(crate) fn open(flags: c_int) -> c_int {
    let opened = guard::run(Err(libc::EIO), || match who::serves() {
        Ok(RdmaCm::Kernel) => open_kernel(flags),
        Ok(RdmaCm::Polypath) => open_ours(flags, None),
        Ok(RdmaCm::Both) => match Ucma::hidden() {
            Ok(device) => open_ours(flags, Some(device)),
            Err(errno) => {
                log::line(format_args!("no real device for librdmacm: errno {errno}"));
                open_ours(flags, None)
            }
        },
        Err(error) => {
            log::no_devices(&error);
            Err(libc::EINVAL)
        }
    });
    match opened {
        Ok(fd) => fd,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Opens the kernel's device, as if this library did not exist.
fn open_kernel(flags: c_int) -> Result<c_int, c_int> {
    Ucma::open(flags & (libc::O_CLOEXEC | libc::O_NONBLOCK)).map(IntoRawFd::into_raw_fd)
}

/// Opens a file of the broker. With `device`, it also reaches the kernel's devices.
fn open_ours(flags: c_int, device: Option<Ucma>) -> Result<c_int, c_int> {
    let apm = match who::apm() {
        Ok(apm) => apm,
        Err(error) => {
            log::line(format_args!("{error}"));
            return Err(libc::EINVAL);
        }
    };
    let tcp = polypath_engine::tcp_port();
    let cm = match broker::ask(true, |client| client.open_cm(apm, tcp)) {
        Ok(cm) => cm,
        Err(error) if device.is_some() => {
            // The same is true if rxe has the port: a program that only wants the kernel's devices
            // needs no broker.
            log::no_devices(&error);
            return open_kernel(flags);
        }
        Err(error) => {
            log::line(format_args!("/dev/infiniband/rdma_cm: {error}"));
            return Err(error.errno());
        }
    };
    let (socket, behind) = match device {
        None => (cm.events, None),
        Some(device) => {
            let (socket, inlet) = socket::pair().map_err(|_| libc::EMFILE)?;
            (socket, Some((device, cm.events, inlet)))
        }
    };
    let fd = socket.as_raw_fd();
    let inode = inode(fd).ok_or(libc::EIO)?;
    if usize::try_from(fd).is_ok_and(|fd| fd >= FDS_MAX) {
        return Err(libc::EMFILE);
    }
    let set = |command: c_int, value: c_int| {
        // SAFETY: these are commands that take a number.
        unsafe { libc::fcntl(fd, command, value) };
    };
    set(libc::F_SETFD, if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 });
    set(libc::F_SETFL, flags & libc::O_NONBLOCK);
    let mut ids = IDS.lock();
    ids.forget_waiters(fd);
    let both = match behind {
        None => None,
        Some((device, events, inlet)) => {
            let file = ids.both.attach(cm.file, Arc::new(device), events, inlet);
            ids.both.watch(file).inspect_err(|_| ids.both.close(file))?;
            Some(file)
        }
    };
    drop(ids);
    moving::take_part();
    let file = File { number: cm.file, both, inode };
    FILES.lock().get_or_insert_default().insert(fd, file);
    own(fd, file);
    mark(fd, true);
    broker::keep(GoesOn { is_any: any_may_go_on, resume });
    Ok(socket.into_raw_fd())
}

/// Handles a fork, in the child.
pub(crate) fn forked() {
    IDS.lock().both.forget_all();
    OWN.lock().clear();
}

/// Makes `fstat()` report such a descriptor as a character device. Its number is the kernel's if
/// the kernel has the device, because librdmacm may compare them.
pub(crate) fn disguise(status: &mut libc::stat) {
    let real = rustix::fs::stat(PATH);
    status.st_mode = libc::S_IFCHR | 0o666;
    status.st_rdev = real.map_or_else(|_| libc::makedev(10, 0), |real| real.st_rdev);
}

unsafe extern "C-unwind" {
    /// Declared here because it is a cancellation point: a cancelled thread is unwound from it.
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    /// The same.
    fn pause() -> c_int;
}

/// Implements `write()` to such a descriptor: one command. `None` if it is not one of ours after
/// all.
///
/// # Safety
/// `buffer` has `len` bytes, and what the command in it points to is as the kernel's ABI requires.
pub(crate) unsafe fn write(fd: c_int, buffer: *const c_void, len: size_t) -> Option<ssize_t> {
    // SAFETY: the caller promises that `buffer` and the command in it are as `command::run`
    // requires.
    let step = unsafe { guard::run(Some(Err(libc::EIO)), || command::run(fd, buffer, len)) };
    let (response, room, number) = match step? {
        Ok(command::Step::Done) => return Some(len.cast_signed()),
        Ok(command::Step::Wait { response, room, file }) => (response, room, file),
        Err(errno) => {
            set_errno(errno);
            return Some(-1);
        }
    };
    // SAFETY: this is a command without argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let blocks = flags < 0 || flags & libc::O_NONBLOCK == 0;
    let mut event = [0_u8; EVENT_MAX];
    loop {
        let (got, errno) = wait_for_event(fd, &mut event);
        let length = usize::try_from(got).unwrap_or(0);
        let verdict = guard::run(EventFate::Drop(None), || {
            let mut ids = IDS.lock();
            end_wait(&mut ids);
            ids.delivered(&event[..length], number)
        });
        if got < 0 && errno == libc::EBADF && blocks {
            wait_for_ever();
        }
        if got <= 0 {
            // It hung up: the broker is gone, as if the driver had been unloaded.
            set_errno(if got == 0 { libc::ENODEV } else { errno });
            return Some(-1);
        }
        match verdict {
            EventFate::Deliver => {
                // SAFETY: the caller promises that the response has `room` bytes.
                unsafe {
                    core::ptr::copy_nonoverlapping(event.as_ptr(), response, room.min(length));
                }
                guard::run((), || purge(fd));
                return Some(len.cast_signed());
            }
            EventFate::Forward(home) => guard::run((), || forward(home, &event[..length])),
            EventFate::Drop(child) => {
                guard::run((), || abandon(fd, child));
                let same = guard::run(false, || file(fd).map(|file| file.number) == Some(number));
                if !same && blocks {
                    wait_for_ever();
                }
            }
        }
    }
}

/// The descriptor whose event this thread waits for. A thread that is cancelled ends its wait when
/// its values are destroyed, which is before `pthread_join()` of it returns.
struct Wait(Cell<Option<c_int>>);

thread_local! {
    static WAIT: Wait = const { Wait(Cell::new(None)) };
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            IDS.lock().end_wait(fd);
        }
    }
}

/// Waits until a datagram arrives. Returns what `recv()` returned, and `errno`. The wait is noted,
/// and lasts until [`end_wait`].
fn wait_for_event(fd: c_int, event: &mut [u8; EVENT_MAX]) -> (ssize_t, c_int) {
    guard::run((), || {
        // A thread whose values are being destroyed can't note it. It only waits.
        let _ = WAIT.try_with(|wait| {
            IDS.lock().begin_wait(fd);
            wait.0.set(Some(fd));
        });
    });
    // SAFETY: the buffer has that many bytes. Nothing here needs to be dropped if the thread is
    // cancelled.
    let got = unsafe { recv(fd, event.as_mut_ptr().cast(), EVENT_MAX, 0) };
    (got, guard::errno())
}

/// Ends the wait of this thread.
fn end_wait(ids: &mut Ids) {
    if let Ok(Some(fd)) = WAIT.try_with(|wait| wait.0.take()) {
        ids.end_wait(fd);
    }
}

/// Waits forever, because another thread closed the descriptor while this one was in `GET_EVENT`,
/// as programs do at their end. The kernel also lets such a thread wait for an event that never
/// comes.
fn wait_for_ever() -> ! {
    loop {
        // SAFETY: nothing here needs to be dropped if the thread is cancelled.
        unsafe { pause() };
    }
}

/// Destroys the id that a dropped connection request announced.
fn abandon(fd: c_int, child: Option<u32>) {
    let (Some(child), Some(file)) = (child, file(fd)) else { return };
    if let Some(both) = file.both {
        return IDS.lock().both.abandon(both, child, &mut Outside);
    }
    let mut body = [0; 16];
    layout::put_u32(&mut body, 8, child);
    let _ = Outside.broker(file.number, &layout::command(layout::DESTROY_ID, &body, 4));
}

/// Forwards an event to the file that its id moved to.
fn forward(home: u64, event: &[u8]) {
    if let Err(error) = broker::ask(true, |client| client.cm_requeue(home, event)) {
        log::line(format_args!("an event of an id that moved is lost: {error}"));
    }
}

/// Removes events of ids that are gone or were moved from the front of a file's queue, so that they
/// do not keep the descriptor readable. A thread that waits for an event removes them itself.
pub(crate) fn purge(fd: c_int) {
    let mut event = [0_u8; EVENT_MAX];
    let mut receive = |flags: c_int| {
        // SAFETY: the buffer has that many bytes.
        let got = unsafe {
            libc::recv(fd, event.as_mut_ptr().cast(), EVENT_MAX, flags | libc::MSG_DONTWAIT)
        };
        usize::try_from(got).ok().filter(|&got| got > 0).map(|got| (got, event))
    };
    let Some(this) = file(fd) else { return };
    loop {
        // While the lock is held, no thread begins to wait, so the event that was looked at is the
        // one that is taken.
        let ids = IDS.lock();
        if ids.somebody_waits(fd) {
            return;
        }
        let Some((got, event)) = receive(libc::MSG_PEEK) else { return };
        let verdict = ids.judge(&event[..got], this.number);
        if verdict == EventFate::Deliver {
            return;
        }
        receive(0);
        drop(ids);
        match verdict {
            EventFate::Deliver => {}
            EventFate::Drop(child) => abandon(fd, child),
            EventFate::Forward(home) => forward(home, &event[..got]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program of a thread that waits for an event of the descriptor in its argument.
    extern "C-unwind" fn waits(argument: *mut c_void) -> *mut c_void {
        let fd = c_int::try_from(argument.addr()).unwrap();
        wait_for_event(fd, &mut [0; EVENT_MAX]);
        core::ptr::null_mut()
    }

    unsafe extern "C-unwind" {
        /// Declared here because the thread's program may be unwound.
        fn pthread_create(
            thread: *mut libc::pthread_t,
            attributes: *const libc::pthread_attr_t,
            program: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            argument: *mut c_void,
        ) -> c_int;
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    #[test]
    fn a_thread_that_is_cancelled_does_not_wait_for_ever() {
        let (socket, _peer) = socket::pair().unwrap();
        let fd = socket.as_raw_fd();
        let argument = core::ptr::without_provenance_mut(usize::try_from(fd).unwrap());
        let null = core::ptr::null_mut();
        let mut thread = 0;
        // SAFETY: the thread is joined below. Nothing in it needs to be dropped when it is
        // cancelled, which it only is in `recv()`.
        unsafe {
            assert_eq!(pthread_create(&mut thread, null, waits, argument), 0);
            while !IDS.lock().somebody_waits(fd) {
                std::thread::yield_now();
            }
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
        }
        assert!(!IDS.lock().somebody_waits(fd));
    }
}
