//! The queue pair: one type for all transport services.

use core::time::Duration;

use polypath_wire::opcode::Service as PacketService;
use polypath_wire::packet::Packet;

use crate::REACH;
use crate::common::Core;
use crate::host::Host;
use crate::migration::CameBy;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::rq::ReceiveQueue;
use crate::sq;
use crate::state::{self, ModifyError};
use crate::transmit_state::TransmitState;
use crate::unreliable::{Sender, UcReceiver, UdReceiver};
use polypath_telemetry::{MigrationCause, QpCounters};
use polypath_types::{
    MigState, PathId, PeerAbilities, PeerId, PostError, QpAttr, QpAttrMask as M, QpConfig, QpEvent,
    QpState, QpType, RecvWr, SendWr, UdDestination,
};

/// The parts that differ by transport service.
#[derive(Clone, Debug)]
pub(crate) enum Halves {
    Rc(Box<(Requester, Responder)>),
    Uc(Sender, UcReceiver),
    Ud(Sender, UdReceiver),
}

/// A queue pair.
///
/// A lane drives it as follows. It hands over packets ([`QueuePair::handle_packet`]), work requests
/// and expired deadlines. It calls [`QueuePair::poll_transmit`] as long as
/// [`QueuePair::wants_transmit`] says so and the window allows. Whenever it has no more packets to
/// hand over, it calls [`QueuePair::flush_acks`]. An acknowledgement therefore waits for no timer:
/// it leaves when the lane has nothing else to read or when 32 have been asked for, whichever is
/// first.
#[derive(Clone, Debug)]
pub struct QueuePair {
    pub(crate) core: Core,
    pub(crate) halves: Halves,
}

