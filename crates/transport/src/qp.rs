//! The queue pair: one type for all transport services.

use core::time::Duration;

use polypath_wire::packet::Packet;

use crate::counters::QpCounters;
use crate::host::{Host, PathId, PeerId};
use crate::state::{self, ModifyError};
use crate::types::{QpAttr, QpAttrMask, QpConfig, QpState, RecvWr, SendWr};

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full (`ENOMEM`).
    #[error("the work queue is full: poll the completion queue first")]
    Full,
    /// The work request makes no sense (`EINVAL`).
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
    /// The queue pair's state takes none (`EINVAL`).
    #[error("a queue pair in state {0:?} takes no such work request")]
    State(QpState),
}

impl PostError {
    /// The `errno` that `ibv_post_send` or `ibv_post_recv` returns.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Full => 12,
            Self::Invalid(_) | Self::State(_) => 22,
        }
    }
}

/// What [`QueuePair::poll_transmit`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitState {
    /// Nothing to send until something happens.
    Idle,
    /// There is something to send but the path's window is full: call again when it opens.
    Blocked,
    /// There is more: call again, after the others had their turn.
    More,
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    attr: QpAttr,
    peer: Option<PeerId>,
    multipath: bool,
    counters: QpCounters,
}

impl QueuePair {
    /// A queue pair in the RESET state.
    pub fn new(config: QpConfig) -> Self {
        let mut attr = QpAttr::new(QpState::Reset);
        attr.max_send_wr = config.max_send_wr;
        attr.max_recv_wr = config.max_recv_wr;
        attr.max_send_sge = config.max_send_sge;
        attr.max_recv_sge = config.max_recv_sge;
        attr.max_inline = config.max_inline;
        Self { config, attr, peer: None, multipath: false, counters: QpCounters::default() }
    }

    /// What it was made with.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Changes state and attributes as `ibv_modify_qp` does.
    ///
    /// # Errors
    /// The transition or an attribute is not legal; nothing has changed then.
    pub fn modify<H: Host>(
        &mut self,
        _now: Duration,
        attr: &QpAttr,
        mask: QpAttrMask,
        _host: &mut H,
    ) -> Result<(), ModifyError> {
        let next =
            state::check(self.config.qp_type, self.attr.state, self.attr.sq_draining, attr, mask)?;
        self.attr.state = next;
        Ok(())
    }

    /// All attributes, as `ibv_query_qp` gives them.
    pub fn query(&self) -> QpAttr {
        QpAttr { cur_state: self.attr.state, ..self.attr }
    }

    /// The state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// RC and UC: the host has a path set for the peer. To be called when the queue pair goes to RTR.
    pub fn set_peer(&mut self, peer: PeerId) {
        self.peer = Some(peer);
    }

    /// RC: both ends know each other's queue pair, so multi-path packets may be sent from now on
    /// (by every route that has a tag).
    pub fn set_multipath(&mut self, agreed: bool) {
        self.multipath = agreed;
    }

    /// Whether multi-path packets may be sent, see [`QueuePair::set_multipath`].
    pub fn is_multipath(&self) -> bool {
        self.multipath
    }

    /// Send work requests that may be posted before the queue is full.
    pub fn send_room(&self) -> usize {
        self.config.max_send_wr as usize
    }

    /// Adds a work request to the send queue.
    ///
    /// In the error state it is taken and flushed by the next [`QueuePair::poll_transmit`].
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&mut self, _wr: &SendWr<'_>) -> Result<(), PostError> {
        Err(PostError::State(self.attr.state))
    }

    /// Adds a work request to the receive queue.
    ///
    /// In the error state it is taken and flushed by the next [`QueuePair::poll_transmit`].
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, _wr: RecvWr) -> Result<(), PostError> {
        Err(PostError::State(self.attr.state))
    }

    /// Takes a packet that was addressed to this queue pair and arrived on the path `from`; UD: with
    /// the GRH that belongs before the payload.
    pub fn handle_packet<H: Host>(
        &mut self,
        _now: Duration,
        _packet: &Packet<'_>,
        _from: PathId,
        _grh: Option<&[u8; 40]>,
        _host: &mut H,
    ) {
        self.counters.received_packets += 1;
    }

    /// Sends what is to be sent: requests, READ responses, retransmissions. Bounded work per call.
    pub fn poll_transmit<H: Host>(&mut self, _now: Duration, _host: &mut H) -> TransmitState {
        TransmitState::Idle
    }

    /// Sends the acknowledgement that is due, if any. Acknowledgements are coalesced:
    /// [`QueuePair::handle_packet`] only marks them due.
    pub fn flush_acks<H: Host>(&mut self, _now: Duration, _host: &mut H) {}

    /// Whether [`QueuePair::flush_acks`] would send something.
    pub fn acks_due(&self) -> bool {
        false
    }

    /// Whether [`QueuePair::poll_transmit`] should be called.
    pub fn wants_transmit(&self) -> bool {
        false
    }

    /// To be called when [`QueuePair::next_deadline`] has passed; harmless before.
    pub fn handle_timeout<H: Host>(&mut self, _now: Duration, _host: &mut H) {}

    /// When [`QueuePair::handle_timeout`] wants to be called.
    pub fn next_deadline(&self) -> Option<Duration> {
        None
    }

    /// The path set changed: `dead` has died, or the active path is another one, or there is one again.
    ///
    /// What was outstanding on the dead path is sent again by the new route. While there is no route at
    /// all the queue pair holds still and no retry is counted.
    pub fn on_path_change<H: Host>(
        &mut self,
        _now: Duration,
        _dead: Option<PathId>,
        _host: &mut H,
    ) {
    }

    /// The hold time is over and no path has come back: everything outstanding fails with
    /// `RetryExcErr` and the queue pair goes to the error state.
    pub fn abandon<H: Host>(&mut self, _now: Duration, _host: &mut H) {}

    /// What it has counted.
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }

    /// Gives back to the host what is outstanding. No completions; nothing may follow.
    pub fn destroy<H: Host>(&mut self, _host: &mut H) {}
}
