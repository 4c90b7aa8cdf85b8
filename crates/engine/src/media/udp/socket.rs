//! A socket for sending.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::sys;
use super::{FlowFault, FlowKey};

/// The first source port that RoCEv2 uses (IBTA A17.9.2), and the number of these ports.
const PORT_FIRST: u16 = 0xc000;
const PORTS: u16 = 0x4000;

/// The number of ports that are tried before giving up.
const PORT_TRIES: u16 = 256;

/// The step from a taken port to the next one to try. It is odd, so that all ports are reached.
const PORT_STEP: u16 = 4099;

/// The requested send buffer in bytes. An unprivileged process gets what `net.core.wmem_max`
/// allows.
const SEND_BUFFER: c_int = 4 << 20;

/// The number of equal sends in a row after which the socket's option is set for them.
const HABIT: u8 = 16;

/// The TTL of flows that do not specify one.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;

/// The properties that flows on one socket share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SocketKey {
    local: IpAddr,
    /// The interface that it is bound to.
    device: Option<u32>,
    /// The scope of a link-local address.
    scope: Option<u32>,
    /// The requested port.
    pub(super) port: u16,
}

impl SocketKey {
    /// Whether both differ in the port at most.
    pub(super) fn same_source(&self, other: &Self) -> bool {
        Self { port: other.port, ..*self } == *other
    }

    pub(super) fn new(key: &FlowKey) -> Self {
        let (local, remote) = (key.local.to_canonical(), key.remote.to_canonical());
        // A socket can be bound to a multicast address, but such an address is not only this
        // host's.
        let stays_here =
            key.ifindex.is_some() && !remote.is_multicast() && sys::is_local(remote, key.ifindex);
        // Packets to this host go through the loopback interface, which a socket bound to another
        // interface cannot use.
        let device = if stays_here { None } else { key.ifindex };
        let scope = match local {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => key.ifindex,
            _ => None,
        };
        Self { local, device, scope, port: PORT_FIRST | key.source_port }
    }
}

/// A socket with its options, used by at least one flow.
///
/// `IP_RECVERR` stays off, and the socket is not connected, so that no ICMP message makes a send
/// fail. Anybody can forge ICMP messages, and a dead path is noticed by its silence.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) key: SocketKey,
    fd: OwnedFd,
    /// The port that it has.
    pub(super) port: u16,
    /// The socket's option. A flow with another value sends it in a control message.
    pub(super) traffic_class: u8,
    /// The same for the hop limit.
    pub(super) hop_limit: u8,
    /// `UDP_SEGMENT` of the socket: everything sent is split into pieces of this many bytes. 0 if
    /// it is not.
    pub(super) segment: u16,
    /// Whether the kernel fragments packets that are larger than the interface's MTU.
    fragments: bool,
    /// The last argument of [`Socket::expect_segment`], and how often it was repeated.
    habit: (u16, u8),
    /// The number of flows that use it.
    pub(super) flows: u32,
}

