//! Turns the events of connections into events for applications, and finds the listener of a new
//! request.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::cm::{CmaHeader, PortSpace, RejectReason, port_of};

use super::apm::wants;
use crate::abi::address::{Address, IbAddress, gid_of};
use crate::abi::command::ConnParam;
use crate::abi::event::{Event, Kind, Param, UdParam};
use crate::env::{ClientId, Environment};
use crate::files::Queued;
use crate::ibcm::{IbEvent, Request};
use crate::ids::{Attachment, CmId, IdState, IdTable, QpType};
use crate::ports::PortTable;
use crate::{Cm, errno};

/// Whether anybody listens on a service id.
pub(crate) fn is_served(ids: &IdTable, ports: &PortTable, service_id: u64) -> bool {
    port_of(service_id).is_some_and(|(port_space, port)| {
        ports
            .owners(port_space, port)
            .any(|id| ids.get(id).is_some_and(|i| i.state == IdState::Listen))
    })
}

/// The listening id that gets a request, and the addresses of the child id.
struct Listener {
    id: u32,
    attachment: Attachment,
    source: Address,
    destination: Address,
}

impl Cm {
    /// Delivers all waiting events of the connections.
    pub(crate) fn deliver_events(&mut self, now: Duration, env: &mut dyn Environment) {
        while let Some((local_id, event)) = self.ib.poll_event() {
            match event {
                IbEvent::ReqReceived(request) => self.request(now, local_id, &request, env),
                IbEvent::SidrReqReceived(request) => self.request(now, local_id, &request, env),
                event @ (IbEvent::PathsBegin
                | IbEvent::PathsDue
                | IbEvent::PathsUnanswered
                | IbEvent::PeerMigrated(_)
                | IbEvent::LapReceived(_)
                | IbEvent::AprReceived { .. }
                | IbEvent::SapReceived(_)
                | IbEvent::SprReceived(_)) => self.path_event(now, local_id, &event, env),
                event => {
                    if let Some(owner) = self.ib.get(local_id).and_then(|c| c.owner) {
                        self.connection_event(owner, event);
                    }
                }
            }
        }
    }

    fn request(
        &mut self,
        now: Duration,
        local_id: u32,
        request: &Request,
        env: &mut dyn Environment,
    ) {
        let listener = match self.find_listener(request, env) {
            Ok(listener) => listener,
            Err(reason) => {
                let gid = gid_of(request.endpoints.local);
                let info: &[u8] = if reason == RejectReason::InvalidGid { &gid } else { &[] };
                if self.ib.reject(now, local_id, reason, info, &[]).is_err() {
                    self.ib.release(now, local_id);
                }
                return;
            }
        };
        if self.announce(local_id, &listener, request, env).is_err() {
            self.ib.drop_request(local_id);
        }
    }

    /// Creates an id for a request and tells the application; ENOMEM if there is no room for it
    /// now.
    fn announce(
        &mut self,
        local_id: u32,
        listener: &Listener,
        request: &Request,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let parent = self.ids.get(listener.id).ok_or(errno::ENOENT)?;
        let (file, client, port_space) = (parent.file, parent.client, parent.port_space);
        let (uid, has_header) = (parent.uid.ok_or(errno::EINVAL)?, parent.has_ip_header());
        let (tos, apm) = (parent.options.tos, parent.options.apm);
        if parent.backlog == 0 || self.files.event_count(file) >= self.config.max_events_per_file {
            return Err(errno::ENOMEM);
        }
        let child = self.new_id(file, client, port_space, request.qp_type)?;
        child.state = IdState::Connect;
        child.source = Some(listener.source);
        child.destination = Some(listener.destination);
        child.attachment = Some(listener.attachment);
        child.remote = Some(request.endpoints.remote);
        child.path = Some(request.path);
        child.connection = Some(local_id);
        child.options.tos = tos;
        child.options.apm = apm;
        let migrates = wants(child, env);
        let child = child.id;
        let own_addresses = env.addresses(client);
        self.ib.adopt(local_id, child, client, &listener.attachment.device, &own_addresses);
        self.enable_paths(local_id, migrates, request.alternate.as_ref(), env);

        let offset = if has_header { CmaHeader::LEN } else { 0 };
        let private_data = request.private_data.get(offset..).unwrap_or_default().to_vec();
        let param = match request.qp_type {
            QpType::Ud => Param::Ud(UdParam { private_data, ..UdParam::default() }),
            _ => Param::Conn(ConnParam { private_data, ..request.param.clone() }),
        };
        let mut event = Event::new(Kind::ConnectRequest).with_param(param);
        event.ece = request.ece;
        if let Some(parent) = self.ids.get_mut(listener.id) {
            parent.backlog -= 1;
        }
        let bytes = event.encode(uid, child);
        let event = Queued { child: Some(child), ..Queued::of(listener.id, bytes) };
        self.files.push(file, event);
        Ok(())
    }

