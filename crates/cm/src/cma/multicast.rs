//! Multicast groups. On Ethernet a group is joined at once: its GID is the IP group's address.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::abi::address::{Address, gid_of, ip_of};
use crate::abi::command::JoinMcast;
use crate::abi::event::{Event, Kind, Param, UdParam};
use crate::abi::qp_attr::AhAttr;
use crate::abi::u32_response;
use crate::env::{ClientId, Environment, FileId};
use crate::files::Queued;
use crate::ids::{IdState, QpType};
use crate::path::HOP_LIMIT;
use crate::{Cm, errno};

/// The largest number of groups that one id can be in.
const MAX_MEMBERSHIPS_PER_ID: usize = 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Membership {
    owner: u32,
    client: ClientId,
    group: IpAddr,
    ifindex: u32,
    /// The id sends to the group but does not receive from it.
    send_only: bool,
    events_reported: u32,
}

/// Every membership of every id.
#[derive(Debug)]
pub(crate) struct MembershipTable {
    memberships: BTreeMap<u32, Membership>,
    next: u32,
}

impl Membership {
    /// The id that is the member.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }
}

impl MembershipTable {
    /// An empty table. Numbers are given from `next` on.
    pub(crate) fn new(next: u32) -> Self {
        Self { memberships: BTreeMap::new(), next }
    }

    pub(crate) fn len(&self) -> usize {
        self.memberships.len()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Membership> {
        self.memberships.get(&number)
    }

    fn insert(&mut self, membership: Membership) -> u32 {
        while self.memberships.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.memberships.insert(number, membership);
        number
    }

    pub(crate) fn event_reported(&mut self, number: u32) {
        if let Some(m) = self.memberships.get_mut(&number) {
            m.events_reported += 1;
        }
    }
}

impl Cm {
    pub(super) fn join_multicast(
        &mut self,
        file: FileId,
        command: &JoinMcast,
        env: &mut dyn Environment,
    ) -> Result<Vec<u8>, i32> {
        let id = self.ids.named_with_device(file, command.id)?;
        if !matches!(id.state, IdState::Bound | IdState::AddrResolved) || id.qp_type != QpType::Ud {
            return Err(errno::EINVAL);
        }
        if id.memberships.len() >= MAX_MEMBERSHIPS_PER_ID {
            return Err(errno::ENOMEM);
        }
        let attachment = id.attachment.ok_or(errno::EINVAL)?;
        let mgid = match command.address {
            Address::Ib(ib) => ib.gid,
            address => gid_of(address.ip()),
        };
        let group = ip_of(&mgid);
        if !group.is_multicast() {
            return Err(errno::EINVAL);
        }
        let qkey = id.settle_qkey(0)?;
        if !command.send_only {
            env.multicast_join(id.client, attachment.ifindex, group)?;
        }
        let number = self.memberships.insert(Membership {
            owner: id.id,
            client: id.client,
            group,
            ifindex: attachment.ifindex,
            send_only: command.send_only,
            events_reported: 0,
        });
        id.memberships.push(number);
        let ah_attr = AhAttr {
            dgid: mgid,
            sgid_index: attachment.device.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: id.options.tos.unwrap_or(0),
            port_num: attachment.device.port_num,
            ..AhAttr::default()
        };
        let param = UdParam {
            qp_num: polypath_wire::MULTICAST_QPN,
            qkey,
            ah_attr: Some(ah_attr),
            private_data: Vec::new(),
        };
        let bytes = Event::new(Kind::MulticastJoin)
            .with_param(Param::Ud(param))
            .encode(command.uid, number);
        let owner = id.id;
        self.enqueue(file, Queued { membership: Some(number), ..Queued::of(owner, bytes) });
        Ok(u32_response(number))
    }

    pub(super) fn leave_multicast(
        &mut self,
        file: FileId,
        number: u32,
        env: &mut dyn Environment,
    ) -> Result<Vec<u8>, i32> {
        let membership = self.memberships.memberships.get(&number).ok_or(errno::ENOENT)?;
        let events_reported = membership.events_reported;
        let id = self.ids.named(file, membership.owner).map_err(|_| errno::EINVAL)?;
        id.memberships.retain(|m| *m != number);
        let _ = self.end_membership(number, env);
        self.files.remove_events(file, |e| e.membership == Some(number));
        Ok(u32_response(events_reported))
    }

    /// Joins a group for an id that has come back, under the number that the program knows, which is free,
    /// and by the interface that the id has here. If that is not possible, the id is not in the group.
    pub(crate) fn join_again(
        &mut self,
        number: u32,
        membership: &Membership,
        env: &mut dyn Environment,
    ) {
        let Some(id) = self.ids.get_mut(membership.owner) else { return };
        let ifindex = id.attachment.map_or(membership.ifindex, |at| at.ifindex);
        let &Membership { group, send_only, .. } = membership;
        if send_only || env.multicast_join(id.client, ifindex, group).is_ok() {
            id.memberships.push(number);
            let membership = Membership { client: id.client, ifindex, ..membership.clone() };
            self.memberships.memberships.insert(number, membership);
        }
    }

    /// Leaves a group, because its id leaves it, is destroyed, or moves to another host.
    pub(crate) fn end_membership(
        &mut self,
        number: u32,
        env: &mut dyn Environment,
    ) -> Option<Membership> {
        let m = self.memberships.memberships.remove(&number)?;
        if !m.send_only {
            env.multicast_leave(m.client, m.ifindex, m.group);
        }
        Some(m)
    }
}