impl Socket {
    pub(super) fn open(key: SocketKey, traffic_class: u8, hop_limit: u8) -> io::Result<Self> {
        let fd = sys::udp_socket(key.local.is_ipv6())?;
        let (class, hops) = (c_int::from(traffic_class), c_int::from(hop_limit));
        match key.local {
            IpAddr::V4(ip) => {
                let set = |name, value| sys::set_int(&fd, libc::IPPROTO_IP, name, value);
                // This sets DF and, on a socket that is not connected, identification 0; the ICRC
                // covers both. Unlike with IP_PMTUDISC_DO, the interface's MTU counts, because the
                // host's cache of path MTUs believes ICMP messages from anybody.
                set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
                set(libc::IP_TOS, class)?;
                set(libc::IP_TTL, hops)?;
                set(libc::IP_MULTICAST_TTL, hops)?;
                let source = u32::from_ne_bytes(Ipv4Addr::octets(&ip));
                sys::set_option(&fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &source)?;
            }
            IpAddr::V6(_) => {
                let set = |name, value| sys::set_int(&fd, libc::IPPROTO_IPV6, name, value);
                set(libc::IPV6_V6ONLY, 1)?;
                set(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
                set(libc::IPV6_TCLASS, class)?;
                set(libc::IPV6_UNICAST_HOPS, hops)?;
                set(libc::IPV6_MULTICAST_HOPS, hops)?;
                if let Some(device) = key.device.or(key.scope) {
                    set(libc::IPV6_MULTICAST_IF, device as c_int)?;
                }
            }
        }
        if let Some(device) = key.device {
            let name = sys::interface_name(device)?;
            sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &name)?;
        }
        if sys::set_int(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER).is_err() {
            sys::set_int(&fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
        }
        discard_all_input(&fd)?;
        let port = bind(&fd, &key)?;
        Ok(Self {
            key,
            fd,
            port,
            traffic_class,
            hop_limit,
            segment: 0,
            fragments: false,
            habit: (0, 0),
            flows: 0,
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets whether the next send's packets that are larger than the interface's MTU are sent in
    /// fragments, without DF and with an identification that the kernel chooses, or are rejected.
    #[inline]
    pub(super) fn expect_fragments(&mut self, fragments: bool) -> io::Result<()> {
        if fragments == self.fragments {
            return Ok(());
        }
        // Both values use the interface's MTU, not what ICMP messages say.
        let (level, option, value) = match (self.key.local, fragments) {
            (IpAddr::V4(_), true) => {
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_OMIT)
            }
            (IpAddr::V4(_), false) => {
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
            }
            (IpAddr::V6(_), true) => {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_OMIT)
            }
            (IpAddr::V6(_), false) => {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
            }
        };
        sys::set_int(&self.fd, level, option, value)?;
        self.fragments = fragments;
        Ok(())
    }

    /// Prepares the socket for the next send, which consists of pieces of `segment` bytes, or of
    /// one piece (0). Afterwards the socket's option does not disturb that send. The option is set
    /// only if the same size was used for a while, as when messages of one size go back and forth,
    /// because a send without a control message is cheaper.
    #[inline]
    pub(super) fn expect_segment(&mut self, segment: u16) -> io::Result<()> {
        if segment == self.segment && (segment > 0 || self.habit.1 == 0) {
            return Ok(());
        }
        let again = segment > 0 && segment == self.habit.0;
        let again = if again { self.habit.1.saturating_add(1) } else { 0 };
        self.habit = (segment, again);
        let wanted = if segment > 0 && again >= HABIT { segment } else { 0 };
        if wanted != self.segment {
            let value = c_int::from(wanted);
            match sys::set_int(&self.fd, libc::SOL_UDP, sys::UDP_SEGMENT, value) {
                Ok(()) => self.segment = wanted,
                Err(e) if self.segment > 0 => return Err(e),
                Err(_) => {} // The option stays as it was.
            }
        }
        Ok(())
    }
}

/// The fault of a flow that an errno of a send means.
pub(super) fn fault(errno: c_int) -> FlowFault {
    match errno {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => FlowFault::Congested(errno),
        _ => FlowFault::Refused(errno),
    }
}

/// Binds to the requested port, or to another of the range.
fn bind(fd: &OwnedFd, key: &SocketKey) -> io::Result<u16> {
    let mut port = key.port;
    for _ in 0..PORT_TRIES {
        match sys::bind(fd, &sys::socket_addr(key.local, port, key.scope)) {
            Ok(()) => return Ok(port),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                port = PORT_FIRST + (port - PORT_FIRST + PORT_STEP) % PORTS;
            }
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Lets the kernel drop everything that arrives. This socket never receives, so it would fill the
/// buffer.
fn discard_all_input(fd: &OwnedFd) -> io::Result<()> {
    // BPF_RET | BPF_K with 0 keeps no byte.
    let mut program = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}
