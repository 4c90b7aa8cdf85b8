//! The application's actions on a connection: connect, accept, confirm, reject, disconnect, leave.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::cm::{Rej, RejectReason, Rep, Req};

use super::connection::{Connection, QpFacts, State};
use super::endpoints::Endpoints;
use super::table::Connections;
use super::{mad, mad::MAX_RETRIES};
use crate::abi::command::{ConnParam, Ece};
use crate::apm::AlternatePath;
use crate::env::{ClientId, Device};
use crate::errno;
use crate::ids::QpType;
use crate::path::{Path, iba_time};

/// The parameters of a new connection or service id resolution.
pub(crate) struct ConnectParams<'a> {
    pub(crate) owner: u32,
    pub(crate) client: ClientId,
    pub(crate) device: &'a Device,
    pub(crate) service_id: u64,
    pub(crate) qp_type: QpType,
    pub(crate) path: Path,
    pub(crate) endpoints: Endpoints,
    /// Whether the application wants migration, and the alternate path that it has named.
    pub(crate) migrates: bool,
    pub(crate) alternate: Option<AlternatePath>,
    /// Every address that this end can be reached at, with its interface.
    pub(crate) own_addresses: &'a [(IpAddr, u32)],
    pub(crate) first_psn: u32,
    pub(crate) param: &'a ConnParam,
    /// The whole private data field.
    pub(crate) private_data: &'a [u8],
    pub(crate) ece: Ece,
}

impl Connections {
    /// Sends a REQ. Returns the local communication id.
    pub(crate) fn connect(
        &mut self,
        now: Duration,
        params: &ConnectParams<'_>,
    ) -> Result<u32, i32> {
        if params.private_data.len() > Req::PRIVATE_DATA_LEN {
            return Err(errno::EINVAL);
        }
        let local_id = self.new_local_id().ok_or(errno::ENOMEM)?;
        let mut c = self.outgoing_connection(local_id, State::ReqSent, params);
        let life_time = iba_time(params.path.packet_life_time);
        c.timeout = life_time * 2 + iba_time(mad::RESPONSE_TIMEOUT);
        c.qp = QpFacts {
            local_qpn: params.param.qp_num,
            rq_psn: params.first_psn,
            responder_resources: params.param.responder_resources,
            initiator_depth: params.param.initiator_depth,
            retry_count: params.param.retry_count,
            rnr_retry_count: params.param.rnr_retry_count,
            ack_timeout: params.path.packet_life_time.saturating_add(1),
            ..QpFacts::default()
        };
        let req = mad::req(&c, params.param, params.private_data, params.ece);
        self.insert(c);
        self.send_and_await(now, local_id, req, State::ReqSent);
        Ok(local_id)
    }

    pub(super) fn outgoing_connection(
        &self,
        local_id: u32,
        state: State,
        params: &ConnectParams<'_>,
    ) -> Connection {
        let mut c = Connection::new(local_id, state, params.qp_type, params.path, params.endpoints);
        c.tid = self.transaction_id(local_id);
        c.owner = Some(params.owner);
        c.client = Some(params.client);
        c.local_guid = u64::from_be_bytes(params.device.node_guid);
        c.ack_delay = params.device.ack_delay;
        c.service_id = params.service_id;
        c.max_retries = MAX_RETRIES;
        c.is_active = true;
        c.migration.enabled = params.migrates;
        c.migration.offered = params.alternate.filter(|_| params.migrates);
        c.migration.is_chosen = c.migration.offered.is_some();
        c.alternates.set_own(params.own_addresses);
        c
    }

    /// Gives the connection of a request to the id that was made for it. Until the application
    /// decides, a repeated REQ is answered with an MRA.
    pub(crate) fn adopt(
        &mut self,
        local_id: u32,
        owner: u32,
        client: ClientId,
        device: &Device,
        own_addresses: &[(IpAddr, u32)],
    ) {
        if let Some(c) = self.get_mut(local_id) {
            c.owner = Some(owner);
            c.client = Some(client);
            c.local_guid = u64::from_be_bytes(device.node_guid);
            c.ack_delay = device.ack_delay;
            c.alternates.set_own(own_addresses);
            if c.state == State::ReqRcvd {
                c.state = State::MraReqSent;
            }
        }
    }

