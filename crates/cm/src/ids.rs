//! The ids that applications hold (`struct rdma_cm_id`) and their states.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use polypath_wire::cm::{PortSpace, service_id};

use crate::abi::address::{Address, Family, gid_of};
use crate::env::{ClientId, Device, FileId};
use crate::errno;
use crate::path::Path;

/// The highest number of an id: librdmacm keeps ids in a table of 65,536 entries.
const ID_MAX: u32 = 0xffff;

/// The transport service of the id's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum QpType {
    Rc,
    Uc,
    Ud,
    /// XRC initiator: the active side.
    XrcSend,
    /// XRC target: the passive side.
    XrcRecv,
}

impl QpType {
    /// Converts from `enum ibv_qp_type`.
    pub(crate) fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            2 => Some(Self::Rc),
            3 => Some(Self::Uc),
            4 => Some(Self::Ud),
            9 => Some(Self::XrcSend),
            10 => Some(Self::XrcRecv),
            _ => None,
        }
    }
}

/// The states of an id, as in the kernel's `enum rdma_cm_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IdState {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
    /// The id's device is gone; the id can only be destroyed.
    Removed,
    /// It waits for a neighbour.
    AddrQuery,
}

impl IdState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::Bound => "ADDR_BOUND",
            Self::AddrQuery => "ADDR_QUERY",
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::Connect => "CONNECT",
            Self::Disconnect => "DISCONNECT",
            Self::Listen => "LISTEN",
            Self::Removed => "DEVICE_REMOVAL",
        }
    }
}

/// The device that an id is attached to, and the addresses of its packets.
///
/// The addresses are those of the id. Only an id with a loopback address uses the device's instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) device: Device,
    pub(crate) local: IpAddr,
    pub(crate) ifindex: u32,
}

/// One id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CmId {
    pub(crate) id: u32,
    pub(crate) file: FileId,
    pub(crate) client: ClientId,
    /// The application's name for the id. A new connection has none, and gets no events, until it
    /// is accepted.
    pub(crate) uid: Option<u64>,
    #[serde(with = "crate::moving::port_space")]
    pub(crate) port_space: PortSpace,
    pub(crate) qp_type: QpType,
    pub(crate) state: IdState,
    pub(crate) source: Option<Address>,
    pub(crate) destination: Option<Address>,
    /// The interface that a link-local address names.
    pub(crate) bound_if: Option<u32>,
    pub(crate) attachment: Option<Attachment>,
    /// The address that packets for the destination go to. It differs from the destination if that
    /// is a loopback address.
    pub(crate) remote: Option<IpAddr>,
    pub(crate) path: Option<Path>,
    /// The alternate path that the application named.
    pub(crate) alternate: Option<Path>,
    #[serde(with = "crate::moving::port")]
    pub(crate) port: Option<(PortSpace, u16)>,
    pub(crate) options: Options,
    /// The number of further connection requests that may wait; for listening ids.
    pub(crate) backlog: u32,
    pub(crate) qkey: Option<u32>,
    pub(crate) qp_num: u32,
    pub(crate) srq: bool,
    /// The PSN that the peer starts with.
    pub(crate) first_psn: u32,
    /// The local communication id of the connection.
    pub(crate) connection: Option<u32>,
    pub(crate) memberships: Vec<u32>,
    pub(crate) events_reported: u32,
    /// Whether the application was told that no device has the id's address any more.
    pub(crate) address_lost: bool,
}

/// The options that applications set.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) tos: Option<u8>,
    pub(crate) reuse_address: bool,
    /// Accept connections of the id's own address family only.
    pub(crate) family_only: Option<bool>,
    pub(crate) ack_timeout: Option<u8>,
    /// Whether the connection may migrate; `None` leaves it to the client's default.
    pub(crate) apm: Option<bool>,
}

impl CmId {
    pub(crate) fn family(&self) -> Option<Family> {
        self.source.as_ref().map(Address::family)
    }

    pub(crate) fn family_only(&self) -> bool {
        // IPv6 wildcards take IPv4 connections too, as with net.ipv6.bindv6only = 0.
        self.options.family_only.unwrap_or_else(|| self.family() == Some(Family::Inet))
    }

    /// The Q_Key of the id, which its first use fixes.
    pub(crate) fn settle_qkey(&mut self, wanted: u32) -> Result<u32, i32> {
        match self.qkey {
            Some(qkey) if wanted != 0 && wanted != qkey => Err(errno::EINVAL),
            Some(qkey) => Ok(qkey),
            None => {
                let qkey = if wanted == 0 { RDMA_UDP_QKEY } else { wanted };
                self.qkey = Some(qkey);
                Ok(qkey)
            }
        }
    }

    /// The local and the remote GID.
    pub(crate) fn gids(&self) -> ([u8; 16], [u8; 16]) {
        match (&self.path, &self.attachment) {
            (Some(path), Some(_)) => (path.sgid, path.dgid),
            (None, Some(a)) => (gid_of(a.local), self.remote.map_or([0; 16], gid_of)),
            (_, None) => ([0; 16], [0; 16]),
        }
    }

