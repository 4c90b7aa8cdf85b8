//! The frames of a burst: their headers made here, their payload where it lies.
//!
//! The kernel copies a payload once, from the program's memory into the stream. What it does not take at
//! once is copied here, because that memory may be used only under the lane's lock under which it was
//! checked.

use polypath_transport::{Burst, Payload};
use polypath_wire::MAX_HEADERS_LEN;

use super::frames::{self, HEADER};
use crate::media::payload::Cursor;
use crate::memory::{self, Segment};

/// A burst with less payload than this is copied, which costs less than a gather list.
const SMALL: u32 = 8 << 10;
/// A burst whose payload lies in more segments than this is copied.
const SEGMENTS_MAX: usize = 64;
/// The most parts of a gather list: what the kernel takes (`UIO_MAXIOV`), less the one before them.
const PARTS_MAX: usize = 1023;
/// What precedes and follows the payload of a packet takes at most so many bytes.
const OWN_BYTES: usize = HEADER + MAX_HEADERS_LEN + 3;

/// A part of the frames.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// So many of the bytes that were made here.
    Own(usize),
    Memory(Segment),
}

/// The frames of a burst, or of its first packets.
#[derive(Debug, Default)]
pub(super) struct Run {
    own: Vec<u8>,
    parts: Vec<Part>,
    list: Vec<Piece>,
    /// The frames, and their packets without frame headers, in bytes.
    pub(super) bytes: usize,
    pub(super) packet_bytes: usize,
    pub(super) packets: u32,
}

/// An element of a gather list, laid out as `struct iovec`. The address is a plain number, so that it can
/// move between threads. It is used only in the call that made it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Piece {
    pub(super) base: usize,
    pub(super) len: usize,
}

const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());
const _: () = assert!(align_of::<Piece>() == align_of::<libc::iovec>());

/// Why a burst was not made into a run as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Not {
    /// It is better copied, or can't be sent.
    Suitable,
    /// The payload of the packet after those that are in the run can't be read.
    Readable,
}

impl Run {
    /// Makes the frames of a burst.
    pub(super) fn make(&mut self, burst: &Burst<'_, Segment>) -> Result<(), Not> {
        self.own.clear();
        self.parts.clear();
        (self.bytes, self.packet_bytes, self.packets) = (0, 0, 0);
        let Payload::Memory { len, .. } = burst.payload else { return Err(Not::Suitable) };
        let mut cursor = Cursor::new(&burst.payload);
        let segments = cursor.segments().unwrap_or(usize::MAX);
        // Each packet begins with a part of its own, and cuts one more segment in two.
        let most = 2 * burst.packets as usize + segments.min(PARTS_MAX) + 1;
        if len < SMALL || segments > SEGMENTS_MAX || most > PARTS_MAX {
            return Err(Not::Suitable);
        }
        let mut own = 0;
        for n in 0..burst.packets {
            let headers = burst.headers(n);
            let (len, pad) = (burst.range(n).len(), usize::from(headers.bth.pad));
            let size = headers.len() + len + pad;
            if !frames::fits(size) {
                return Err(Not::Suitable);
            }
            let (mark, at) = (self.parts.len(), self.own.len());
            self.own.extend_from_slice(&frames::header(size));
            self.own.resize(at + HEADER + headers.len(), 0);
            headers.emit(&mut self.own[at + HEADER..]);
            self.parts.push(Part::Own(own + HEADER + headers.len()));
            if !cursor.locate(len as u32, |piece| self.parts.push(Part::Memory(piece))) {
                self.parts.truncate(mark);
                self.own.truncate(at);
                self.end(own);
                return Err(Not::Readable);
            }
            // The padding goes with the next packet's header.
            self.own.resize(self.own.len() + pad, 0);
            own = pad;
            self.bytes += HEADER + size;
            self.packet_bytes += size;
            self.packets += 1;
        }
        self.end(own);
        Ok(())
    }

    /// Adds the padding of the last packet.
    fn end(&mut self, pad: usize) {
        if pad > 0 {
            self.parts.push(Part::Own(pad));
        }
        debug_assert!(self.own.len() <= self.packets as usize * OWN_BYTES);
        debug_assert!(self.parts.len() <= PARTS_MAX);
    }

    /// Where the bytes lie: those of `before`, then the frames. It holds as long as nothing is changed.
    pub(super) fn list(&mut self, before: &[u8]) -> &[Piece] {
        self.list.clear();
        if !before.is_empty() {
            self.list.push(Piece { base: before.as_ptr() as usize, len: before.len() });
        }
        let mut at = self.own.as_ptr() as usize;
        for part in &self.parts {
            self.list.push(match *part {
                Part::Own(len) => {
                    at += len;
                    Piece { base: at - len, len }
                }
                Part::Memory(piece) => Piece { base: piece.addr(), len: piece.bytes() },
            });
        }
        &self.list
    }

    /// Appends the frames without the first `skip` bytes to `to`. Returns false if the program has given up
    /// the memory of one meanwhile.
    pub(super) fn copy_rest(&self, mut skip: usize, to: &mut Vec<u8>) -> bool {
        let mut own = &self.own[..];
        for part in &self.parts {
            let len = match *part {
                Part::Own(len) => len,
                Part::Memory(piece) => piece.bytes(),
            };
            let left_out = skip.min(len);
            skip -= left_out;
            match *part {
                Part::Own(len) => {
                    let (now, later) = own.split_at(len);
                    to.extend_from_slice(&now[left_out..]);
                    own = later;
                }
                Part::Memory(piece) if left_out < len => {
                    let at = to.len();
                    to.resize(at + len - left_out, 0);
                    let rest = polypath_transport::Segment::part(
                        piece,
                        left_out as u32,
                        (len - left_out) as u32,
                    );
                    if memory::copy_out(rest, &mut to[at..]).is_err() {
                        return false;
                    }
                }
                Part::Memory(_) => {}
            }
        }
        true
    }
}
