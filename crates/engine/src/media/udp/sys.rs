//! The system calls of sockets, with addresses and control messages as Rust types.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{offset_of, size_of, size_of_val};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Value of the option `UDP_SEGMENT` and type of its control message (`linux/udp.h`).
pub(super) const UDP_SEGMENT: c_int = 103;
/// The same for `UDP_GRO`.
pub(super) const UDP_GRO: c_int = 104;

/// Opens a non-blocking UDP socket.
pub(crate) fn udp_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// Sets an option that is an `int`.
pub(super) fn set_int(fd: &OwnedFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, level, name, &value)
}

/// Sets an option to the bytes of a plain C value.
pub(crate) fn set_option<T: Copy>(
    fd: &impl AsRawFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes from `value`, which lives.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast::<c_void>(), len)
    })
    .map(drop)
}

/// Whether a socket is an IPv6 one, dual-stack or not.
pub(super) fn is_v6(fd: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::net::sockopt::socket_domain(fd)? == AddressFamily::INET6)
}

/// Sets `O_NONBLOCK`.
pub(super) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// Makes a descriptor one for the file of another descriptor. Its own file is closed.
pub(crate) fn replace(fd: RawFd, with: &OwnedFd) -> io::Result<()> {
    // SAFETY: the kernel changes the table of descriptors only. Whoever has `fd` has it for a socket of the
    // same kind still.
    check(unsafe { libc::dup3(with.as_raw_fd(), fd, libc::O_CLOEXEC) }).map(drop)
}

/// Binds.
pub(super) fn bind(fd: &OwnedFd, addr: &SocketAddr) -> io::Result<()> {
    Ok(rustix::net::bind(fd, addr)?)
}

/// The port that a socket is bound to.
pub(super) fn local_port(fd: &OwnedFd) -> io::Result<u16> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?)?.port())
}

/// An empty address, which the kernel fills in.
pub(super) const NO_NAME: libc::sockaddr_in6 = libc::sockaddr_in6 {
    sin6_family: 0,
    sin6_port: 0,
    sin6_flowinfo: 0,
    sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
    sin6_scope_id: 0,
};

/// An empty message: no address, no gather list, no control messages.
pub(super) const NO_MESSAGE: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};

/// An address in the kernel's form, and its length in bytes. An IPv4 address is at the offset where an
/// IPv6 one has its flow information.
pub(super) fn raw_addr(addr: &SocketAddr) -> (libc::sockaddr_in6, libc::socklen_t) {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let raw = libc::sockaddr_in6 {
        sin6_family: family as libc::sa_family_t,
        sin6_port: addr.port().to_be(),
        ..NO_NAME
    };
    match addr {
        SocketAddr::V4(a) => {
            let raw =
                libc::sockaddr_in6 { sin6_flowinfo: u32::from_ne_bytes(a.ip().octets()), ..raw };
            (raw, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(a) => {
            let sin6_addr = libc::in6_addr { s6_addr: a.ip().octets() };
            let raw = libc::sockaddr_in6 { sin6_addr, sin6_scope_id: a.scope_id(), ..raw };
            (raw, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

const _: () = {
    use libc::{sockaddr_in, sockaddr_in6};
    assert!(offset_of!(sockaddr_in, sin_family) == offset_of!(sockaddr_in6, sin6_family));
    assert!(offset_of!(sockaddr_in, sin_port) == offset_of!(sockaddr_in6, sin6_port));
    assert!(offset_of!(sockaddr_in, sin_addr) == offset_of!(sockaddr_in6, sin6_flowinfo));
    assert!(size_of::<sockaddr_in>() <= size_of::<sockaddr_in6>());
};

/// The address in a structure that the kernel filled; IPv4 addresses are not mapped. `None` for
/// other families.
#[inline]
pub(super) fn from_raw_addr(raw: &libc::sockaddr_in6) -> Option<SocketAddr> {
    let port = u16::from_be(raw.sin6_port);
    match c_int::from(raw.sin6_family) {
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Some(match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
                None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id)),
            })
        }
        libc::AF_INET => {
            let ip = Ipv4Addr::from(raw.sin6_flowinfo.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        }
        _ => None,
    }
}

/// Room for control messages, with the alignment that they need.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control<const N: usize>(pub(super) [u8; N]);

/// Size of a `cmsghdr` and alignment of what follows (Linux: `CMSG_ALIGN` is to `size_t`).
const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();

impl<const N: usize> Control<N> {
    pub(super) const fn new() -> Self {
        Self([0; N])
    }

    /// Appends a control message at `at`. Returns where the next one goes. If there is no room, it
    /// appends nothing.
    #[inline]
    pub(super) fn push(&mut self, at: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
        let len = HEADER + data.len();
        let end = at + len.next_multiple_of(ALIGN);
        let Some(room) = self.0.get_mut(at..end) else { return at };
        room[..ALIGN].copy_from_slice(&len.to_ne_bytes());
        room[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        room[ALIGN + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(data);
        end
    }

    /// Calls `f(level, type, data)` for each of the control messages in the first `len` bytes.
    #[inline]
    pub(super) fn each(&self, len: usize, mut f: impl FnMut(c_int, c_int, &[u8])) {
        let mut rest = &self.0[..len.min(N)];
        while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
            let (size, kind) = header.split_at(ALIGN);
            let size = usize::from_ne_bytes(size.try_into().unwrap_or_default());
            let Some(data) = rest.get(HEADER..size) else { return };
            f(int(&kind[..4]), int(&kind[4..]), data);
            rest = rest.get(size.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        }
    }
}

const _: () = assert!(HEADER == ALIGN + 8);

/// An `int` from the start of a control message; 0 if there are too few bytes.
#[inline]
pub(super) fn int(data: &[u8]) -> c_int {
    data.first_chunk().map_or(0, |b| c_int::from_ne_bytes(*b))
}

/// The result of a system call.
pub(super) fn check(rc: c_int) -> io::Result<c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// `errno`.
pub(super) fn errno(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Whether an address is this host's. Only then can a socket be bound to it.
pub(super) fn is_local(ip: IpAddr, ifindex: Option<u32>) -> bool {
    let Ok(fd) = udp_socket(ip.is_ipv6()) else { return false };
    bind(&fd, &socket_addr(ip, 0, ifindex)).is_ok()
}

/// An address and port. The interface becomes the scope if the address needs one.
pub(super) fn socket_addr(ip: IpAddr, port: u16, ifindex: Option<u32>) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
        IpAddr::V6(ip) => {
            let scope =
                if ip.is_unicast_link_local() || ip.is_multicast() { ifindex } else { None };
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope.unwrap_or(0)))
        }
    }
}

/// The name of an interface with a zero at the end, for `SO_BINDTODEVICE`.
pub(super) fn interface_name(ifindex: u32) -> io::Result<[u8; libc::IF_NAMESIZE]> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the function writes at most IF_NAMESIZE bytes.
    let got = unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr().cast()) };
    if got.is_null() { Err(io::Error::last_os_error()) } else { Ok(name) }
}

