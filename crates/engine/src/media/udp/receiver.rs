//! The receiving half of UDP: the slot socket.

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;

use polypath_paths::PathKind;
use polypath_wire::icrc::{Flow, FlowCrc};

use super::Received;
use super::sys::{self, Control};

/// The largest number of bytes that one receive returns: those of one UDP datagram, or of a run of
/// coalesced ones.
const BUFFER: usize = 65_536;

/// The number of datagrams or coalesced runs in one `recvmmsg`.
const BATCH: usize = 16;

/// Room for GRO size, packet info, traffic class and hop limit.
const CONTROL: usize = 160;

/// The option that reports the destinations of IPv6 packets as `IPV6_PKTINFO` does, but not those
/// of IPv4 packets that a dual-stack socket receives. It is also the type of its control message
/// (`linux/in6.h`).
const IPV6_2292PKTINFO: c_int = 2;

/// The size of an address.
const NAME: libc::socklen_t = size_of::<libc::sockaddr_in6>() as libc::socklen_t;

/// The size in bytes from which on a message is treated as part of a stream of coalesced runs.
const RUN: usize = 16 * 1024;

/// The number of flows whose part of the ICRC is remembered. It must be a power of two.
const FLOWS: usize = 256;

/// A lane's slot socket. It is bound to port 4791 of all addresses, and comes from the broker.
///
/// One call is one `recvmmsg`. An empty one costs about 12 % more than an empty `recvmsg`. But
/// small datagrams cost a third less than one by one, and a batch that is not full shows without
/// another system call that there is no more ([`Receiver::more`]). If the last call brought a
/// coalesced run, the next one takes one run at a time, so that its data are still in the cache
/// when they are used.
pub struct Receiver {
    fd: OwnedFd,
    /// The port that it is bound to. The ICRC covers it.
    port: u16,
    /// Vectors are used because, unlike a box, a vector does not claim that nothing else points to
    /// its elements.
    buffers: Vec<u8>,
    meta: Vec<Meta>,
    headers: MessageHeaders,
    flows: Box<[Option<Known>; FLOWS]>,
    /// The address, and its interface, that all IPv4 packets are assumed to be sent to, because the
    /// kernel does not report their destination.
    sole_v4: Option<(Ipv4Addr, u32)>,
    /// Whether [`Received::traffic_class`] and [`Received::hop_limit`] are reported.
    fields: bool,
    /// Whether [`Received::traffic_class`] is reported even if they are not.
    marks: bool,
    /// The number of messages that the next call asks for.
    ask: usize,
    /// The number of calls in a row that got as many as they asked for.
    full: u32,
    more: bool,
}

/// What a receiver asks its socket to report of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reports {
    /// See [`Receiver::tell_header_fields`].
    pub(crate) fields: bool,
    /// See [`Receiver::tell_marks`].
    pub(crate) marks: bool,
    /// See [`Receiver::set_sole_ipv4`].
    pub(crate) sole_v4: bool,
}

