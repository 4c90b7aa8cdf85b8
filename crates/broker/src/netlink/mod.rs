//! Reads interfaces, addresses and routes from the kernel by rtnetlink(7).
//!
//! This is written by hand, because only a dozen attributes of three message types are needed.
//! Attributes of newer kernels are skipped, whereas a complete parser would have to know them.

mod attributes;
mod bond;
mod link;
mod neighbour;
mod route;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use attributes::{Reader, attribute};
pub(crate) use bond::BondData;
#[cfg(test)]
pub(crate) use bond::SlaveData;
#[cfg(test)]
pub(crate) use link::parse_link as recorded_link;
pub(crate) use link::{AddressMessage, LinkMessage};
pub(crate) use neighbour::NeighbourEntry;
pub(crate) use route::{RouteAnswer, RouteQuestion};

use crate::sys::netlink::NetlinkSocket;
use crate::sys::would_block;

/// The kernel sends dumps in datagrams of up to 32 KiB.
const BUFFER: usize = 64 * 1024;

/// How often a dump is repeated that changes have disturbed. The changes themselves also cause a
/// new dump.
const DUMP_ATTEMPTS: u32 = 4;

/// The largest number of datagrams in a dump, and of notifications that are read at once.
const DATAGRAMS_MAX: usize = 4096;

/// `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

/// The connection to the kernel.
#[derive(Debug)]
pub(crate) struct Netlink {
    requests: NetlinkSocket,
    changes: NetlinkSocket,
    sequence: u32,
    buffer: Box<[u8]>,
}

/// The data for a table of interfaces.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    pub(crate) links: Vec<LinkMessage>,
    pub(crate) addresses: Vec<AddressMessage>,
    /// The interfaces through which packets leave by default routes.
    pub(crate) default_ways: Vec<u32>,
}

