//! A replacement for the kernel's `NETLINK_RDMA` sockets, so that `rdma link`, `rdma dev` and `rdma
//! resource` of iproute2 show our devices beside the real ones.
//!
//! A program that opens such a socket gets a netlink socket of another protocol,
//! `NETLINK_USERSOCK`, to which any process may send. `send()` and similar functions take what the
//! program sends, and put the answer into the socket's own queue ([`answer`]). The kernel does
//! receiving, polling and options. A request that is not about one of our devices goes to a real
//! socket, if the kernel has one, and its answers are passed on. A dump contains both.
//!
//! The real libibverbs also finds its devices through such sockets. It must see only the kernel's
//! ([`Aside`]), because none of its providers drives ours.

mod answer;
mod message;

use core::ffi::{c_int, c_void};
use core::mem::{size_of, zeroed};
use core::sync::atomic::{AtomicBool, Ordering};
use std::cell::Cell;
use std::os::fd::OwnedFd;

use libc::{size_t, sockaddr_nl, ssize_t};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::guard::{self, set_errno};
use crate::lock::Lock;
use message::Request;

/// The longest request that is read.
const REQUEST_MAX: usize = 64 * 1024;

/// The largest number of sockets that a process may have at once.
const SOCKETS_MAX: usize = 256;

/// Whether any such socket was ever opened.
static ANY: AtomicBool = AtomicBool::new(false);

/// A descriptor, and the identity of its socket, because the descriptor may have been closed
/// without our knowledge.
type Known = (c_int, (u64, u64));

/// The open sockets.
pub(crate) static SOCKETS: Lock<Vec<Known>> = Lock::new(Vec::new());

thread_local! {
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the thread's sockets of this kind are the kernel's.
pub(crate) struct Aside(bool);

impl Aside {
    pub(crate) fn new() -> Self {
        Self(ASIDE.replace(true))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        ASIDE.set(self.0);
    }
}

/// Whether we open a socket of this kind.
pub(crate) fn wanted() -> bool {
    !ASIDE.get()
}

/// Whether a descriptor may be one of ours. In nearly all programs this is one load.
#[inline]
pub(crate) fn maybe(_fd: c_int) -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Calls `fstat` by system call, so that our own replacement is not involved.
fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: zeroes are valid for the structure, which the kernel fills in.
    unsafe {
        let mut status: libc::stat = zeroed();
        let failed = libc::syscall(libc::SYS_fstat, fd, &raw mut status) != 0;
        (!failed).then_some((status.st_dev, status.st_ino))
    }
}

fn is_ours(fd: c_int) -> bool {
    let mut sockets = SOCKETS.lock();
    let Some(at) = sockets.iter().position(|known| known.0 == fd) else { return false };
    if identity(fd) == Some(sockets[at].1) {
        return true;
    }
    sockets.swap_remove(at);
    false
}

/// Opens a socket by system call, so that our own replacement is not involved; -1 with `errno`.
fn new_socket(kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the arguments are plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, protocol) };
    c_int::try_from(fd).unwrap_or(-1)
}

/// Opens a replacement socket. Returns a descriptor, or -1 with `errno`.
pub(crate) fn open(kind: c_int) -> c_int {
    let fd = new_socket(kind, libc::NETLINK_USERSOCK);
    if fd < 0 {
        return new_socket(kind, libc::NETLINK_RDMA);
    }
    let known = guard::run(false, || {
        let mut sockets = SOCKETS.lock();
        sockets.retain(|known| known.0 != fd && identity(known.0) == Some(known.1));
        let room = sockets.len() < SOCKETS_MAX;
        if let Some(identity) = identity(fd).filter(|_| room) {
            sockets.push((fd, identity));
        }
        room
    });
    if !known {
        // SAFETY: this is the function's own descriptor.
        unsafe { libc::close(fd) };
        set_errno(libc::EMFILE);
        return -1;
    }
    ANY.store(true, Ordering::Relaxed);
    fd
}

/// Implements `send()` on such a socket. `None` if it is not one of ours after all.
///
/// # Safety
/// `buffer` has `length` bytes.
pub(crate) unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t) -> Option<ssize_t> {
    if !guard::run(false, || is_ours(fd)) {
        return None;
    }
    if buffer.is_null() || length > REQUEST_MAX {
        set_errno(if buffer.is_null() { libc::EFAULT } else { libc::EMSGSIZE });
        return Some(-1);
    }
    // SAFETY: `buffer` is not null, so the caller promises that it has `length` bytes.
    let bytes = unsafe { core::slice::from_raw_parts(buffer.cast::<u8>(), length) };
    Some(take(fd, bytes))
}

/// Implements `sendmsg()` on such a socket. `None` if it is not one of ours after all.
///
/// # Safety
/// `message` and its parts are as `sendmsg` requires.
pub(crate) unsafe fn send_message(fd: c_int, message: *const libc::msghdr) -> Option<ssize_t> {
    if message.is_null() || !guard::run(false, || is_ours(fd)) {
        return None;
    }
    let mut bytes = Vec::new();
    // SAFETY: the header is not null. It names `msg_iovlen` parts, each with its bytes, as
    // `sendmsg` requires.
    unsafe {
        for at in 0..(*message).msg_iovlen {
            let part = &*(*message).msg_iov.add(at);
            if part.iov_len > REQUEST_MAX - bytes.len() {
                set_errno(libc::EMSGSIZE);
                return Some(-1);
            }
            if part.iov_len > 0 {
                let part = core::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len);
                bytes.extend_from_slice(part);
            }
        }
    }
    Some(take(fd, &bytes))
}

