//! The memberships of a lane's socket in multicast groups.
//!
//! A socket joins at most 20 IPv4 groups (`net.ipv4.igmp_max_memberships`; for IPv6 its memory is the limit).
//! Further ones are joined by sockets that do nothing else, while the lane's socket takes the packets of all
//! groups that the host is in. The lane drops those that no queue pair listens to.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use crate::media::udp::{set_option, udp_socket};

/// The memberships that the lane's socket has no room for, each with the socket that has it.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    helpers: HashMap<(IpAddr, u32), OwnedFd>,
}

impl Memberships {
    /// Has a lane's socket receive what is sent to a group on an interface.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(super) fn join(&mut self, socket: RawFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
        match membership(socket, group, ifindex, true) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {
                let helper = udp_socket(group.is_ipv6())?;
                membership(helper.as_raw_fd(), group, ifindex, true)?;
                take_all(socket, group.is_ipv6(), true)?;
                self.helpers.insert((group, ifindex), helper);
                Ok(())
            }
            done => done,
        }
    }

    /// Undoes [`join`](Self::join).
    ///
    /// # Errors
    /// Those of the kernel.
    pub(super) fn leave(&mut self, socket: RawFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
        if self.helpers.remove(&(group, ifindex)).is_none() {
            return membership(socket, group, ifindex, false);
        }
        let v6 = group.is_ipv6();
        match self.helpers.keys().any(|(other, _)| other.is_ipv6() == v6) {
            true => Ok(()),
            false => take_all(socket, v6, false),
        }
    }
}

/// Whether a socket takes the packets of all groups that the host is in.
fn take_all(socket: RawFd, v6: bool, all: bool) -> io::Result<()> {
    let (level, option) = match v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
        false => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
    };
    set_option(&socket, level, option, &libc::c_int::from(all))
}

/// `IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP` and their opposites, on a dual-stack socket.
fn membership(socket: RawFd, group: IpAddr, ifindex: u32, join: bool) -> io::Result<()> {
    let done = match group {
        IpAddr::V4(ip) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: ifindex.cast_signed(),
            };
            let option = if join { libc::IP_ADD_MEMBERSHIP } else { libc::IP_DROP_MEMBERSHIP };
            set_option(&socket, libc::IPPROTO_IP, option, &request)
        }
        IpAddr::V6(ip) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: ip.octets() },
                ipv6mr_interface: ifindex,
            };
            let option = if join { libc::IPV6_ADD_MEMBERSHIP } else { libc::IPV6_DROP_MEMBERSHIP };
            set_option(&socket, libc::IPPROTO_IPV6, option, &request)
        }
    };
    match done {
        // The socket has already joined for another lane's queue pair, which is just as good.
        Err(e) if join && e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};

    /// The loopback interface.
    const LO: u32 = 1;

    #[test]
    fn a_socket_hears_more_groups_than_it_can_join() {
        let lane = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let (socket, port) = (lane.as_raw_fd(), lane.local_addr().unwrap().port());
        take_all(socket, false, false).unwrap();
        let mut memberships = Memberships::default();
        let groups: Vec<Ipv4Addr> = (1..=50).map(|n| Ipv4Addr::new(239, 77, 3, n)).collect();
        for group in &groups {
            memberships.join(socket, (*group).into(), LO).unwrap();
        }
        assert!(!memberships.helpers.is_empty(), "the limit of this host is larger than usual");
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let by = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: LO.cast_signed(),
        };
        set_option(&sender, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &by).unwrap();
        for group in &groups {
            sender.send_to(&group.octets(), (*group, port)).unwrap();
            let mut came = [0; 8];
            let (len, _) = lane.recv_from(&mut came).unwrap();
            assert_eq!(came[..len], group.octets());
        }
        for group in &groups {
            memberships.leave(socket, (*group).into(), LO).unwrap();
        }
        assert!(memberships.helpers.is_empty());
    }
}
