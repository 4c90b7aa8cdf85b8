//! `RTM_GETROUTE`: the route that a packet would take.

use std::io;
use std::net::IpAddr;

use super::attributes::{Reader, attributes, family, ip_attribute};
use super::link::ip;
use super::{Request, attribute};

/// `struct rtmsg`.
const ROUTE_LEN: usize = 12;

/// A question for the route to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteQuestion {
    /// The destination.
    pub(crate) to: IpAddr,
    /// The local address, if it is fixed.
    pub(crate) from: Option<IpAddr>,
    /// The interface, if it is fixed.
    pub(crate) ifindex: Option<u32>,
}

/// The route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteAnswer {
    /// The interface; for addresses of this host, the loopback interface.
    pub(crate) ifindex: u32,
    /// The local address that the kernel would send from.
    pub(crate) source: Option<IpAddr>,
    /// Whether the destination is an address of this host.
    pub(crate) local: bool,
    /// Whether there is a router on the way.
    pub(crate) gateway: bool,
    /// The router's address, if it is of the destination's family.
    pub(crate) router: Option<IpAddr>,
}

pub(super) fn request(question: &RouteQuestion) -> Request {
    let mut body = vec![0; ROUTE_LEN];
    let bits = if question.to.is_ipv4() { 32 } else { 128 };
    body[0] = family(question.to);
    body[1] = bits;
    ip_attribute(&mut body, libc::RTA_DST, question.to);
    if let Some(from) = question.from.filter(|from| from.is_ipv4() == question.to.is_ipv4()) {
        body[2] = bits;
        ip_attribute(&mut body, libc::RTA_SRC, from);
    }
    if let Some(ifindex) = question.ifindex {
        attribute(&mut body, libc::RTA_OIF, &ifindex.to_ne_bytes());
    }
    Request { kind: libc::RTM_GETROUTE, body }
}

pub(super) fn parse(body: &[u8]) -> io::Result<RouteAnswer> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let fixed = Reader(body);
    let family = libc::c_int::from(fixed.u8(0).ok_or_else(invalid)?);
    let kind = fixed.u8(7).ok_or_else(invalid)?;
    let local = match kind {
        libc::RTN_LOCAL => true,
        libc::RTN_UNICAST | libc::RTN_MULTICAST | libc::RTN_BROADCAST | libc::RTN_ANYCAST => false,
        _ => return Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
    };
    let mut answer = RouteAnswer { ifindex: 0, source: None, local, gateway: false, router: None };
    for (kind, value) in attributes(body, ROUTE_LEN) {
        match kind {
            libc::RTA_OIF => answer.ifindex = Reader(value).u32(0).ok_or_else(invalid)?,
            libc::RTA_PREFSRC => answer.source = ip(family, value),
            libc::RTA_GATEWAY => (answer.gateway, answer.router) = (true, ip(family, value)),
            libc::RTA_VIA => answer.gateway = true,
            _ => {}
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_route_is_an_error() {
        let mut body = vec![0; ROUTE_LEN];
        body[7] = libc::RTN_UNREACHABLE;
        let errno = parse(&body).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(libc::ENETUNREACH));
    }

    #[test]
    fn a_truncated_answer_is_an_error() {
        for len in 0..8 {
            assert!(parse(&vec![0; len]).is_err());
        }
    }

    #[test]
    fn a_router_on_the_way_is_seen() {
        let mut body = vec![0; ROUTE_LEN];
        body[0] = libc::AF_INET as u8;
        body[7] = libc::RTN_UNICAST;
        attribute(&mut body, libc::RTA_OIF, &3_u32.to_ne_bytes());
        attribute(&mut body, libc::RTA_GATEWAY, &[10, 0, 0, 254]);
        attribute(&mut body, libc::RTA_PREFSRC, &[10, 0, 0, 1]);
        let answer = parse(&body).unwrap();
        assert!(answer.gateway && !answer.local && answer.ifindex == 3);
        assert_eq!(answer.router, Some([10, 0, 0, 254].into()));
    }
}
