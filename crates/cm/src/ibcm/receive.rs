//! The effects of the peer's MADs on a connection.

use core::time::Duration;

use polypath_wire::Gid;
use polypath_wire::cm::{
    CmMad, CmMessage, CmService, Drep, Dreq, Failover, Mra, Mraed, Rej, RejectReason, Rejected,
    Rep, Req, Rtu,
};
use polypath_wire::mad::MAD_LEN;

use super::connection::{Connection, IbEvent, QpFacts, Request, State};
use super::endpoints::Endpoints;
use super::table::{Connections, RESPONSE_TIMEOUT_MAX, SERVICE_TIMEOUT_MAX};
use super::{alternates, mad, moved};
use crate::abi::command::ConnParam;
use crate::env::MadAddress;
use crate::ids::QpType;
use crate::path::{ack_timeout, iba_time};

/// One MAD while it is handled.
pub(super) struct Received<'a> {
    now: Duration,
    pub(super) from: &'a MadAddress,
    pub(super) tid: u64,
    mad: &'a [u8; MAD_LEN],
}

impl Connections {
    /// Takes in one MAD. `is_served` says whether anybody listens on a service id.
    pub(crate) fn receive(
        &mut self,
        now: Duration,
        from: &MadAddress,
        bytes: &[u8],
        is_served: &dyn Fn(u64) -> bool,
    ) {
        self.counters.mads_received += 1;
        let parsed = (<&[u8; MAD_LEN]>::try_from(bytes).ok()).zip(CmMad::parse(bytes).ok());
        let Some((mad, CmMad { tid, message })) = parsed.filter(|_| from.source_qpn == 1) else {
            self.counters.mads_malformed += 1;
            return;
        };
        let rx = Received { now, from, tid, mad };
        match message {
            CmMessage::Req(m) => self.req_received(&rx, &m, is_served),
            CmMessage::Mra(m) => self.mra_received(&rx, &m),
            CmMessage::Rej(m) => self.rej_received(&rx, &m),
            CmMessage::Rep(m) => self.rep_received(&rx, &m),
            CmMessage::Rtu(m) => self.rtu_received(&rx, &m),
            CmMessage::Dreq(m) => self.dreq_received(&rx, &m),
            CmMessage::Drep(m) => self.drep_received(&rx, &m),
            CmMessage::SidrReq(m) => self.sidr_req_received(tid, from, &m, is_served(m.service_id)),
            CmMessage::SidrRep(m) => self.sidr_rep_received(rx.now, &m),
            CmMessage::Lap(m) => self.lap_received(&rx, &m),
            CmMessage::Sap(m) => self.sap_received(&rx, &m),
            CmMessage::Apr(m) => self.apr_received(&rx, &m),
            CmMessage::Spr(m) => self.spr_received(&rx, &m),
        }
    }

    /// The connection that a message names by both ids.
    pub(super) fn named(&mut self, local: u32, remote: u32) -> Option<&mut Connection> {
        if self.find(local, remote).is_none() {
            self.counters.mads_unmatched += 1;
        }
        self.find(local, remote)
    }

    /// The same, for messages that are accepted by their ids alone: it also notes where the message
    /// came from.
    fn matched(&mut self, rx: &Received<'_>, local: u32, remote: u32) -> Option<&mut Connection> {
        let c = self.named(local, remote)?;
        c.hears(rx.from);
        Some(c)
    }

    pub(super) fn answer(&mut self, rx: &Received<'_>, mad: [u8; MAD_LEN]) {
        self.send(Endpoints::answering(rx.from, 0), mad, None, 0);
    }

