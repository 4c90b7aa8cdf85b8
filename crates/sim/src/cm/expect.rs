//! Checks that each MAD that was sent was due and says what it must, and the same for events.

use polypath_cm::OutgoingMad;
use polypath_wire::cm::{CmMad, CmMessage, CmService, CmaHeader, Req, service_id};

use super::abi::{Event, event};
use super::model::{Due, Expected, Id, Model, Param, What};
use crate::judge::{Verdict, breach, demand};

/// `CMA_CM_MRA_SETTING`, `CMA_CM_RESPONSE_TIMEOUT` and `CMA_MAX_CM_RETRIES`.
const MRA_TIMEOUT: u8 = 24;
const RESPONSE_TIMEOUT: u8 = 20;
const RETRIES: u8 = 15;

/// The communication ids in a message: the sender's and the receiver's; 0 if it has none.
pub(super) fn ids(message: &CmMessage) -> (u32, u32) {
    match message {
        CmMessage::Req(m) => (m.local_comm_id, 0),
        CmMessage::Mra(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Rej(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Rep(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Drep(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Lap(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Apr(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Sap(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::Spr(m) => (m.local_comm_id, m.remote_comm_id),
        CmMessage::SidrReq(m) => (m.request_id, 0),
        CmMessage::SidrRep(m) => (0, m.request_id),
    }
}

/// Whether a message is of this kind, whatever it contains.
fn is_kind(what: &What, message: &CmMessage) -> bool {
    matches!(
        (what, message),
        (What::Req, CmMessage::Req(_))
            | (What::Rep, CmMessage::Rep(_))
            | (What::Rtu { .. }, CmMessage::Rtu(_))
            | (What::Mra(_), CmMessage::Mra(_))
            | (What::Rej { .. }, CmMessage::Rej(_))
            | (What::Dreq, CmMessage::Dreq(_))
            | (What::Drep, CmMessage::Drep(_))
            | (What::SidrReq, CmMessage::SidrReq(_))
            | (What::SidrRep { .. }, CmMessage::SidrRep(_))
            | (What::Apr, CmMessage::Apr(_))
    )
}

/// Whether a field starts with the data, and only zeros follow.
fn holds(field: &[u8], data: &[u8]) -> bool {
    field.strip_prefix(data).is_some_and(|rest| rest.iter().all(|b| *b == 0))
}

/// Fails unless `is` equals `must`.
fn same<T: PartialEq + core::fmt::Debug>(name: &str, is: &T, must: &T) -> Result<(), String> {
    if is == must { Ok(()) } else { Err(format!("{name} is {is:?} instead of {must:?}")) }
}

/// Compares each value with the one that it must have, until one differs.
macro_rules! compare {
    ($($name:literal: $is:expr => $must:expr),* $(,)?) => {
        Ok::<(), String>(())$(.and_then(|()| same($name, &$is, &$must)))*
    };
}

impl Model {
    /// Finds the MAD that is due, and checks every field of it.
    ///
    /// # Errors
    /// No such MAD is due, or it says something wrong.
    pub(super) fn sent(
        &mut self,
        host: usize,
        out: &OutgoingMad,
        mad: &CmMad,
    ) -> Result<Due, crate::judge::Breach> {
        let (local, remote) = ids(&mad.message);
        let fits = |due: &Due| {
            due.host == host
                && is_kind(&due.what, &mad.message)
                // A SIDR_REP names only the id of the request.
                && (matches!(due.what, What::SidrRep { .. }) || self.may_be(due.local, local))
                && self.may_be(due.remote, remote)
        };
        // Peers on several hosts may have the same ids, so the addresses decide first.
        let exact = |due: &Due| fits(due) && due.way.1 == out.remote;
        let at = self.due.iter().position(exact).or_else(|| self.due.iter().position(fits));
        let Some(at) = at else {
            let near: Vec<_> = self.due.iter().map(|d| format!("{d:?}")).collect();
            return breach(
                "no message is sent that nothing calls for",
                format!("host {host} sends {mad}; due: [{}]", near.join(", ")),
            );
        };
        let due = self.due.remove(at);
        if let Id::Of(half) = due.local
            && !matches!(due.what, What::SidrRep { .. })
            && self.halves[half].comm.is_none()
        {
            let taken = self.here(host).any(|(_, other)| other.comm == Some(local));
            demand(!taken, "communication ids are unique", || format!("host {host}: {mad}"))?;
            self.halves[half].comm = Some(local);
        }
        let wrong = |what: String| format!("host {host} sends {mad}: {what}");
        if let Err(what) = self.contents(&due, &mad.message) {
            return breach("messages say what is true", wrong(what));
        }
        let way = (out.local, out.remote);
        let right = if due.any_way {
            let hosts = |way: (_, _)| (self.host_of(way.0), self.host_of(way.1));
            hosts(way) == hosts(due.way)
        } else {
            way == due.way
        };
        demand(right, "messages go where they belong", || {
            wrong(format!("from {} to {} instead of {:?}", way.0, way.1, due.way))
        })?;
        Ok(Due { way, ..due })
    }

    /// Whether `number` is the communication id, or can become it because it is not known yet.
    fn may_be(&self, id: Id, number: u32) -> bool {
        match id {
            Id::Raw(raw) => raw == number,
            Id::Of(half) => self.halves[half].comm.map_or(number != 0, |known| known == number),
        }
    }

    fn contents(&self, due: &Due, message: &CmMessage) -> Result<(), String> {
        let guid = u64::from_be_bytes(super::host::guid(due.host));
        match (&due.what, due.local, message) {
            (What::Req, Id::Of(half), CmMessage::Req(m)) => {
                let plan = self.plan(half);
                let [responder, initiator, retries, rnr_retries] = match plan.service.xrc {
                    // An initiator has no half that answers (annex A14).
                    true => [0, plan.numbers[1], 0, 0],
                    false => plan.numbers,
                };
                let transport = match plan.service.xrc {
                    true => (CmService::Extended, Req::EXTENDED_XRC),
                    false => (CmService::Rc, 0),
                };
                self.asks(half, m.service_id, &m.private_data)?;
                compare! {
                    "transport": (m.service, m.extended_transport) => transport,
                    "QPN": m.local_qpn => plan.active.qpn,
                    "GUID": m.local_ca_guid => guid,
                    "responder resources": m.responder_resources => responder,
                    "initiator depth": m.initiator_depth => initiator,
                    "retries": (m.retry_count, m.rnr_retry_count) => (retries, rnr_retries),
                    "CM retries": m.max_cm_retries => RETRIES,
                    "response time-outs": (m.local_cm_response_timeout, m.remote_cm_response_timeout)
                        => (RESPONSE_TIMEOUT, RESPONSE_TIMEOUT),
                }
            }
            (What::Rep, Id::Of(half), CmMessage::Rep(m)) => {
                let plan = self.plan(half);
                // A target has no half that asks, and its number is in the other field (annex A14).
                let (qpns, initiator, srq) = match plan.service.xrc {
                    true => ((0, plan.passive.qpn), 0, true),
                    false => ((plan.passive.qpn, 0), plan.numbers[1], false),
                };
                compare! {
                    "QPN": (m.local_qpn, m.local_eecn) => qpns,
                    "GUID": m.local_ca_guid => guid,
                    "numbers": [m.responder_resources, m.initiator_depth, m.rnr_retry_count]
                        => [plan.numbers[0], initiator, plan.numbers[3]],
                    "shared receive queue": m.srq => srq,
                    "private data": holds(&m.private_data, &self.private(half)) => true,
                }
            }
            (What::Rtu { list }, _, CmMessage::Rtu(m)) => compare! {
                "list of addresses": m.private_data.starts_with(b"Polypath") => *list,
            },
            (What::Mra(mraed), _, CmMessage::Mra(m)) => compare! {
                "message": m.mraed => *mraed,
                "service time-out": m.service_timeout => MRA_TIMEOUT,
            },
            (What::Rej { rejected, reason, private }, _, CmMessage::Rej(m)) => {
                use polypath_wire::cm::RejectReason::Timeout;
                let info =
                    if *reason == Timeout { guid.to_be_bytes().to_vec() } else { Vec::new() };
                compare! {
                    "message": m.rejected => *rejected,
                    "reason": m.reason => *reason,
                    "GUID": *reason != Timeout || m.info.as_slice() == info => true,
                    "private data": holds(&m.private_data, private) => true,
                }
            }
            (What::Dreq, Id::Of(half), CmMessage::Dreq(m)) => {
                let peer = self.halves[half].peer.map(|peer| self.qpn(peer));
                compare! { "QPN": Some(m.remote_qpn) => peer }
            }
            (What::SidrReq, Id::Of(half), CmMessage::SidrReq(m)) => {
                self.asks(half, m.service_id, &m.private_data)
            }
            (What::SidrRep { status, private }, local, CmMessage::SidrRep(m)) => {
                compare! { "status": m.status.code() => *status }?;
                if let (Id::Of(half), 0) = (local, *status) {
                    compare! { "QPN": m.qpn => self.plan(half).passive.qpn }?;
                }
                compare! { "private data": holds(&m.private_data, private) => true }
            }
            _ => Ok(()),
        }
    }

    /// Checks that a request names its service, both addresses, and the application's private data.
    fn asks(&self, half: usize, service: u64, data: &[u8]) -> Result<(), String> {
        let plan = self.plan(half);
        let (src, dst) = self.way(half);
        let header = CmaHeader::parse(data).map_err(|e| format!("{e}"))?;
        let private = data.get(CmaHeader::LEN..).unwrap_or_default();
        compare! {
            "service": service => service_id(plan.service.space(), plan.service.port),
            "addresses": (header.src, header.dst) => (src, dst),
            "private data": holds(private, &self.private(half)) => true,
        }
    }

    /// Checks that an event says what it must.
    pub(super) fn event_says(&self, expected: &Expected, got: &Event) -> Verdict {
        let result = match &expected.param {
            Param::None => Ok(()),
            Param::Private { ud, private } => compare! {
                "private data": holds(got.private(*ud), private) => true,
            },
            Param::Conn { qpn, numbers, private } => {
                let is = got.numbers();
                let must = [0, 1, 2, 3].map(|i| numbers[i].unwrap_or(is[i]));
                compare! {
                    "QPN": got.qpn() => *qpn,
                    "numbers": is => must,
                    "private data": holds(got.private(false), private) => true,
                }
            }
            Param::Ud { qpn, private } => compare! {
                "QPN": got.qpn() => *qpn,
                "private data": holds(got.private(true), private) => true,
            },
        };
        let result = result.and_then(|()| compare! { "status": got.status => expected.status });
        result.or_else(|what| {
            breach(
                "events say what is true",
                format!("{} of id {}: {what}", event::name(got.kind), got.id),
            )
        })
    }
}
