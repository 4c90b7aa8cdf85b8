//! Binding to an address and port, and listening on it.

use polypath_wire::cm::PortSpace;

use crate::abi::address::{Address, Family};
use crate::abi::command::Bind;
use crate::env::{ClientId, Environment, FileId};
use crate::ids::{Attachment, IdState};
use crate::{Cm, errno};

/// The bits of a native service id that hold the port space.
const SERVICE_PORT_SPACE: u64 = 0xffff_ffff_ffff_0000;

impl Cm {
    pub(super) fn bind(
        &mut self,
        file: FileId,
        command: &Bind,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let id = self.ids.named(file, command.id)?;
        if id.state != IdState::Idle {
            return Err(errno::EINVAL);
        }
        let id = id.id;
        self.bind_to(id, command.address, None, env)
    }

    /// Binds an idle id to an address. If the id already has a destination, it may share the port
    /// with ids that have another destination.
    pub(super) fn bind_to(
        &mut self,
        id: u32,
        address: Address,
        destination: Option<Address>,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let Some(cm_id) = self.ids.get(id) else { return Err(errno::ENOENT) };
        let scope = address.link_local_scope()?.or(cm_id.bound_if);
        let attachment = attach(cm_id.client, &address, scope, env)?;
        let (address, port_space) = service_of(address, cm_id.port_space)?;

        let random = self.ib.random();
        let mut asking = cm_id.clone();
        asking.destination = destination;
        let ports = &self.config.ephemeral_ports;
        let port = self.ports.choose(&self.ids, &asking, &address, port_space, ports, random)?;
        self.ports.hold((port_space, port), id);

        let Some(cm_id) = self.ids.get_mut(id) else { return Err(errno::ENOENT) };
        cm_id.source = Some(address.with_port(port));
        cm_id.destination = destination;
        cm_id.bound_if = scope;
        cm_id.attachment = attachment;
        cm_id.port = Some((port_space, port));
        cm_id.state = IdState::Bound;
        Ok(())
    }

    pub(super) fn listen(
        &mut self,
        file: FileId,
        id: u32,
        backlog: u32,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        if self.ids.named(file, id)?.state == IdState::Idle {
            self.bind_to(id, Address::wildcard(Family::Inet), None, env)?;
        }
        let cm_id = self.ids.named(file, id)?;
        let (Some(source), Some(key)) = (cm_id.source, cm_id.port) else {
            return Err(errno::EINVAL);
        };
        if cm_id.state != IdState::Bound {
            return Err(errno::EINVAL);
        }
        if cm_id.options.reuse_address {
            // Many ids may be bound to the port, but only one may listen.
            let cm_id = cm_id.clone();
            self.ports.check(&self.ids, &cm_id, &source, key, false)?;
        }
        let max = self.config.max_backlog;
        let cm_id = self.ids.named(file, id)?;
        cm_id.backlog = if (1..max).contains(&backlog) { backlog } else { max };
        cm_id.state = IdState::Listen;
        Ok(())
    }
}

/// Finds the device for an address. An unspecified address has none, because it stands for all
/// devices. So does the loopback address, unless the client has a device for it.
fn attach(
    client: ClientId,
    address: &Address,
    scope: Option<u32>,
    env: &mut dyn Environment,
) -> Result<Option<Attachment>, i32> {
    if address.is_unspecified() {
        return Ok(None);
    }
    let local = address.ip();
    if let Some((device, ifindex)) = env.device_for(client, local, scope) {
        return Ok(Some(Attachment { device, local, ifindex }));
    }
    if address.is_any() {
        return Ok(None);
    }
    Err(if env.is_local(local, scope) { errno::ENODEV } else { errno::EADDRNOTAVAIL })
}

/// The port space of an address. A native address also gets its service id completed with it.
fn service_of(address: Address, port_space: PortSpace) -> Result<(Address, PortSpace), i32> {
    let Address::Ib(mut ib) = address else { return Ok((address, port_space)) };
    let mask = ib.sid_mask & SERVICE_PORT_SPACE;
    let sid = ib.sid & mask;
    let fits = |ps: PortSpace| sid == polypath_wire::cm::service_id(ps, 0) & mask;
    let chosen = match port_space {
        PortSpace::Ib => {
            [PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp].into_iter().find(|p| fits(*p))
        }
        PortSpace::Tcp | PortSpace::Udp => Some(port_space).filter(|p| fits(*p)),
        PortSpace::Ipoib => None,
    };
    let chosen = chosen.ok_or(errno::EPROTONOSUPPORT)?;
    ib.sid = polypath_wire::cm::service_id(chosen, Address::Ib(ib).port());
    ib.sid_mask |= SERVICE_PORT_SPACE;
    Ok((Address::Ib(ib), chosen))
}