impl Netlink {
    pub(crate) fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        Ok(Self {
            requests: NetlinkSocket::new(0)?,
            changes: NetlinkSocket::new(groups.cast_unsigned())?,
            sequence: 0,
            buffer: vec![0; BUFFER].into_boxed_slice(),
        })
    }

    /// The socket that is readable after a change.
    pub(crate) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Any socket of the namespace, for ioctls.
    pub(crate) fn any_socket(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }

    /// Reads all waiting notifications. Returns the interfaces that are down according to their
    /// last notification. The other contents are read again by [`dump`](Self::dump), because many
    /// arrive at once, and some may have been lost.
    pub(crate) fn take_changes(&mut self) -> io::Result<BTreeSet<u32>> {
        let mut down = BTreeSet::new();
        for _ in 0..DATAGRAMS_MAX {
            let len = match self.changes.receive(&mut self.buffer) {
                Err(error) if would_block(&error) => break,
                // Some notifications were lost, so there was a change.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                other => other?,
            };
            for message in messages(&self.buffer[..len]) {
                let gone = message.kind == libc::RTM_DELLINK;
                if !gone && message.kind != libc::RTM_NEWLINK {
                    continue;
                }
                if let Some(link) = link::parse_link(message.body) {
                    if gone || !link.up {
                        down.insert(link.ifindex);
                    } else {
                        down.remove(&link.ifindex);
                    }
                }
            }
        }
        Ok(down)
    }

    /// Reads all interfaces and addresses.
    pub(crate) fn dump(&mut self) -> io::Result<Dump> {
        let mut dump = Dump::default();
        for _ in 0..DUMP_ATTEMPTS {
            dump = Dump::default();
            let whole = self.dump_messages(&link::request(), &mut |kind, body| {
                if kind == libc::RTM_NEWLINK {
                    dump.links.extend(link::parse_link(body));
                }
            })?;
            let whole = whole
                && self.dump_messages(&link::address_request(), &mut |kind, body| {
                    if kind == libc::RTM_NEWADDR {
                        dump.addresses.extend(link::parse_address(body));
                    }
                })?;
            if whole {
                break;
            }
        }
        dump.default_ways = self.default_ways();
        Ok(dump)
    }

    /// The interfaces of the routes to addresses that nobody has (RFC 5737, RFC 3849), which are
    /// default routes. Single routes are queried, because all routes together may be millions.
    fn default_ways(&mut self) -> Vec<u32> {
        let anybody: [IpAddr; 2] = [
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ];
        let mut ways = Vec::new();
        for to in anybody {
            let question = RouteQuestion { to, from: None, ifindex: None };
            ways.extend(self.route(&question).ok().filter(|way| !way.local).map(|way| way.ifindex));
        }
        ways
    }

    /// Reads the messages of a dump. Returns false if changes disturbed it.
    fn dump_messages(
        &mut self,
        request: &Request,
        take: &mut dyn FnMut(u16, &[u8]),
    ) -> io::Result<bool> {
        let sequence = self.send(request, libc::NLM_F_DUMP)?;
        let mut whole = true;
        for _ in 0..DATAGRAMS_MAX {
            let len = self.requests.receive(&mut self.buffer)?;
            for message in messages(&self.buffer[..len]) {
                if message.sequence != sequence {
                    continue;
                }
                whole &= message.flags & libc::NLM_F_DUMP_INTR as u16 == 0;
                match libc::c_int::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(whole),
                    libc::NLMSG_ERROR => return Err(error_of(message.body)),
                    _ => take(message.kind, message.body),
                }
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// The route to an address.
    ///
    /// # Errors
    /// The kernel's error, such as `ENETUNREACH` or `EHOSTUNREACH`.
    pub(crate) fn route(&mut self, question: &RouteQuestion) -> io::Result<RouteAnswer> {
        let sequence = self.send(&route::request(question), 0)?;
        self.answer(sequence, |message| match message.kind {
            libc::RTM_NEWROUTE => Some(route::parse(message.body)),
            kind if is_error(kind) => Some(Err(error_of(message.body))),
            _ => None,
        })
    }

    /// What the kernel knows of a neighbour.
    ///
    /// # Errors
    /// The kernel's error. Before Linux 5.0 it can't say.
    pub(crate) fn neighbour(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<NeighbourEntry> {
        let sequence = self.send(&neighbour::question(ifindex, ip), 0)?;
        self.answer(sequence, |message| match message.kind {
            libc::RTM_NEWNEIGH => Some(Ok(neighbour::parse(message.body))),
            kind if is_error(kind) => Some(match error_of(message.body) {
                error if error.raw_os_error() == Some(libc::ENOENT) => Ok(NeighbourEntry::Unknown),
                error => Err(error),
            }),
            _ => None,
        })
    }

    /// Enters a neighbour that was just heard. Unless `create`, only if the interface knows it.
    ///
    /// # Errors
    /// The kernel's error, such as `EPERM`; `ENOENT` for one that is not known.
    pub(crate) fn set_neighbour(
        &mut self,
        ifindex: u32,
        (ip, mac): (Ipv4Addr, [u8; 6]),
        create: bool,
    ) -> io::Result<()> {
        let create = if create { libc::NLM_F_CREATE } else { 0 };
        self.order(&neighbour::neighbour(ifindex, ip, mac), libc::NLM_F_REPLACE | create)
    }

    /// Gives an interface a hardware address.
    ///
    /// # Errors
    /// The kernel's error: `EPERM`, or `EBUSY` if the driver wants the interface to be down.
    pub(crate) fn set_hardware_address(&mut self, ifindex: u32, mac: [u8; 6]) -> io::Result<()> {
        self.order(&neighbour::hardware_address(ifindex, mac), 0)
    }

    /// Sends a request that changes something, and waits until it is done.
    fn order(&mut self, request: &Request, flags: libc::c_int) -> io::Result<()> {
        let sequence = self.send(request, flags | libc::NLM_F_ACK)?;
        self.answer(sequence, |message| {
            let error = is_error(message.kind).then(|| error_of(message.body))?;
            Some(if error.raw_os_error() == Some(0) { Ok(()) } else { Err(error) })
        })
    }

    /// Waits for the answer to a request, which `read` tells from other messages. The kernel has put it into
    /// the socket's queue before the send of the request returned.
    fn answer<T>(
        &mut self,
        sequence: u32,
        read: impl Fn(&Message<'_>) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        for _ in 0..DATAGRAMS_MAX {
            let len = self.requests.receive(&mut self.buffer)?;
            let mut ours =
                messages(&self.buffer[..len]).filter(|message| message.sequence == sequence);
            if let Some(answer) = ours.find_map(|message| read(&message)) {
                return answer;
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    fn send(&mut self, request: &Request, flags: libc::c_int) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let len = HEADER_LEN + request.body.len();
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        let mut message = Vec::with_capacity(len);
        message.extend((len as u32).to_ne_bytes());
        message.extend(request.kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(&request.body);
        self.requests.send(&message)?;
        Ok(self.sequence)
    }
}

/// A request without its header.
#[derive(Debug)]
struct Request {
    kind: u16,
    body: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages of a datagram. A message that is cut off at its end is left out.
fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let reader = Reader(rest);
        let len = usize::try_from(reader.u32(0)?).ok()?;
        let body = rest.get(HEADER_LEN..len)?;
        let message =
            Message { kind: reader.u16(4)?, flags: reader.u16(6)?, sequence: reader.u32(8)?, body };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn is_error(kind: u16) -> bool {
    libc::c_int::from(kind) == libc::NLMSG_ERROR
}

/// The error in a message. `struct nlmsgerr` begins with a negative errno.
fn error_of(body: &[u8]) -> io::Error {
    let errno = Reader(body).u32(0).map_or(libc::EIO, |code| code.cast_signed().wrapping_neg());
    io::Error::from_raw_os_error(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_of_nonsense_ends_the_iteration() {
        assert_eq!(messages(&[0; 64]).count(), 0, "length 0");
        assert_eq!(messages(&[255; 64]).count(), 0, "length beyond the end");
        assert_eq!(messages(&[20, 0, 0]).count(), 0, "no header");
    }

    #[test]
    fn loopback_is_there_and_leads_to_itself() {
        let mut netlink = Netlink::new().unwrap();
        let dump = netlink.dump().unwrap();
        assert!(dump.links.iter().any(|link| link.loopback && link.name == "lo"));
        let to = IpAddr::from([127, 0, 0, 1]);
        let question = RouteQuestion { to, from: None, ifindex: None };
        let answer = netlink.route(&question).unwrap();
        assert_eq!((answer.local, answer.source), (true, Some(to)));
    }
}
