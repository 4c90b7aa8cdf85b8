//! What a lane needs of the process around it.

use core::fmt;
use core::time::Duration;

use polypath_paths::{ControlOut, PathAddress, PathEvent, PathManager};
use polypath_transport::{Burst, Memory, QpCounters, Segment, Unread};
use polypath_types::{Completion, CqSide, PathId, QpEvent, RecvWr};
use polypath_wire::packet::Packet;

/// A completion found its queue full: it is lost, and its queue pair fails (IBTA 11.6.3.2,
/// `man 3 ibv_poll_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// Why a burst was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Its payload could not be read: the memory is gone.
    Unread(Unread),
    /// This host has no means of sending by that path now. The packets are lost.
    NoWay,
}

impl From<Unread> for NotSent {
    fn from(unread: Unread) -> Self {
        Self::Unread(unread)
    }
}

/// Memory, queues and network of the queue pairs of a lane.
///
/// `Q` is what the owner of the lane keeps beside each queue pair, and `own` that of the queue pair
/// which a call is for. What the methods of queues promise is written at those of
/// [`polypath_transport::Queues`] that have the same names.
pub trait Outside<Q> {
    /// Memory that was checked.
    type Segment: Segment;

    /// The registered memory, as the queue pair may use it.
    fn memory<'a>(&'a mut self, own: &'a Q) -> impl Memory<Segment = Self::Segment> + 'a;

    /// Takes the next element of the shared receive queue.
    fn take_srq(&mut self, own: &Q) -> Option<RecvWr>;
    /// Hands out a completion.
    ///
    /// # Errors
    /// Its queue is full.
    fn complete(&mut self, own: &Q, side: CqSide, completion: Completion) -> Result<(), Overrun>;
    /// XRC target: the protection domain of a shared receive queue of its domain.
    fn xrc_pd(&self, _own: &Q, _srqn: u32) -> Option<u32> {
        None
    }
    /// XRC target: takes the next element of a shared receive queue.
    fn take_xrc(&mut self, _own: &Q, _srqn: u32) -> Option<RecvWr> {
        None
    }
    /// XRC target: hands out a completion to the completion queue of a shared receive queue.
    ///
    /// # Errors
    /// That is full.
    fn complete_xrc(&mut self, _own: &Q, _srqn: u32, _done: Completion) -> Result<(), Overrun> {
        Ok(())
    }

    /// Raises an asynchronous event of a queue pair.
    fn event(&mut self, own: &Q, event: QpEvent);
    /// Says in words why the queue pair `qpn` went wrong. `paths` knows the addresses of its paths.
    fn explain(&mut self, own: &Q, qpn: u32, paths: &PathManager, text: fmt::Arguments<'_>);
    /// A queue pair goes to the error state, since one of its completions was lost.
    fn overran(&mut self, _own: &Q, _qpn: u32) {}
    /// A queue pair is destroyed: the last look at what it counted.
    fn removed(&mut self, _own: &Q, _counters: &QpCounters) {}
    /// A datagram with a wrong Q_Key came (IBTA 10.2.5).
    fn qkey_violation(&mut self, _own: &Q) {}
    /// A packet for a queue pair was taken from a path that the peer may use; it is looked at next.
    fn accepted(&mut self, _own: &Q, _path: PathId, _packet: &Packet<'_>) {}
    /// Something of `bytes` was charged to a path, or given back (negative): for those who keep books.
    fn charged(&mut self, _own: &Q, _bytes: i64) {}

    /// Sends packets of a queue pair by the path that the burst names, which has this address (`None`:
    /// there is no such path any more). The payload is read before this returns.
    ///
    /// # Errors
    /// Nothing was sent, for that reason.
    fn transmit(
        &mut self,
        own: &Q,
        address: Option<&PathAddress>,
        burst: &Burst<'_, Self::Segment>,
    ) -> Result<(), NotSent>;
    /// Sends a packet of the path manager's own.
    fn control(&mut self, out: ControlOut);
    /// The path manager reports something, which the lane carries out when this returns.
    fn path_event(&mut self, now: Duration, paths: &PathManager, event: &PathEvent);
}
