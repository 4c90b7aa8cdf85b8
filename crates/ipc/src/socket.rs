//! The socket between a process and the broker: names, credentials, one message with a descriptor.
//!
//! The system calls are made by `syscall(2)` and not by the C library's wrappers: those are
//! cancellation points, and an application that cancels its thread (rping does) must not unwind
//! through a conversation that is half done.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use crate::error::IpcError;

/// Most connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// Our effective user id.
#[must_use]
pub fn user_id() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// The abstract name of the broker's socket for a user, without the leading NUL.
#[must_use]
pub fn name(user: u32) -> String {
    format!("polypath-{user}")
}

fn address(user: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: sockaddr_un is plain data, for which all zeroes is a value.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = name(user);
    // "polypath-4294967295" has 19 bytes of the 107 there are after the leading NUL.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, len as libc::socklen_t)
}

fn new_socket(extra: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | extra;
    // SAFETY: plain integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    own(fd)
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A listening socket under the broker's name.
///
/// # Errors
/// `EADDRINUSE` if a broker of this user (or somebody who pretends) listens already.
pub fn listen() -> io::Result<OwnedFd> {
    let socket = new_socket(libc::SOCK_NONBLOCK)?;
    let (address, len) = address(user_id());
    // SAFETY: `address` is valid for `len` bytes.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    // SAFETY: plain integers.
    if bound < 0 || unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Accepts a connection, non-blocking; `None` if there is none.
///
/// # Errors
/// What `accept4(2)` gives, other than `EAGAIN` and failures of the one connection.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    loop {
        // SAFETY: a null address is allowed and means that it is not wanted.
        let fd =
            unsafe { libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags) };
        match own(fd) {
            Ok(fd) => return Ok(Some(fd)),
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED) => {}
                Some(libc::EAGAIN) => return Ok(None),
                _ => return Err(e),
            },
        }
    }
}

/// Connects to a user's broker and checks that it is that user's. Blocking socket.
pub(crate) fn connect(user: u32) -> Result<OwnedFd, IpcError> {
    let doing = "connecting to the broker";
    let socket = new_socket(0).map_err(|source| IpcError::Io { doing, source })?;
    let (address, len) = address(user);
    loop {
        // SAFETY: `address` is valid for `len` bytes.
        let result = unsafe {
            libc::syscall(libc::SYS_connect, socket.as_raw_fd(), &raw const address, len)
        };
        if result == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECONNREFUSED) => return Err(IpcError::NoBroker),
            _ => return Err(IpcError::Io { doing, source: error }),
        }
    }
    check_peer(&socket, user)?;
    Ok(socket)
}

/// Who is at the other end: process and user.
///
/// # Errors
/// What `getsockopt(2)` gives.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` is valid for `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((credentials.pid.cast_unsigned(), credentials.uid))
}

fn check_peer(socket: &OwnedFd, named: u32) -> Result<(), IpcError> {
    use std::os::fd::AsFd;
    let (pid, theirs) = peer(socket.as_fd())
        .map_err(|source| IpcError::Io { doing: "asking who the broker is", source })?;
    expect_user(named, theirs, pid)
}

/// Anybody may listen under any abstract name: only who is of the named user is its broker.
fn expect_user(named: u32, theirs: u32, pid: u32) -> Result<(), IpcError> {
    if theirs == named {
        return Ok(());
    }
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let program = program.map_or_else(|_| "unknown".to_owned(), |name| name.trim_end().to_owned());
    Err(IpcError::ForeignUser { named, theirs, pid, program })
}

/// A connected pair of `SOCK_SEQPACKET` sockets, both `CLOEXEC`, blocking.
///
/// # Errors
/// What `socketpair(2)` gives.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `fds` has room for the two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((own(fds[0])?, own(fds[1])?))
}

/// Room for one descriptor in a control message, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// `CMSG_SPACE(sizeof(int))` on 64-bit Linux.
const CONTROL_LEN: usize = 24;

/// Sends one message, with a descriptor if there is one.
///
/// # Errors
/// What `sendmsg(2)` gives (`EAGAIN` on a full non-blocking socket); `EINTR` is retried and
/// `SIGPIPE` never raised.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain data, for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    let mut control = Control([0; CONTROL_LEN]);
    if let Some(fd) = fd {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_LEN as _;
        // SAFETY: the control buffer is aligned and has room for one header and one int.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
    }
    loop {
        // SAFETY: the message points to an iovec and a control buffer that outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                socket.as_raw_fd(),
                &raw const message,
                libc::MSG_NOSIGNAL,
            )
        };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// A message received.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Its length; 0 means that the other end hung up.
    pub len: usize,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
}

/// Receives one message into `buffer`, with the descriptor that came with it.
///
/// # Errors
/// What `recvmsg(2)` gives (`EAGAIN` on an empty non-blocking socket); `EINTR` is retried. A
/// message longer than the buffer is `EMSGSIZE`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<ReceivedMessage> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: msghdr is plain data, for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LEN as _;
    let len = loop {
        // SAFETY: the message points to an iovec and a control buffer that outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_recvmsg,
                socket.as_raw_fd(),
                &raw mut message,
                libc::MSG_CMSG_CLOEXEC,
            )
        };
        if let Ok(len) = usize::try_from(result) {
            break len;
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    };
    let fd = received_fd(&message);
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    Ok(ReceivedMessage { len, fd })
}

