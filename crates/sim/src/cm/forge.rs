//! Forged MADs: near misses of MADs that would do something.

use polypath_wire::Gid;
use polypath_wire::cm::{
    CmMad, CmMessage, CmPath, CmaHeader, Drep, Dreq, Info, Lap, Mra, Mraed, Rej, RejectReason,
    Rejected, Rep, Req, Rtu, SidrRep, SidrStatus, private_data, service_id,
};

use super::case::{Forgery, Service};
use super::host::guid;
use super::model::{HalfId, Id, What};
use super::run::CmSimulation;
use crate::datagram::other_address;
use crate::judge::{Verdict, pattern};

/// A communication id that no peer has.
const NOBODY: u32 = 0xdead_0001;
/// A port that nobody listens on, now or later.
const NO_PORT: u16 = 9;

impl CmSimulation {
    /// Sends a host a forged MAD about an attempt.
    pub(super) fn forge(&mut self, host: usize, attempt: usize, what: Forgery) -> Verdict {
        let life = self.model.life[host];
        let here = |h: &super::model::Half| {
            h.host == host && h.life == life && h.attempt == attempt && !h.forgotten
        };
        let target = self.model.halves.iter().position(|h| here(h) && h.comm.is_some());
        let (source_qpn, mad) = match (what, target) {
            (Forgery::Noise(salt), _) => (1, noise(salt)),
            (Forgery::ReqForNobody, _) => (1, self.req_for_nobody(host)),
            (_, Some(target)) => {
                let Some(message) = self.message(host, target, what) else { return Ok(()) };
                let source = if what == Forgery::DreqNotFromQp1 { 2 } else { 1 };
                (source, CmMad::new(7, message).to_bytes().to_vec())
            }
            // Without an end, there is nothing to imitate.
            (_, None) => return Ok(()),
        };
        let way = self.forged_way(host);
        self.hosts[host].take(self.now, way, 2, source_qpn, &mad);
        self.send_and_check(host)
    }

    /// The addresses of forged MADs: their source is no host's address.
    fn forged_way(&self, host: usize) -> (core::net::IpAddr, core::net::IpAddr) {
        let v6 = self.case.v6;
        (crate::datagram::address(0, host, v6), other_address(0, 0, v6))
    }

    fn req(&self, host: usize, service: Service, qpn: u32, guid: [u8; 8]) -> Req {
        let (dst, src) = self.forged_way(host);
        let header = CmaHeader { src_port: 9, src, dst };
        Req {
            local_comm_id: NOBODY,
            service_id: service_id(service.space(), service.port),
            local_ca_guid: u64::from_be_bytes(guid),
            local_qpn: qpn,
            mtu: 5,
            local_cm_response_timeout: 20,
            max_cm_retries: 15,
            primary: CmPath {
                local_gid: Gid::from_ip(src),
                remote_gid: Gid::from_ip(dst),
                hop_limit: 64,
                ack_timeout: 17,
                ..CmPath::default()
            },
            private_data: private_data(&header.to_bytes()).unwrap_or([0; 92]),
            ..Req::default()
        }
    }

    fn req_for_nobody(&mut self, host: usize) -> Vec<u8> {
        let service = Service { ud: false, xrc: false, port: NO_PORT };
        let way = self.forged_way(host);
        // It is refused like any other such request.
        self.model.forged_request(self.now, host, NOBODY, service, way);
        CmMad::new(7, self.req(host, service, 0xbad, [9; 8])).to_bytes().to_vec()
    }

