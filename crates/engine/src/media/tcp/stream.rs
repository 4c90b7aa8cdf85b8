//! A stream: the socket that both halves of the medium use.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use polypath_paths::StreamEnds;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use super::run::Piece;
use crate::log;

/// How long the kernel tries to deliver before it ends the connection, in milliseconds. Paths find out
/// sooner; this is for a network that comes back, where an old connection would wait for its next attempt,
/// and a new one is made at once.
const USER_TIMEOUT_MS: u32 = 5000;

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) ends: StreamEnds,
    socket: OwnedFd,
    /// The process that it belongs to. A child has the socket, too, and must not put its bytes between ours.
    pid: u32,
    /// Whether it must not be used any more.
    over: AtomicBool,
}

impl Stream {
    /// Uses this socket, which is connected.
    ///
    /// # Errors
    /// It is no TCP socket; those of the system.
    pub(crate) fn new(ends: StreamEnds, socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // What is sent together is written together.
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT_MS)?;
        Ok(Self { ends, socket, pid: std::process::id(), over: AtomicBool::new(false) })
    }

    /// Whether it can be used.
    #[inline]
    pub(super) fn works(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Whether this process opened it, and not one that it was forked from.
    pub(super) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Gives it up, and says why, once.
    pub(super) fn end(&self, why: &str) {
        if !self.over.swap(true, Ordering::Relaxed) && self.is_ours() {
            let StreamEnds { local, remote, slot } = self.ends;
            log::line(&format!("the TCP stream {local}>{remote} to slot {slot} ends: {why}"));
            // The descriptor is closed later, when nobody uses it any more.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }

    /// Writes bytes, as many as there is room for, without waiting; 0 if there is none.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        // The flag, not the descriptor's state, says not to wait: a child may change that.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&self.socket, bytes, flags) {
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(0),
            other => other,
        }
    }

    /// Writes pieces, as much as there is room for, without waiting; 0 if there is none. The kernel may
    /// keep the end back until more is written, or [`push`](Self::push) is called.
    #[allow(unsafe_code)]
    pub(super) fn write_pieces(&self, pieces: &[Piece]) -> Result<usize, Errno> {
        // SAFETY: zero is a valid value of all its fields.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast::<libc::iovec>().cast_mut();
        message.msg_iovlen = pieces.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
        let fd = self.socket.as_raw_fd();
        // `sendmsg` of the C library is a cancellation point, and `syscall` is none.
        // SAFETY: the pieces are laid out as the kernel wants them, and it only reads. Where no memory is
        // present it stops, or fails.
        let done = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) };
        match usize::try_from(done) {
            Ok(bytes) => Ok(bytes),
            Err(_) => match Errno::from_io_error(&io::Error::last_os_error()) {
                // A page that is gone is noticed when the rest is copied.
                Some(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::FAULT) => Ok(0),
                other => Err(other.unwrap_or(Errno::IO)),
            },
        }
    }

    /// Lets the kernel send what it keeps back.
    pub(super) fn push(&self) {
        // Setting it again does so. It fails only if there is nothing to send by any more.
        let _ = sockopt::set_tcp_nodelay(&self.socket, true);
    }

    /// Reads what is there without waiting; `None` if nothing is, 0 at the end.
    pub(super) fn read(&self, room: &mut [u8]) -> Result<Option<usize>, Errno> {
        match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((_, len)) => Ok(Some(len)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What becomes readable when bytes arrive, or it ends.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A child of this process may keep the socket open.
        if self.is_ours() {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }
}
