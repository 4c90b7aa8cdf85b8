//! What a queue pair needs of its surroundings, and what it gives them.

use core::ops::{Deref, Range};
use core::time::Duration;
use polypath_wire::packet::Headers;

use polypath_types::{
    Access, Completion, CqSide, FlushScope, PathId, PathTag, PeerId, QpEvent, RecvWr, Route, Sge,
};

/// A piece of host memory, checked against its region. Opaque to this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where, in the host's address space.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Why a key, address and length were not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such key, or of another protection domain.
    #[error("no memory region has this key in this protection domain")]
    Key,
    /// Outside of the region.
    #[error("the range is not within the memory region")]
    Range,
    /// The region was not registered for it.
    #[error("the memory region does not allow this access")]
    Rights,
    /// Checked, and yet it can't be accessed: the memory went away under the region.
    #[error(
        "the memory of the region is gone: it was unmapped, or its file cut, before ibv_dereg_mr"
    )]
    Gone,
}

/// What [`Host::transmit`] could not send because its payload can't be read: [`Fault::Gone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Packets of the burst that were sent, the first ones.
    pub sent: u32,
}

/// An atomic on 8 bytes (IBTA 9.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// A run of packets with consecutive PSNs of one message, or one packet of another kind.
///
/// Packet `i` of the run has the headers [`Burst::headers`] and the bytes [`Burst::range`] of the
/// concatenation of `payload`. A UDP path sends the run as few UDP_SEGMENT sends; a shared-memory
/// path copies it as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// By which path.
    pub path: PathId,
    /// Headers of the first packet.
    pub first: &'a Headers,
    /// Headers of the second packet, and of all up to the last but for the PSN and the multi-path
    /// offset, which [`Burst::headers`] advances. Of no meaning in a run of one or two.
    pub middle: &'a Headers,
    /// Headers of the last packet, its own PSN in it (equal to `first` in a run of one).
    pub last: &'a Headers,
    /// How many packets.
    pub packets: u32,
    /// Payload bytes of every packet but the last, which has 0 (only in a run of one) to `mtu`.
    pub mtu: u32,
    /// Where the payload of the whole run lies, gathered in order.
    pub payload: Payload<'a>,
    /// The ICRC covers everything from the BTH on twice, as Linux' rxe wants it of a FLUSH. `false` for
    /// all else.
    pub covered_twice: bool,
    /// The program may be writing the payload all the while: what is sent is to be what was looked at
    /// for the ICRC, a copy.
    pub changing: bool,
}

/// Headers of one packet of a burst: those that the burst holds, or made from them.
///
/// They are large, and a small packet is sent as they are.
#[derive(Debug)]
pub enum PacketHeaders<'a> {
    /// As the burst holds them.
    Held(&'a Headers),
    /// Advanced to another packet.
    Made(Headers),
}

impl Deref for PacketHeaders<'_> {
    type Target = Headers;

    #[inline]
    fn deref(&self) -> &Headers {
        match self {
            Self::Held(headers) => headers,
            Self::Made(headers) => headers,
        }
    }
}

impl<'a> Burst<'a> {
    /// One packet. The ICRC covers its payload once, and nobody changes that meanwhile.
    #[inline]
    pub(crate) fn single(
        path: PathId,
        headers: &'a Headers,
        mtu: u32,
        payload: Payload<'a>,
    ) -> Self {
        Self {
            path,
            first: headers,
            middle: headers,
            last: headers,
            packets: 1,
            mtu,
            payload,
            covered_twice: false,
            changing: false,
        }
    }
}

impl Burst<'_> {
    /// Headers of packet `i` (below [`Burst::packets`]), with the padding that it needs.
    #[inline]
    pub fn headers(&self, i: u32) -> PacketHeaders<'_> {
        match i {
            0 => PacketHeaders::Held(self.first),
            _ if i + 1 == self.packets => PacketHeaders::Held(self.last),
            1 => PacketHeaders::Held(self.middle),
            _ => {
                let mut headers = *self.middle;
                headers.bth.psn = headers.bth.psn.add(i - 1);
                if let Some(mp) = &mut headers.mp {
                    mp.offset = mp.offset.wrapping_add((i - 1) * self.mtu);
                }
                PacketHeaders::Made(headers)
            }
        }
    }

    /// Where the payload of packet `i` lies within that of the burst, in bytes. Padding is not part
    /// of it.
    #[inline]
    pub fn range(&self, i: u32) -> Range<u32> {
        let start = i * self.mtu;
        let len = self.payload.len();
        start..if i + 1 == self.packets { len } else { len.min(start + self.mtu) }
    }
}

