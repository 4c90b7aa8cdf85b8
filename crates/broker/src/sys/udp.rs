//! UDP sockets: dual-stack, with the addresses of every packet, steered by classic BPF.

use std::io;
use std::mem::{size_of, size_of_val};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socket_with, sockopt};

use super::{check, would_block};

/// Options of linux/udp.h that the libc crate does not have.
const UDP_NO_CHECK6_RX: libc::c_int = 102;
const UDP_GRO: libc::c_int = 104;

/// The index of the drop counter in the result of `SO_MEMINFO` (linux/sock_diag.h), and the length
/// of that result.
const SK_MEMINFO_DROPS: usize = 8;
const SK_MEMINFO_VARS: usize = 9;

/// One instruction of classic BPF.
pub(crate) type Instruction = libc::sock_filter;

/// A non-blocking IPv6 UDP socket that also handles IPv4.
#[derive(Debug)]
pub(crate) struct UdpSocket(OwnedFd);

/// A received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// The packet's length, which is larger than the buffer if the packet was truncated.
    pub(crate) len: usize,
    /// The source address.
    pub(crate) from: SocketAddr,
    /// The local address that it was sent to.
    pub(crate) to: IpAddr,
    /// The interface it came in on.
    pub(crate) ifindex: u32,
}

impl From<OwnedFd> for UdpSocket {
    /// Wraps a socket that was one of these before.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl UdpSocket {
    /// Creates a socket that is not bound.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Self(socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None)?);
        sockopt::set_ipv6_v6only(&socket, false)?;
        // The ICRC protects packets. RoCEv2 allows senders to leave out the UDP checksum (Linux rxe
        // does). Over IPv6 the kernel otherwise rejects such packets (RFC 6936).
        socket.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        Ok(socket)
    }

    /// Binds to a port of all addresses.
    pub(crate) fn bind(&self, port: u16) -> io::Result<()> {
        self.bind_to(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), 0)
    }

    /// Binds to a port of one address. `ifindex` is its interface if the address is link-local.
    pub(crate) fn bind_to(&self, address: SocketAddr, ifindex: u32) -> io::Result<()> {
        Ok(rustix::net::bind(&self.0, &scoped(address, ifindex))?)
    }

    /// Allows more sockets of this user on the same port. They form a group.
    pub(crate) fn share_port(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseport(&self.0, true)?)
    }

    /// Requests the addresses, the traffic class and the hop limit of every packet, and rejects
    /// multicast of groups that this socket has not joined.
    pub(crate) fn describe_packets(&self) -> io::Result<()> {
        for (level, option, value) in [
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0),
            (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
            (libc::IPPROTO_IP, libc::IP_RECVTTL, 1),
            (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0),
        ] {
            self.set(level, option, value)?;
        }
        Ok(())
    }

    /// Makes the socket a member of every IPv4 multicast group that the host is in.
    pub(crate) fn take_all_ipv4_groups(&self) -> io::Result<()> {
        self.set(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 1)
    }

    /// Lets the kernel deliver several packets of one flow at once.
    pub(crate) fn coalesce(&self) -> io::Result<()> {
        self.set(libc::SOL_UDP, UDP_GRO, 1)
    }

    /// Prevents fragmentation: IPv4 packets have DF and identification 0, which the ICRC needs. The
    /// interface's MTU counts, not what an ICMP message from anybody says about the way.
    pub(crate) fn never_fragment(&self) -> io::Result<()> {
        self.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        self.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    }

    /// Prepares a socket that never sends. An ICMP message that quotes a packet of this socket then
    /// changes nothing in the host's cache of path MTUs, which other programs use.
    pub(crate) fn ignore_path_mtu(&self) -> io::Result<()> {
        self.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_INTERFACE)?;
        self.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_INTERFACE)
    }

    /// Makes the receive buffer as large as possible, up to `bytes`. Returns its size, as the
    /// kernel counts it.
    pub(crate) fn enlarge_receive_buffer(&self, bytes: i32) -> io::Result<u32> {
        if self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
            // Without privilege, net.core.rmem_max is the limit.
            self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
        }
        let mut size = [0_u32; 1];
        self.get(libc::SOL_SOCKET, libc::SO_RCVBUF, &mut size)?;
        Ok(size[0])
    }

    /// Makes the socket non-blocking, because a process that had it may have changed that.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        super::set_nonblocking(self.0.as_fd())
    }

    /// Attaches a program to the whole group. From a packet's UDP payload it computes the index of
    /// the socket for the packet, in the order of binding.
    pub(crate) fn steer_group(&self, program: &mut [Instruction]) -> io::Result<()> {
        self.attach(libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    /// Lets the kernel drop everything that arrives from now on. The drops count as overflow.
    pub(crate) fn refuse_all(&self) -> io::Result<()> {
        const BPF_RET_K: u16 = 0x06;
        let mut program = [Instruction { code: BPF_RET_K, jt: 0, jf: 0, k: 0 }];
        self.attach(libc::SO_ATTACH_FILTER, &mut program)
    }

    /// Undoes [`refuse_all`](Self::refuse_all).
    pub(crate) fn accept_all(&self) -> io::Result<()> {
        match self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn attach(&self, option: libc::c_int, program: &mut [Instruction]) -> io::Result<()> {
        let len = libc::c_ushort::try_from(program.len())
            .map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
        let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
        // SAFETY: `program` points to `len` instructions, which the kernel copies and checks.
        check(unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        })
    }

    /// The number of packets that the kernel dropped at this socket: buffer full, or rejected.
    pub(crate) fn drops(&self) -> io::Result<u32> {
        let mut info = [0_u32; SK_MEMINFO_VARS];
        self.get(libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info)?;
        Ok(info[SK_MEMINFO_DROPS])
    }

    /// Discards up to `most` waiting packets. Returns how many there were.
    pub(crate) fn drain(&self, most: usize) -> usize {
        // One byte of each packet is read, and the rest is discarded.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let take = || rustix::net::recv(&self.0, &mut [0; 1], flags).ok();
        std::iter::from_fn(take).take(most).count()
    }

    /// Joins a multicast group on an interface, or leaves it.
    pub(crate) fn membership(&self, group: IpAddr, ifindex: u32, join: bool) -> io::Result<()> {
        let any = Ipv4Addr::UNSPECIFIED;
        match (group, join) {
            (IpAddr::V4(group), true) => {
                sockopt::set_ip_add_membership_with_ifindex(&self.0, &group, &any, ifindex)?;
            }
            (IpAddr::V4(group), false) => {
                sockopt::set_ip_drop_membership_with_ifindex(&self.0, &group, &any, ifindex)?;
            }
            (IpAddr::V6(group), true) => {
                sockopt::set_ipv6_add_membership(&self.0, &group, ifindex)?;
            }
            (IpAddr::V6(group), false) => {
                sockopt::set_ipv6_drop_membership(&self.0, &group, ifindex)?;
            }
        }
        Ok(())
    }

    /// Receives one packet; `None` if there is none.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
        let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = Control::default();
        let nowhere = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0);
        let mut name = to_raw(nowhere);
        let mut message = message(&mut name, &mut iov, &mut control, CONTROL_LEN);
        // SAFETY: the message points to buffers that outlive the call.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
        let Ok(len) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            return if would_block(&error) { Ok(None) } else { Err(error) };
        };
        let from = Ipv6Addr::from(name.sin6_addr.s6_addr).to_canonical();
        let (to, ifindex) = control.destination(message.msg_controllen);
        let from = SocketAddr::new(from, u16::from_be(name.sin6_port));
        Ok(Some(Datagram { len, from, to, ifindex }))
    }

    /// Sends one packet from a local address, through an interface if it is not 0.
    pub(crate) fn send(
        &self,
        bytes: &[u8],
        to: SocketAddr,
        from: IpAddr,
        ifindex: u32,
        traffic_class: u8,
    ) -> io::Result<()> {
        let mut iov =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut name = to_raw(scoped(to, ifindex));
        let (level, kind) = if from.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        let mut control = Control::default();
        let used = control.put_source(mapped(from), ifindex);
        let class = libc::c_int::from(traffic_class);
        let used = control.put(used, level, kind, &class.to_ne_bytes());
        let message = message(&mut name, &mut iov, &mut control, used);
        // SAFETY: the message points to buffers that outlive the call.
        let sent =
            unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        set(&self.0, level, option, value)
    }

    fn get(&self, level: libc::c_int, option: libc::c_int, value: &mut [u32]) -> io::Result<()> {
        let mut len = size_of_val(value) as libc::socklen_t;
        // SAFETY: `value` is valid for `len` bytes, and any bytes are valid numbers.
        check(unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                value.as_mut_ptr().cast(),
                &raw mut len,
            )
        })
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sets an option that is a number.
fn set(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (fd, len) = (socket.as_raw_fd(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: `value` is valid for `len` bytes.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) })
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The address in the form for an IPv6 socket. `ifindex` is the scope of a link-local one.
fn scoped(address: SocketAddr, ifindex: u32) -> SocketAddrV6 {
    let ip = mapped(address.ip());
    let scope = if ip.is_unicast_link_local() || ip.is_multicast() { ifindex } else { 0 };
    SocketAddrV6::new(ip, address.port(), 0, scope)
}