    fn find_listener(
        &self,
        request: &Request,
        env: &mut dyn Environment,
    ) -> Result<Listener, RejectReason> {
        let (port_space, port) =
            port_of(request.service_id).ok_or(RejectReason::InvalidServiceId)?;
        let header = CmaHeader::parse(&request.private_data).ok();
        let mut reason = RejectReason::ConsumerDefined;
        for id in self.ports.owners(port_space, port) {
            let Some(id) = self.ids.get(id) else { continue };
            if id.state != IdState::Listen || !takes(id, request, header.as_ref(), port_space) {
                continue;
            }
            let (local, ifindex) = (request.endpoints.local, request.endpoints.ifindex);
            let Some(attachment) = attachment_of(id.client, local, ifindex, env) else {
                reason = RejectReason::InvalidGid;
                continue;
            };
            let (source, destination) = match (&header, id.has_ip_header()) {
                (Some(h), true) => (
                    Address::from_ip(h.dst, port, attachment.ifindex),
                    Address::from_ip(h.src, h.src_port, attachment.ifindex),
                ),
                _ => native_addresses(request),
            };
            return Ok(Listener { id: id.id, attachment, source, destination });
        }
        Err(reason)
    }

    /// Handles an event of an id's connection.
    fn connection_event(&mut self, owner: u32, event: IbEvent) {
        let Some(id) = self.ids.get_mut(owner) else { return };
        let expected = match event {
            IbEvent::TimewaitExit => IdState::Disconnect,
            _ => IdState::Connect,
        };
        if id.state != expected {
            return;
        }
        let timed_out = -errno::ETIMEDOUT;
        let event = match event {
            IbEvent::RepReceived(param, ece) => {
                let event = Event::new(Kind::ConnectResponse).with_param(Param::Conn(param));
                Event { ece, ..event }
            }
            IbEvent::Established => Event::new(Kind::Established),
            IbEvent::DreqReceived | IbEvent::DrepReceived => {
                id.state = IdState::Disconnect;
                Event::new(Kind::Disconnected)
            }
            IbEvent::DreqError => {
                id.state = IdState::Disconnect;
                Event::new(Kind::Disconnected).with_status(timed_out)
            }
            IbEvent::Unreachable => Event::new(Kind::Unreachable).with_status(timed_out),
            IbEvent::RejReceived { reason, private_data } => {
                let param = ConnParam { private_data, ..ConnParam::default() };
                Event::new(Kind::Rejected).with_status(reason.into()).with_param(Param::Conn(param))
            }
            IbEvent::SidrRepReceived { status, qpn, qkey, private_data } => {
                resolved(id, status, qpn, qkey, private_data)
            }
            IbEvent::TimewaitExit => Event::new(Kind::TimewaitExit),
            // The others are not the application's.
            _ => return,
        };
        self.emit(owner, &event);
    }
}

/// The event for the result of a service id resolution.
fn resolved(id: &mut CmId, status: u8, qpn: u32, qkey: u32, private_data: Vec<u8>) -> Event {
    if status != 0 {
        let param = UdParam { private_data, ..UdParam::default() };
        return Event::new(Kind::Unreachable)
            .with_status(status.into())
            .with_param(Param::Ud(param));
    }
    if let Err(error) = id.settle_qkey(qkey) {
        return Event::new(Kind::AddrError).with_status(-error);
    }
    let ah_attr = id.path.zip(id.attachment).map(|(path, a)| path.ah_attr(&a.device));
    let param = UdParam { qp_num: qpn, qkey, ah_attr, private_data };
    Event::new(Kind::Established).with_param(Param::Ud(param))
}

/// Whether a listening id takes a request, judged by addresses and transport service.
fn takes(id: &CmId, request: &Request, header: Option<&CmaHeader>, port_space: PortSpace) -> bool {
    let Some(source) = id.source else { return false };
    let connected = |qp_type| matches!(qp_type, QpType::Rc | QpType::Uc);
    let serves = id.qp_type == request.qp_type
        || port_space == PortSpace::Ib && connected(id.qp_type) && connected(request.qp_type);
    let on_interface = id.bound_if.is_none_or(|scope| scope == request.endpoints.ifindex);
    if !serves || !on_interface {
        return false;
    }
    match (source, header) {
        (Address::Ib(ib), _) => ib.gid == [0; 16] || ib.gid == request.path.sgid,
        (_, None) => false,
        (source, Some(_)) if source.is_any() && !id.family_only() => true,
        (source, Some(h)) => {
            source.ip().is_ipv4() == h.dst.is_ipv4() && (source.is_any() || source.ip() == h.dst)
        }
    }
}

/// The device of the address that a request came to. A link-local address is looked up on the
/// interface that the request came in on. If that finds none, any interface will do, because a
/// request from this host itself arrives on the loopback interface.
fn attachment_of(
    client: ClientId,
    local: IpAddr,
    ifindex: u32,
    env: &mut dyn Environment,
) -> Option<Attachment> {
    let link_local = matches!(local, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let scope = link_local.then_some(ifindex);
    let (device, ifindex) = env
        .device_for(client, local, scope)
        .or_else(|| link_local.then(|| env.device_for(client, local, None)).flatten())?;
    Some(Attachment { device, local, ifindex })
}

/// The addresses of a connection whose request names only GIDs.
fn native_addresses(request: &Request) -> (Address, Address) {
    let address = |gid, sid| {
        Address::Ib(IbAddress {
            pkey: request.path.pkey,
            flowinfo: request.path.flow_label,
            gid,
            sid,
            sid_mask: u64::MAX,
            scope_id: 0,
        })
    };
    (address(request.path.sgid, request.service_id), address(request.path.dgid, 0))
}
