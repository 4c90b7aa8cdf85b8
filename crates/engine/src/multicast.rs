//! Multicast: which groups the lane's socket is a member of.
//!
//! The kernel hands a multicast datagram to every socket that joined the group; so each lane's
//! socket joins for itself, once for all of its queue pairs.

use std::net::IpAddr;
use std::os::fd::RawFd;

use polypath_verbs::{Error, Result};

use crate::lane::State;

impl State {
    /// Attaches a queue pair to a group, on these interfaces.
    pub(crate) fn join(&mut self, group: IpAddr, index: u16, interfaces: &[u32]) -> Result<()> {
        let first = self.groups.get(&group).is_none_or(Vec::is_empty);
        if first && let Some(socket) = self.receiver() {
            let mut joined = Err(Error::new(libc::ENODEV, "the device has no interface now"));
            for ifindex in interfaces {
                let done = membership(socket, group, *ifindex, true).map_err(|e| {
                    Error::new(
                        e.raw_os_error().unwrap_or(libc::EIO),
                        format!("cannot join {group} on interface {ifindex}: {e}"),
                    )
                });
                joined = if joined.is_ok() { joined } else { done };
            }
            joined?;
        }
        self.groups.entry(group).or_default().push(index);
        Ok(())
    }

    /// Detaches a queue pair from a group.
    pub(crate) fn leave(&mut self, group: IpAddr, index: u16, interfaces: &[u32]) {
        let Some(list) = self.groups.get_mut(&group) else { return };
        list.retain(|i| *i != index);
        if list.is_empty() {
            self.groups.remove(&group);
            if let Some(socket) = self.receiver() {
                for ifindex in interfaces {
                    // An interface that is gone took its membership along.
                    let _ = membership(socket, group, *ifindex, false);
                }
            }
        }
    }
}

/// `IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP` and their opposites, on a dual-stack socket.
#[allow(unsafe_code)]
fn membership(socket: RawFd, group: IpAddr, ifindex: u32, join: bool) -> std::io::Result<()> {
    let done = match group {
        IpAddr::V4(ip) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: ifindex.cast_signed(),
            };
            let option = if join { libc::IP_ADD_MEMBERSHIP } else { libc::IP_DROP_MEMBERSHIP };
            // SAFETY: `request` is what the option takes, with its size.
            unsafe {
                libc::setsockopt(
                    socket,
                    libc::IPPROTO_IP,
                    option,
                    (&raw const request).cast(),
                    size_of_val(&request) as libc::socklen_t,
                )
            }
        }
        IpAddr::V6(ip) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: ip.octets() },
                ipv6mr_interface: ifindex,
            };
            let option = if join { libc::IPV6_ADD_MEMBERSHIP } else { libc::IPV6_DROP_MEMBERSHIP };
            // SAFETY: `request` is what the option takes, with its size.
            unsafe {
                libc::setsockopt(
                    socket,
                    libc::IPPROTO_IPV6,
                    option,
                    (&raw const request).cast(),
                    size_of_val(&request) as libc::socklen_t,
                )
            }
        }
    };
    match done {
        0 => Ok(()),
        _ => match std::io::Error::last_os_error() {
            // Joined already by another lane's queue pair on the same socket: as good.
            e if join && e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(()),
            e => Err(e),
        },
    }
}