/// Where the payload of a burst lies.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory: from `skip` bytes into the list on, `len` bytes.
    Memory {
        /// Checked pieces, in order.
        segments: &'a [Segment],
        /// Bytes of the list that come before this run.
        skip: u32,
        /// Bytes of this run.
        len: u32,
    },
    /// Held by the queue pair (inline data).
    Bytes(&'a [u8]),
}

impl Payload<'_> {
    /// Bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::Memory { len, .. } => *len,
            Payload::Bytes(b) => u32::try_from(b.len()).unwrap_or(u32::MAX),
        }
    }
    /// Nothing to carry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The surroundings of a queue pair.
///
/// One implementation lives in the engine, one in the simulator. All calls return at once.
pub trait Host {
    /// Checks a local scatter/gather element.
    fn resolve(&self, pd: u32, sge: Sge, access: Access) -> Result<Segment, Fault>;
    /// Checks a remote request's key, address and length. Length 0 is not asked.
    fn resolve_remote(
        &self,
        pd: u32,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<Segment, Fault>;
    /// Copies received data into checked memory (`data.len() <= segment.len`). With
    /// [`Fault::Gone`], a part of it may have been copied.
    fn store(&mut self, segment: Segment, data: &[u8]) -> Result<(), Fault>;
    /// Copies checked memory out (`out.len() <= segment.len`).
    fn load(&self, segment: Segment, out: &mut [u8]) -> Result<(), Fault>;
    /// Executes an atomic on 8 aligned bytes; gives what was there before. Native byte order.
    fn atomic(&mut self, segment: Segment, op: AtomicOp) -> Result<u64, Fault>;
    /// Writes 8 aligned bytes of checked memory at once, native byte order, after everything that was
    /// stored before.
    fn atomic_write(&mut self, segment: Segment, value: u64) -> Result<(), Fault>;
    /// FLUSH: checks key and rights, and for a range that it is within the region; what was stored
    /// there is visible to everything when it returns, and as persistent as the region's rights say.
    fn flush(
        &mut self,
        pd: u32,
        qpn: u32,
        rkey: u32,
        scope: FlushScope,
        access: Access,
    ) -> Result<(), Fault>;
    /// Makes a key unusable (SEND with invalidate, local invalidate).
    fn invalidate(&mut self, pd: u32, qpn: u32, rkey: u32) -> Result<(), Fault>;
    /// Binds a memory window (posted bind).
    fn bind_mw(&mut self, pd: u32, qpn: u32, mw: u32, rkey: u32) -> Result<(), Fault>;

    /// A posted bind that [`Host::bind_mw`] was not called for never will be: it was flushed.
    fn cancel_bind(&mut self, _mw: u32, _rkey: u32) {}

    /// A packet has arrived before its predecessors, and keeping it takes `bytes` of memory: whether it
    /// may. If not, it is dropped, and the peer sends it again. What was granted comes back by
    /// [`Host::release`], at the latest when the queue pair is reset or destroyed.
    fn reserve(&mut self, _bytes: u32) -> bool {
        true
    }
    /// Gives back what [`Host::reserve`] has granted.
    fn release(&mut self, _bytes: u32) {}

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
    /// XRC target: reports the completion of what [`Host::take_xrc`] gave, to the completion queue of
    /// the shared receive queue.
    fn complete_xrc(&mut self, _srqn: u32, _completion: Completion) {}
    /// Reports an asynchronous event.
    fn event(&mut self, event: QpEvent);
    /// Says in words why a queue pair went wrong: for the log and for `polypath status`.
    fn explain(&mut self, text: core::fmt::Arguments<'_>);

    /// Where requests to the peer go now. `None`: no path lives; ask again after
    /// [`crate::QueuePair::on_path_change`].
    fn route(&mut self, peer: PeerId) -> Option<Route>;
    /// The tag of a path that packets arrive on, for answers by the same path.
    fn tag(&self, path: PathId) -> Option<PathTag>;
    /// Sends. The payload is read before this returns. One of [`Payload::Bytes`] is never unread.
    fn transmit(&mut self, burst: &Burst<'_>) -> Result<(), Unread>;
    /// `bytes` more are outstanding on `path`: payload plus [`crate::PACKET_COST`] for each packet.
    /// A READ is charged to the requester: the bytes that its response will bring. UC, UD, responses
    /// and acknowledgements are not charged. Every byte comes back in exactly one call of
    /// [`Host::acked`] or [`Host::lost`].
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