/// Answers the requests that the program sent.
fn take(fd: c_int, bytes: &[u8]) -> ssize_t {
    let result = guard::run(Err(libc::EIO), || {
        let port = port_of(fd)?;
        for request in Request::all(bytes) {
            for datagram in answer::to(&request, port) {
                deliver(port, &datagram)?;
            }
        }
        Ok(())
    });
    match result {
        Ok(()) => bytes.len().cast_signed(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn address(port: u32) -> sockaddr_nl {
    // SAFETY: zeroes are valid for the structure.
    let mut address: sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

const ADDRESS_LEN: libc::socklen_t = size_of::<sockaddr_nl>() as libc::socklen_t;

fn last_errno(result: libc::c_long) -> Result<libc::c_long, c_int> {
    if result < 0 { Err(guard::errno()) } else { Ok(result) }
}

/// The socket's own address. The kernel assigns one at the first send at the latest, and so do we.
fn port_of(fd: c_int) -> Result<u32, c_int> {
    let mut own = address(0);
    for _ in 0..2 {
        let mut length = ADDRESS_LEN;
        // SAFETY: there is room for an address of that length.
        last_errno(unsafe {
            libc::syscall(libc::SYS_getsockname, fd, &raw mut own, &raw mut length)
        })?;
        if own.nl_pid != 0 {
            return Ok(own.nl_pid);
        }
        let any = address(0);
        // SAFETY: this is an address of that length.
        last_errno(unsafe { libc::syscall(libc::SYS_bind, fd, &raw const any, ADDRESS_LEN) })?;
    }
    Err(libc::EADDRNOTAVAIL)
}

/// A non-blocking socket of this module's own.
fn own_socket(protocol: Protocol) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(protocol))
}

/// Puts a datagram into the queue of the socket with this address. If it does not fit, the sender
/// gets the error, because the program that would have to make room is inside this call.
fn deliver(port: u32, datagram: &[u8]) -> Result<(), c_int> {
    let to = SocketAddrNetlink::new(port, 0);
    let sent = own_socket(netlink::USERSOCK)
        .and_then(|from| rustix::net::sendto(from, datagram, SendFlags::empty(), &to));
    match sent {
        Err(Errno::AGAIN) => Err(libc::ENOBUFS),
        Err(errno) => Err(errno.raw_os_error()),
        Ok(_) => Ok(()),
    }
}

/// Asks the kernel. Returns its datagrams, or `None` if it has no such sockets.
fn ask_kernel(request: &Request<'_>) -> Option<Vec<Vec<u8>>> {
    let real = own_socket(netlink::RDMA).ok()?;
    let kernel = SocketAddrNetlink::new(0, 0);
    let mut all = Vec::new();
    // The kernel answers before the send returns, and continues a dump whenever it is read, so what can't
    // be received at once does not come.
    let sent = rustix::net::sendto(&real, request.bytes(), SendFlags::empty(), &kernel);
    let mut more = sent.is_ok_and(|sent| sent > 0);
    while more {
        let mut buffer = vec![0_u8; 64 * 1024];
        let got = rustix::net::recv(&real, &mut buffer[..], RecvFlags::empty());
        let length = got.map_or(0, |(length, _)| length);
        more = length > 0;
        if more {
            buffer.truncate(length);
            all.push(buffer);
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_by_the_socket_that_asked() {
        let fd = open(libc::SOCK_RAW | libc::SOCK_CLOEXEC);
        assert!(fd >= 0);
        let mut request = 20_u32.to_ne_bytes().to_vec();
        request.extend(((5_u16 << 10) + 2).to_ne_bytes()); // SET, which we don't do
        request.extend(1_u16.to_ne_bytes());
        request.extend(77_u32.to_ne_bytes());
        request.extend([0; 8]);
        // SAFETY: there are as many bytes as stated.
        let sent = unsafe { send(fd, request.as_ptr().cast(), request.len()) };
        assert_eq!(sent, Some(20));
        let mut buffer = [0_u8; 256];
        // SAFETY: there are as many bytes as stated.
        let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), 256, libc::MSG_DONTWAIT) };
        assert!(got >= 36, "{got}");
        assert_eq!(buffer[4..6], 2_u16.to_ne_bytes(), "NLMSG_ERROR");
        assert_eq!(buffer[8..12], 77_u32.to_ne_bytes());
        let port = port_of(fd).unwrap();
        assert_eq!(buffer[12..16], port.to_ne_bytes());
        // SAFETY: this is the test's own descriptor.
        unsafe { libc::close(fd) };
        // SAFETY: there are as many bytes as stated.
        assert_eq!(unsafe { send(fd, request.as_ptr().cast(), request.len()) }, None);
    }
}