    /// The service id of one of the id's addresses.
    pub(crate) fn service_id(&self, address: &Address) -> u64 {
        match address {
            Address::Ib(ib) => ib.sid,
            _ => service_id(self.port_space, address.port()),
        }
    }

    /// Whether private data begins with the RDMA IP CM header. It does not with native addresses.
    pub(crate) fn has_ip_header(&self) -> bool {
        self.family() != Some(Family::Ib)
    }
}

/// The kernel's `RDMA_UDP_QKEY`: the Q_Key of every UD queue pair that names none.
pub(crate) const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// Every id of every file.
#[derive(Debug)]
pub(crate) struct IdTable {
    ids: BTreeMap<u32, CmId>,
    next: u32,
    /// The ids that may have changed, if that is to be known.
    changed: Option<BTreeSet<u32>>,
}

impl IdTable {
    /// A table whose first id has this number, modulo 65,536. `keeps` says whether changes are noted.
    pub(crate) fn new(first: u32, keeps: bool) -> Self {
        let changed = keeps.then(BTreeSet::new);
        Self { ids: BTreeMap::new(), next: first & ID_MAX, changed }
    }

    /// Notes that something has changed that is to be known of an id.
    pub(crate) fn touch(&mut self, id: u32) {
        if let Some(changed) = &mut self.changed {
            changed.insert(id);
        }
    }

    /// The ids that may have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<u32> {
        self.changed.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Whether a number is one of an id, and no id here has it.
    pub(crate) fn is_free(&self, id: u32) -> bool {
        id <= ID_MAX && !self.ids.contains_key(&id)
    }

    /// Adds an id with the number that it has, which [is free](Self::is_free).
    pub(crate) fn put(&mut self, id: CmId) {
        self.touch(id.id);
        self.ids.insert(id.id, id);
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CmId> {
        self.ids.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CmId> {
        self.ids.values_mut()
    }

    /// Adds an id. Numbers are used in turn, so that a freed one is not used again soon: an event
    /// of the old id may still be on its way to the application.
    pub(crate) fn insert(
        &mut self,
        file: FileId,
        client: ClientId,
        port_space: PortSpace,
        qp_type: QpType,
        first_psn: u32,
    ) -> Result<&mut CmId, i32> {
        if self.ids.len() > ID_MAX as usize {
            return Err(errno::ENOMEM);
        }
        while self.ids.contains_key(&self.next) {
            self.next = (self.next + 1) & ID_MAX;
        }
        let id = self.next;
        self.next = (self.next + 1) & ID_MAX;
        self.touch(id);
        Ok(self.ids.entry(id).or_insert_with(|| CmId {
            id,
            file,
            client,
            uid: None,
            port_space,
            qp_type,
            state: IdState::Idle,
            source: None,
            destination: None,
            bound_if: None,
            attachment: None,
            remote: None,
            path: None,
            alternate: None,
            port: None,
            options: Options::default(),
            backlog: 0,
            qkey: None,
            qp_num: 0,
            srq: false,
            first_psn,
            connection: None,
            memberships: Vec::new(),
            events_reported: 0,
            address_lost: false,
        }))
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<CmId> {
        self.touch(id);
        self.ids.remove(&id)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&CmId> {
        self.ids.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut CmId> {
        self.touch(id);
        self.ids.get_mut(&id)
    }

    /// The id that a file names in a command: ENOENT if there is none, EINVAL if another file holds
    /// it.
    pub(crate) fn named(&mut self, file: FileId, id: u32) -> Result<&mut CmId, i32> {
        self.touch(id);
        match self.ids.get_mut(&id) {
            Some(found) if found.file == file => Ok(found),
            Some(_) => Err(errno::EINVAL),
            None => Err(errno::ENOENT),
        }
    }

    /// The same, for an id that must have a device: ENODEV if the device is gone, EINVAL if it
    /// never had one.
    pub(crate) fn named_with_device(&mut self, file: FileId, id: u32) -> Result<&mut CmId, i32> {
        let found = self.named(file, id)?;
        if found.state == IdState::Removed {
            return Err(errno::ENODEV);
        }
        if found.attachment.is_none() {
            return Err(errno::EINVAL);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "counts through all numbers, which takes Miri hours")]
    fn numbers_of_destroyed_ids_rest_before_they_are_used_again() {
        let mut ids = IdTable::new(0, false);
        let mut new = || {
            let id = ids.insert(FileId(1), ClientId(1), PortSpace::Tcp, QpType::Rc, 0).unwrap().id;
            ids.remove(id);
            id
        };
        let first = new();
        for _ in 0..ID_MAX {
            assert_ne!(new(), first);
        }
        assert_eq!(new(), first);
    }

    #[test]
    fn an_id_of_another_file_can_not_be_named() {
        let mut ids = IdTable::new(0, false);
        let id = ids.insert(FileId(1), ClientId(1), PortSpace::Tcp, QpType::Rc, 0).unwrap().id;
        assert!(ids.named(FileId(1), id).is_ok());
        assert_eq!(ids.named(FileId(2), id).err(), Some(errno::EINVAL));
        assert_eq!(ids.named(FileId(1), id + 1).err(), Some(errno::ENOENT));
        assert_eq!(ids.named_with_device(FileId(1), id).err(), Some(errno::EINVAL));
    }
}
