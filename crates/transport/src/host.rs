//! What a queue pair needs of its surroundings, and what it gives them.

use core::time::Duration;

use polypath_types::{
    Completion, CqSide, PathId, PathTag, PeerId, Pick, QpEvent, RecvWr, Route, Want,
};

use crate::burst::Burst;
use crate::explanation::Explanation;
use crate::memory::Memory;

/// What [`Host::transmit`] could not send because its payload can't be read: [`crate::Fault::Gone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Packets of the burst that were sent, the first ones.
    pub sent: u32,
}

/// Room for packets that arrive before their predecessors.
pub trait EarlyRoom {
    /// A packet has arrived before its predecessors, and keeping it takes `bytes` of memory: whether it
    /// may. If not, it is dropped, and the peer sends it again. What was granted comes back by
    /// [`EarlyRoom::release`], at the latest when the queue pair is reset or destroyed.
    fn reserve(&mut self, bytes: u32) -> bool;
    /// Gives back what [`EarlyRoom::reserve`] has granted.
    fn release(&mut self, bytes: u32);
}

/// Shared receive queues and completion queues.
pub trait Queues {
    /// Takes the next element of the shared receive queue.
    fn take_srq(&mut self) -> Option<RecvWr>;
    /// Reports a completion.
    fn complete(&mut self, side: CqSide, completion: Completion);
    /// XRC target: the protection domain of the shared receive queue `srqn`, if that is in the
    /// domain of the queue pair. A host without XRC has none.
    fn xrc_pd(&self, _srqn: u32) -> Option<u32> {
        None
    }
    /// XRC target: takes the next element of the shared receive queue `srqn`.
    fn take_xrc(&mut self, _srqn: u32) -> Option<RecvWr> {
        None
    }
    /// XRC target: reports the completion of what [`Queues::take_xrc`] gave, to the completion queue of
    /// the shared receive queue.
    fn complete_xrc(&mut self, _srqn: u32, _completion: Completion) {}
}

/// The paths to peers, and the books of what is outstanding on each.
pub trait Paths {
    /// The route of what knows of one path to the peer only. `None`: no path lives; ask again after
    /// [`crate::QueuePair::on_path_change`]. A question, which changes nothing.
    fn route(&self, peer: PeerId) -> Option<Route>;
    /// Where to send what a queue pair wants to send next: by the only route, unless there are several.
    fn pick(&mut self, peer: PeerId, _want: &Want) -> Pick {
        self.route(peer).map_or(Pick::NoPath, Pick::Route)
    }
    /// The tag of a path that packets arrive on, for answers by the same path.
    fn tag(&self, path: PathId) -> Option<PathTag>;
    /// `bytes` more are outstanding on `path`: payload plus [`crate::PACKET_COST`] for each packet.
    /// A READ is charged to the requester: the bytes that its response will bring. UC, UD, responses
    /// and acknowledgements are not charged. Every byte comes back in exactly one call of
    /// [`Paths::acked`] or [`Paths::lost`].
    fn sent(&mut self, path: PathId, bytes: u32);
    /// `bytes` that were outstanding on `path` have been acknowledged; a round trip took `rtt`
    /// (absent for retransmissions without a timestamp).
    fn acked(&mut self, path: PathId, bytes: u32, rtt: Option<Duration>);
    /// `bytes` that were outstanding on `path` are taken to be lost, or given up (`congestion` false:
    /// flushed, the window must not shrink).
    fn lost(&mut self, path: PathId, bytes: u32, congestion: bool);
    /// Data has been outstanding on `path` for suspiciously long: have it probed. Nothing of this queue pair
    /// was acknowledged since `since`, on whatever path, not counting time in which this process did not
    /// run.
    fn suspect(&mut self, path: PathId, since: Duration);
}

/// Who hears what happens to a queue pair.
pub trait Observer {
    /// Reports an asynchronous event.
    fn event(&mut self, event: QpEvent);
    /// Reports why a queue pair went wrong: for the log and for `polypath status`.
    fn explain(&mut self, explanation: Explanation);
}

/// The surroundings of a queue pair.
///
/// One implementation lives in the lane. All calls return at once.
pub trait Host: Memory + EarlyRoom + Queues + Paths + Observer {
    /// Sends. The payload is read before this returns. One of [`crate::Payload::Bytes`] is never unread.
    fn transmit(&mut self, burst: &Burst<'_, Self::Segment>) -> Result<(), Unread>;
}
