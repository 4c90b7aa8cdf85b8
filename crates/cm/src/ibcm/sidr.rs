//! Service id resolution (IBTA 12.11) finds the queue pair that serves a service id, for datagrams.

use core::time::Duration;

use polypath_wire::cm::{SidrRep, SidrReq, SidrStatus};

use super::connection::{Connection, IbEvent, Request, State};
use super::endpoints::Endpoints;
use super::table::Connections;
use super::{ConnectParams, mad};
use crate::abi::address::gid_of;
use crate::abi::command::{ConnParam, Ece};
use crate::env::MadAddress;
use crate::errno;
use crate::ids::QpType;
use crate::path::{HOP_LIMIT, PACKET_LIFE_TIME, Path, iba_time};

impl Connections {
    /// Sends a SIDR_REQ. Returns the request id.
    pub(crate) fn resolve_service(
        &mut self,
        now: Duration,
        params: &ConnectParams<'_>,
    ) -> Result<u32, i32> {
        if params.private_data.len() > SidrReq::PRIVATE_DATA_LEN {
            return Err(errno::EINVAL);
        }
        let local_id = self.new_local_id().ok_or(errno::ENOMEM)?;
        let mut c = self.outgoing_connection(local_id, State::SidrReqSent, params);
        c.timeout = iba_time(mad::RESPONSE_TIMEOUT);
        c.qp.local_qpn = params.param.qp_num;
        let req = mad::sidr_req(&c, params.private_data);
        self.insert(c);
        self.send_and_await(now, local_id, req, State::SidrReqSent);
        Ok(local_id)
    }

    /// Answers a SIDR_REQ. The answer is kept for as long as the id lives, because it may get lost.
    pub(crate) fn answer_sidr(
        &mut self,
        local_id: u32,
        status: SidrStatus,
        qp: (u32, u32),
        private_data: &[u8],
    ) -> Result<(), i32> {
        if private_data.len() > SidrRep::PRIVATE_DATA_LEN {
            return Err(errno::EINVAL);
        }
        let c = self.get_mut(local_id).ok_or(errno::EINVAL)?;
        if c.state != State::SidrReqRcvd {
            return Err(errno::EINVAL);
        }
        let rep = mad::sidr_rep(c.tid, c.remote_id, c.service_id, status, qp, private_data);
        c.state = State::SidrRepSent;
        c.answer = Some(rep);
        let endpoints = c.endpoints;
        self.send(endpoints, rep, Some(local_id), 0);
        Ok(())
    }

    /// Refuses a request whose id is destroyed before the application has answered.
    pub(super) fn refuse_sidr(&mut self, local_id: u32) {
        let _ = self.answer_sidr(local_id, SidrStatus::Reject, (0, 0), &[]);
        self.reset_to_idle(local_id);
    }

    pub(super) fn sidr_req_received(
        &mut self,
        tid: u64,
        from: &MadAddress,
        req: &SidrReq,
        is_served: bool,
    ) {
        if let Some(local_id) = self.by_sidr_request(from.remote, req.request_id) {
            self.counters.mads_duplicate += 1;
            let answer = self.get(local_id).and_then(|c| c.answer.map(|a| (c.heard_at, a)));
            if let Some((to, answer)) = answer {
                self.send(to, answer, Some(local_id), 0);
            }
            return;
        }
        let endpoints = Endpoints::answering(from, 0);
        if !is_served {
            self.counters.requests_unserved += 1;
            let status = SidrStatus::Unsupported;
            let rep = mad::sidr_rep(tid, req.request_id, req.service_id, status, (0, 0), &[]);
            self.send(endpoints, rep, None, 0);
            return;
        }
        let Some(local_id) = self.new_local_id() else {
            self.counters.requests_dropped += 1;
            return;
        };
        let path = Path {
            service_id: req.service_id,
            sgid: gid_of(from.local),
            dgid: gid_of(from.remote),
            hop_limit: HOP_LIMIT,
            pkey: req.pkey,
            packet_life_time: PACKET_LIFE_TIME,
            ..Path::default()
        };
        let mut c = Connection::new(local_id, State::SidrReqRcvd, QpType::Ud, path, endpoints);
        c.remote_id = req.request_id;
        c.tid = tid;
        self.insert(c);
        self.index_sidr(local_id);
        let request = Request {
            service_id: req.service_id,
            qp_type: QpType::Ud,
            param: ConnParam::default(),
            private_data: req.private_data.to_vec(),
            ece: Ece::default(),
            alternate: None,
            path,
            endpoints,
        };
        self.report(local_id, IbEvent::SidrReqReceived(Box::new(request)));
    }

    pub(super) fn sidr_rep_received(&mut self, now: Duration, rep: &SidrRep) {
        match self.get_mut(rep.request_id) {
            Some(c) if c.state == State::SidrReqSent && c.service_id == rep.service_id => {}
            _ => {
                self.counters.mads_unmatched += 1;
                return;
            }
        }
        if rep.status == SidrStatus::Unsupported && self.asks_again(now, rep.request_id) {
            return;
        }
        self.reset_to_idle(rep.request_id);
        let event = IbEvent::SidrRepReceived {
            status: rep.status.code(),
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: rep.private_data.to_vec(),
        };
        self.report(rep.request_id, event);
    }
}
