//! LAP, APR, SAP and SPR: how they are made, and what they do to a connection.

use core::net::IpAddr;

use polypath_wire::Gid;
use polypath_wire::cm::{
    ApStatus, Apr, CmMad, Info, Lap, Mra, Mraed, Sap, Spr, SprStatus, private_data,
};

use super::super::connection::{Connection, IbEvent, State};
use super::super::endpoints::Endpoints;
use super::super::mad::{Mad, RESPONSE_TIMEOUT};
use super::super::receive::Received;
use super::super::table::Connections;
use super::standing::{Novelty, Standing};
use super::state::{About, LapPath, Suggestion};
use super::told::Told;
use crate::abi::address::gid_of;
use crate::apm::AlternatePath;

/// The LID of an end on RoCE.
const NO_LID: u16 = 0xffff;

/// The time that an MRA of a LAP asks for, as an exponent: 1 s. The host only has to move a queue pair,
/// and if the answer gets lost, the peer asks again no sooner.
const SERVICE_TIMEOUT: u8 = 18;

/// A field of private data that tells the path of this end.
fn telling<const N: usize>(c: &Connection) -> [u8; N] {
    private_data(&c.telling()).unwrap_or([0; N])
}

pub(super) fn lap(c: &Connection, tid: u64, path: &AlternatePath) -> Mad {
    let lap = Lap {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        remote_qpn: c.qp.remote_qpn,
        remote_cm_response_timeout: RESPONSE_TIMEOUT,
        alternate: path.on_wire(NO_LID),
        private_data: telling(c),
    };
    CmMad::new(tid, lap).to_bytes()
}

pub(super) fn sap(c: &Connection, tid: u64, address: IpAddr) -> Mad {
    let sap = Sap {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        remote_qpn: c.qp.remote_qpn,
        local_lid: NO_LID,
        local_gid: Gid(gid_of(address)),
        private_data: telling(c),
    };
    CmMad::new(tid, sap).to_bytes()
}

/// The LAP has come, and its answer takes longer (IBTA 12.6.6).
fn mra(c: &Connection, tid: u64) -> Mad {
    let mra = Mra {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        mraed: Mraed::Lap,
        service_timeout: SERVICE_TIMEOUT,
        private_data: [0; Mra::PRIVATE_DATA_LEN],
    };
    CmMad::new(tid, mra).to_bytes()
}

fn apr(
    tid: u64,
    (local_comm_id, remote_comm_id): (u32, u32),
    status: ApStatus,
    better: Option<IpAddr>,
    private_data: [u8; Apr::PRIVATE_DATA_LEN],
) -> Mad {
    let info = better.map(gid_of).and_then(|gid| Info::new(&gid).ok()).unwrap_or(Info::EMPTY);
    let apr = Apr { local_comm_id, remote_comm_id, status, info, private_data };
    CmMad::new(tid, apr).to_bytes()
}

fn spr(
    tid: u64,
    (local_comm_id, remote_comm_id): (u32, u32),
    status: SprStatus,
    private_data: [u8; Spr::PRIVATE_DATA_LEN],
) -> Mad {
    let spr = Spr { local_comm_id, remote_comm_id, status, info: Info::EMPTY, private_data };
    CmMad::new(tid, spr).to_bytes()
}

/// What a LAP or SAP meets, before its content counts.
enum Met {
    /// The connection takes it.
    Taken,
    /// It gets this answer, once.
    Refused(Refusal),
    /// It needs no answer, or has got it.
    Done,
}

/// The reasons for which both a LAP and a SAP are refused.
#[derive(Clone, Copy)]
enum Refusal {
    UnknownId,
    OtherQp,
    /// Migration is not on here, or not for this peer.
    Off,
    /// It came from the wrong side, or the connection ends.
    NotNow,
}