// The C library's `sendmsg` and `recvmsg` are cancellation points. A thread that is cancelled in
// one of them (rping does that) would be unwound through our frames, with locks held. `syscall` is
// no cancellation point, and a little faster.

/// `recvmsg`.
#[inline]
pub(super) fn recvmsg(fd: RawFd, msg: &mut libc::msghdr, flags: c_int) -> io::Result<usize> {
    // SAFETY: callers fill `msg` with buffers that live and are exclusively theirs.
    let n = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut *msg, flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// `recvmmsg` without waiting.
#[inline]
pub(super) fn recvmmsg(fd: RawFd, msgs: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let no_timeout = ptr::null_mut::<libc::timespec>();
    // SAFETY: as for `recvmsg`, for each message.
    let n = unsafe {
        libc::syscall(libc::SYS_recvmmsg, fd, msgs.as_mut_ptr(), msgs.len(), 0, no_timeout)
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// `sendmsg`.
#[inline]
pub(super) fn sendmsg(fd: RawFd, msg: &libc::msghdr) -> io::Result<usize> {
    // SAFETY: callers fill `msg` with a name, a gather list and control messages that live.
    let n = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const *msg, libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Calls `sendto` with a destination in the form that messages have. The kernel has less to check
/// than with `sendmsg`.
///
/// # Safety
/// `piece` and `name` are readable memory.
#[inline]
pub(super) unsafe fn sendto(
    fd: RawFd,
    piece: &libc::iovec,
    name: *const c_void,
    name_len: libc::socklen_t,
) -> io::Result<usize> {
    let (base, len, flags) = (piece.iov_base, piece.iov_len, libc::MSG_NOSIGNAL);
    // SAFETY: by the caller's promise.
    let n = unsafe { libc::syscall(libc::SYS_sendto, fd, base, len, flags, name, name_len) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Calls `sendmmsg`. Returns how many messages were sent.
#[inline]
pub(super) fn sendmmsg(fd: RawFd, msgs: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: as for `sendmsg`, for each message.
    let n = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, msgs.as_mut_ptr(), msgs.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_kernels_form() {
        let of = |text: &str| text.parse::<SocketAddr>().unwrap();
        let linked = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3).into();
        for (addr, len) in [(of("192.0.2.1:4791"), 16), (of("[2001:db8::1]:80"), 28), (linked, 28)]
        {
            let (raw, raw_len) = raw_addr(&addr);
            assert_eq!((from_raw_addr(&raw), raw_len), (Some(addr), len));
        }
        let (mapped, _) = raw_addr(&of("[::ffff:192.0.2.1]:80"));
        assert_eq!(from_raw_addr(&mapped), Some(of("192.0.2.1:80")));
        assert_eq!(from_raw_addr(&NO_NAME), None);
    }
}
