//! The socket between a process and the broker: names, credentials, and messages with a descriptor.
//!
//! The system calls are made by rustix, which enters the kernel directly, instead of the C
//! library's wrappers. Those are cancellation points, and an application that cancels its thread
//! (rping does) must not unwind through a half-finished call.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::IpcError;

/// The largest number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The effective user id of this process.
#[must_use]
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The abstract name of the broker's socket for a user, without the leading NUL.
#[must_use]
pub fn name(user: u32) -> String {
    format!("polypath-{user}")
}

fn address(user: u32) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name(user).as_bytes())?)
}

fn new_socket(extra: SocketFlags) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | extra;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Creates a listening socket with the broker's name.
///
/// # Errors
/// `EADDRINUSE` if a broker of this user (or another process with that name) already listens.
pub fn listen() -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &address(user_id())?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts a connection, non-blocking; `None` if there is none.
///
/// # Errors
/// Those of `accept4(2)`, except `EAGAIN` and errors of the connection itself.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => return Ok(Some(fd)),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Connects to a user's broker and checks that it belongs to that user. The socket blocks.
pub(crate) fn connect(user: u32) -> Result<OwnedFd, IpcError> {
    let failed = |source| IpcError::Io { doing: "connecting to the broker", source };
    let socket = new_socket(SocketFlags::empty()).map_err(failed)?;
    let address = address(user).map_err(failed)?;
    match retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => return Err(IpcError::NoBroker),
        Err(error) => return Err(failed(error.into())),
    }
    check_peer(&socket, user)?;
    Ok(socket)
}

/// The process and user at the other end. The process is 0 if it is not visible from here.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    // rustix is not used, because its process id can't be 0, as it is for a process in another PID
    // namespace.
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

/// Checks the user at the other end. Any process may listen under any abstract name, so only a
/// process of the named user is that user's broker.
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
/// Those of `socketpair(2)`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Room for the control message of one descriptor.
const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(1));

/// Sends one message, with a descriptor if there is one.
///
/// # Errors
/// Those of `sendmsg(2)` (`EAGAIN` on a full non-blocking socket). `EINTR` is retried, and
/// `SIGPIPE` is never raised.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if let Some(fd) = &fd
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)))
    {
        return Err(Errno::NOBUFS.into());
    }
    let bytes = [IoSlice::new(bytes)];
    let sent = || rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL);
    retry_on_intr(sent)?;
    Ok(())
}

/// A received message.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Its length; 0 means that the other end hung up.
    pub len: usize,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
    /// Whether one came that this process has no number left for.
    pub fd_lost: bool,
}

/// Receives one message into `buffer`, with the descriptor that came with it.
///
/// # Errors
/// Those of `recvmsg(2)` (`EAGAIN` on an empty non-blocking socket). `EINTR` is retried. A message
/// longer than the buffer is `EMSGSIZE`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<ReceivedMessage> {
    let mut room = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut buffer = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| rustix::net::recvmsg(socket, &mut buffer, &mut control, flags))?;
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    };
    let mut fds = control.drain().filter_map(rights).flatten();
    // There is room for one descriptor or, because the length is rounded up, for two. Descriptors
    // that are not taken are closed with the buffer.
    let fd = fds.next();
    drop(fds);
    // The kernel says no more than that something is missing.
    let fd_lost = fd.is_none() && got.flags.contains(ReturnFlags::CTRUNC);
    Ok(ReceivedMessage { len: got.bytes, fd, fd_lost })
}

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// Waits until a descriptor is ready for `events`; forever without `patience`.
///
/// # Errors
/// `EAGAIN` if it is not ready within that time.
pub(crate) fn wait_for(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    patience: Option<Duration>,
) -> io::Result<()> {
    let end = patience.map(|patience| Instant::now() + patience);
    let mut list = [PollFd::from_borrowed_fd(fd, events)];
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut list, left.as_ref()) {
            Ok(0) => return Err(Errno::AGAIN.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until a socket is readable, has hung up or, if `to_send`, has room; or until `other` is
/// readable. Returns false if only the socket is readable.
pub(crate) fn wait_for_call(
    socket: BorrowedFd<'_>,
    to_send: bool,
    other: BorrowedFd<'_>,
) -> io::Result<bool> {
    let wanted = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut list = [PollFd::new(&socket, wanted), PollFd::new(&other, PollFlags::IN)];
    retry_on_intr(|| poll(&mut list, None))?;
    let room = list[0].revents().contains(PollFlags::OUT);
    Ok(room || !list[1].revents().is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::net::sendmsg;

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
        let bytes = [IoSlice::new(b"look")];
        sendmsg(&a, &bytes, &mut control, SendFlags::empty()).unwrap();
        drop((first, second));

        let mut buffer = [0; 16];
        let got = receive(b.as_fd(), &mut buffer).unwrap();
        send(got.fd.unwrap().as_fd(), b"x", None).unwrap();
        assert_eq!(receive(first_far.as_fd(), &mut buffer).unwrap().len, 1);
        // It may stay open a moment longer: if another test is just starting a program, that has it
        // until its exec.
        let patience = Some(Duration::from_secs(10));
        wait_for(second_far.as_fd(), PollFlags::IN, patience)
            .expect("nobody has the second any more");
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
