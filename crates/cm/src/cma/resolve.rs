//! Resolves addresses and routes. The host answers at once, so the events follow at once, unless the next
//! host on the way is not known yet.

use core::time::Duration;

use crate::abi::address::{Address, Family, gid_of};
use crate::abi::command::ResolveAddr;
use crate::abi::event::{Event, Kind};
use crate::env::{Environment, FileId, RouteQuery};
use crate::ids::{Attachment, CmId, IdState};
use crate::path::{HOP_LIMIT, PACKET_LIFE_TIME, Path, flow_label};
use crate::{Cm, errno};

impl Cm {
    pub(super) fn resolve_addr(
        &mut self,
        now: Duration,
        file: FileId,
        command: &ResolveAddr,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let ResolveAddr { id, destination, timeout, .. } = *command;
        if self.ids.named(file, id)?.state == IdState::Idle {
            let source = command.source.unwrap_or_else(|| source_for(&destination));
            if source.family() != destination.family() {
                return Err(errno::EINVAL);
            }
            self.bind_to(id, source, Some(destination), env)?;
        }
        let cm_id = self.ids.named(file, id)?;
        if cm_id.state != IdState::Bound || cm_id.family() != Some(destination.family()) {
            return Err(errno::EINVAL);
        }
        match self.find_way(now, id, destination, timeout, env) {
            Err(errno::ENODEV) => {
                self.not_resolved(id, errno::ENODEV);
                Ok(())
            }
            done => done,
        }
    }

    pub(super) fn resolve_route(&mut self, file: FileId, id: u32) -> Result<(), i32> {
        let cm_id = self.ids.named_with_device(file, id)?;
        if cm_id.state != IdState::AddrResolved {
            return Err(errno::EINVAL);
        }
        cm_id.path = Some(route_of(cm_id).ok_or(errno::EINVAL)?);
        cm_id.state = IdState::RouteResolved;
        self.emit(id, &Event::new(Kind::RouteResolved));
        Ok(())
    }
}

/// The way of an id's packets to their destination: the addresses and the device.
#[derive(Debug)]
pub(super) struct ResolvedRoute {
    pub(super) source: Address,
    pub(super) attachment: Attachment,
    pub(super) remote: core::net::IpAddr,
}

pub(super) fn find_route(
    id: &CmId,
    destination: &Address,
    env: &mut dyn Environment,
) -> Result<ResolvedRoute, i32> {
    let source = id.source.ok_or(errno::EINVAL)?;
    if destination.is_any() && id.attachment.is_none() {
        // The destination is this host itself. Use the device of its loopback address if there is
        // one, else any device.
        let loopback = loopback_of(destination);
        let (device, local, ifindex) = match env.device_for(id.client, loopback, None) {
            Some((device, ifindex)) => (device, loopback, ifindex),
            None => env.any_device(id.client).ok_or(errno::ENODEV)?,
        };
        let attachment = Attachment { device, local, ifindex };
        let source = source.with_ip(loopback, ifindex);
        return Ok(ResolvedRoute { source, attachment, remote: local });
    }
    if let Some(attachment) = id.attachment {
        let remote = if destination.is_any() { attachment.local } else { destination.ip() };
        let query = RouteQuery {
            source: Some(attachment.local),
            destination: remote,
            ifindex: destination.link_local_scope()?.or(id.bound_if),
        };
        let route = env.route(id.client, &query).ok_or(errno::ENETUNREACH)?;
        let attachment = Attachment { ifindex: route.ifindex, ..attachment };
        return Ok(ResolvedRoute { source, attachment, remote });
    }
    let query = RouteQuery {
        source: None,
        destination: destination.ip(),
        ifindex: destination.link_local_scope()?.or(id.bound_if),
    };
    let route = env.route(id.client, &query).ok_or(errno::ENETUNREACH)?;
    let (device, ifindex) =
        env.device_for(id.client, route.source, Some(route.ifindex)).ok_or(errno::ENODEV)?;
    Ok(ResolvedRoute {
        source: source.with_ip(route.source, ifindex),
        attachment: Attachment { device, local: route.source, ifindex },
        remote: destination.ip(),
    })
}

/// The source of an id that was not bound: the wildcard address of the family. For a link-local
/// destination it carries the destination's interface.
fn source_for(destination: &Address) -> Address {
    match (Address::wildcard(destination.family()), destination) {
        (Address::V6 { ip, port, flowinfo, .. }, Address::V6 { scope_id, .. }) => {
            Address::V6 { ip, port, flowinfo, scope_id: *scope_id }
        }
        (Address::Ib(mut source), Address::Ib(destination)) => {
            source.pkey = destination.pkey;
            // The service's port space, with any port.
            source.sid = destination.sid & !0xffff;
            source.sid_mask = !0xffff;
            Address::Ib(source)
        }
        (source, _) => source,
    }
}

fn loopback_of(address: &Address) -> core::net::IpAddr {
    match address.family() {
        Family::Inet => core::net::Ipv4Addr::LOCALHOST.into(),
        Family::Inet6 | Family::Ib => core::net::Ipv6Addr::LOCALHOST.into(),
    }
}

/// The path to the destination. On Ethernet it follows from the addresses.
fn route_of(id: &CmId) -> Option<Path> {
    let (source, destination) = (id.source?, id.destination?);
    let (attachment, remote) = (id.attachment?, id.remote?);
    let requested_flow = match source {
        Address::V6 { flowinfo, .. } => flowinfo & 0xf_ffff,
        _ => 0,
    };
    let flow_label = match requested_flow {
        0 => flow_label(source.port(), destination.port()),
        flow => flow,
    };
    Some(Path {
        service_id: id.service_id(&destination),
        sgid: attachment.device.gid,
        dgid: gid_of(remote),
        flow_label,
        hop_limit: HOP_LIMIT,
        traffic_class: id.options.tos.unwrap_or(0),
        pkey: polypath_wire::DEFAULT_PKEY,
        sl: 0,
        mtu: attachment.device.active_mtu,
        rate: 0,
        packet_life_time: match id.options.ack_timeout {
            None | Some(0) => PACKET_LIFE_TIME,
            Some(timeout) => timeout - 1,
        },
    })
}
