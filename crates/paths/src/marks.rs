//! Marks of congestion: what a queue on the way says instead of dropping packets (RFC 3168).
//!
//! A path of an association says by ECT(0) that its packets may be marked, if the peer echoes marks. Who
//! receives a marked request says so in the next answer by the same path
//! ([`MpHeader::MARKED`](polypath_wire::ext::MpHeader)); marked answers to READs tell the requester by
//! themselves. Plain peers are told by a congestion notification packet (IBTA annex A17), and tell by one.

use core::time::Duration;

use polypath_types::PathId;
use polypath_wire::bth::Bth;
use polypath_wire::opcode::Opcode;

use crate::congestion::Cut;
use crate::id::{AssociationId, Qpn};
use crate::manager::PathManager;
use crate::types::PathAddress;

/// The ECN field of a traffic class (RFC 3168, section 5).
const ECN: u8 = 0b11;
/// Its value in packets that may be marked: ECT(0).
const MAY_BE_MARKED: u8 = 0b10;
/// Its value in packets that are marked: CE.
const MARKED: u8 = 0b11;

/// A plain peer gets a congestion notification for a queue pair after this long at the earliest.
const NOTIFY_PAUSE: Duration = Duration::from_micros(50);
/// The length of a congestion notification after its BTH, reserved bytes (IBTA annex A17).
const NOTIFICATION_RESERVED: usize = 16;

/// Whether a packet with this traffic class was marked on its way.
#[inline]
pub fn is_marked(traffic_class: u8) -> bool {
    traffic_class & ECN == MARKED
}

impl PathManager {
    /// The address of a path of an association: its packets may be marked if both ends agree. A traffic class
    /// with an ECN field that the program chose stays.
    pub(crate) fn with_ecn(&self, index: AssociationId, address: PathAddress) -> PathAddress {
        let echoes = self.associations.get(index).is_some_and(|a| a.remote_abilities.echoes_marks);
        let class = address.traffic_class;
        let may = self.config.ecn && echoes && class & ECN == 0;
        PathAddress { traffic_class: if may { class | MAY_BE_MARKED } else { class }, ..address }
    }

    /// Carries out a change of [`Config::ecn`](crate::Config::ecn) on the paths of all associations.
    pub(crate) fn renew_ecn(&mut self) {
        for index in self.associations.indexes() {
            for path in self.members(index) {
                let Some(address) = self.paths.get(path).map(|p| p.address) else { continue };
                let bare = PathAddress { traffic_class: address.traffic_class & !ECN, ..address };
                let address = self.with_ecn(index, bare);
                if let Some(path) = self.paths.get_mut(path) {
                    path.address = address;
                }
            }
        }
    }

    /// Takes note of an answer which says that packets of `path` were marked, or of a marked answer to a
    /// READ.
    pub fn marked(&mut self, now: Duration, path: PathId) {
        let Some(p) = self.paths.get_mut(path) else { return };
        // Nobody marks what may not be marked: the packet is forged, or from a fabric that is broken.
        if p.address.traffic_class & ECN == 0 {
            return;
        }
        p.counters.marks += 1;
        p.congestion.cut(now, Cut::Mark, &p.rtt);
        self.cut_mates(now, path, Cut::Mark);
    }

    /// Takes note of a marked request that came by `path`. The next answer says it.
    pub fn request_marked(&mut self, path: PathId) {
        if let Some(p) = self.paths.get_mut(path) {
            p.counters.marked_received += 1;
            p.echo_mark = true;
        }
    }

    /// Whether the answer that is sent by `path` now is to say that packets were marked.
    #[inline]
    pub fn take_mark(&mut self, path: PathId) -> bool {
        self.paths.get_mut(path).is_some_and(|p| core::mem::take(&mut p.echo_mark))
    }

    /// Takes note of a marked packet without multi-path header for the queue pair `qpn`: its sender is told.
    pub fn plain_marked(&mut self, now: Duration, path: PathId, qpn: u32) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.counters.marked_received += 1;
        let Some(qp) = self.qps.get_mut(&Qpn(qpn)) else { return };
        if qp.notified_at.is_some_and(|at| now < at + NOTIFY_PAUSE) {
            return;
        }
        qp.notified_at = Some(now);
        let (address, dest_qpn) = (p.address, qp.remote_qpn);
        let mut packet = Bth { dest_qpn, becn: true, ..Bth::new(Opcode::CNP) }.to_bytes().to_vec();
        packet.resize(packet.len() + NOTIFICATION_RESERVED, 0);
        self.push_out(address, packet);
    }
}
