//! The payload of a burst, taken piece by piece.

use polypath_transport::{Payload, Segment};

/// Where in a burst's payload the next packet's begins.
pub(super) enum Cursor<'a> {
    /// The rest of the queue pair's own bytes.
    Bytes(&'a [u8]),
    /// The rest of the list, of whose first segment `skip` bytes are used up.
    Memory { segments: &'a [Segment], skip: u32 },
}

impl<'a> Cursor<'a> {
    pub(super) fn new(payload: &Payload<'a>) -> Self {
        match *payload {
            Payload::Bytes(bytes) => Self::Bytes(bytes),
            Payload::Memory { mut segments, mut skip, .. } => {
                while let Some((first, rest)) = segments.split_first()
                    && skip >= first.len
                {
                    skip -= first.len;
                    segments = rest;
                }
                Self::Memory { segments, skip }
            }
        }
    }

    /// How many segments are left; `None` for the queue pair's own bytes.
    pub(super) fn segments(&self) -> Option<usize> {
        match self {
            Self::Bytes(_) => None,
            Self::Memory { segments, .. } => Some(segments.len()),
        }
    }

    /// Calls `f` with the next `len` bytes, in as many pieces as they lie in.
    #[inline]
    pub(super) fn take(&mut self, mut len: u32, mut f: impl FnMut(&[u8])) {
        match self {
            Self::Bytes(bytes) => {
                let (now, later) = bytes.split_at(bytes.len().min(len as usize));
                *bytes = later;
                if !now.is_empty() {
                    f(now);
                }
            }
            Self::Memory { segments, skip } => {
                while len > 0
                    && let Some((first, rest)) = segments.split_first()
                {
                    let size = len.min(first.len - *skip);
                    if size > 0 {
                        let at = (first.addr + u64::from(*skip)) as *const u8;
                        // SAFETY: the segment was checked: it is readable memory of this process for
                        // as long as the lane's lock is held, under which the burst was made and
                        // which deregistration takes. The application may write it at the same time,
                        // as it may under a device's hands: then the packet carries a mixture or an
                        // ICRC that is wrong, and is sent again.
                        f(unsafe { std::slice::from_raw_parts(at, size as usize) });
                    }
                    len -= size;
                    *skip += size;
                    if *skip == first.len {
                        *segments = rest;
                        *skip = 0;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_whole_whatever_the_cuts() {
        let data: Vec<u8> = (0..100).collect();
        let base = data.as_ptr() as u64;
        let segments: Vec<Segment> = [(0, 10), (10, 0), (10, 1), (11, 49), (60, 40)]
            .map(|(at, len)| Segment { addr: base + at, len })
            .into();
        for skip in 0..100 {
            for step in [1, 7, 10, 33, 100] {
                let payload = Payload::Memory { segments: &segments, skip, len: 100 - skip };
                let mut cursor = Cursor::new(&payload);
                let mut got = Vec::new();
                while got.len() < (100 - skip) as usize {
                    let left = 100 - skip - got.len() as u32;
                    cursor.take(step.min(left), |piece| got.extend_from_slice(piece));
                }
                assert_eq!(got, data[skip as usize..]);
            }
        }
    }

    #[test]
    fn list_that_is_too_short_ends_early() {
        let mut cursor = Cursor::new(&Payload::Memory { segments: &[], skip: 0, len: 10 });
        cursor.take(10, |_| panic!("nothing there"));
        let mut got = 0;
        Cursor::new(&Payload::Bytes(&[1, 2])).take(10, |piece| got += piece.len());
        assert_eq!(got, 2);
    }
}
