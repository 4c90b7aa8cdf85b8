//! Packets gathered for sending. Headers and trailers are in an arena; payload stays where it is.
//!
//! The bytes of a packet are `[headers][payload][padding][ICRC]`. In the arena, the trailer of one
//! packet and the headers of the next are adjacent, so a packet of a run needs two elements of the
//! gather list. Small payloads are copied into the arena, and a small packet needs one element.

use polypath_transport::Burst;
use polypath_wire::icrc::FlowCrc;
use polypath_wire::packet::Headers;
use polypath_wire::{ICRC_LEN, MAX_HEADERS_LEN, Opcode, Service};

use super::Seal;
use crate::media::payload::Cursor;
use crate::memory::Segment;

/// The size of the arena for headers, trailers and copied payload, in bytes. It is somewhat more
/// than one full send needs.
const ARENA: usize = 96 * 1024;

/// The number of elements in all gather lists of a batch. Each list may have 1024 (`UIO_MAXIOV`),
/// so none can be too long.
const PIECES: usize = 1024;

/// The largest number of sends in a batch.
pub(super) const SENDS: usize = 64;

/// The largest number of segments in a send: `UDP_MAX_SEGMENTS` of kernels before 6.9 (128 since).
const SEGMENTS: u16 = 64;

/// The largest size of a send in bytes: 65535 less the larger of the IP headers.
const SEND_BYTES: usize = 65_535 - 48;

/// A batch with this many bytes is full. At this size the cost of the system call no longer
/// matters, and the receiver should begin to work.
const BATCH_BYTES: usize = 48 * 1024;

/// Payload of up to this many bytes is copied. That is cheaper than an element of a gather list,
/// and a program that writes the payload at the same time has no effect.
const COPY: u32 = 512;

/// Payload in more segments than this is copied instead of gathered.
const SCATTERED: usize = 64;

/// The size of the largest packet: MTUs are at most 4096.
const MAX_PACKET: usize = MAX_HEADERS_LEN + 4096 + 3 + ICRC_LEN;

/// An element of a gather list, laid out as `struct iovec`. The address is a plain number, so that
/// it can move between threads. It is used only under the lane's lock under which it was made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Piece {
    base: usize,
    len: usize,
}

const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());
const _: () = assert!(align_of::<Piece>() == align_of::<libc::iovec>());

/// One message to the kernel: a packet, or a run of packets of equal size that UDP_SEGMENT splits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Send {
    /// The index of the flow.
    pub(super) flow: u32,
    /// The number of packets.
    pub(super) packets: u16,
    /// The size of every packet but the last.
    pub(super) segment: u16,
    /// The size of the last packet so far. A packet smaller than the others ends the run.
    last: u16,
    pub(super) bytes: usize,
    first_piece: u32,
    pieces: u32,
}

impl Send {
    /// The same send, treated as one packet.
    pub(super) const fn alone(&self) -> Self {
        Self { packets: 1, ..*self }
    }
}

/// Packets that wait to be sent.
#[derive(Debug)]
pub(super) struct Batch {
    arena: Box<[u8]>,
    used: usize,
    pieces: Vec<Piece>,
    sends: Vec<Send>,
    bytes: usize,
}

/// The properties of a flow that a batch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) flow: u32,
    pub(super) crc: FlowCrc,
    /// The largest size of packets that may be sent as a run; 0 if there may be no runs.
    pub(super) longest: u16,
}

/// The result of adding a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// All of it is in the batch.
    All,
    /// The batch is full, so the rest goes into the next one.
    Full,
    /// The payload of the next packet can't be read.
    Unread,
}

/// The state of a batch before a packet was added.
struct Mark {
    sends: usize,
    /// The number of pieces of the last send.
    pieces: u32,
    all_pieces: usize,
    last_piece: Option<Piece>,
}

