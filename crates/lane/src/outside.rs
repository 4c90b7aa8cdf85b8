//! The interface of a lane to the process around it.

use core::time::Duration;

use polypath_paths::{ControlOut, PathAddress, PathEvent, PathManager};
use polypath_transport::{Burst, Explanation, Memory, MigrationNews, QpCounters, Segment, Unread};
use polypath_types::{Completion, CqSide, PathId, QpEvent, RecvWr};
use polypath_wire::packet::Packet;

/// A completion did not fit into its completion queue. It is lost, and its queue pair fails
/// (IBTA 11.6.3.2, `man 3 ibv_poll_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// The reason why a burst was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Its payload could not be read, because the memory is gone.
    Unread(Unread),
    /// This host currently has no means of sending on that path. The packets are lost.
    NoWay,
}

impl From<Unread> for NotSent {
    fn from(unread: Unread) -> Self {
        Self::Unread(unread)
    }
}

/// Memory, queues and network for the queue pairs of a lane.
///
/// `Q` is the data that the lane's owner keeps with each queue pair, and `own` is that of the queue
/// pair that a call is about. The methods of queues promise the same as those of
/// [`polypath_transport::Queues`] with the same names.
pub trait Outside<Q> {
    /// A piece of memory whose access rights were checked.
    type Segment: Segment;

    /// The registered memory, as the queue pair may use it.
    fn memory<'a>(&'a mut self, own: &'a Q) -> impl Memory<Segment = Self::Segment> + 'a;

    /// Takes the next element of the shared receive queue.
    fn take_srq(&mut self, own: &Q) -> Option<RecvWr>;
    /// The protection domain of the shared receive queue, if it may be another one than that of the queue
    /// pair.
    fn srq_pd(&self, _own: &Q) -> Option<u32> {
        None
    }
    /// Puts a completion into its completion queue.
    ///
    /// # Errors
    /// The completion queue is full.
    fn complete(&mut self, own: &Q, side: CqSide, completion: Completion) -> Result<(), Overrun>;
    /// XRC target: the protection domain of a shared receive queue in the queue pair's XRC domain.
    fn xrc_pd(&self, _own: &Q, _srqn: u32) -> Option<u32> {
        None
    }
    /// XRC target: takes the next element of a shared receive queue.
    fn take_xrc(&mut self, _own: &Q, _srqn: u32) -> Option<RecvWr> {
        None
    }
    /// XRC target: puts a completion into the completion queue of a shared receive queue.
    ///
    /// # Errors
    /// The completion queue is full.
    fn complete_xrc(&mut self, _own: &Q, _srqn: u32, _done: Completion) -> Result<(), Overrun> {
        Ok(())
    }

    /// Raises an asynchronous event of a queue pair.
    fn event(&mut self, own: &Q, event: QpEvent);
    /// Reports why the queue pair failed. `paths` knows the addresses of its paths.
    fn explain(&mut self, own: &Q, paths: &PathManager, explanation: Explanation);
    /// Reports that a queue pair enters the error state because one of its completions was lost.
    fn overran(&mut self, _own: &Q, _qpn: u32) {}
    /// Reports that a queue pair is destroyed, with its final counters.
    fn removed(&mut self, _own: &Q, _counters: &QpCounters) {}
    /// Reports what happened to the two paths of a queue pair, which `paths` still knows
    /// ([`PathManager::both_paths`]).
    fn migration(&mut self, _own: &Q, _paths: &PathManager, _qpn: u32, _news: MigrationNews) {}
    /// Reports a datagram with a wrong Q_Key (IBTA 10.2.5).
    fn qkey_violation(&mut self, _own: &Q) {}
    /// Reports a packet for a queue pair that came on a valid path. The queue pair handles it next.
    fn accepted(&mut self, _own: &Q, _path: PathId, _packet: &Packet<'_>) {}
    /// Reports that `bytes` were charged to a path or, if negative, given back; for accounting.
    fn charged(&mut self, _own: &Q, _bytes: i64) {}

    /// Sends packets of a queue pair on the path that the burst names. `address` is that path's,
    /// `None` if the path no longer exists. The payload is read before this returns.
    ///
    /// # Errors
    /// Nothing was sent, for the reason returned.
    fn transmit(
        &mut self,
        own: &Q,
        address: Option<&PathAddress>,
        burst: &Burst<'_, Self::Segment>,
    ) -> Result<(), NotSent>;
    /// Sends a packet of the path manager.
    fn control(&mut self, out: ControlOut);
    /// Reports an event of the path manager. The lane carries it out when this returns.
    fn path_event(&mut self, now: Duration, paths: &PathManager, event: &PathEvent);
}
