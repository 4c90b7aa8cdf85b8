//! What a queue pair needs from its surroundings, and what it reports to them.

use core::time::Duration;

use polypath_types::{
    Completion, CqSide, DatagramCopies, PathId, PathTag, PeerId, Pick, QpEvent, RecvWr, Route,
    TwoPaths, Want,
};

use crate::burst::Burst;
use crate::explanation::Explanation;
use crate::memory::Memory;
use crate::migration::MigrationNews;

/// Says that [`Host::transmit`] could not send all packets because the payload can't be read:
/// [`crate::Fault::Gone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The number of packets of the burst that were sent, from the first one on.
    pub sent: u32,
}

/// Room for packets that arrive before their predecessors.
pub trait EarlyRoom {
    /// Whether a packet that has arrived before its predecessors may be kept, which takes `bytes`
    /// of memory. If not, it is dropped, and the peer sends it again. What was granted is returned
    /// by [`EarlyRoom::release`], at the latest when the queue pair is reset or destroyed.
    fn reserve(&mut self, bytes: u32) -> bool;
    /// Returns what [`EarlyRoom::reserve`] granted.
    fn release(&mut self, bytes: u32);
}

/// Shared receive queues and completion queues.
pub trait Queues {
    /// Takes the next element of the shared receive queue.
    fn take_srq(&mut self) -> Option<RecvWr>;
    /// The protection domain of the shared receive queue, which holds for the memory of its elements (IBTA
    /// 10.2.9). `None`, as by default: that of the queue pair.
    fn srq_pd(&self) -> Option<u32> {
        None
    }
    /// Reports a completion.
    fn complete(&mut self, side: CqSide, completion: Completion);
    /// XRC target: the protection domain of the shared receive queue `srqn`, if that is in the XRC
    /// domain of the queue pair. A host without XRC returns `None`.
    fn xrc_pd(&self, _srqn: u32) -> Option<u32> {
        None
    }
    /// XRC target: takes the next element of the shared receive queue `srqn`.
    fn take_xrc(&mut self, _srqn: u32) -> Option<RecvWr> {
        None
    }
    /// XRC target: reports the completion of a request that [`Queues::take_xrc`] returned, to the
    /// completion queue of the shared receive queue.
    fn complete_xrc(&mut self, _srqn: u32, _completion: Completion) {}
}

