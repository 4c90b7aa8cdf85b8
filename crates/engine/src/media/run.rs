//! A run of WRITE packets, for tests of media that take bursts as a whole.

use polypath_transport::{Access, Burst, PathId, Payload, Segment as _};
use polypath_wire::{Bth, Headers, Opcode, Psn};

use crate::memory::{MemoryTable, Segment};

/// A list of `data`, and of as many bytes as `gone` says where there never is memory. Reading these is an
/// error from then on, as in a process that has registered memory.
///
/// # Safety
/// `data` stays as long as the list is used.
#[allow(unsafe_code)]
pub(crate) unsafe fn then_gone(data: &[u8], gone: u32) -> [Segment; 2] {
    let table = MemoryTable::new();
    table.register(1, 0, 0, 0, Access::empty()).unwrap();
    // SAFETY: as promised by the caller; nothing but the attempt is made to read at address 64.
    unsafe {
        [
            Segment::assume(data.as_ptr(), data.len() as u32),
            Segment::assume(std::ptr::without_provenance(64), gone),
        ]
    }
}

/// The headers of a run of WRITE packets.
#[derive(Debug)]
pub(crate) struct Run {
    first: Headers,
    middle: Headers,
    last: Headers,
    packets: u32,
    mtu: u32,
}

impl Run {
    /// `pad` bytes of padding follow the last packet's payload.
    pub(crate) fn new(packets: u32, mtu: u32, pad: u8) -> Self {
        let headers = |psn: u32, pad| {
            Headers::new(Bth { psn: Psn::new(psn), pad, ..Bth::new(Opcode::RC_WRITE_MIDDLE) })
        };
        let last = headers(packets, pad);
        let first = if packets == 1 { last } else { headers(1, 0) };
        Self { first, middle: headers(2, 0), last, packets, mtu }
    }

    /// The run with this payload.
    pub(crate) fn burst<'a>(&'a self, segments: &'a [Segment]) -> Burst<'a, Segment> {
        let len = segments.iter().map(Segment::len).sum();
        Burst {
            path: PathId(0),
            first: &self.first,
            middle: &self.middle,
            last: &self.last,
            packets: self.packets,
            mtu: self.mtu,
            payload: Payload::Memory { segments, skip: 0, len },
            covered_twice: false,
            changing: false,
        }
    }
}
