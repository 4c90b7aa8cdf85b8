//! Files whose program moves to another host, with their ids and connections.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Cm;
use crate::cma::multicast::Membership;
use crate::env::{ClientId, Environment, FileId, RouteQuery};
use crate::ibcm::Connection;
use crate::ids::{Attachment, CmId, IdState};

/// The ids, connections and multicast groups of a file, for the connection manager of another host. Both
/// must be of the same version.
#[derive(Debug, Serialize, Deserialize)]
pub struct MovedFile {
    /// What they are members of is in `memberships` only.
    pub(crate) ids: Vec<CmId>,
    pub(crate) connections: Vec<Connection>,
    /// With their numbers.
    pub(crate) memberships: Vec<(u32, Membership)>,
}

/// Why a file can't be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CantMove {
    /// An id, a connection or a membership has a number that is in use here.
    Number,
    /// A port that an id holds is in use here, with this number.
    Port(u16),
    /// There is no room, or it was made up.
    Invalid,
}

impl Cm {
    /// The number of a client's ids that can't move now: they may migrate to alternate paths, or something
    /// of their connections is under way.
    pub fn immobile_ids(&self, client: ClientId) -> usize {
        let immobile = |id: &&CmId| id.client == client && !self.is_mobile(id);
        self.ids.iter().filter(immobile).count()
    }

    fn is_mobile(&self, id: &CmId) -> bool {
        id.uid.is_some() && id.connection.is_none_or(|connection| self.ib.can_move(connection))
    }

    /// Takes a file away, whose program moves to another host, with all that it holds. Peers are told
    /// nothing. `None` if something of it can't move now, or if events wait; then nothing has changed.
    pub fn take_file(&mut self, file: FileId, env: &mut dyn Environment) -> Option<MovedFile> {
        let of_file = || self.ids.iter().filter(|id| id.file == file);
        if self.files.event_count(file) > 0 || !of_file().all(|id| self.is_mobile(id)) {
            return None;
        }
        let numbers: Vec<u32> = of_file().map(|id| id.id).collect();
        let mut ids: Vec<CmId> = numbers.iter().filter_map(|id| self.ids.remove(*id)).collect();
        let mut memberships = Vec::new();
        for id in &mut ids {
            self.neighbours.forget(id.id);
            if let Some(port) = id.port {
                self.ports.release(port, id.id);
            }
            for number in core::mem::take(&mut id.memberships) {
                memberships.extend(self.end_membership(number, env).map(|m| (number, m)));
            }
        }
        let connections = ids.iter().filter_map(|id| self.ib.take(id.connection?)).collect();
        self.files.close(file);
        Some(MovedFile { ids, connections, memberships })
    }

    /// Takes a file over, which [`Cm::take_file`] gave on the program's former host, and tells the peers of
    /// its connections. The file must be open and new.
    ///
    /// # Errors
    /// Something that it holds is not free here. Then nothing has changed.
    pub fn put_file(
        &mut self,
        now: Duration,
        file: FileId,
        moved: MovedFile,
        env: &mut dyn Environment,
    ) -> Result<(), CantMove> {
        self.take_over(now, file, moved, true, env)
    }

    /// Takes over a file, and tells the peers of its connections if it `has_moved`.
    pub(crate) fn take_over(
        &mut self,
        now: Duration,
        file: FileId,
        MovedFile { mut ids, connections, memberships }: MovedFile,
        has_moved: bool,
        env: &mut dyn Environment,
    ) -> Result<(), CantMove> {
        let client = self.files.client(file).ok_or(CantMove::Invalid)?;
        for id in &mut ids {
            (id.file, id.client) = (file, client);
        }
        self.check(&ids, &connections, &memberships)?;
        let peers: BTreeMap<u32, IpAddr> =
            connections.iter().map(|c| (c.local_id, c.heard_at.remote)).collect();
        for mut id in ids {
            let peer = id.connection.and_then(|connection| peers.get(&connection).copied());
            settle(&mut id, peer, env);
            if let Some(port) = id.port {
                self.ports.hold(port, id.id);
            }
            let (number, asks) = (id.id, id.state == IdState::AddrQuery);
            self.ids.put(id);
            self.files.id_added(file);
            if asks {
                self.not_resolved(number, crate::errno::ETIMEDOUT);
            }
        }
        let own = env.addresses(client);
        for connection in connections {
            let at = connection.owner.and_then(|id| self.ids.get(id)?.attachment);
            let local = at.map(|at| (at.local, at.ifindex));
            self.ib.put(now, connection, client, local, &own, has_moved);
        }
        for (number, membership) in memberships {
            self.join_again(number, &membership, env);
        }
        Ok(())
    }