/// The address in the kernel's form.
fn to_raw(address: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
        sin6_scope_id: address.scope_id(),
    }
}

/// Room for `IPV6_PKTINFO`, and the class and hop limit of both families.
const CONTROL_LEN: usize = 256;

/// A buffer of control messages, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

impl Default for Control {
    fn default() -> Self {
        Self([0; CONTROL_LEN])
    }
}

/// The argument of `sendmsg(2)` and `recvmsg(2)` for one packet and `used` bytes of control
/// messages.
fn message(
    name: &mut libc::sockaddr_in6,
    iov: &mut libc::iovec,
    control: &mut Control,
    used: usize,
) -> libc::msghdr {
    libc::msghdr {
        msg_name: (&raw mut *name).cast(),
        msg_namelen: size_of_val(name) as libc::socklen_t,
        msg_iov: iov,
        msg_iovlen: 1,
        msg_control: control.0.as_mut_ptr().cast(),
        msg_controllen: used,
        msg_flags: 0,
    }
}

/// The length of a `cmsghdr`: the total length, level and type.
const HEADER: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEADER == size_of::<usize>() + 8);

/// The length of a `struct in6_pktinfo`: an address and the index of an interface.
const PKTINFO: usize = size_of::<libc::in6_pktinfo>();
const _: () = assert!(PKTINFO == 16 + 4);