    /// Accepts a connection: sends a REP.
    pub(crate) fn accept(
        &mut self,
        now: Duration,
        local_id: u32,
        first_psn: u32,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<(), i32> {
        if param.private_data.len() > Rep::PRIVATE_DATA_LEN {
            return Err(errno::EINVAL);
        }
        let c = self.get_mut(local_id).ok_or(errno::EINVAL)?;
        if !matches!(c.state, State::ReqRcvd | State::MraReqSent) {
            return Err(errno::EINVAL);
        }
        c.qp.local_qpn = param.qp_num;
        c.qp.rq_psn = first_psn;
        c.qp.responder_resources = param.responder_resources;
        c.qp.initiator_depth = param.initiator_depth;
        let rep = mad::rep(c, param, ece);
        self.send_and_await(now, local_id, rep, State::RepSent);
        Ok(())
    }

    /// Confirms the peer's REP with an RTU. The queue pair is ready.
    pub(crate) fn confirm(&mut self, now: Duration, local_id: u32) -> Result<(), i32> {
        let c = self.get_mut(local_id).ok_or(errno::EINVAL)?;
        if !matches!(c.state, State::RepRcvd) {
            return Err(errno::EINVAL);
        }
        c.state = State::Established;
        let (rtu, endpoints) = (mad::rtu(c), c.endpoints);
        self.send(endpoints, rtu, Some(local_id), 0);
        self.begin_paths(now, local_id);
        Ok(())
    }

    /// Rejects what the peer sent, or withdraws what this end sent.
    pub(crate) fn reject(
        &mut self,
        now: Duration,
        local_id: u32,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), i32> {
        if private_data.len() > Rej::PRIVATE_DATA_LEN {
            return Err(errno::EINVAL);
        }
        let c = self.get_mut(local_id).ok_or(errno::EINVAL)?;
        let (rej, endpoints) = (mad::rej(c, reason, info, private_data), c.endpoints);
        match c.state {
            State::ReqSent
            | State::MraReqRcvd
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd => {
                self.send(endpoints, rej, Some(local_id), 0);
                self.reset_to_idle(local_id);
            }
            State::RepSent | State::MraRepRcvd => {
                c.answer = Some(rej);
                self.send(endpoints, rej, Some(local_id), 0);
                self.enter_timewait(now, local_id);
            }
            _ => return Err(errno::EINVAL),
        }
        Ok(())
    }

    /// Ends a connection, or agrees when the peer ends it.
    pub(crate) fn disconnect(&mut self, now: Duration, local_id: u32) {
        match self.get(local_id).map(|c| c.state) {
            Some(State::Established) => self.send_dreq(now, local_id),
            Some(State::DreqRcvd) => self.send_drep(now, local_id),
            _ => {}
        }
    }

    pub(super) fn send_dreq(&mut self, now: Duration, local_id: u32) {
        let tid = self.transaction_id(local_id);
        if let Some(c) = self.get(local_id) {
            let dreq = mad::dreq(c, tid);
            self.send_and_await(now, local_id, dreq, State::DreqSent);
        }
    }

    fn send_drep(&mut self, now: Duration, local_id: u32) {
        if let Some(c) = self.get(local_id) {
            // The DREP goes back to where the DREQ came from, because the path on which the
            // connection began may be dead by now.
            let (drep, to) = (mad::drep(c.tid, c.local_id, c.remote_id), c.heard_at);
            self.send(to, drep, Some(local_id), 0);
            self.enter_timewait(now, local_id);
        }
    }

    /// Treats the connection as established, because the application saw data arrive before the
    /// RTU.
    pub(crate) fn establish(&mut self, now: Duration, local_id: u32) -> Result<(), i32> {
        let c = self.get_mut(local_id).ok_or(errno::EINVAL)?;
        match c.state {
            State::RepSent | State::MraRepRcvd => {
                c.state = State::Established;
                self.answered(local_id);
                self.report(local_id, super::IbEvent::Established);
                self.begin_paths(now, local_id);
                Ok(())
            }
            State::Established => Err(errno::EISCONN),
            _ => Err(errno::EINVAL),
        }
    }

    /// Releases a connection whose owner is destroyed. The peer is told what the state requires,
    /// and the connection goes on by itself until that is done.
    pub(crate) fn release(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.get_mut(local_id) else { return };
        let guid = c.local_guid.to_be_bytes();
        // A peer may have asked for a long time-out. It no longer applies, because the owner is
        // gone.
        c.timeout = c.timeout.min(iba_time(mad::RESPONSE_TIMEOUT));
        match c.state {
            State::ReqSent | State::MraReqRcvd => {
                let _ = self.reject(now, local_id, RejectReason::Timeout, &guid, &[]);
            }
            State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::RepSent
            | State::MraRepRcvd => {
                let _ = self.reject(now, local_id, RejectReason::ConsumerDefined, &[], &[]);
            }
            State::Established => self.send_dreq(now, local_id),
            State::DreqRcvd => self.send_drep(now, local_id),
            State::SidrReqRcvd => self.refuse_sidr(local_id),
            State::SidrReqSent | State::SidrRepSent => self.reset_to_idle(local_id),
            State::Idle | State::DreqSent | State::Timewait => {}
        }
        if let Some(c) = self.get_mut(local_id) {
            c.owner = None;
        }
        self.forget_if_done(local_id);
    }

    /// Forgets a request as if it had never arrived, so that the peer tries again.
    pub(crate) fn drop_request(&mut self, local_id: u32) {
        self.counters.requests_dropped += 1;
        self.forget(local_id);
    }
}
