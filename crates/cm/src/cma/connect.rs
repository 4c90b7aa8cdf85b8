//! Connect, accept, reject and disconnect.

use core::time::Duration;

use polypath_wire::cm::{CmaHeader, RejectReason, SidrStatus};

use super::apm::{named_alternate, wants};
use crate::abi::command::{Connect, Reject};
use crate::env::{Environment, FileId};
use crate::ibcm::{ConnectParams, Endpoints};
use crate::ids::{CmId, IdState, QpType};
use crate::{Cm, errno};

/// `IB_EVENT_COMM_EST`: data arrived before the RTU.
const EVENT_COMM_EST: u32 = 4;
/// `IB_EVENT_PATH_MIG`: the queue pair uses its alternate path.
const EVENT_PATH_MIG: u32 = 6;

impl Cm {
    pub(super) fn connect(
        &mut self,
        now: Duration,
        file: FileId,
        command: Connect,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let Connect { id, param, ece, .. } = command;
        if !param.valid {
            return Err(errno::EINVAL);
        }
        let cm_id = self.ids.named_with_device(file, id)?;
        // An XRC target only answers.
        if cm_id.state != IdState::RouteResolved || cm_id.qp_type == QpType::XrcRecv {
            return Err(errno::EINVAL);
        }
        let (Some(path), Some(attachment), Some(remote), Some(destination)) =
            (cm_id.path, cm_id.attachment, cm_id.remote, cm_id.destination)
        else {
            return Err(errno::EINVAL);
        };
        let private_data = with_header(cm_id, &param.private_data);
        let own_addresses = env.addresses(cm_id.client);
        let migrates = wants(cm_id, env);
        let alternate = cm_id.alternate.as_ref().and_then(|path| named_alternate(cm_id, path, env));
        let params = ConnectParams {
            owner: id,
            client: cm_id.client,
            device: &attachment.device,
            service_id: cm_id.service_id(&destination),
            qp_type: cm_id.qp_type,
            path,
            endpoints: Endpoints {
                local: attachment.local,
                remote,
                ifindex: attachment.ifindex,
                traffic_class: path.traffic_class,
            },
            migrates,
            alternate,
            own_addresses: &own_addresses,
            first_psn: cm_id.first_psn,
            param: &param,
            private_data: &private_data,
            ece,
        };
        // An earlier attempt may have left its connection behind.
        if let Some(old) = cm_id.connection.take() {
            self.ib.release(now, old);
        }
        let connection = match params.qp_type {
            QpType::Ud => self.ib.resolve_service(now, &params)?,
            _ => self.ib.connect(now, &params)?,
        };
        let cm_id = self.ids.named(file, id)?;
        cm_id.connection = Some(connection);
        cm_id.qp_num = param.qp_num;
        cm_id.srq = param.srq;
        cm_id.state = IdState::Connect;
        Ok(())
    }

    /// Accepts a connection. The passive side does so with parameters. The active side confirms
    /// without parameters, because the application drives its queue pair itself.
    pub(super) fn accept(
        &mut self,
        now: Duration,
        file: FileId,
        command: Connect,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let Connect { uid, id, param, ece } = command;
        let cm_id = self.ids.named_with_device(file, id)?;
        if cm_id.state != IdState::Connect {
            return Err(errno::EINVAL);
        }
        let connection = cm_id.connection.ok_or(errno::EINVAL)?;
        if param.valid {
            cm_id.qp_num = param.qp_num;
            cm_id.srq = param.srq;
        }
        let first_psn = cm_id.first_psn;
        let done = match cm_id.qp_type {
            QpType::Ud => {
                let wanted = if cm_id.has_ip_header() { 0 } else { param.qkey };
                cm_id.settle_qkey(wanted).and_then(|qkey| {
                    let qp = (cm_id.qp_num, qkey);
                    let status = SidrStatus::Success;
                    self.ib.answer_sidr(connection, status, qp, &param.private_data)
                })
            }
            _ if param.valid => self.ib.accept(now, connection, first_psn, &param, ece),
            _ => self.ib.confirm(now, connection),
        };
        if let Err(error) = done {
            let _ = self.refuse(now, id, &[]);
            return Err(error);
        }
        if param.valid {
            self.ids.named(file, id)?.uid = Some(uid);
        }
        self.deliver_events(now, env);
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        now: Duration,
        file: FileId,
        command: &Reject,
    ) -> Result<(), i32> {
        let id = self.ids.named_with_device(file, command.id)?.id;
        let reason = match RejectReason::from_code(command.reason.into()) {
            RejectReason::Unknown(0) => RejectReason::ConsumerDefined,
            reason @ (RejectReason::ConsumerDefined | RejectReason::VendorOptionNotSupported) => {
                reason
            }
            _ => return Err(errno::EINVAL),
        };
        self.refuse_because(now, id, reason, &command.private_data)
    }

    fn refuse(&mut self, now: Duration, id: u32, private_data: &[u8]) -> Result<(), i32> {
        self.refuse_because(now, id, RejectReason::ConsumerDefined, private_data)
    }

    fn refuse_because(
        &mut self,
        now: Duration,
        id: u32,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), i32> {
        let cm_id = self.ids.get(id).ok_or(errno::ENOENT)?;
        let connection = cm_id.connection.ok_or(errno::EINVAL)?;
        match cm_id.qp_type {
            QpType::Ud => self.ib.answer_sidr(connection, SidrStatus::Reject, (0, 0), private_data),
            _ => self.ib.reject(now, connection, reason, &[], private_data),
        }
    }

    pub(super) fn disconnect(&mut self, now: Duration, file: FileId, id: u32) -> Result<(), i32> {
        let cm_id = self.ids.named_with_device(file, id)?;
        let connection = cm_id.connection.ok_or(errno::EINVAL)?;
        self.ib.disconnect(now, connection);
        Ok(())
    }

    /// The application reports an event of its queue pair.
    pub(super) fn notify(
        &mut self,
        now: Duration,
        file: FileId,
        id: u32,
        event: u32,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let connection = self.ids.named_with_device(file, id)?.connection.ok_or(errno::EINVAL)?;
        match event {
            EVENT_COMM_EST => {
                self.ib.establish(now, connection)?;
                self.deliver_events(now, env);
                Ok(())
            }
            EVENT_PATH_MIG => {
                self.migrated(now, connection, None, false, env);
                Ok(())
            }
            _ => Err(errno::EINVAL),
        }
    }
}

/// The private data of a request: the RDMA IP CM header (not with native addresses), followed by
/// the application's data.
fn with_header(id: &CmId, private_data: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(CmaHeader::LEN + private_data.len());
    if let (true, Some(source), Some(destination)) = (id.has_ip_header(), id.source, id.destination)
    {
        let header = CmaHeader { src_port: source.port(), src: source.ip(), dst: destination.ip() };
        data.extend_from_slice(&header.to_bytes());
    }
    data.extend_from_slice(private_data);
    data
}
