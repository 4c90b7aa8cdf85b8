//! What a queue pair sends: runs of packets whose payload may lie in memory.

use core::ops::{Deref, Range};

use polypath_types::PathId;
use polypath_wire::packet::Headers;

use crate::memory::{Fault, Memory, Segment};

/// A run of packets with consecutive PSNs of one message, or one packet of another kind.
///
/// Packet `i` of the run has the headers [`Burst::headers`] and the bytes [`Burst::range`] of the
/// concatenation of `payload`. A UDP path sends the run as few UDP_SEGMENT sends; a shared-memory
/// path copies it as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a, S> {
    /// The path to send it by.
    pub path: PathId,
    /// Headers of the first packet.
    pub first: &'a Headers,
    /// Headers of the second packet, and of all up to the last except for the PSN and the
    /// multi-path offset, which [`Burst::headers`] advances. Has no meaning in a run of one or two.
    pub middle: &'a Headers,
    /// Headers of the last packet, with its own PSN (equal to `first` in a run of one).
    pub last: &'a Headers,
    /// The number of packets.
    pub packets: u32,
    /// Payload bytes of every packet but the last, which has 0 (only in a run of one) to `mtu`.
    pub mtu: u32,
    /// Where the payload of the whole run lies, in order.
    pub payload: Payload<'a, S>,
    /// Whether the ICRC covers everything from the BTH on twice, as Linux rxe expects it of a
    /// FLUSH. `false` for all other packets.
    pub covered_twice: bool,
    /// Whether the program may be writing the payload meanwhile. Then the payload is copied first,
    /// so that the bytes sent are those that the ICRC was computed of.
    pub changing: bool,
}

/// Headers of one packet of a burst: borrowed from the burst, or made from it.
///
/// They are large, so that a small packet is sent without a copy of them.
#[derive(Debug)]
pub enum PacketHeaders<'a> {
    /// The burst's own headers.
    Borrowed(&'a Headers),
    /// Headers advanced to another packet.
    Owned(Headers),
}

impl Deref for PacketHeaders<'_> {
    type Target = Headers;

    #[inline]
    fn deref(&self) -> &Headers {
        match self {
            Self::Borrowed(headers) => headers,
            Self::Owned(headers) => headers,
        }
    }
}

impl<'a, S> Burst<'a, S> {
    /// One packet. The ICRC covers its payload once, and nobody changes the payload meanwhile.
    #[inline]
    pub(crate) fn single(
        path: PathId,
        headers: &'a Headers,
        mtu: u32,
        payload: Payload<'a, S>,
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

impl<S> Burst<'_, S> {
    /// Headers of packet `i` (below [`Burst::packets`]), with the padding that it needs.
    #[inline]
    pub fn headers(&self, i: u32) -> PacketHeaders<'_> {
        match i {
            0 => PacketHeaders::Borrowed(self.first),
            _ if i + 1 == self.packets => PacketHeaders::Borrowed(self.last),
            1 => PacketHeaders::Borrowed(self.middle),
            _ => {
                let mut headers = *self.middle;
                headers.bth.psn = headers.bth.psn.add(i - 1);
                if let Some(mp) = &mut headers.mp {
                    mp.offset = mp.offset.wrapping_add((i - 1) * self.mtu);
                }
                PacketHeaders::Owned(headers)
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

impl<S: Segment> Burst<'_, S> {
    /// The payload of the whole run, copied out of `memory`, which made the segments.
    ///
    /// # Errors
    /// As those of [`Memory::load`].
    pub fn copy_payload(&self, memory: &mut impl Memory<Segment = S>) -> Result<Vec<u8>, Fault> {
        match self.payload {
            Payload::Bytes(bytes) => Ok(bytes.to_vec()),
            Payload::Memory { segments, mut skip, len } => {
                let mut out = vec![0; len as usize];
                let mut rest = &mut out[..];
                for &segment in segments {
                    let whole = segment.len();
                    let n = whole.saturating_sub(skip).min(rest.len() as u32);
                    let (now, later) = rest.split_at_mut(n as usize);
                    memory.load(segment.part(skip.min(whole), n), now)?;
                    (rest, skip) = (later, skip.saturating_sub(whole));
                }
                Ok(out)
            }
        }
    }
}

/// Where the payload of a burst lies.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a, S> {
    /// In registered memory: `len` bytes of the list, from byte `skip` on.
    Memory {
        /// Checked pieces, in order.
        segments: &'a [S],
        /// Bytes of the list that come before this run.
        skip: u32,
        /// Bytes of this run.
        len: u32,
    },
    /// Held by the queue pair (inline data).
    Bytes(&'a [u8]),
}

impl<S> Payload<'_, S> {
    /// The length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::Memory { len, .. } => *len,
            Payload::Bytes(b) => u32::try_from(b.len()).unwrap_or(u32::MAX),
        }
    }
    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