impl QueuePair {
    /// A queue pair in the RESET state.
    pub fn new(config: QpConfig) -> Self {
        let halves = match config.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                Halves::Rc(Box::new((Requester::new(), Responder::new())))
            }
            QpType::Uc => Halves::Uc(Sender::new(), UcReceiver::default()),
            QpType::Ud => Halves::Ud(Sender::new(), UdReceiver::default()),
        };
        let mut core = Core::new(config);
        if config.qp_type == QpType::Ud {
            core.attr.path_mtu = 4096;
        }
        Self { core, halves }
    }

    /// The configuration that it was made with.
    pub fn config(&self) -> &QpConfig {
        &self.core.config
    }

    /// UD: sets the longest message, which is the MTU of the port, in bytes (4096 if this is never
    /// called).
    pub fn set_port_mtu(&mut self, mtu: u32) {
        if self.core.config.qp_type == QpType::Ud {
            self.core.attr.path_mtu = mtu;
        }
    }

    /// Checks whether [`QueuePair::modify`] would succeed, and changes nothing.
    ///
    /// # Errors
    /// Those of [`QueuePair::modify`].
    pub fn check_modify(&self, attr: &QpAttr, mask: M) -> Result<(), ModifyError> {
        let core = &self.core;
        let mask = self.meant(attr, state::relevant(core.config.qp_type, mask));
        let draining = core.attr.sq_draining;
        let to = state::check(core.config.qp_type, core.attr.state, draining, attr, mask)?;
        self.check_wish(attr, mask, to).map(drop)
    }

    /// Changes state and attributes as `ibv_modify_qp` does.
    ///
    /// # Errors
    /// The transition or an attribute is not legal; then nothing has changed.
    pub fn modify<H: Host>(
        &mut self,
        attr: &QpAttr,
        mask: M,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let core = &self.core;
        let mask = self.meant(attr, state::relevant(core.config.qp_type, mask));
        let from = core.attr.state;
        let to = state::check(core.config.qp_type, from, core.attr.sq_draining, attr, mask)?;
        let migrates = self.check_wish(attr, mask, to)?;
        let core = &mut self.core;
        if to == QpState::Reset {
            self.reset(host);
            return Ok(());
        }
        assign(&mut core.attr, attr, mask);
        match (from, to) {
            (_, QpState::Err) => {
                if from != QpState::Err {
                    self.enter_error(host);
                }
                return Ok(());
            }
            (QpState::Init, QpState::Rtr) => self.start_receiving(),
            (QpState::Rtr, QpState::Rts) => self.start_sending(),
            (QpState::Rts, QpState::Sqd) => {
                core.attr.sq_draining = true;
                core.attr.en_sqd_async_notify =
                    mask.contains(M::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify;
            }
            _ => {}
        }
        self.core.attr.state = to;
        self.grant_wish(attr, mask, migrates, host);
        match &mut self.halves {
            Halves::Rc(rc) => {
                rc.0.wake();
                rc.0.check_drained(&mut self.core, host);
            }
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => {
                sender.wake();
                sender.check_drained(&mut self.core, host);
            }
        }
        Ok(())
    }

    fn start_receiving(&mut self) {
        let psn = self.core.attr.rq_psn;
        match &mut self.halves {
            Halves::Rc(rc) => rc.1.start(psn),
            Halves::Uc(_, receiver) => receiver.start(psn),
            Halves::Ud(..) => {}
        }
    }

    fn start_sending(&mut self) {
        let psn = self.core.attr.sq_psn;
        match &mut self.halves {
            Halves::Rc(rc) => rc.0.start(psn),
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => sender.start(psn),
        }
    }

    fn reset<H: Host>(&mut self, host: &mut H) {
        self.flush_acks_now(host);
        let mtu = self.core.attr.path_mtu;
        self.core.reset();
        match &mut self.halves {
            Halves::Rc(rc) => {
                rc.0.clear(&self.core, host);
                rc.1.clear(host);
            }
            Halves::Uc(sender, receiver) => {
                sender.clear(&self.core, host);
                receiver.clear();
            }
            Halves::Ud(sender, receiver) => {
                sender.clear(&self.core, host);
                receiver.rq.clear();
                self.core.attr.path_mtu = mtu;
            }
        }
    }

    /// Sends an acknowledgement that is due now, because it must not be lost when the application
    /// closes before the lane's next turn.
    fn flush_acks_now<H: Host>(&mut self, host: &mut H) {
        if let Halves::Rc(rc) = &mut self.halves
            && matches!(self.core.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
        {
            rc.1.flush_acks(&mut self.core, host);
        }
    }

    /// Goes to the error state and flushes everything posted, in order.
    fn enter_error<H: Host>(&mut self, host: &mut H) {
        self.flush_acks_now(host);
        self.core.broken = false;
        self.core.attr.state = QpState::Err;
        self.core.attr.sq_draining = false;
        self.flush(host);
        ReceiveQueue::last_reached(&self.core, host);
    }

    /// The host has lost something that it was told about the queue pair, so that no program can
    /// rely on it any more. Goes to the error state and raises [`QpEvent::Fatal`] (IBTA 11.6.3.1).
    /// Does nothing in RESET and in the error state.
    pub fn fail<H: Host>(&mut self, host: &mut H) {
        if !matches!(self.core.attr.state, QpState::Reset | QpState::Err) {
            host.event(QpEvent::Fatal);
            self.enter_error(host);
        }
    }

    fn flush<H: Host>(&mut self, host: &mut H) {
        match &mut self.halves {
            Halves::Rc(rc) => {
                rc.0.flush(&mut self.core, host);
                rc.1.flush(&mut self.core, host);
            }
            Halves::Uc(sender, receiver) => {
                sender.flush(&mut self.core, host);
                receiver.flush(&mut self.core, host);
            }
            Halves::Ud(sender, receiver) => {
                sender.flush(&mut self.core, host);
                receiver.rq.flush(&mut self.core, host);
            }
        }
    }

    /// Goes to the error state if an error was met that ends the queue pair. Called after
    /// everything that may have met one.
    #[inline]
    fn fail_if_broken<H: Host>(&mut self, host: &mut H) {
        if let Some(cause) = self.core.migration.due {
            self.migrate(cause, host);
        }
        if self.core.broken {
            self.enter_error(host);
        }
    }

    /// The state.
    pub fn state(&self) -> QpState {
        self.core.attr.state
    }

    /// RC and UC: sets the peer, for which the host has a path set. To be called when the queue
    /// pair goes to RTR.
    pub fn set_peer(&mut self, peer: PeerId) {
        self.core.peer = Some(peer);
    }

    /// RC: the peer can do this. If it announces no reach, up to 256 packets are in flight. To be called
    /// after the queue pair went to RTR.
    pub fn set_peer_abilities(&mut self, abilities: PeerAbilities) {
        let core = &mut self.core;
        if core.config.qp_type == QpType::Rc {
            core.reads_blocks = abilities.reach > 0;
            core.in_flight_max = core.psns(abilities.reach.min(REACH));
            core.joins_reads = abilities.joins_reads;
        }
    }

    /// Whether multi-path packets may be sent, see [`QueuePair::set_multipath`].
    pub fn is_multipath(&self) -> bool {
        self.core.multipath
    }

    /// The number of send work requests that may be posted before the queue is full.
    pub fn send_room(&self) -> usize {
        match &self.halves {
            Halves::Rc(rc) => rc.0.send_room(&self.core),
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => sender.send_room(&self.core),
        }
    }

    /// Adds a work request to the send queue.
    ///
    /// In the error state it is accepted, and the next [`QueuePair::poll_transmit`] flushes it.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match &mut self.halves {
            Halves::Rc(rc) => rc.0.post(&self.core, wr, 0),
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => sender.post(&self.core, wr),
        }
    }

    /// Like [`QueuePair::post_send`], for an XRC initiator: the request is for the peer's shared
    /// receive queue `srqn`.
    ///
    /// # Errors
    /// See [`PostError`]; another type of queue pair, or a number of more than 24 bits, is invalid.
    pub fn post_xrc_send(&mut self, wr: &SendWr<'_>, srqn: u32) -> Result<(), PostError> {
        match &mut self.halves {
            Halves::Rc(rc) if self.core.config.qp_type == QpType::XrcSend => {
                if srqn > 0xff_ffff {
                    return Err(PostError::Invalid("an SRQ number has 24 bits"));
                }
                rc.0.post(&self.core, wr, srqn)
            }
            _ => Err(PostError::Invalid("only XRC names shared receive queues")),
        }
    }

    /// Checks whether the send queue would accept a work request if it had room. For an XRC initiator
    /// `srqn` is as for [`QueuePair::post_xrc_send`], otherwise 0.
    ///
    /// # Errors
    /// Those of [`QueuePair::post_send`] and [`QueuePair::post_xrc_send`] except [`PostError::Full`].
    pub fn check_send(&self, wr: &SendWr<'_>, srqn: u32) -> Result<(), PostError> {
        if srqn > 0xff_ffff {
            return Err(PostError::Invalid("an SRQ number has 24 bits"));
        }
        sq::check(&self.core, wr).map(drop)
    }

    /// Adds a work request to the receive queue.
    ///
    /// In the error state it is accepted, and the next [`QueuePair::poll_transmit`] flushes it.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        match &mut self.halves {
            Halves::Rc(rc) => rc.1.post(&self.core, wr),
            Halves::Uc(_, receiver) => receiver.rq.post(&self.core, wr),
            Halves::Ud(_, receiver) => receiver.rq.post(&self.core, wr),
        }
    }

    /// Takes a packet that was addressed to this queue pair and arrived on the path `from`; UD:
    /// with the GRH that belongs before the payload.
    ///
    /// Packets that do not belong here are dropped and counted: another service's packet, one that
    /// the state does not accept, or one of an older generation of its path (after a fence).
    #[inline]
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Duration,
        packet: &Packet<'_>,
        from: PathId,
        grh: Option<&[u8; 40]>,
        host: &mut H,
    ) {
        self.handle_packet_by(now, packet, (from, CameBy::PRIMARY), grh, host);
    }

    /// The same, if it may have an alternate path: `by` says which of the two the path is.
    #[inline]
    pub fn handle_packet_by<H: Host>(
        &mut self,
        now: Duration,
        packet: &Packet<'_>,
        (from, by): (PathId, CameBy),
        grh: Option<&[u8; 40]>,
        host: &mut H,
    ) {
        let core = &mut self.core;
        core.counters.received_packets += 1;
        core.counters.received_bytes += packet.payload.len() as u64;
        if matches!(core.attr.state, QpState::Reset | QpState::Init | QpState::Err) {
            core.counters.dropped_state += 1;
            return;
        }
        // A path set has no path that is not in use.
        let settled = core.attr.path_mig_state == MigState::Migrated && !core.migration.unconfirmed
            || core.multipath;
        let usual = settled && by.primary;
        if !usual && !self.admit(now, packet, by, host) {
            return;
        }
        let core = &mut self.core;
        let opcode = packet.headers.bth.opcode;
        match (&mut self.halves, opcode.service()) {
            (Halves::Rc(rc), PacketService::Rc | PacketService::Mp)
                if core.config.qp_type == QpType::Rc && !opcode.is_mp_management() =>
            {
                if let (Some(mp), Some(tag)) = (packet.headers.mp, host.tag(from))
                    && (mp.generation.wrapping_sub(tag.generation) as i16) < 0
                {
                    core.counters.dropped_generation += 1;
                    return;
                }
                if opcode.base().is_request() {
                    rc.1.handle_request(core, packet, from, host);
                } else {
                    rc.0.handle_response(core, now, packet, from, host);
                }
            }
            (Halves::Rc(rc), PacketService::Xrc) => {
                match (core.config.qp_type, opcode.is_request()) {
                    (QpType::XrcRecv, true) => rc.1.handle_request(core, packet, from, host),
                    (QpType::XrcSend, false) => {
                        rc.0.handle_response(core, now, packet, from, host);
                    }
                    _ => core.counters.dropped_service += 1,
                }
            }
            (Halves::Uc(_, receiver), PacketService::Uc) => {
                receiver.handle_packet(core, packet, host);
            }
            (Halves::Ud(_, receiver), PacketService::Ud) => {
                receiver.handle_packet(core, packet, grh, host);
            }
            _ => core.counters.dropped_service += 1,
        }
        self.fail_if_broken(host);
    }

    /// Sends what is to be sent: requests, READ responses, retransmissions. The work per call is
    /// bounded: about 64 KiB each of requests and of responses.
    pub fn poll_transmit<H: Host>(&mut self, now: Duration, host: &mut H) -> TransmitState {
        if self.core.attr.state == QpState::Err
            || (self.core.attr.state == QpState::Sqe && self.wants_transmit())
        {
            self.flush_late(host);
            return TransmitState::Idle;
        }
        self.see_to_migration(now, host);
        let state = match &mut self.halves {
            Halves::Rc(rc) => {
                let more_answers = rc.1.is_ready() && rc.1.poll(&mut self.core, host);
                let state = if self.core.broken {
                    TransmitState::Idle
                } else {
                    rc.0.poll(&mut self.core, now, host)
                };
                if more_answers && rc.1.is_ready() { TransmitState::More } else { state }
            }
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => sender.poll(&mut self.core, host),
        };
        self.fail_if_broken(host);
        state
    }

    /// Flushes what was posted in the error state.
    fn flush_late<H: Host>(&mut self, host: &mut H) {
        if self.core.attr.state == QpState::Err {
            self.flush(host);
        } else if let Halves::Uc(sender, _) | Halves::Ud(sender, _) = &mut self.halves {
            sender.flush(&mut self.core, host);
        }
    }

    /// Sends the acknowledgement that is due, if any. Acknowledgements are coalesced:
    /// [`QueuePair::handle_packet`] only marks them due. To be called when the lane has run out of
    /// input.
    pub fn flush_acks<H: Host>(&mut self, host: &mut H) {
        if let Halves::Rc(rc) = &mut self.halves {
            rc.1.flush_acks(&mut self.core, host);
        }
        self.fail_if_broken(host);
    }

    /// UD: the destinations of the work requests that are posted and not sent yet.
    pub fn datagrams(&self) -> impl Iterator<Item = UdDestination> {
        let sender = match &self.halves {
            Halves::Ud(sender, _) => Some(sender),
            _ => None,
        };
        sender.into_iter().flat_map(Sender::datagrams)
    }

    /// Whether [`QueuePair::flush_acks`] would send something.
    #[inline]
    pub fn acks_due(&self) -> bool {
        matches!(&self.halves, Halves::Rc(rc) if rc.1.acks_due())
    }

    /// Whether [`QueuePair::poll_transmit`] should be called.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        match &self.halves {
            Halves::Rc(rc) => {
                rc.0.is_ready()
                    || rc.1.is_ready()
                    || self.has_migration_work()
                    || (self.core.attr.state == QpState::Err && rc.1.has_receives())
            }
            Halves::Uc(sender, receiver) => {
                sender.is_ready()
                    || (self.core.attr.state == QpState::Err && !receiver.rq.is_empty())
            }
            Halves::Ud(sender, receiver) => {
                sender.is_ready()
                    || (self.core.attr.state == QpState::Err && !receiver.rq.is_empty())
            }
        }
    }

    /// To be called when [`QueuePair::next_deadline`] has passed; harmless before.
    pub fn handle_timeout<H: Host>(&mut self, now: Duration, host: &mut H) {
        self.see_to_migration(now, host); // Until then the timers are those of the path that was left.
        if let Halves::Rc(rc) = &mut self.halves {
            rc.0.handle_timeout(&mut self.core, now, host);
        }
        self.ask_again(now, host);
        self.fail_if_broken(host);
    }

    /// The time at which [`QueuePair::handle_timeout`] wants to be called.
    #[inline]
    pub fn next_deadline(&self) -> Option<Duration> {
        match &self.halves {
            Halves::Rc(rc) => {
                let ask = self.core.migration.deadline();
                rc.0.deadline(&self.core).into_iter().chain(ask).min()
            }
            _ => None,
        }
    }

    /// The route of this queue pair changed: it leads over another path (`dead` names the old one
    /// if that has died), there is no route any more, or there is one again. What was outstanding
    /// on the dead path is sent again by the new route. While there is no route the queue pair
    /// sends nothing, and no retry is counted.
    ///
    /// Not for changes of paths that only others use: it forgets the measured round trips.
    pub fn on_path_change<H: Host>(&mut self, now: Duration, dead: Option<PathId>, host: &mut H) {
        self.on_paths_unknown(now, |path| dead == Some(path), host);
    }

    /// A path died, whether or not this queue pair's route uses it. What the queue pair has
    /// outstanding there is sent again by its route. If it has nothing there, neither its timers
    /// nor its retries change.
    pub fn on_path_dead<H: Host>(&mut self, now: Duration, dead: PathId, host: &mut H) {
        if !matches!(self.core.attr.state, QpState::Reset | QpState::Err)
            && let Halves::Rc(rc) = &mut self.halves
        {
            rc.0.on_path_dead(&mut self.core, now, dead, host);
            rc.1.on_path_change(&self.core, |path| path == dead, host);
            self.fail_if_broken(host);
        }
    }

    /// Reports about paths were lost: the route may be another one, and any path may have died.
    /// `is_dead` says which.
    pub fn on_paths_unknown<H: Host>(
        &mut self,
        now: Duration,
        is_dead: impl Fn(PathId) -> bool,
        host: &mut H,
    ) {
        if matches!(self.core.attr.state, QpState::Reset | QpState::Err) {
            return;
        }
        if self.must_migrate(host) {
            return self.migrate(MigrationCause::PathLost, host);
        }
        match &mut self.halves {
            Halves::Rc(rc) => {
                rc.0.on_path_change(&mut self.core, now, &is_dead, host);
                rc.1.on_path_change(&self.core, &is_dead, host);
            }
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => sender.wake(),
        }
        self.fail_if_broken(host);
    }

    /// The peer has answered on `path` after a silence: what is outstanding there is sent again at
    /// once, and retries that went into the silence are not counted.
    pub fn on_path_heard<H: Host>(&mut self, now: Duration, path: PathId, host: &mut H) {
        if matches!(self.core.attr.state, QpState::Rts | QpState::Sqd)
            && let Halves::Rc(rc) = &mut self.halves
        {
            rc.0.on_path_heard(&self.core, now, path, host);
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &QpCounters {
        &self.core.counters
    }

    /// Gives back to the host what is outstanding. Generates no completions; no call may follow.
    pub fn destroy<H: Host>(&mut self, host: &mut H) {
        self.reset(host);
    }
}

/// Copies the attributes that the mask names; the state is not one of them.
fn assign(attr: &mut QpAttr, new: &QpAttr, mask: M) {
    macro_rules! assign {
        ($($flag:ident => $($field:ident),+;)*) => {
            $(if mask.contains(M::$flag) { $(attr.$field = new.$field;)+ })*
        };
    }
    assign! {
        ACCESS_FLAGS => access;
        PKEY_INDEX => pkey_index;
        PORT => port_num;
        QKEY => qkey;
        AV => ah;
        PATH_MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
        RQ_PSN => rq_psn;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        ALT_PATH => alt_ah, alt_port_num, alt_pkey_index, alt_timeout;
        MIN_RNR_TIMER => min_rnr_timer;
        SQ_PSN => sq_psn;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        PATH_MIG_STATE => path_mig_state;
        DEST_QPN => dest_qpn;
    }
    attr.rq_psn &= 0xff_ffff;
    attr.sq_psn &= 0xff_ffff;
}