/// Whether a packet's payload stays unchanged until it has been sent. That is so for requests that
/// complete when they are acknowledged. Unreliable requests complete at once, and another thread
/// may reuse their memory even before the flush. Memory that a peer READs may be written all the
/// time, so the ICRC and the payload, which are read one after the other, might never fit together.
/// If a program changes what it sends all the same, the packet is sent again as a copy:
/// [`Burst::changing`].
#[inline]
fn stays(opcode: Opcode) -> bool {
    matches!(opcode.service(), Service::Rc | Service::Mp) && !opcode.is_read_response()
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            arena: vec![0; ARENA].into_boxed_slice(),
            used: 0,
            pieces: Vec::with_capacity(PIECES),
            sends: Vec::with_capacity(SENDS),
            bytes: 0,
        }
    }

    pub(super) fn sends(&self) -> &[Send] {
        &self.sends
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.pieces.clear();
        self.sends.clear();
        self.bytes = 0;
    }

    /// The gather list of a send: the address of its first element, and the number of elements.
    pub(super) fn gather(&self, send: &Send) -> (*mut libc::iovec, usize) {
        let list = &self.pieces[send.first_piece as usize..][..send.pieces as usize];
        // `Piece` has the layout of `iovec`. The kernel does not write to it.
        (list.as_ptr().cast_mut().cast(), list.len())
    }

    /// The gather list of only packet number `n` of a send.
    pub(super) fn packet(&self, send: &Send, n: u16) -> Vec<libc::iovec> {
        let list = &self.pieces[send.first_piece as usize..][..send.pieces as usize];
        let mut skip = usize::from(n) * usize::from(send.segment);
        let mut want = usize::from(send.segment);
        let mut packet = Vec::new();
        for piece in list {
            let from = skip.min(piece.len);
            let len = (piece.len - from).min(want);
            if len > 0 {
                packet.push(libc::iovec { iov_base: (piece.base + from) as *mut _, iov_len: len });
            }
            skip -= from;
            want -= len;
        }
        packet
    }

    /// Whether a packet with `pieces` pieces of memory must wait for the next batch.
    #[inline]
    fn is_full(&self, pieces: usize) -> bool {
        // The headers and the trailer are two more pieces.
        self.used + MAX_PACKET > ARENA || self.pieces.len() + pieces + 2 > PIECES
    }

    fn mark(&self) -> Mark {
        Mark {
            sends: self.sends.len(),
            pieces: self.sends.last().map_or(0, |send| send.pieces),
            all_pieces: self.pieces.len(),
            last_piece: self.pieces.last().copied(),
        }
    }

    /// Removes a packet that was begun.
    #[cold]
    fn back_to(&mut self, mark: &Mark, used: usize) {
        self.used = used;
        self.sends.truncate(mark.sends);
        if let Some(send) = self.sends.last_mut() {
            send.pieces = mark.pieces;
        }
        self.pieces.truncate(mark.all_pieces);
        if let (Some(now), Some(before)) = (self.pieces.last_mut(), mark.last_piece) {
            *now = before;
        }
    }

    /// Appends packets of a burst, from number `*next` on, until all are added or the next one
    /// can't be.
    pub(super) fn add_burst(
        &mut self,
        style: &Style,
        burst: &Burst<'_, Segment>,
        cursor: &mut Cursor<'_>,
        next: &mut u32,
    ) -> Added {
        // Bytes held by the queue pair may be gone before the flush.
        let (copy, most_pieces) = match cursor.segments() {
            Some(n) if n <= SCATTERED => (false, n),
            _ => (true, 0),
        };
        while *next < burst.packets {
            if self.is_full(most_pieces) {
                return Added::Full;
            }
            let headers = burst.headers(*next);
            let headers: &Headers = &headers;
            let len = burst.range(*next).len() as u32;
            let pad = usize::from(headers.bth.pad);
            let start = self.used;
            let headers_len = headers.emit(&mut self.arena[start..]);
            let size = headers_len + len as usize + pad + ICRC_LEN;
            if size > MAX_PACKET {
                debug_assert!(false, "a packet of {size} bytes");
                return Added::All;
            }
            let mark = self.mark();
            if !self.begin(style, size) {
                return Added::Full;
            }
            let id = self.sends.last().map_or(0, |send| send.packets);
            let copy = copy || len <= COPY || burst.changing || !stays(headers.bth.opcode);
            let mut at = start + headers_len;
            let mut icrc = style.crc.start(size, id);
            if copy {
                if !cursor.copy(&mut self.arena[at..][..len as usize]) {
                    self.back_to(&mark, start);
                    return Added::Unread;
                }
                at += len as usize;
                self.arena[at..][..pad].fill(0);
                at += pad;
                icrc.headers(&self.arena[start..at]);
                // Only packets without payload are covered twice, and these are copied.
                if burst.covered_twice {
                    icrc.update(&self.arena[start..at]);
                }
            } else {
                icrc.headers(&self.arena[start..at]);
                self.push_arena(start, at);
                let read = cursor.cover(len, &mut icrc, |addr, len| self.push(addr, len));
                if !read {
                    self.back_to(&mark, start);
                    return Added::Unread;
                }
                self.used = at;
                self.arena[at..][..pad].fill(0);
                icrc.update(&self.arena[at..][..pad]);
                at += pad;
            }
            let from = if copy { start } else { self.used };
            self.arena[at..][..ICRC_LEN].copy_from_slice(&icrc.finish());
            at += ICRC_LEN;
            self.push_arena(from, at);
            self.used = at;
            self.end(size);
            *next += 1;
        }
        Added::All
    }

    /// Appends a packet that lacks only its ICRC. Returns `false` if the batch is full.
    pub(super) fn add_raw(&mut self, style: &Style, packet: &[u8], seal: Seal) -> bool {
        let size = packet.len() + ICRC_LEN;
        if size > MAX_PACKET {
            debug_assert!(false, "a packet of {size} bytes");
            return true;
        }
        if self.is_full(0) || !self.begin(style, size) {
            return false;
        }
        let id = self.sends.last().map_or(0, |send| send.packets);
        let start = self.used;
        let end = start + packet.len();
        self.arena[start..end].copy_from_slice(packet);
        let icrc = seal.icrc(&style.crc, packet, id);
        self.arena[end..][..ICRC_LEN].copy_from_slice(&icrc);
        self.used = end + ICRC_LEN;
        self.push_arena(start, self.used);
        self.end(size);
        true
    }

    /// Prepares the last send for a packet of `size` bytes: it is the current run, if the packet
    /// fits into it, or a new send. Returns `false` if there is no room for a new one.
    #[inline]
    fn begin(&mut self, style: &Style, size: usize) -> bool {
        if let Some(run) = self.sends.last()
            && run.flow == style.flow
            && run.segment <= style.longest
            && run.last == run.segment
            && size <= usize::from(run.segment)
            && run.packets < SEGMENTS
            && run.bytes + size <= SEND_BYTES
        {
            return true;
        }
        if self.sends.len() == SENDS || self.bytes >= BATCH_BYTES {
            return false;
        }
        self.sends.push(Send {
            flow: style.flow,
            packets: 0,
            segment: size as u16,
            last: size as u16,
            bytes: 0,
            first_piece: self.pieces.len() as u32,
            pieces: 0,
        });
        true
    }

    #[inline]
    fn end(&mut self, size: usize) {
        self.bytes += size;
        if let Some(send) = self.sends.last_mut() {
            send.packets += 1;
            send.last = size as u16;
            send.bytes += size;
        }
    }

    #[inline]
    fn push_arena(&mut self, from: usize, to: usize) {
        self.push(self.arena[from..to].as_ptr() as usize, to - from);
    }

    /// Appends a piece to the gather list of the last send.
    #[inline]
    fn push(&mut self, base: usize, len: usize) {
        let Some(send) = self.sends.last_mut() else { return };
        if send.pieces > 0
            && let Some(last) = self.pieces.last_mut()
            && last.base + last.len == base
        {
            last.len += len;
            return;
        }
        self.pieces.push(Piece { base, len });
        send.pieces += 1;
    }
}

const _: () = assert!(MAX_PACKET < ARENA && SEND_BYTES <= u16::MAX as usize);