impl Control {
    /// Writes a control message at an offset and returns the offset after it.
    ///
    /// # Panics
    /// If there is no room for it.
    fn put(&mut self, at: usize, level: libc::c_int, kind: libc::c_int, data: &[u8]) -> usize {
        let len = HEADER + data.len();
        let room = &mut self.0[at..at + len];
        room[..8].copy_from_slice(&len.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..HEADER].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..].copy_from_slice(data);
        at + len.next_multiple_of(8)
    }

    /// Writes the source address and the interface of a packet. Returns the offset after it.
    fn put_source(&mut self, from: Ipv6Addr, ifindex: u32) -> usize {
        let mut source = [0; PKTINFO];
        source[..16].copy_from_slice(&from.octets());
        source[16..].copy_from_slice(&ifindex.to_ne_bytes());
        self.put(0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &source)
    }

    /// The address and interface that a packet arrived at, from the first `len` bytes; the
    /// unspecified address if they do not contain it. This works for IPv4 packets too, because an
    /// IPv6 socket gets their destination as a mapped address.
    fn destination(&self, len: usize) -> (IpAddr, u32) {
        let mut rest = self.0.get(..len).unwrap_or_default();
        while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
            let number =
                |at: usize| header[at..].first_chunk().copied().map(libc::c_int::from_ne_bytes);
            let len = header.first_chunk().copied().map_or(0, usize::from_ne_bytes);
            let Some(data) = rest.get(HEADER..len) else { break };
            if (number(8), number(12)) == (Some(libc::IPPROTO_IPV6), Some(libc::IPV6_PKTINFO))
                && let Some((ip, ifindex)) = data.split_first_chunk::<16>()
                && let Some(ifindex) = ifindex.first_chunk()
            {
                return (Ipv6Addr::from(*ip).to_canonical(), u32::from_ne_bytes(*ifindex));
            }
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        (Ipv6Addr::UNSPECIFIED.into(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// linux/udp.h.
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn packets_without_a_udp_checksum_are_received() {
        let receiver = UdpSocket::new().unwrap();
        receiver.bind(0).unwrap();
        receiver.describe_packets().unwrap();
        let name = rustix::net::getsockname(&receiver).unwrap();
        let port = SocketAddr::try_from(name).unwrap().port();

        let v6 = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let v4 = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for (socket, level, option) in
            [(&v6, libc::SOL_UDP, UDP_NO_CHECK6_TX), (&v4, libc::SOL_SOCKET, libc::SO_NO_CHECK)]
        {
            set(socket, level, option, 1).unwrap();
            let ip = socket.local_addr().unwrap().ip();
            socket.send_to(b"hello", (ip, port)).unwrap();
            let deadline = Instant::now() + LIMIT;
            let mut buffer = [0; 16];
            let datagram = loop {
                if let Some(datagram) = receiver.receive(&mut buffer).unwrap() {
                    break datagram;
                }
                assert!(Instant::now() < deadline, "nothing came over {ip}");
                std::thread::yield_now();
            };
            assert_eq!((datagram.len, datagram.to), (5, ip));
        }
    }
}
