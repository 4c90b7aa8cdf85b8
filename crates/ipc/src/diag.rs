//! Queries of the sockets in this network namespace, by `NETLINK_SOCK_DIAG`.
//!
//! The layouts are in `linux/netlink.h`, `linux/inet_diag.h` and `linux/unix_diag.h`. All numbers
//! are in the machine's byte order, except ports, which are in network order.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const IPPROTO_UDP: u8 = 17;
/// `TCP_LISTEN`. Unix sockets use it too.
const STATE_LISTEN: u32 = 10;
const UDIAG_SHOW_NAME: u32 = 1;
const UNIX_DIAG_NAME: u16 = 0;

/// Length of a netlink header.
const HEADER: usize = 16;
/// Length of `struct inet_diag_msg`.
const INET_MESSAGE: usize = 72;
/// Length of `struct unix_diag_msg`.
const UNIX_MESSAGE: usize = 16;
/// A buffer that is larger than any datagram of a dump.
const BUFFER: usize = 64 << 10;
/// The largest number of datagrams in an answer; each holds hundreds of sockets.
const DATAGRAMS_MAX: usize = 4096;

/// A socket that is bound to the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The user who created it.
    pub user: u32,
    /// Its inode number; 0 for a socket of the kernel.
    pub inode: u64,
}

/// The UDP sockets of both address families that are bound to a port.
///
/// # Errors
/// `ENOENT` if the kernel has no `udp_diag`; otherwise those of the system calls.
pub(crate) fn udp(port: u16) -> io::Result<BTreeSet<Holder>> {
    let mut found = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // struct inet_diag_req_v2: family, protocol, 2 bytes, states, then the ports.
        let mut request = [0; 56];
        request[0] = family as u8;
        request[1] = IPPROTO_UDP;
        request[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        request[8..10].copy_from_slice(&port.to_be_bytes());
        dump(&request, |message| {
            // struct inet_diag_msg: the source port at 4, user id and inode last.
            if message.len() >= INET_MESSAGE && message[4..6] == port.to_be_bytes() {
                let number = |at: usize| u32_at(message, at);
                found.insert(Holder { user: number(64), inode: number(68).into() });
            }
        })?;
    }
    Ok(found)
}

/// The abstract names that Unix sockets listen on, without the leading NUL.
///
/// # Errors
/// `ENOENT` if the kernel has no `unix_diag`; otherwise those of the system calls.
pub(crate) fn listening_unix() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    // struct unix_diag_req: family, protocol, 2 bytes, states, inode, what to show, cookie.
    let mut request = [0; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&(1_u32 << STATE_LISTEN).to_ne_bytes());
    request[12..16].copy_from_slice(&UDIAG_SHOW_NAME.to_ne_bytes());
    dump(&request, |message| {
        let mut rest = message.get(UNIX_MESSAGE..).unwrap_or_default();
        while let Some((kind, value, next)) = attribute(rest) {
            if kind == UNIX_DIAG_NAME
                && let Some((0, name)) = value.split_first()
            {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            rest = next;
        }
    })?;
    Ok(names)
}

/// Sends a query, and passes each message of the answer to `each`, without its header.
fn dump(request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let socket = open()?;
    let mut message = Vec::with_capacity(HEADER + request.len());
    message.extend_from_slice(&((HEADER + request.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(request);
    send(socket.as_fd(), &message, SendFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    for _ in 0..DATAGRAMS_MAX {
        let (len, _) = recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..len];
        while rest.len() >= HEADER {
            let len = u32_at(rest, 0) as usize;
            let Some(body) = rest.get(HEADER..len) else { return Err(nonsense()) };
            match u16::from_ne_bytes([rest[4], rest[5]]) {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR if body.len() >= 4 => {
                    let errno = u32_at(body, 0).cast_signed().wrapping_neg();
                    return Err(io::Error::from_raw_os_error(errno));
                }
                SOCK_DIAG_BY_FAMILY => each(body),
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Err(nonsense())
}

fn open() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?)
}

/// The first attribute of a list: its kind, its value, and what follows it.
fn attribute(list: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (len, kind) = (list.get(..2)?, list.get(2..4)?);
    let len = usize::from(u16::from_ne_bytes([len[0], len[1]]));
    let value = list.get(4..len)?;
    let next = list.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((u16::from_ne_bytes([kind[0], kind[1]]), value, next))
}

/// The number at `at`, which must be within `bytes`.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn nonsense() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel sent an invalid answer on NETLINK_SOCK_DIAG",
    )
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[test]
    fn sockets_of_both_families_are_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else {
                assert!(address.starts_with('['), "IPv4 must be there");
                continue;
            };
            let found = udp(socket.local_addr().unwrap().port()).unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found.first().unwrap().user, crate::socket::user_id());
        }
    }

    #[test]
    fn abstract_names_that_are_listened_on_are_found() {
        let name = format!("polypath-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        assert!(!listening_unix().unwrap().contains(&name));
        let listener = UnixListener::bind_addr(&address).unwrap();
        assert!(listening_unix().unwrap().contains(&name));
        drop(listener);
    }

    #[test]
    fn a_list_of_attributes_ends_with_what_is_cut_off() {
        assert_eq!(attribute(&[]), None);
        assert_eq!(attribute(&[8, 0, 1, 0, 1, 2]), None);
        assert_eq!(attribute(&[0, 0, 1, 0]), None);
        let list = [5, 0, 3, 0, 9, 0, 0, 0, 4, 0, 7, 0];
        let (kind, value, rest) = attribute(&list).unwrap();
        assert_eq!((kind, value), (3, &[9][..]));
        assert_eq!(attribute(rest), Some((7, &[][..], &[][..])));
    }
}