    /// Whether all that a file holds is free, and fits together.
    fn check(
        &self,
        ids: &[CmId],
        connections: &[Connection],
        memberships: &[(u32, Membership)],
    ) -> Result<(), CantMove> {
        if self.ids.len() + ids.len() > self.config.max_ids
            || ids.len() > self.config.max_ids_per_file
        {
            return Err(CantMove::Invalid);
        }
        let of_ids: BTreeMap<u32, Option<u32>> =
            ids.iter().map(|id| (id.id, id.connection)).collect();
        let owners: BTreeMap<u32, Option<u32>> =
            connections.iter().map(|c| (c.local_id, c.owner)).collect();
        if of_ids.len() < ids.len() || owners.len() < connections.len() {
            return Err(CantMove::Invalid);
        }
        for id in ids {
            let connected = id.connection.is_none_or(|c| owners.get(&c) == Some(&Some(id.id)));
            if !connected || id.uid.is_none() || !id.memberships.is_empty() {
                return Err(CantMove::Invalid);
            }
            if !self.ids.is_free(id.id) {
                return Err(CantMove::Number);
            }
            if let (Some(port), Some(source)) = (id.port, &id.source) {
                let free = self.ports.check(&self.ids, id, source, port, id.options.reuse_address);
                free.map_err(|_| CantMove::Port(port.1))?;
            }
        }
        let groups: BTreeSet<u32> = memberships.iter().map(|(number, _)| *number).collect();
        let owned = |(_, m): &(u32, Membership)| of_ids.contains_key(&m.owner());
        if groups.len() < memberships.len() || !memberships.iter().all(owned) {
            return Err(CantMove::Invalid);
        }
        if groups.iter().any(|number| self.memberships.get(*number).is_some()) {
            return Err(CantMove::Number);
        }
        for c in connections {
            let owned = c.owner.and_then(|id| of_ids.get(&id)) == Some(&Some(c.local_id));
            if !owned || !c.needs_no_answer() {
                return Err(CantMove::Invalid);
            }
            if !self.ib.has_place_for(c) {
                return Err(CantMove::Number);
            }
        }
        Ok(())
    }
}

/// Gives an id the device and the address by which its packets go on this host. What the program knows of
/// its addresses stays. `peer`: where the peer of its connection was heard last.
fn settle(id: &mut CmId, peer: Option<IpAddr>, env: &mut dyn Environment) {
    let Some(before) = id.attachment else { return };
    if let Some((device, ifindex)) = env.device_for(id.client, before.local, id.bound_if) {
        id.attachment = Some(Attachment { device, ifindex, ..before });
        return;
    }
    let mut routed = |destination| {
        let query = RouteQuery { source: None, destination, ifindex: None };
        let route = env.route(id.client, &query)?;
        let (device, ifindex) = env.device_for(id.client, route.source, Some(route.ifindex))?;
        Some(Attachment { device, local: route.source, ifindex })
    };
    let routed = peer.or(id.remote).and_then(&mut routed);
    let any = |(device, local, ifindex)| Attachment { device, local, ifindex };
    let here = routed.or_else(|| env.any_device(id.client).map(any));
    id.attachment = here.or(Some(before));
}

/// A port space as its code.
pub(crate) mod port_space {
    use polypath_wire::cm::PortSpace;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(space: &PortSpace, out: S) -> Result<S::Ok, S::Error> {
        space.code().serialize(out)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PortSpace, D::Error> {
        let code = u16::deserialize(from)?;
        PortSpace::from_code(code).ok_or_else(|| D::Error::custom("no port space"))
    }
}

/// A port with its port space.
pub(crate) mod port {
    use polypath_wire::cm::PortSpace;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    type Port = Option<(PortSpace, u16)>;

    pub(crate) fn serialize<S: Serializer>(port: &Port, out: S) -> Result<S::Ok, S::Error> {
        port.map(|(space, port)| (space.code(), port)).serialize(out)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Port, D::Error> {
        let Some((code, port)) = Option::<(u16, u16)>::deserialize(from)? else { return Ok(None) };
        let space = PortSpace::from_code(code).ok_or_else(|| D::Error::custom("no port space"))?;
        Ok(Some((space, port)))
    }
}