impl Connections {
    /// Checks what LAP and SAP have in common. `from_active` tells which end may send it.
    fn meet(
        &mut self,
        rx: &Received<'_>,
        (local, remote): (u32, u32),
        qpn: u32,
        from_active: bool,
    ) -> Met {
        let Some(c) = self.named(local, remote) else { return Met::Refused(Refusal::UnknownId) };
        if c.qp.local_qpn != qpn {
            return Met::Refused(Refusal::OtherQp);
        }
        if !c.migration.is_on() {
            return Met::Refused(Refusal::Off);
        }
        if c.is_active == from_active || c.owner.is_none() {
            return Met::Refused(Refusal::NotNow);
        }
        match c.state {
            State::Established => {}
            // The peer is ahead of the message that establishes this end. It asks again.
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd => {
                self.counters.mads_unmatched += 1;
                return Met::Done;
            }
            _ => return Met::Refused(Refusal::NotNow),
        }
        match c.novelty(rx.tid) {
            Novelty::New => {
                c.hears(rx.from);
                Met::Taken
            }
            Novelty::Waiting => {
                c.hears(rx.from);
                self.counters.mads_duplicate += 1;
                self.ask_for_patience(rx, local);
                Met::Taken
            }
            Novelty::Again(answer) => {
                self.counters.mads_duplicate += 1;
                self.answer(rx, *answer);
                Met::Done
            }
            Novelty::Old => {
                self.counters.mads_duplicate += 1;
                Met::Done
            }
        }
    }

    /// Tells a peer that repeats its LAP that the answer comes when the host has moved the queue pair, or has
    /// said that it can't.
    fn ask_for_patience(&mut self, rx: &Received<'_>, local_id: u32) {
        let follows = self.get(local_id).filter(|c| c.migration.follows.is_some());
        if let Some(mra) = follows.map(|c| mra(c, rx.tid)) {
            self.answer(rx, mra);
        }
    }

    pub(in super::super) fn lap_received(&mut self, rx: &Received<'_>, lap: &Lap) {
        let ids = (lap.remote_comm_id, lap.local_comm_id);
        let local_id = ids.0;
        let answer_to = Endpoints::answering(rx.from, 0);
        match self.meet(rx, ids, lap.remote_qpn, true) {
            Met::Taken => {}
            Met::Refused(refusal) => {
                let status = match refusal {
                    Refusal::UnknownId => ApStatus::InvalidCommId,
                    Refusal::OtherQp => ApStatus::InvalidQpn,
                    Refusal::Off => ApStatus::Unsupported,
                    Refusal::NotNow => ApStatus::Reject,
                };
                let apr = apr(rx.tid, ids, status, None, [0; Apr::PRIVATE_DATA_LEN]);
                return self.answer(rx, apr);
            }
            Met::Done => return,
        }
        let path = LapPath {
            tid: rx.tid,
            answer_to,
            local: lap.alternate.remote_gid.to_ip(),
            remote: lap.alternate.local_gid.to_ip(),
            flow_label: lap.alternate.flow_label,
            traffic_class: lap.alternate.traffic_class,
            hop_limit: lap.alternate.hop_limit,
            ack_timeout: lap.alternate.ack_timeout,
        };
        self.take_lap(local_id, path, Told::parse(&lap.private_data));
    }

    /// Has a LAP judged and answered, if both ends use the same path.
    fn take_lap(&mut self, local_id: u32, path: LapPath, told: Option<Told>) {
        let Some(c) = self.get_mut(local_id) else { return };
        match c.standing(told) {
            Standing::Even => self.report(local_id, IbEvent::LapReceived(path)),
            // The LAP is answered when this end has followed.
            Standing::Behind(told) => {
                c.migration.asked = Some((path, told));
                self.report(local_id, IbEvent::PeerMigrated(told));
            }
            Standing::Ahead => {
                self.answer_lap(local_id, path.tid, path.answer_to, ApStatus::Reject, None);
            }
        }
    }

    /// Takes the LAP that waits for its answer, because this end's queue pair has migrated.
    pub(super) fn take_waiting_lap(&mut self, local_id: u32) {
        let asked = self.get_mut(local_id).and_then(|c| c.migration.asked.take());
        if let Some((path, told)) = asked {
            self.take_lap(local_id, path, Some(told));
        }
    }

    /// Refuses the LAP that waits for its answer, because this end can't follow the peer: the path that the
    /// peer uses, and not one that it asks for, is at fault (status 3).
    pub(crate) fn refuse_waiting_lap(&mut self, local_id: u32) {
        let asked = self.get_mut(local_id).and_then(|c| c.migration.asked.take());
        if let Some((LapPath { tid, answer_to, .. }, _)) = asked {
            self.answer_lap(local_id, tid, answer_to, ApStatus::Reject, None);
        }
    }

