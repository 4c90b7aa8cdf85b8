//! Multicast memberships of the CM's clients. They make the network send a group's packets to this
//! host. The packets themselves reach the sockets of lanes that also joined.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use polypath_cm::ClientId;

use crate::sys::udp::UdpSocket;

/// The largest number of groups of all clients and interfaces.
const GROUPS_MAX: usize = 1024;

/// The memberships of all clients.
#[derive(Debug, Default)]
pub(crate) struct Memberships {
    groups: BTreeMap<(u32, IpAddr), Membership>,
}

/// A group on an interface, with its own socket, because one socket may join only 20 groups
/// (`net.ipv4.igmp_max_memberships`). The socket is not bound, so it gets no packets.
#[derive(Debug)]
struct Membership {
    _socket: UdpSocket,
    /// One entry per join.
    clients: Vec<ClientId>,
}

impl Memberships {
    /// Joins a group for a client. It must leave as often as it has joined.
    ///
    /// # Errors
    /// `ENOBUFS` if there are too many groups; the kernel's errno otherwise.
    pub(crate) fn join(
        &mut self,
        client: ClientId,
        ifindex: u32,
        group: IpAddr,
    ) -> Result<(), i32> {
        let full = self.groups.len() == GROUPS_MAX;
        match self.groups.entry((ifindex, group)) {
            Entry::Occupied(mut known) => known.get_mut().clients.push(client),
            Entry::Vacant(_) if full => return Err(libc::ENOBUFS),
            Entry::Vacant(new) => {
                let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
                let socket = UdpSocket::new().map_err(errno)?;
                socket.membership(group, ifindex, true).map_err(errno)?;
                new.insert(Membership { _socket: socket, clients: vec![client] });
            }
        }
        Ok(())
    }

    /// Undoes one join.
    pub(crate) fn leave(&mut self, client: ClientId, ifindex: u32, group: IpAddr) {
        if let Entry::Occupied(mut known) = self.groups.entry((ifindex, group)) {
            let clients = &mut known.get_mut().clients;
            if let Some(at) = clients.iter().position(|other| *other == client) {
                clients.swap_remove(at);
            }
            if clients.is_empty() {
                known.remove();
            }
        }
    }

    /// Undoes all joins of a client.
    pub(crate) fn leave_all(&mut self, client: ClientId) {
        self.groups.retain(|_, membership| {
            membership.clients.retain(|other| *other != client);
            !membership.clients.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));

    #[test]
    fn a_group_is_left_with_its_last_client() {
        let mut memberships = Memberships::default();
        let (a, b) = (ClientId(1), ClientId(2));
        memberships.join(a, 1, GROUP).unwrap();
        memberships.join(a, 1, GROUP).unwrap();
        memberships.join(b, 1, GROUP).unwrap();
        memberships.leave(a, 1, GROUP);
        memberships.leave_all(a);
        assert_eq!(memberships.groups.len(), 1);
        memberships.leave(b, 1, GROUP);
        memberships.leave(b, 1, GROUP);
        assert!(memberships.groups.is_empty());
    }

    #[test]
    fn a_missing_interface_is_an_errno() {
        let error = Memberships::default().join(ClientId(1), 0x7fff_fff0, GROUP);
        assert_eq!(error, Err(libc::ENODEV));
    }
}