/// The descriptor in a message's control buffer. That buffer has room for one, or, as its length is
/// rounded up to eight bytes, for two: the second is closed.
fn received_fd(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel filled the control buffer, which is valid for `msg_controllen` bytes.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: CMSG_FIRSTHDR gave a header that is wholly inside the buffer.
    let (level, kind, len) =
        unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
    if level != libc::SOL_SOCKET || kind != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: pure arithmetic.
    let data_len = len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
    let mut first = None;
    for at in 0..data_len / size_of::<RawFd>() {
        // SAFETY: the header says that this many descriptors follow it, and the kernel wrote them.
        let raw = unsafe { libc::CMSG_DATA(header).cast::<RawFd>().add(at).read_unaligned() };
        // SAFETY: the kernel installed this descriptor for us; nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        if first.is_none() {
            first = Some(fd);
        }
    }
    first
}

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integers.
    let result = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until a descriptor is ready for `events`; for ever if `patience_ms` is −1.
pub(crate) fn wait_for(
    fd: BorrowedFd<'_>,
    events: libc::c_short,
    patience_ms: i32,
) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let patience = u64::try_from(patience_ms).map(Duration::from_millis).ok();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = patience.map_or(ptr::null_mut(), |patience| {
        time.tv_sec = patience.as_secs().cast_signed();
        time.tv_nsec = patience.subsec_nanos().into();
        &raw mut time
    });
    loop {
        // SAFETY: `poll` is one valid entry, `timeout` null or valid; no signal mask is given.
        match unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, timeout, 0, 0) } {
            0 => return Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            1.. => return Ok(()),
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// Waits until a socket is readable or has hung up, or, if `to_send`, has room; or `other` is readable. True
/// unless there is only something to read from the socket.
pub(crate) fn wait_for_call(
    socket: BorrowedFd<'_>,
    to_send: bool,
    other: BorrowedFd<'_>,
) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, poll};
    let wanted = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut list = [PollFd::new(&socket, wanted), PollFd::new(&other, PollFlags::IN)];
    loop {
        match poll(&mut list, None) {
            Ok(_) => {
                let room = list[0].revents().contains(PollFlags::OUT);
                return Ok(room || !list[1].revents().is_empty());
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn a_descriptor_travels_with_its_message() {
        let (a, b) = pair().unwrap();
        let (c, d) = pair().unwrap();
        send(a.as_fd(), b"look", Some(c.as_fd())).unwrap();
        let mut buffer = [0; 16];
        let got = receive(b.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..got.len], b"look");
        send(got.fd.unwrap().as_fd(), b"x", None).unwrap();
        assert_eq!(receive(d.as_fd(), &mut buffer).unwrap().len, 1);
    }

    #[test]
    fn a_received_descriptor_is_closed_in_programs_that_are_started() {
        let (a, b) = pair().unwrap();
        let (c, _d) = pair().unwrap();
        send(a.as_fd(), b"look", Some(c.as_fd())).unwrap();
        let fd = receive(b.as_fd(), &mut [0; 16]).unwrap().fd.unwrap();
        assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn of_two_descriptors_with_a_message_the_second_is_closed() {
        let (a, b) = pair().unwrap();
        let (first, first_far) = pair().unwrap();
        let (second, second_far) = pair().unwrap();
        let fds = [first.as_fd(), second.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [io::IoSlice::new(b"look")];
        sendmsg(&a, &bytes, &mut control, SendFlags::empty()).unwrap();
        drop((first, second));

        let mut buffer = [0; 16];
        let got = receive(b.as_fd(), &mut buffer).unwrap();
        send(got.fd.unwrap().as_fd(), b"x", None).unwrap();
        assert_eq!(receive(first_far.as_fd(), &mut buffer).unwrap().len, 1);
        // It may be open a moment longer: a test beside this one that starts a program has it until the exec.
        wait_for(second_far.as_fd(), libc::POLLIN, 10_000).expect("nobody has the second any more");
        assert_eq!(receive(second_far.as_fd(), &mut buffer).unwrap().len, 0);
    }

    #[test]
    fn hanging_up_reads_as_length_zero() {
        let (a, b) = pair().unwrap();
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut [0; 4]).unwrap().len, 0);
        assert_eq!(send(b.as_fd(), b"x", None).unwrap_err().raw_os_error(), Some(libc::EPIPE));
    }

    #[test]
    fn a_message_longer_than_the_buffer_is_an_error() {
        let (a, b) = pair().unwrap();
        send(a.as_fd(), &[1; 100], None).unwrap();
        let error = receive(b.as_fd(), &mut [0; 10]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn another_users_socket_is_not_used_and_its_holder_is_named() {
        let (ours, pid) = (user_id(), std::process::id());
        assert!(expect_user(ours, ours, pid).is_ok());
        let error = expect_user(ours, ours + 1, pid).unwrap_err();
        assert_eq!(error.errno(), libc::EPERM);
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let text = error.to_string();
        for part in [format!("process {pid}"), comm.trim_end().into(), format!("user {}", ours + 1)]
        {
            assert!(text.contains(&part), "{part} in {text}");
        }
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (a, _b) = pair().unwrap();
        assert_eq!(peer(a.as_fd()).unwrap(), (std::process::id(), user_id()));
    }
}