impl Reports {
    /// Sets the options of a socket.
    pub(crate) fn ask_of(self, socket: &OwnedFd) -> io::Result<()> {
        let Self { fields, marks, sole_v4 } = self;
        sys::set_nonblocking(socket)?;
        sys::set_int(socket, libc::SOL_UDP, sys::UDP_GRO, 1)?;
        // A dual-stack socket reports the destination of IPv4 packets in IPV6_PKTINFO too, as a
        // mapped address.
        if sys::is_v6(socket)? {
            let options = [
                (libc::IPV6_RECVPKTINFO, !sole_v4),
                (IPV6_2292PKTINFO, sole_v4),
                (libc::IPV6_RECVTCLASS, fields || marks),
                (libc::IPV6_RECVHOPLIMIT, fields),
            ];
            for (option, on) in options {
                sys::set_int(socket, libc::IPPROTO_IPV6, option, on.into())?;
            }
        } else {
            sys::set_int(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        // On a dual-stack socket these options apply to IPv4 packets.
        sys::set_int(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, (fields || marks).into())?;
        sys::set_int(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, fields.into())
    }
}

/// The headers of messages. They point into `buffers` and `meta`, which never move or change size
/// as long as the receiver lives.
struct MessageHeaders {
    messages: Vec<libc::mmsghdr>,
    /// `messages` points to these; they are never read here.
    _pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers point to heap memory that the same `Receiver` owns, and only methods that
// have it exclusively use them.
unsafe impl Send for MessageHeaders {}

/// A flow that packets have arrived on.
#[derive(Clone, Copy)]
struct Known {
    /// The source as the kernel reports it, because comparing it is faster than converting it.
    name: libc::sockaddr_in6,
    flow: Flow,
    crc: FlowCrc,
}

/// The data that the kernel reports with a message.
#[derive(Clone, Copy)]
struct Meta {
    name: libc::sockaddr_in6,
    control: Control<CONTROL>,
}

impl Receiver {
    /// Takes a bound UDP socket and sets the options that it needs.
    ///
    /// # Errors
    /// The socket is not a UDP socket, or the kernel has no `UDP_GRO` (before Linux 5.0).
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Reports::default().ask_of(&fd)?;
        let meta = Meta { name: sys::NO_NAME, control: Control::new() };
        let port = sys::local_port(&fd)?;
        let mut buffers = vec![0; BUFFER * BATCH];
        let mut meta = vec![meta; BATCH];
        let headers = MessageHeaders::new(&mut buffers, &mut meta);
        let flows = Box::new([None; FLOWS]);
        Ok(Self {
            fd,
            port,
            buffers,
            meta,
            headers,
            flows,
            sole_v4: None,
            fields: false,
            marks: false,
            ask: 1,
            full: 0,
            more: false,
        })
    }

    /// What the socket reports.
    pub(crate) fn reports(&self) -> Reports {
        Reports { fields: self.fields, marks: self.marks, sole_v4: self.sole_v4.is_some() }
    }

    /// Sets the only IPv4 address at which this host can be reached, and its interface; `None` if
    /// there are several or none, or if it is not known.
    ///
    /// If there is only one, the kernel need not report the destination of every packet, which
    /// saves 0.3 µs of the 6 µs that a small packet takes from socket to socket. A packet that was
    /// nevertheless sent to another address, one of 127.0.0.0/8 or a broadcast, then has a wrong
    /// ICRC. Datagram services use multicast, so they always get the destination
    /// ([`Receiver::tell_header_fields`]).
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_sole_ipv4(&mut self, sole: Option<(Ipv4Addr, u32)>) -> io::Result<()> {
        // On an IPv4 socket the destination is reported always.
        let sole = sole.filter(|_| !self.fields && self.is_v6());
        if sole.is_some() == self.sole_v4.is_some() {
            self.sole_v4 = sole;
            return Ok(());
        }
        // First set the option that reports more, so that no packet arrives without what it needs.
        let (on, off) = match sole {
            Some(_) => (IPV6_2292PKTINFO, libc::IPV6_RECVPKTINFO),
            None => (libc::IPV6_RECVPKTINFO, IPV6_2292PKTINFO),
        };
        sys::set_int(&self.fd, libc::IPPROTO_IPV6, on, 1)?;
        sys::set_int(&self.fd, libc::IPPROTO_IPV6, off, 0)?;
        self.sole_v4 = sole;
        Ok(())
    }

    fn is_v6(&self) -> bool {
        sys::is_v6(&self.fd).unwrap_or(false)
    }

    /// Reports [`Received::traffic_class`] from now on, by which packets are marked when a queue on the way
    /// is long. Until then it is 0, because reporting costs some time for each packet.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn tell_marks(&mut self) -> io::Result<()> {
        if core::mem::replace(&mut self.marks, true) || self.fields {
            return Ok(());
        }
        if self.is_v6() {
            sys::set_int(&self.fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        }
        sys::set_int(&self.fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
    }

    /// Sets whether [`Received::traffic_class`] and [`Received::hop_limit`] are reported; otherwise
    /// they are 0. At first they are not, because reporting costs some time for each packet, and
    /// only datagram services show them.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn tell_header_fields(&mut self, tell: bool) -> io::Result<()> {
        self.fields = tell;
        let class = tell || self.marks;
        if tell {
            self.set_sole_ipv4(None)?;
        }
        if self.is_v6() {
            let options = [(libc::IPV6_RECVTCLASS, class), (libc::IPV6_RECVHOPLIMIT, tell)];
            for (option, on) in options {
                sys::set_int(&self.fd, libc::IPPROTO_IPV6, option, on.into())?;
            }
        }
        // On a dual-stack socket these options apply to IPv4 packets.
        for (option, on) in [(libc::IP_RECVTOS, class), (libc::IP_RECVTTL, tell)] {
            sys::set_int(&self.fd, libc::IPPROTO_IP, option, on.into())?;
        }
        Ok(())
    }

    /// The descriptor, for `poll`.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The UDP port that it is bound to: 4791, except in tests.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Receives one batch without waiting and calls `f` for each datagram in order. Returns the
    /// number of datagrams, 0 if there are none.
    ///
    /// # Errors
    /// Those of `recvmmsg`, except those that mean that there is nothing to receive.
    #[inline]
    pub fn receive(&mut self, f: &mut impl FnMut(&Received<'_>)) -> io::Result<usize> {
        let asked = &mut self.headers.messages[..self.ask];
        let got = match asked {
            // For a single message, `recvmsg` is cheaper.
            [one] => {
                sys::recvmsg(self.fd.as_raw_fd(), &mut one.msg_hdr, libc::MSG_DONTWAIT).map(|len| {
                    one.msg_len = len as u32;
                    1
                })
            }
            many => sys::recvmmsg(self.fd.as_raw_fd(), many),
        };
        let got = match got {
            Ok(got) => got,
            Err(e) => {
                self.more = false;
                self.full = 0;
                return nothing(e);
            }
        };
        self.more = got == self.ask;
        let (mut count, mut longest) = (0, 0);
        for i in 0..got {
            let message = &mut self.headers.messages[i];
            let (len, control) = (message.msg_len as usize, message.msg_hdr.msg_controllen);
            // The kernel has replaced these sizes with those that it used.
            message.msg_hdr.msg_controllen = CONTROL;
            message.msg_hdr.msg_namelen = NAME;
            longest = longest.max(len);
            count += self.deliver(i, len, control, f);
        }
        self.full = if self.more { self.full + 1 } else { 0 };
        // Finding out that there is no further message costs half as much as receiving one. While
        // messages arrive one by one, only one is asked for.
        self.ask = match self.full {
            _ if longest >= RUN => 1,
            0 => got.max(1),
            1 => self.ask,
            _ => (self.ask * 4).min(BATCH),
        };
        Ok(count)
    }

    /// Whether the last batch was full, so that there may be more to receive without waiting.
    #[inline]
    pub fn more(&self) -> bool {
        self.more
    }

    /// Hands out the datagrams in buffer `i`.
    fn deliver(
        &mut self,
        i: usize,
        len: usize,
        control: usize,
        f: &mut impl FnMut(&Received<'_>),
    ) -> usize {
        let meta = &self.meta[i];
        let (mut dst, mut ifindex) = (None, 0);
        let (mut traffic_class, mut hop_limit, mut segment) = (0, 0, len);
        meta.control.each(control, |level, kind, data| match (level, kind) {
            (libc::SOL_UDP, sys::UDP_GRO) => segment = sys::int(data) as usize,
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO | IPV6_2292PKTINFO) => {
                if let Some((ip, index)) = data.split_first_chunk::<16>() {
                    dst = Some(Ipv6Addr::from(*ip).to_canonical());
                    ifindex = sys::int(index) as u32;
                }
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // struct in_pktinfo has the interface, the local address and the destination of the
                // header.
                if let Some(info) = data.first_chunk::<12>() {
                    dst = Some(IpAddr::from([info[8], info[9], info[10], info[11]]));
                    ifindex = sys::int(info) as u32;
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => traffic_class = sys::int(data) as u8,
            // This is one byte, unlike IPV6_TCLASS.
            (libc::IPPROTO_IP, libc::IP_TOS) => traffic_class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) | (libc::IPPROTO_IP, libc::IP_TTL) => {
                hop_limit = sys::int(data) as u8;
            }
            _ => {}
        });
        if dst.is_none()
            && let Some((sole, interface)) = self.sole_v4
        {
            (dst, ifindex) = (Some(IpAddr::V4(sole)), interface);
        }
        let known = dst.and_then(|dst| known(&mut self.flows, &meta.name, dst, self.port));
        // A message that can't be interpreted counts too, because something was received.
        let Some(Known { flow: Flow { src, dst, src_port, .. }, crc, .. }) = known else {
            return 1;
        };
        let mut received = Received {
            kind: PathKind::Udp,
            src,
            src_port,
            dst,
            ifindex,
            traffic_class,
            hop_limit,
            datagram: &[],
            crc: Some(crc),
            id_guess: 0,
        };
        if len == 0 {
            f(&received);
            return 1;
        }
        let mut count = 0;
        for datagram in self.buffers[i * BUFFER..][..len.min(BUFFER)].chunks(segment.max(1)) {
            received.datagram = datagram;
            f(&received);
            received.id_guess = received.id_guess.wrapping_add(1);
            count += 1;
        }
        count
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// The flow of a packet from `name` to `dst`; it is remembered for later packets. `None` if the two
/// are not addresses of one family.
#[inline]
fn known(
    flows: &mut [Option<Known>; FLOWS],
    name: &libc::sockaddr_in6,
    dst: IpAddr,
    dst_port: u16,
) -> Option<Known> {
    // In an IPv4 address, which is shorter, all of these bytes but the port are 0.
    let low = usize::from(name.sin6_addr.s6_addr[15]);
    let slot = &mut flows[(usize::from(u16::from_be(name.sin6_port)) ^ (low * 31)) % FLOWS];
    if let Some(known) = slot
        && known.flow.dst == dst
        && is_same(&known.name, name)
    {
        return Some(*known);
    }
    let src = sys::from_raw_addr(name).filter(|src| src.is_ipv4() == dst.is_ipv4())?;
    let flow = Flow { src: src.ip(), dst, src_port: src.port(), dst_port };
    Some(*slot.insert(Known { name: *name, flow, crc: FlowCrc::new(&flow) }))
}

#[inline]
fn is_same(a: &libc::sockaddr_in6, b: &libc::sockaddr_in6) -> bool {
    a.sin6_addr.s6_addr == b.sin6_addr.s6_addr
        && a.sin6_port == b.sin6_port
        && a.sin6_family == b.sin6_family
        && a.sin6_flowinfo == b.sin6_flowinfo
        && a.sin6_scope_id == b.sin6_scope_id
}

impl MessageHeaders {
    fn new(buffers: &mut Vec<u8>, meta: &mut Vec<Meta>) -> Self {
        assert!(buffers.len() == BUFFER * BATCH && meta.len() == BATCH);
        let piece = libc::iovec { iov_base: ptr::null_mut(), iov_len: BUFFER };
        let (mut messages, mut pieces) = (vec![sys::NO_MESSAGE; BATCH], vec![piece; BATCH]);
        let (buffers, meta, piece) = (buffers.as_mut_ptr(), meta.as_mut_ptr(), pieces.as_mut_ptr());
        for (i, message) in messages.iter_mut().enumerate() {
            let header = &mut message.msg_hdr;
            // SAFETY: all three vectors have element `i`, the buffers `BUFFER` bytes each.
            unsafe {
                (*piece.add(i)).iov_base = buffers.add(i * BUFFER).cast();
                header.msg_iov = piece.add(i);
                header.msg_name = (&raw mut (*meta.add(i)).name).cast();
                header.msg_control = (&raw mut (*meta.add(i)).control).cast();
            }
            header.msg_iovlen = 1;
            header.msg_namelen = NAME;
            header.msg_controllen = CONTROL;
        }
        Self { messages, _pieces: pieces }
    }
}

/// Whether an error means only that there is nothing to receive: no data, a signal, or an ICMP
/// message about a packet sent before.
fn nothing(error: io::Error) -> io::Result<usize> {
    const QUIET: [c_int; 5] =
        [libc::EAGAIN, libc::EINTR, libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH];
    if QUIET.contains(&sys::errno(&error)) { Ok(0) } else { Err(error) }
}