    fn req_received(&mut self, rx: &Received<'_>, req: &Req, is_served: &dyn Fn(u64) -> bool) {
        if let Some(local_id) = self.by_remote_id(req.local_ca_guid, req.local_comm_id) {
            self.counters.mads_duplicate += 1;
            // In later states the answer is the REP, or what followed it.
            let waiting = self.get(local_id).filter(|c| c.state == State::MraReqSent);
            if let Some(mra) = waiting.map(|c| mad::mra(c, Mraed::Req)) {
                self.answer(rx, mra);
            }
            return;
        }
        if self.ended.contains(rx.now, (req.local_ca_guid, req.local_comm_id)) {
            self.counters.mads_duplicate += 1;
            return;
        }
        let refuse = |cm: &mut Self, reason| {
            let ids = (0, req.local_comm_id);
            let rej = mad::rej_unknown(rx.tid, ids, Rejected::Req, reason);
            cm.answer(rx, rej);
        };
        if let Some(stale) = self.by_remote_qpn(req.local_ca_guid, req.local_qpn) {
            self.counters.requests_stale += 1;
            refuse(self, RejectReason::StaleConnection);
            self.end_stale(rx, stale);
            return;
        }
        if !is_served(req.service_id) {
            self.counters.requests_unserved += 1;
            return refuse(self, RejectReason::InvalidServiceId);
        }
        let qp_type = match req.service {
            CmService::Rc => QpType::Rc,
            CmService::Uc => QpType::Uc,
            CmService::Extended if req.extended_transport == Req::EXTENDED_XRC => QpType::XrcRecv,
            CmService::Rd | CmService::Extended => {
                return refuse(self, RejectReason::InvalidTransport);
            }
        };
        if !(1..=5).contains(&req.mtu) {
            return refuse(self, RejectReason::InvalidMtu);
        }
        let Some(local_id) = self.new_local_id() else {
            self.counters.requests_dropped += 1;
            return;
        };
        let c = new_request(local_id, rx, req, qp_type);
        let request = Request {
            service_id: req.service_id,
            qp_type,
            param: ConnParam {
                qp_num: req.local_qpn,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                flow_control: req.flow_control,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
                ..ConnParam::default()
            },
            private_data: req.private_data.to_vec(),
            ece: mad::req_ece(rx.mad),
            path: c.path,
            alternate: req.alternate,
            endpoints: c.endpoints,
        };
        self.insert(c);
        self.index_peer(local_id);
        self.report(local_id, IbEvent::ReqReceived(Box::new(request)));
    }

    /// Ends a connection whose peer has forgotten it: the peer uses the same queue pair for another
    /// connection. A message from another address could be forged, so it ends nothing.
    fn end_stale(&mut self, rx: &Received<'_>, local_id: u32) {
        let is_peer = |c: &&Connection| {
            c.state == State::Established
                && (c.endpoints.remote == rx.from.remote || c.heard_at.remote == rx.from.remote)
        };
        if self.get(local_id).filter(is_peer).is_some() {
            self.send_dreq(rx.now, local_id);
        }
    }