/// The paths to peers, and the account of what is outstanding on each.
pub trait Paths {
    /// The route for packets that use only one path to the peer. `None` if no path lives: ask again
    /// after [`crate::QueuePair::on_path_change`]. This changes nothing.
    fn route(&self, peer: PeerId) -> Option<Route>;
    /// Whether a path to the peer lives. Other than for [`Paths::route`], a peer whose path is given back
    /// for retries to run out on it is not reachable. By default these are the same.
    fn is_reachable(&self, peer: PeerId) -> bool {
        self.route(peer).is_some()
    }
    /// The path set of a peer that agreed to multi-path, seen as two paths; `None` while none of it lives. By
    /// default there is no such peer.
    fn two_paths(&self, _peer: PeerId) -> Option<TwoPaths> {
        None
    }
    /// The queue pair leaves its active path for the other one of [`Paths::two_paths`]. Returns what they are
    /// now; `None` if there is no other, and nothing has changed then. By default there is none.
    fn take_other_path(&mut self, _peer: PeerId) -> Option<TwoPaths> {
        None
    }
    /// Where to send the packets that a queue pair wants to send next. By default this is the only
    /// route.
    fn pick(&mut self, peer: PeerId, _want: &Want) -> Pick {
        self.route(peer).map_or(Pick::NoPath, Pick::Route)
    }
    /// Numbers a datagram that goes by these two paths. `None`: it goes by the first one alone. By default
    /// each datagram does.
    fn number_datagram(&mut self, _paths: [PathId; 2]) -> Option<DatagramCopies> {
        None
    }
    /// The path for packets that no window holds back. By default this is that of the only route.
    fn route_without_window(&self, peer: PeerId) -> Option<PathId> {
        self.route(peer).map(|route| route.path)
    }
    /// The tag of a path that packets arrive on, for answers that go by the same path.
    fn tag(&self, path: PathId) -> Option<PathTag>;
    /// Whether the answer that goes out by `path` now is to say that packets came by it with a mark of
    /// congestion. The host says so once. By default nothing is marked.
    fn take_mark(&mut self, _path: PathId) -> bool {
        false
    }
    /// Charges `bytes` to `path`: payload plus [`crate::PACKET_COST`] for each packet. The
    /// requester is charged for a READ, with the bytes that the response will bring. UC, UD,
    /// responses and acknowledgements are not charged. Every byte is returned in exactly one call
    /// of [`Paths::acked`] or [`Paths::lost`].
    fn sent(&mut self, path: PathId, bytes: u32);
    /// Says that what was sent by `path` last is a READ, an atomic or the like, whose answer waits until what
    /// was sent before it has arrived, by whatever path. By default nobody needs to know.
    fn asked(&mut self, _path: PathId) {}
    /// Says that `bytes` outstanding on `path` were acknowledged, and that a round trip took `rtt`
    /// (absent for retransmissions without a timestamp).
    fn acked(&mut self, path: PathId, bytes: u32, rtt: Option<Duration>);
    /// Says that `bytes` outstanding on `path` are taken to be lost, or were given up (`congestion`
    /// is false: they were flushed, and the window must not shrink).
    fn lost(&mut self, path: PathId, bytes: u32, congestion: bool);
    /// Charges `bytes` to `path` for packets that are sent by two paths at once; each of the two is charged.
    /// The host takes them back by itself when [`Paths::answered`] says that they have arrived, or when it
    /// learns otherwise that they are not on their way any more. A host whose routes name no twin need not
    /// implement this.
    fn sent_twice(&mut self, _path: PathId, _bytes: u32) {}
    /// Says that an answer came by `path` to a packet that was sent by it at `echo_us` (microseconds,
    /// wrapping), when the round trip took `rtt`, if that is known. Everything that was sent by two paths and
    /// by this one before that is not on its way any more. Of what was sent at that very time, `bytes` are
    /// not; `None` stands for all.
    fn answered(
        &mut self,
        _path: PathId,
        _echo_us: u32,
        _bytes: Option<u32>,
        _rtt: Option<Duration>,
    ) {
    }
    /// Asks for a probe of `path`, because data has been outstanding on it for suspiciously long.
    /// Nothing of this queue pair was acknowledged on any path since `since`, not counting time in
    /// which this process did not run.
    fn suspect(&mut self, path: PathId, since: Duration);
    /// Says that the peer repeats a request again and again, although it was answered by `path` each time:
    /// the answers do not arrive. Only for packets without a path tag. By default nothing follows.
    fn unheard(&mut self, _path: PathId) {}
}

/// The receiver of events and explanations.
pub trait Observer {
    /// Reports an asynchronous event.
    fn event(&mut self, event: QpEvent);
    /// Reports what happened to its two paths. After [`MigrationNews::Migrated`], nothing is outstanding on
    /// the former primary path, and the peer is the alternate one
    /// ([`crate::QueuePair::set_alternate`]).
    fn migration(&mut self, _news: MigrationNews) {}
    /// Reports why a queue pair went wrong, for the log and for `polypath status`.
    fn explain(&mut self, explanation: Explanation);
}

/// The surroundings of a queue pair.
///
/// The lane implements it in production. All calls return at once.
pub trait Host: Memory + EarlyRoom + Queues + Paths + Observer {
    /// Sends a burst. The payload is read before this returns. A [`crate::Payload::Bytes`] can
    /// always be read.
    fn transmit(&mut self, burst: &Burst<'_, Self::Segment>) -> Result<(), Unread>;
}
