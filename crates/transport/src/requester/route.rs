//! Which route to send by: the question to the host, and the route while it is valid.

use core::time::Duration;

use super::build::Stamp;
use super::flight::TWICE;
use super::{Requester, micros};
use crate::PACKET_COST;
use crate::common::Core;
use crate::host::Host;
use crate::sq::Wqe;
use crate::transmit_state::TransmitState;
use polypath_types::{Class, PathId, Pick, Twin, Want};

/// The most payload bytes of one burst: what one UDP_SEGMENT send carries.
pub(super) const BURST_BYTES: u32 = 64 << 10;
/// Most bytes that one request of a READ asks for. A responder sends long answers with fewer system calls,
/// and wakes up once for each request.
pub(super) const READ_MAX_BYTES: u32 = 256 << 10;

/// The route, until the host is asked again.
pub(super) struct SendContext {
    pub(super) path: PathId,
    pub(super) window: u32,
    /// The bytes that may be sent before the host is asked again.
    pub(super) quantum: u32,
    /// Whether something was sent by it.
    pub(super) used: bool,
    /// The path of the copies, and the room that it has left for them.
    twin: Option<Twin>,
    pub(super) stamp: Stamp,
    /// Whether the ICRC of a FLUSH covers it twice.
    pub(super) flush_twice: bool,
}

impl SendContext {
    /// Decides whether the next packets, which cost so many bytes, are sent by two paths
    /// ([`Stamp::twin`]). A copy that its path has no room for is left out: the first one does not wait for
    /// it. Returns whether a copy is left out.
    #[inline]
    pub(super) fn decide_copy(&mut self, cost: u32) -> bool {
        self.stamp.twin = self.twin.filter(|twin| twin.window >= cost);
        self.twin.is_some() && self.stamp.twin.is_none()
    }

    /// Notes that the copy of the packets that were sent last was not sent.
    pub(super) fn leave_out_copy(&mut self) {
        self.stamp.twin = None;
    }

    /// Charges the paths by which packets were sent.
    #[inline]
    pub(super) fn charge<H: Host>(&mut self, cost: u32, host: &mut H) {
        match (self.stamp.twin, &mut self.twin) {
            (Some(stamped), Some(twin)) => {
                twin.window = twin.window.saturating_sub(cost);
                host.sent_twice(self.path, cost);
                host.sent_twice(stamped.path, cost);
            }
            _ => host.sent(self.path, cost),
        }
        self.spend(cost);
    }

    /// The flag of slots that are sent now: [`TWICE`] or 0.
    #[inline]
    pub(super) fn twice(&self) -> u8 {
        if self.stamp.twin.is_some() { TWICE } else { 0 }
    }

    /// Takes what was sent from the window and from the quantum.
    #[inline]
    fn spend(&mut self, cost: u32) {
        self.window = self.window.saturating_sub(cost);
        // The quantum is unlimited for a peer with one path at a time.
        if self.quantum != u32::MAX {
            self.quantum = self.quantum.saturating_sub(cost);
        }
        self.used = true;
    }

    /// Whether so much was sent by it that it is time to ask again.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.quantum == 0 && self.used
    }

    /// Whether asking again may give another route, now that this one is full.
    pub(super) fn is_worth_asking_again(&self) -> bool {
        self.quantum != u32::MAX && self.used
    }

    /// How many of `n` packets of a message fit into the window. One always does if nothing else is
    /// on its way.
    #[inline]
    pub(super) fn fit(&self, n: u32, mtu: u32, last_len: u32, alone: bool) -> u32 {
        let full = mtu + PACKET_COST;
        let all = (n - 1) * full + last_len + PACKET_COST;
        if all <= self.window {
            return n;
        }
        let fitting = (self.window / full).min(n);
        if fitting == 0 && alone && self.window > 0 { 1 } else { fitting }
    }
}

impl Requester {
    /// Asks where to send next. Without a route, returns how the call of `poll` ends.
    #[inline]
    pub(super) fn ask<H: Host>(
        &mut self,
        core: &Core,
        now: Duration,
        host: &mut H,
    ) -> Result<SendContext, TransmitState> {
        let want = self.want(core);
        match core.peer.map_or(Pick::NoPath, |peer| host.pick(peer, &want)) {
            Pick::Route(route) => {
                self.flight.begin_on(route.path, route.rtt, now);
                let tag = route.tag.filter(|_| core.multipath);
                let twin = route.twin.filter(|_| tag.is_some());
                self.sends_twice |= twin.is_some();
                Ok(SendContext {
                    path: route.path,
                    window: route.window,
                    quantum: route.quantum,
                    used: false,
                    twin,
                    stamp: Stamp { tag, twin: None, now_us: micros(now) },
                    flush_twice: self.flush_cover.twice(),
                })
            }
            Pick::Wait => Err(TransmitState::Blocked),
            Pick::NoPath => {
                self.held = true;
                self.ready = false;
                Err(TransmitState::Idle)
            }
        }
    }

    /// What is to be sent next, at most one burst or one request for a part of a READ.
    #[inline]
    fn want(&self, core: &Core) -> Want {
        let mtu = core.attr.path_mtu;
        let sent = self.progress.unwrap_or(0) * mtu;
        let next = self.sq.next().map_or(0, |wqe| wqe.len);
        let again = self.flight.any_lost();
        let asks = !again && self.sq.next().is_some_and(Wqe::is_read);
        let left = next.saturating_sub(sent);
        let (class, bytes) = if !again {
            (Class::Request, left.min(if asks { READ_MAX_BYTES } else { BURST_BYTES }))
        } else {
            (if self.urgent { Class::Urgent } else { Class::Request }, mtu)
        };
        let bytes = bytes + PACKET_COST;
        // The work requests behind the next one are taken to be as long.
        let behind = self.sq.unsent().saturating_sub(1) as u64 * u64::from(next);
        let backlog = u64::from(bytes.max(left)) + behind;
        Want { qpn: core.config.qpn, bytes, backlog, asks, class }
    }
}
