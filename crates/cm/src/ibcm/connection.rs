//! One connection, from its REQ to the end of its time-wait.

use core::time::Duration;
use serde::{Deserialize, Serialize};

use polypath_wire::cm::{ApStatus, CmPath, SprStatus};

use crate::abi::command::{ConnParam, Ece};
use crate::apm::AlternatePath;
use crate::env::{ClientId, MadAddress};
use crate::ids::QpType;
use crate::path::Path;

use super::alternates::AlternateAddresses;
use super::apm::state::{LapPath, Migration, Suggestion};
use super::apm::told::Told;
use super::endpoints::Endpoints;

/// The state of a connection (IBTA 12.9.5 and 12.9.6), with the kernel's names.
///
/// In `MraReqSent` and `RepRcvd` the application has to decide. An MRA is sent only if the peer
/// repeats its message meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    Idle,
    ReqSent,
    MraReqRcvd,
    ReqRcvd,
    MraReqSent,
    RepSent,
    MraRepRcvd,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    Timewait,
    SidrReqSent,
    SidrReqRcvd,
    SidrRepSent,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::ReqSent => "REQ_SENT",
            Self::MraReqRcvd => "MRA_REQ_RCVD",
            Self::ReqRcvd => "REQ_RCVD",
            Self::MraReqSent => "MRA_REQ_SENT",
            Self::RepSent => "REP_SENT",
            Self::MraRepRcvd => "MRA_REP_RCVD",
            Self::RepRcvd => "REP_RCVD",
            Self::Established => "ESTABLISHED",
            Self::DreqSent => "DREQ_SENT",
            Self::DreqRcvd => "DREQ_RCVD",
            Self::Timewait => "TIMEWAIT",
            Self::SidrReqSent => "SIDR_REQ_SENT",
            Self::SidrReqRcvd => "SIDR_REQ_RCVD",
            Self::SidrRepSent => "SIDR_REP_SENT",
        }
    }
}

/// What this end knows of both queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpFacts {
    pub(crate) local_qpn: u32,
    pub(crate) remote_qpn: u32,
    /// The PSN the peer starts with.
    pub(crate) rq_psn: u32,
    /// The PSN this end starts with.
    pub(crate) sq_psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// Local ACK timeout as an exponent.
    pub(crate) ack_timeout: u8,
}

/// A MAD that is sent again until something answers it.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) mad: [u8; 256],
    pub(crate) timeout: Duration,
    /// How often it was sent again because no answer came.
    pub(crate) attempt: u8,
    /// When it was sent first.
    pub(crate) since: Duration,
    /// The peer said that nobody serves what this asks for. It is sent again when the timer ends.
    pub(crate) refused: bool,
}

/// One connection or service id resolution.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) local_id: u32,
    /// The peer's communication id, 0 while unknown.
    pub(crate) remote_id: u32,
    pub(crate) tid: u64,
    pub(crate) state: State,
    /// The application's id; `None` before the id exists and after it was destroyed.
    pub(crate) owner: Option<u32>,
    pub(crate) client: Option<ClientId>,
    /// The GUID of this end's device.
    pub(crate) local_guid: u64,
    pub(crate) ack_delay: u8,
    pub(crate) remote_guid: u64,
    pub(crate) service_id: u64,
    pub(crate) qp_type: QpType,
    pub(crate) path: Path,
    pub(crate) endpoints: Endpoints,
    /// Where the peer's last message came from. The peer may have moved to another path.
    pub(crate) heard_at: Endpoints,
    pub(crate) alternates: AlternateAddresses,
    /// One that may migrate does not move.
    #[serde(skip)]
    pub(crate) migration: Migration,
    /// Whether this end sent the REQ.
    pub(crate) is_active: bool,
    pub(crate) qp: QpFacts,
    pub(crate) timeout: Duration,
    pub(crate) max_retries: u8,
    #[serde(skip)]
    pub(crate) pending: Option<Pending>,
    #[serde(skip)]
    pub(crate) deadline: Option<Duration>,
    /// The answer to a service id resolution, or the REJ that withdrew an accepted request. It is
    /// kept for a peer that missed it.
    #[serde(skip)]
    pub(crate) answer: Option<[u8; 256]>,
}

impl Connection {
    pub(crate) fn new(
        local_id: u32,
        state: State,
        qp_type: QpType,
        path: Path,
        endpoints: Endpoints,
    ) -> Self {
        Self {
            local_id,
            remote_id: 0,
            tid: 0,
            state,
            owner: None,
            client: None,
            local_guid: 0,
            ack_delay: 0,
            remote_guid: 0,
            service_id: path.service_id,
            qp_type,
            path,
            endpoints,
            heard_at: endpoints,
            alternates: AlternateAddresses::default(),
            migration: Migration::default(),
            is_active: false,
            qp: QpFacts::default(),
            timeout: Duration::ZERO,
            max_retries: 0,
            pending: None,
            deadline: None,
            answer: None,
        }
    }

    /// Where to send for the given attempt.
    pub(super) fn endpoints_for(&self, attempt: u8) -> Endpoints {
        self.alternates.choose(self.endpoints, attempt)
    }

    /// Notes where a message of the peer came from, because the peer may have moved to another
    /// path.
    pub(super) fn hears(&mut self, from: &MadAddress) {
        self.heard_at = Endpoints::answering(from, self.endpoints.traffic_class);
    }
}

/// An event of a connection, for its owner.
#[derive(Clone, Debug)]
pub(crate) enum IbEvent {
    /// A REQ for a service somebody listens on.
    ReqReceived(Box<Request>),
    /// A SIDR_REQ for a service somebody listens on.
    SidrReqReceived(Box<Request>),
    RepReceived(ConnParam, Ece),
    /// An RTU came, or the application saw data before the RTU.
    Established,
    DreqReceived,
    DrepReceived,
    /// No answer came to a REQ or REP, nor to any repetition.
    Unreachable,
    /// No answer came to a DREQ.
    DreqError,
    RejReceived {
        reason: u16,
        private_data: Vec<u8>,
    },
    SidrRepReceived {
        status: u8,
        qpn: u32,
        qkey: u32,
        private_data: Vec<u8>,
    },
    TimewaitExit,
    /// The connection is established, and both ends want migration.
    PathsBegin,
    /// It is time to look for a better alternate path.
    PathsDue,
    /// No answer came to a LAP or SAP.
    PathsUnanswered,
    /// The peer's queue pair uses another path already.
    PeerMigrated(Told),
    LapReceived(LapPath),
    AprReceived {
        status: ApStatus,
        /// An address of the peer that it would rather use.
        better: Option<core::net::IpAddr>,
        path: AlternatePath,
        /// Whether both ends use the same path.
        is_even: bool,
    },
    SapReceived(Suggestion),
    SprReceived(SprStatus),
}

/// A request for a connection, or for the resolution of a service id.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) service_id: u64,
    pub(crate) qp_type: QpType,
    pub(crate) param: ConnParam,
    /// The whole private data field: the RDMA IP CM header and the application's part.
    pub(crate) private_data: Vec<u8>,
    pub(crate) ece: Ece,
    pub(crate) path: Path,
    /// The alternate path that the peer offers, as it sees it.
    pub(crate) alternate: Option<CmPath>,
    pub(crate) endpoints: Endpoints,
}
