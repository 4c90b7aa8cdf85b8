//! Reads the payload of a burst piece by piece.

use std::slice;

use polypath_transport::{Payload, Segment as _};
use polypath_wire::icrc::Icrc;

use crate::memory::{self, Segment, guarded};

/// The smallest page, in bytes.
const PAGE: usize = 4096;

/// The position in a burst's payload at which the next packet's payload begins.
pub(super) enum Cursor<'a> {
    /// The rest of the bytes that the queue pair holds itself.
    Bytes(&'a [u8]),
    /// The rest of the list. The first `skip` bytes of its first segment are used up.
    Memory { segments: &'a [Segment], skip: u32 },
}

/// A piece of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece<'a> {
    /// Bytes that the queue pair holds itself.
    Bytes(&'a [u8]),
    /// Memory that was checked.
    Memory(Segment),
}

impl<'a> Cursor<'a> {
    pub(super) fn new(payload: &Payload<'a, Segment>) -> Self {
        match *payload {
            Payload::Bytes(bytes) => Self::Bytes(bytes),
            Payload::Memory { mut segments, mut skip, .. } => {
                while let Some((first, rest)) = segments.split_first()
                    && skip >= first.len()
                {
                    skip -= first.len();
                    segments = rest;
                }
                Self::Memory { segments, skip }
            }
        }
    }

    /// The largest number of pieces in which the payload of a packet may lie; `None` for the queue
    /// pair's own bytes.
    pub(super) fn segments(&self) -> Option<usize> {
        match self {
            Self::Bytes(_) => None,
            // No packet is longer than a page, so it lies in two at most.
            Self::Memory { segments, .. } if segments.iter().any(Segment::is_listed) => {
                Some(2 * segments.len())
            }
            Self::Memory { segments, .. } => Some(segments.len()),
        }
    }

    /// Copies the next bytes until `out` is full. Returns false if they can't be read.
    #[inline]
    pub(super) fn copy(&mut self, out: &mut [u8]) -> bool {
        let mut at = 0;
        self.each(out.len(), |piece| match piece {
            Piece::Bytes(bytes) => {
                out[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
                true
            }
            Piece::Memory(segment) => {
                let copied = memory::copy_out(segment, &mut out[at..]);
                copied.inspect(|n| at += n).is_ok()
            }
        })
    }

    /// Takes the next `len` bytes, or as many as there are, and calls `f` with each piece of them, in order.
    /// Ends, and returns false, as soon as `f` returns that a piece can't be read.
    #[inline]
    pub(super) fn each(&mut self, len: usize, mut f: impl FnMut(Piece<'a>) -> bool) -> bool {
        if let Self::Bytes(bytes) = self {
            let (now, later) = bytes.split_at(bytes.len().min(len));
            *bytes = later;
            return f(Piece::Bytes(now));
        }
        let mut left = len;
        while left > 0
            && let Some(segment) = self.next(left as u32)
        {
            if !f(Piece::Memory(segment)) {
                return false;
            }
            left -= segment.bytes();
        }
        true
    }

    /// Lets `icrc` cover the next `len` bytes, and calls `name` with each piece of memory in which
    /// they lie. Returns false if they can't be read.
    ///
    /// The program may write these bytes at the same time, as it may with a hardware device. The
    /// packet then carries a mixture or has a wrong ICRC, and is sent again.
    #[inline]
    pub(super) fn cover(
        &mut self,
        mut len: u32,
        icrc: &mut Icrc,
        mut name: impl FnMut(usize, usize),
    ) -> bool {
        while len > 0
            && let Some(piece) = self.next(len)
        {
            if piece.is_listed() {
                return false; // The pages are gone.
            }
            let (addr, n) = (piece.addr(), piece.bytes());
            // SAFETY: the segment was checked: where memory is present, it is readable memory of
            // this process as long as the lane's lock is held. The burst was made under that lock,
            // and deregistration takes it. If the read fails, only a computation of numbers is left
            // unfinished, and `icrc` is not used then.
            let read = unsafe {
                guarded(addr, n, || icrc.update(slice::from_raw_parts(addr as *const u8, n)))
            };
            if !read {
                return false;
            }
            name(addr, n);
            len -= n as u32;
        }
        true
    }

    /// Calls `name` with each piece of memory in which the next `len` bytes lie. Returns false if they
    /// can't be read, as far as touching each page shows it.
    #[inline]
    pub(super) fn locate(&mut self, mut len: u32, mut name: impl FnMut(Segment)) -> bool {
        while len > 0
            && let Some(piece) = self.next(len)
        {
            if piece.is_listed() {
                return false; // The pages are gone.
            }
            let (addr, n) = (piece.addr(), piece.bytes());
            let touch = || {
                let mut at = addr;
                while at < addr + n {
                    // SAFETY: the segment was checked, and this is within it. The read may be left.
                    unsafe { (at as *const u8).read_volatile() };
                    at = (at | (PAGE - 1)) + 1;
                }
            };
            // SAFETY: `touch` owns nothing, and only reads where the segment was checked: where memory is
            // present, it is readable memory of this process as long as the lane's lock is held.
            if !unsafe { guarded(addr, n, touch) } {
                return false;
            }
            name(piece);
            len -= n as u32;
        }
        true
    }

    /// Takes the next piece of memory, of at most `most` bytes.
    #[inline]
    fn next(&mut self, most: u32) -> Option<Segment> {
        let Self::Memory { segments, skip } = self else { return None };
        loop {
            let (first, rest) = segments.split_first()?;
            let left = first.len() - *skip;
            let mut len = most.min(left);
            let mut piece = first.part(*skip, len);
            if piece.is_listed()
                && let Ok(together) = piece.together()
            {
                piece = together;
                len = piece.len();
            }
            if len == left {
                *segments = rest;
                *skip = 0;
            } else {
                *skip += len;
            }
            if len > 0 {
                return Some(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use polypath_wire::icrc::Flow;

    use super::*;

    const FLOW: Flow =
        Flow::new(IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    /// The bytes that `cover` names in memory. Checks that the ICRC is that of the whole.
    fn covered(payload: &Payload<'_, Segment>, step: u32) -> Vec<u8> {
        let (mut cursor, mut icrc, mut got) =
            (Cursor::new(payload), Icrc::new(&FLOW, 0), Vec::new());
        for at in (0..payload.len()).step_by(step as usize) {
            let len = step.min(payload.len() - at);
            assert!(cursor.cover(len, &mut icrc, |addr, len| {
                // SAFETY: bytes of the test's own.
                got.extend_from_slice(unsafe { slice::from_raw_parts(addr as *const u8, len) });
            }));
        }
        let mut whole = Icrc::new(&FLOW, 0);
        whole.update(&got);
        assert_eq!(icrc.finish(), whole.finish());
        got
    }

    #[test]
    fn pieces_join_to_the_whole_whatever_the_cuts() {
        let data: Vec<u8> = (0..100).collect();
        let segments: Vec<Segment> = [(0, 10), (10, 0), (10, 1), (11, 49), (60, 40)]
            // SAFETY: within `data`, which stays.
            .map(|(at, len)| unsafe { Segment::assume(data[at..].as_ptr(), len) })
            .into();
        for skip in 0..100 {
            for step in [1, 7, 10, 33, 100] {
                let payload = Payload::Memory { segments: &segments, skip, len: 100 - skip };
                let mut cursor = Cursor::new(&payload);
                let mut got = vec![0; (100 - skip) as usize];
                assert!(got.chunks_mut(step).all(|part| cursor.copy(part)));
                assert_eq!(got, data[skip as usize..]);
                assert_eq!(covered(&payload, step as u32), got);
                let (mut cursor, mut located) = (Cursor::new(&payload), 0);
                let count = |piece: Segment| located += piece.bytes();
                assert!(cursor.locate(100 - skip, count));
                assert_eq!(located, got.len());
            }
        }
    }

    #[test]
    fn list_that_is_too_short_ends_early() {
        let payload = Payload::Memory { segments: &[], skip: 0, len: 10 };
        assert_eq!(covered(&payload, 10), []);
        let mut got = [9; 3];
        assert!(Cursor::new(&payload).copy(&mut got));
        assert!(Cursor::new(&Payload::Bytes(&[1, 2])).copy(&mut got));
        assert_eq!(got, [1, 2, 9]);
    }
}