    /// Answers a LAP. A repetition of it gets the same answer.
    pub(crate) fn answer_lap(
        &mut self,
        local_id: u32,
        tid: u64,
        to: Endpoints,
        status: ApStatus,
        better: Option<IpAddr>,
    ) {
        let Some(c) = self.get_mut(local_id) else { return };
        let apr = apr(tid, (c.local_id, c.remote_id), status, better, telling(c));
        c.migration.answered = Some((tid, apr));
        c.migration.asked = None;
        if status != ApStatus::Ok {
            self.counters.alternates_refused += 1;
        }
        self.send(to, apr, Some(local_id), 0);
    }

    pub(in super::super) fn apr_received(&mut self, rx: &Received<'_>, apr: &Apr) {
        let (local_id, remote_id) = (apr.remote_comm_id, apr.local_comm_id);
        if self.named(local_id, remote_id).is_none() {
            return;
        }
        let is_lap = self.get(local_id).is_some_and(|c| c.migration.is_lap());
        let about = is_lap.then(|| self.finish(local_id, rx.tid)).flatten();
        let (Some(About::Lap(path)), Some(c)) = (about, self.get_mut(local_id)) else {
            self.counters.mads_unmatched += 1;
            return;
        };
        c.hears(rx.from);
        c.migration.last_apr = Some(apr.status);
        let standing = c.standing(Told::parse(&apr.private_data));
        let better = apr.info.as_slice().try_into().ok().map(|gid| Gid(gid).to_ip());
        let is_even = standing == Standing::Even;
        self.report(local_id, IbEvent::AprReceived { status: apr.status, better, path, is_even });
        if let Standing::Behind(told) = standing {
            self.report(local_id, IbEvent::PeerMigrated(told));
        }
    }

    pub(in super::super) fn sap_received(&mut self, rx: &Received<'_>, sap: &Sap) {
        let ids = (sap.remote_comm_id, sap.local_comm_id);
        let local_id = ids.0;
        let answer_to = Endpoints::answering(rx.from, 0);
        match self.meet(rx, ids, sap.remote_qpn, false) {
            Met::Taken => {}
            Met::Refused(_) => {
                let none = [0; Spr::PRIVATE_DATA_LEN];
                return self.answer(rx, spr(rx.tid, ids, SprStatus::Reject, none));
            }
            Met::Done => return,
        }
        let Some(c) = self.get_mut(local_id) else { return };
        let is_lap = c.migration.is_lap();
        match c.standing(Told::parse(&sap.private_data)) {
            Standing::Even if !is_lap => {}
            Standing::Even | Standing::Ahead => {
                return self.answer_sap(local_id, rx.tid, answer_to, SprStatus::Busy);
            }
            Standing::Behind(told) => {
                self.answer_sap(local_id, rx.tid, answer_to, SprStatus::Busy);
                return self.report(local_id, IbEvent::PeerMigrated(told));
            }
        }
        let address = sap.local_gid.to_ip();
        let suggestion = Suggestion { tid: rx.tid, answer_to, address };
        self.report(local_id, IbEvent::SapReceived(suggestion));
    }

    /// Answers a SAP. A repetition of it gets the same answer.
    pub(crate) fn answer_sap(&mut self, local_id: u32, tid: u64, to: Endpoints, status: SprStatus) {
        let Some(c) = self.get_mut(local_id) else { return };
        let spr = spr(tid, (c.local_id, c.remote_id), status, telling(c));
        c.migration.answered = Some((tid, spr));
        self.send(to, spr, Some(local_id), 0);
    }

    pub(in super::super) fn spr_received(&mut self, rx: &Received<'_>, spr: &Spr) {
        let (local_id, remote_id) = (spr.remote_comm_id, spr.local_comm_id);
        if self.named(local_id, remote_id).is_none() {
            return;
        }
        let is_lap = self.get(local_id).is_none_or(|c| c.migration.is_lap());
        let about = (!is_lap).then(|| self.finish(local_id, rx.tid)).flatten();
        let (Some(About::Sap(_)), Some(c)) = (about, self.get_mut(local_id)) else {
            self.counters.mads_unmatched += 1;
            return;
        };
        c.hears(rx.from);
        c.migration.last_spr = Some(spr.status);
        let standing = c.standing(Told::parse(&spr.private_data));
        self.report(local_id, IbEvent::SprReceived(spr.status));
        if let Standing::Behind(told) = standing {
            self.report(local_id, IbEvent::PeerMigrated(told));
        }
    }
}