    /// Makes a message that looks like one of the target's peer; `None` if it would be a right one, or
    /// can't be made.
    fn message(&mut self, host: usize, target: HalfId, what: Forgery) -> Option<CmMessage> {
        let way = self.forged_way(host);
        let t = &self.model.halves[target];
        let (ud, active, knows_peer, service) =
            (t.ud, t.active, t.knows_peer(), self.model.plan(target).service);
        let local = self.known(Id::Of(target))?;
        let peer = t.peer;
        let remote = peer.and_then(|peer| self.known(Id::Of(peer)));
        let qpn = self.model.qpn(target);
        if ud {
            // In a datagram service, only the id of the request identifies an answer.
            return (what == Forgery::SidrRepOfOther && active).then(|| {
                CmMessage::from(SidrRep {
                    request_id: local,
                    status: SidrStatus::Success,
                    qpn: 1,
                    service_id: 0,
                    qkey: 1,
                    info: Info::EMPTY,
                    private_data: [1; SidrRep::PRIVATE_DATA_LEN],
                })
            });
        }
        let dreq = |remote, qpn| Dreq {
            local_comm_id: remote,
            remote_comm_id: local,
            remote_qpn: qpn,
            private_data: [0; Dreq::PRIVATE_DATA_LEN],
        };
        let answer = |this: &mut Self, what, ids: (u32, u32)| {
            this.model.forged(host, what, (Id::Raw(ids.0), Id::Raw(ids.1)), way);
        };
        Some(match what {
            Forgery::DreqOfOtherQp => dreq(remote?, qpn + 1).into(),
            Forgery::DreqNotFromQp1 => dreq(remote?, qpn).into(),
            Forgery::DreqFromOther => {
                answer(self, What::Drep, (local, NOBODY));
                dreq(NOBODY, qpn).into()
            }
            Forgery::RepFromOther => {
                // An end that still waits for an answer accepts any.
                let _known = remote.filter(|_| active)?;
                Rep {
                    local_comm_id: NOBODY,
                    remote_comm_id: local,
                    local_qpn: 0xbad,
                    local_ca_guid: 9,
                    ..Rep::default()
                }
                .into()
            }
            Forgery::RtuFromOther => {
                let (rejected, reason) = (Rejected::Other, RejectReason::InvalidCommId);
                let rej = What::Rej { rejected, reason, private: Vec::new() };
                answer(self, rej, (local, NOBODY));
                Rtu {
                    local_comm_id: NOBODY,
                    remote_comm_id: local,
                    private_data: [0; Rtu::PRIVATE_DATA_LEN],
                }
                .into()
            }
            Forgery::RejFromOther => Rej {
                local_comm_id: NOBODY,
                remote_comm_id: local,
                rejected: Rejected::Other,
                reason: RejectReason::ConsumerDefined,
                info: Info::EMPTY,
                private_data: [0; Rej::PRIVATE_DATA_LEN],
            }
            .into(),
            Forgery::MraFromOther => Mra {
                local_comm_id: NOBODY,
                remote_comm_id: local,
                mraed: Mraed::Rep,
                service_timeout: 31,
                private_data: [0; Mra::PRIVATE_DATA_LEN],
            }
            .into(),
            Forgery::DrepFromOther => Drep {
                local_comm_id: NOBODY,
                remote_comm_id: local,
                private_data: [0; Drep::PRIVATE_DATA_LEN],
            }
            .into(),
            Forgery::ReqStale => {
                let peer = peer.filter(|_| knows_peer)?;
                if !self.model.serves(host, service) {
                    return None;
                }
                let (rejected, reason) = (Rejected::Req, RejectReason::StaleConnection);
                let what = What::Rej { rejected, reason, private: Vec::new() };
                answer(self, what, (0, NOBODY));
                let peer_host = self.model.halves[peer].host;
                self.req(host, service, self.model.qpn(peer), guid(peer_host)).into()
            }
            Forgery::Lap => {
                let remote = remote?;
                answer(self, What::Apr, (local, remote));
                Lap {
                    local_comm_id: remote,
                    remote_comm_id: local,
                    remote_qpn: qpn,
                    remote_cm_response_timeout: 20,
                    alternate: CmPath::default(),
                    private_data: [0; Lap::PRIVATE_DATA_LEN],
                }
                .into()
            }
            Forgery::SidrRepOfOther | Forgery::ReqForNobody | Forgery::Noise(_) => return None,
        })
    }
}

/// Random bytes, as many as a MAD has or another number.
fn noise(salt: u64) -> Vec<u8> {
    let len = if salt & 1 == 0 { 256 } else { (salt >> 8) as u32 % 300 };
    let mut bytes = pattern(len, salt);
    // Some look like a MAD of a connection manager, of a kind that does not exist or is not possible.
    if salt & 2 == 0 && bytes.len() > 24 {
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, 0x30]);
    }
    bytes
}
