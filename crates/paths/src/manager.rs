//! The path manager of one lane.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_wire::packet::Packet;

use crate::config::{Config, LaneIdentity, LocalAddress, PathOptions};
use crate::types::{
    AttachError, ControlOut, Handled, PathAddress, PathEvent, PathId, PathTag, PeerId, Refusals,
    Refused, Route, Status,
};

/// The path manager of one lane.
///
/// Call [`PathManager::handle_timeout`] at [`PathManager::next_deadline`], *after* the packets that
/// wait in the lane's socket have been handed in: a lane that did not run for a while must not take
/// its own absence for the peer's.
#[derive(Debug)]
pub struct PathManager {
    config: Config,
    lane: LaneIdentity,
    out: VecDeque<ControlOut>,
    events: VecDeque<PathEvent>,
    refusals: Refusals,
}

impl PathManager {
    /// A manager that knows no address yet. `seed` must be unpredictable for others: nonces and
    /// association numbers are made from it.
    pub fn new(config: Config, lane: LaneIdentity, seed: [u8; 16]) -> Self {
        let _ = seed;
        Self {
            config,
            lane,
            out: VecDeque::new(),
            events: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    /// This lane.
    pub fn lane(&self) -> LaneIdentity {
        self.lane
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tells all addresses of the host: at the start and at every change of links, addresses or
    /// administrative state. Paths that lost their link or address are left at once.
    pub fn set_local(&mut self, now: Duration, addresses: &[LocalAddress]) {
        let _ = (now, addresses);
    }

    /// Attaches a queue pair (RC or UC) that is connected (RTR).
    pub fn attach(
        &mut self,
        now: Duration,
        qpn: u32,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PeerId, AttachError> {
        let _ = (now, qpn, remote_qpn, local, remote, options);
        Ok(PeerId(0))
    }

    /// Forgets a queue pair. Bytes that it had in flight must have been given to
    /// [`PathManager::lost`] before. Unknown numbers are ignored.
    pub fn detach(&mut self, now: Duration, qpn: u32) {
        let _ = (now, qpn);
    }

    /// The path of an address handle. Counted: give it back with [`PathManager::release_ud`].
    pub fn ud_path(
        &mut self,
        now: Duration,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PathId, AttachError> {
        let _ = (now, local, remote, options);
        Ok(PathId(0))
    }

    /// An address handle that used the path is gone.
    pub fn release_ud(&mut self, path: PathId) {
        let _ = path;
    }

    /// Where datagrams for the path of an address handle go now: the path itself, or, if it is
    /// dead and an association knows another way to the same lane's host, that one.
    pub fn ud_route(&self, path: PathId) -> PathId {
        path
    }

    /// Is this a packet for [`PathManager::handle_control`]?
    /// Looks at the opcode (and for UD at the Q_Key) only.
    pub fn is_control(packet: &Packet<'_>) -> bool {
        let _ = packet;
        false
    }

    /// Takes a packet of the path manager's protocol, whose ICRC the caller has checked.
    /// `ifindex`: where it came in, 0 if unknown.
    pub fn handle_control(
        &mut self,
        now: Duration,
        src: IpAddr,
        dst: IpAddr,
        ifindex: u32,
        packet: &Packet<'_>,
    ) -> Handled {
        let _ = (now, src, dst, ifindex, packet);
        Handled::Refused(self.refusals.count(Refused::Disabled))
    }

    /// Which path did a packet for a queue pair of `peer` come by? `tag`: from the multi-path
    /// header, `None` for a standard packet.
    pub fn classify(
        &mut self,
        peer: PeerId,
        src: IpAddr,
        dst: IpAddr,
        tag: Option<PathTag>,
    ) -> Result<PathId, Refused> {
        let _ = (peer, src, dst, tag);
        Ok(PathId(0))
    }

    /// Where requests to the peer go now. `None`: no path lives.
    pub fn route(&mut self, peer: PeerId) -> Option<Route> {
        let _ = peer;
        None
    }

    /// The tag of a path, for answers by the same path.
    pub fn tag(&self, path: PathId) -> Option<PathTag> {
        let _ = path;
        None
    }

    /// How packets of a path are addressed.
    pub fn path(&self, path: PathId) -> Option<&PathAddress> {
        let _ = path;
        None
    }

    /// `bytes` of payload went out on `path`.
    pub fn sent(&mut self, now: Duration, path: PathId, bytes: u32) {
        let _ = (now, path, bytes);
    }

    /// `bytes` outstanding on `path` were acknowledged.
    pub fn acked(&mut self, now: Duration, path: PathId, bytes: u32, rtt: Option<Duration>) {
        let _ = (now, path, bytes, rtt);
    }

    /// `bytes` outstanding on `path` are lost, or given up (`congestion` false).
    pub fn lost(&mut self, now: Duration, path: PathId, bytes: u32, congestion: bool) {
        let _ = (now, path, bytes, congestion);
    }

    /// Data has been outstanding on `path` for suspiciously long.
    pub fn suspect(&mut self, now: Duration, path: PathId) {
        let _ = (now, path);
    }

    /// The next packet to send. Call until `None` after any other call.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<ControlOut> {
        let _ = now;
        self.out.pop_front()
    }

    /// The next event. Call until `None` after any other call.
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// Timers. Early or superfluous calls do no harm.
    pub fn handle_timeout(&mut self, now: Duration) {
        let _ = now;
    }

    /// When [`PathManager::handle_timeout`] wants to be called.
    pub fn next_deadline(&self) -> Option<Duration> {
        None
    }

    /// The queue pairs of a peer.
    pub fn qpns_of(&self, peer: PeerId) -> impl Iterator<Item = u32> + '_ {
        let _ = peer;
        core::iter::empty()
    }

    /// Says farewell to every peer: the lane is going away. Packets come out of
    /// [`PathManager::poll_transmit`].
    pub fn close(&mut self, now: Duration) {
        let _ = now;
    }

    /// A report.
    pub fn status(&self) -> Status {
        Status::default()
    }
}