    fn rep_received(&mut self, rx: &Received<'_>, rep: &Rep) {
        if self.find(rep.remote_comm_id, 0).is_none() {
            return self.duplicate_rep(rx, rep);
        }
        let Some(c) = self.matched(rx, rep.remote_comm_id, 0) else { return };
        let local_id = c.local_id;
        if !matches!(c.state, State::ReqSent | State::MraReqRcvd) {
            self.counters.mads_unmatched += 1;
            return;
        }
        let xrc = c.qp_type == QpType::XrcSend;
        let remote_qpn = if xrc { rep.local_eecn } else { rep.local_qpn };
        if self.by_remote_id(rep.local_ca_guid, rep.local_comm_id).is_some() {
            self.counters.mads_duplicate += 1;
            return;
        }
        if let Some(stale) = self.by_remote_qpn(rep.local_ca_guid, remote_qpn) {
            self.counters.requests_stale += 1;
            let reason = RejectReason::StaleConnection;
            let ids = (rep.remote_comm_id, rep.local_comm_id);
            let rej = mad::rej_unknown(rx.tid, ids, Rejected::Rep, reason);
            self.answer(rx, rej);
            return self.end_stale(rx, stale);
        }
        let ece = mad::rep_ece(rx.mad);
        self.answered(local_id);
        let Some(c) = self.get_mut(local_id) else { return };
        // An MRA is sent if the peer repeats its REP before the application has confirmed.
        c.state = State::RepRcvd;
        c.remote_id = rep.local_comm_id;
        c.remote_guid = rep.local_ca_guid;
        let timeout = ack_timeout(rep.target_ack_delay, c.qp.ack_timeout.saturating_sub(1));
        c.qp = QpFacts {
            remote_qpn,
            sq_psn: rep.starting_psn.get(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            rnr_retry_count: rep.rnr_retry_count,
            ack_timeout: timeout,
            ..c.qp
        };
        // Other managers accept an alternate path without looking at it, so that alone means nothing.
        c.migration.peer = rep.lap_supported;
        let accepted = rep.lap_supported && rep.failover == Failover::Accepted;
        c.migration.alternate = c.migration.offered.take().filter(|_| accepted);
        self.index_peer(local_id);
        let param = ConnParam {
            qp_num: remote_qpn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            private_data: rep.private_data.to_vec(),
            ..ConnParam::default()
        };
        self.report(local_id, IbEvent::RepReceived(param, ece));
    }

    fn duplicate_rep(&mut self, rx: &Received<'_>, rep: &Rep) {
        let Some(c) = self.matched(rx, rep.remote_comm_id, rep.local_comm_id) else { return };
        let again = match c.state {
            State::Established => Some(mad::rtu(c)),
            State::RepRcvd => Some(mad::mra(c, Mraed::Rep)),
            _ => None,
        };
        self.counters.mads_duplicate += 1;
        if let Some(mad) = again {
            self.answer(rx, mad);
        }
    }

    fn rtu_received(&mut self, rx: &Received<'_>, rtu: &Rtu) {
        let Some(c) = self.matched(rx, rtu.remote_comm_id, rtu.local_comm_id) else {
            // This end is gone, and the message that told the peer so got lost.
            let ids = (rtu.remote_comm_id, rtu.local_comm_id);
            let reason = RejectReason::InvalidCommId;
            let rej = mad::rej_unknown(rx.tid, ids, Rejected::Other, reason);
            return self.answer(rx, rej);
        };
        let local_id = c.local_id;
        if let Some(rej) = c.answer {
            self.counters.mads_duplicate += 1;
            return self.answer(rx, rej);
        }
        if let Some(word) = moved::parse(&rtu.private_data) {
            return self.moved_received(rx.from, local_id, word);
        }
        if let Some(addresses) = alternates::parse(&rtu.private_data) {
            c.alternates.set_peer(addresses);
            let (is_active, state) = (c.is_active, c.state);
            if is_active && state == State::Established {
                // This is the passive end's answer to our list. It confirms nothing.
                self.look_at_paths(local_id, rx.now);
                return;
            }
            if !is_active && !c.alternates.list().is_empty() {
                let list = mad::rtu(c);
                self.answer(rx, list);
            }
        }
        let Some(c) = self.get_mut(local_id) else { return };
        if !matches!(c.state, State::RepSent | State::MraRepRcvd) {
            self.counters.mads_duplicate += 1;
            return;
        }
        c.state = State::Established;
        self.answered(local_id);
        self.report(local_id, IbEvent::Established);
        self.begin_paths(rx.now, local_id);
    }

    fn dreq_received(&mut self, rx: &Received<'_>, dreq: &Dreq) {
        let Some(c) = self.named(dreq.remote_comm_id, dreq.local_comm_id) else {
            // This end is gone, so the peer may end its own.
            let drep = mad::drep(rx.tid, dreq.remote_comm_id, dreq.local_comm_id);
            return self.answer(rx, drep);
        };
        let local_id = c.local_id;
        if c.qp.local_qpn != dreq.remote_qpn {
            self.counters.mads_unmatched += 1;
            return;
        }
        c.hears(rx.from);
        match c.state {
            State::RepSent | State::MraRepRcvd | State::DreqSent | State::Established => {
                c.state = State::DreqRcvd;
                c.tid = rx.tid;
                self.answered(local_id);
                self.report(local_id, IbEvent::DreqReceived);
                if self.get(local_id).is_some_and(|c| c.owner.is_none()) {
                    // No application is left that could agree.
                    self.disconnect(rx.now, local_id);
                }
            }
            // The connection has ended here. If the answer got lost, the peer asks again, and it
            // may do so for longer than the time-wait lasts.
            State::Timewait | State::Idle => {
                let drep = mad::drep(rx.tid, c.local_id, c.remote_id);
                self.counters.mads_duplicate += 1;
                self.answer(rx, drep);
            }
            State::DreqRcvd => {
                c.tid = rx.tid;
                self.counters.mads_duplicate += 1;
            }
            _ => self.counters.mads_unmatched += 1,
        }
    }

    fn drep_received(&mut self, rx: &Received<'_>, drep: &Drep) {
        let Some(c) = self.matched(rx, drep.remote_comm_id, drep.local_comm_id) else { return };
        let local_id = c.local_id;
        if !matches!(c.state, State::DreqSent | State::DreqRcvd) {
            self.counters.mads_duplicate += 1;
            return;
        }
        self.enter_timewait(rx.now, local_id);
        self.report(local_id, IbEvent::DrepReceived);
    }

    fn rej_received(&mut self, rx: &Received<'_>, rej: &Rej) {
        let (local, remote) = if rej.reason == RejectReason::Timeout {
            // The peer may never have learned our id. Its GUID and its own id tell which connection
            // it means.
            let guid = rej.info.as_slice().first_chunk().copied().map(u64::from_be_bytes);
            let known = guid.and_then(|g| self.by_remote_id(g, rej.local_comm_id));
            (known.unwrap_or(rej.remote_comm_id), rej.local_comm_id)
        } else if rej.rejected == Rejected::Req {
            (rej.remote_comm_id, 0)
        } else {
            (rej.remote_comm_id, rej.local_comm_id)
        };
        let Some(c) = self.matched(rx, local, remote) else { return };
        let (local_id, state) = (c.local_id, c.state);
        let unserved = rej.reason == RejectReason::InvalidServiceId;
        if state == State::ReqSent && unserved && self.asks_again(rx.now, local_id) {
            return;
        }
        match state {
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::ReqRcvd
            | State::MraReqSent => {
                if rej.reason == RejectReason::StaleConnection {
                    self.enter_timewait(rx.now, local_id);
                } else {
                    self.reset_to_idle(local_id);
                }
            }
            // The peer has ended the connection while this end moved.
            State::Established if self.get(local_id).is_some_and(|c| c.pending.is_some()) => {
                self.enter_timewait(rx.now, local_id);
                return self.report(local_id, IbEvent::DreqReceived);
            }
            State::DreqSent | State::RepRcvd | State::Established => {
                self.enter_timewait(rx.now, local_id);
            }
            _ => {
                self.counters.mads_unmatched += 1;
                return;
            }
        }
        let reason = rej.reason.code();
        let private_data = rej.private_data.to_vec();
        self.report(local_id, IbEvent::RejReceived { reason, private_data });
    }

    fn mra_received(&mut self, rx: &Received<'_>, mra: &Mra) {
        let remote = match mra.mraed {
            Mraed::Req => 0,
            Mraed::Rep | Mraed::Lap => mra.local_comm_id,
        };
        let Some(c) = self.matched(rx, mra.remote_comm_id, remote) else { return };
        let local_id = c.local_id;
        let timeout =
            iba_time(mra.service_timeout.min(SERVICE_TIMEOUT_MAX)) + iba_time(c.qp.ack_timeout);
        match (c.state, mra.mraed) {
            (State::Established, Mraed::Lap) => {
                return self.postpone_lap(rx.now, local_id, rx.tid, timeout);
            }
            (State::ReqSent, Mraed::Req) => c.state = State::MraReqRcvd,
            (State::RepSent, Mraed::Rep) => c.state = State::MraRepRcvd,
            (State::MraReqRcvd, Mraed::Req) | (State::MraRepRcvd, Mraed::Rep) => {
                self.counters.mads_duplicate += 1;
                return;
            }
            _ => {
                self.counters.mads_unmatched += 1;
                return;
            }
        }
        self.postpone(rx.now, local_id, timeout);
    }
}

/// Creates the passive end of a new connection.
fn new_request(local_id: u32, rx: &Received<'_>, req: &Req, qp_type: QpType) -> Connection {
    let mut path = mad::path_of_req(req);
    let traffic_class = path.traffic_class;
    path.hop_limit = path.hop_limit.max(1);
    // The GIDs of the path say where the peer wants its answers. On RoCEv2 they are IP addresses.
    let endpoints = Endpoints {
        local: Gid(path.sgid).to_ip(),
        remote: Gid(path.dgid).to_ip(),
        ifindex: rx.from.ifindex,
        traffic_class,
    };
    let mut c = Connection::new(local_id, State::ReqRcvd, qp_type, path, endpoints);
    c.heard_at = Endpoints::answering(rx.from, traffic_class);
    c.remote_id = req.local_comm_id;
    c.tid = rx.tid;
    c.remote_guid = req.local_ca_guid;
    c.migration.peer = req.sap_supported;
    c.timeout = iba_time(req.local_cm_response_timeout.min(RESPONSE_TIMEOUT_MAX));
    c.max_retries = req.max_cm_retries;
    c.qp = QpFacts {
        remote_qpn: req.local_qpn,
        sq_psn: req.starting_psn.get(),
        initiator_depth: req.responder_resources,
        responder_resources: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        ack_timeout: path.packet_life_time.saturating_add(1),
        ..QpFacts::default()
    };
    c
}
