//! The memberships of a lane's socket in multicast groups.
//!
//! A socket joins at most 20 IPv4 groups (`net.ipv4.igmp_max_memberships`; for IPv6 its memory is the limit).
//! Further ones are joined by sockets that do nothing else, while the lane's socket takes the packets of all
//! groups that the host is in. The lane drops those that no queue pair listens to.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use crate::media::udp::{set_option, udp_socket};

/// A socket that has memberships and receives nothing, and which those are.
type Helper = (OwnedFd, BTreeSet<(IpAddr, u32)>);

/// The memberships that the lane's socket has no room for.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    helpers: Vec<Helper>,
}

impl Memberships {
    /// Has a lane's socket receive what is sent to a group on an interface.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(super) fn join(&mut self, socket: RawFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
        match membership(socket, group, ifindex, true) {
            Err(error) if is_full(&error) => {}
            done => return done,
        }
        take_all(socket, group.is_ipv6(), true)?;
        for (helper, joined) in &mut self.helpers {
            if !joined.iter().all(|(other, _)| other.is_ipv6() == group.is_ipv6()) {
                continue;
            }
            match membership(helper.as_raw_fd(), group, ifindex, true) {
                Err(error) if is_full(&error) => {}
                done => {
                    joined.extend(done.is_ok().then_some((group, ifindex)));
                    return done;
                }
            }
        }
        let helper = udp_socket(group.is_ipv6())?;
        membership(helper.as_raw_fd(), group, ifindex, true)?;
        self.helpers.push((helper, BTreeSet::from([(group, ifindex)])));
        Ok(())
    }

    /// Undoes [`join`](Self::join).
    ///
    /// # Errors
    /// Those of the kernel.
    pub(super) fn leave(&mut self, socket: RawFd, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let at = self.helpers.iter_mut().position(|(_, joined)| joined.remove(&(group, ifindex)));
        let Some(at) = at else { return membership(socket, group, ifindex, false) };
        let left = match &self.helpers[at] {
            (_, joined) if joined.is_empty() => {
                self.helpers.swap_remove(at);
                Ok(())
            }
            (helper, _) => membership(helper.as_raw_fd(), group, ifindex, false),
        };
        let v6 = group.is_ipv6();
        let needed = self.helpers.iter().flat_map(|(_, joined)| joined);
        if !needed.into_iter().any(|(other, _)| other.is_ipv6() == v6) {
            take_all(socket, v6, false)?;
        }
        left
    }
}

/// Whether a socket has no room for another membership.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
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
    use std::fs;
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::time::Duration;

    /// The loopback interface.
    const LO: u32 = 1;

    /// How many groups a socket may join on this host.
    fn room() -> u32 {
        let file = "/proc/sys/net/ipv4/igmp_max_memberships";
        fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(20)
    }

    #[test]
    fn a_socket_hears_more_groups_than_it_can_join() {
        let lane = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        lane.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let (socket, port) = (lane.as_raw_fd(), lane.local_addr().unwrap().port());
        take_all(socket, false, false).unwrap();
        let mut memberships = Memberships::default();
        let room = room();
        let group = |n: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(239, 77, 0, 0)) + n);
        for n in 0..room + 5 {
            memberships.join(socket, group(n).into(), LO).unwrap();
        }
        assert_eq!(memberships.helpers.len(), 1, "one socket is enough for five");
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let by = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: LO.cast_signed(),
        };
        set_option(&sender, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &by).unwrap();
        let heard = |n: u32| {
            sender.send_to(&n.to_be_bytes(), (group(n), port)).unwrap();
            let mut came = [0; 8];
            let (len, _) = lane.recv_from(&mut came).unwrap();
            came[..len] == n.to_be_bytes()
        };
        assert!((0..room + 5).all(heard));
        for n in 1..room + 5 {
            memberships.leave(socket, group(n).into(), LO).unwrap();
        }
        assert!(memberships.helpers.is_empty());
        // What is not joined any more is not heard, so the next one to come is of the group that is left.
        sender.send_to(b"left", (group(room + 1), port)).unwrap();
        assert!(heard(0));
    }
}
