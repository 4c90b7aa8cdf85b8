//! Splits bursts into single packets, for media that send one packet at a time.

use polypath_transport::{Burst, Unread};
use polypath_wire::MAX_HEADERS_LEN;

use super::flow::Seal;
use super::payload::Cursor;
use crate::memory::Segment;

/// Calls `each` with the number and the bytes of each packet of a burst, including payload and
/// padding.
///
/// # Errors
/// The payload of the next packet, after those passed to `each`, can't be read.
pub(crate) fn packets(
    burst: &Burst<'_, Segment>,
    mut each: impl FnMut(u32, &[u8], Seal),
) -> Result<(), Unread> {
    let seal = if burst.covered_twice { Seal::Twice } else { Seal::Right };
    let mut cursor = Cursor::new(&burst.payload);
    // Room for all packets, which is not cleared for each.
    let mut room = vec![0; MAX_HEADERS_LEN + burst.mtu as usize + 3];
    for n in 0..burst.packets {
        let headers = burst.headers(n);
        let (from, len) = (headers.len(), burst.range(n).len());
        let bytes = &mut room[..from + len + usize::from(headers.bth.pad)];
        headers.emit(bytes);
        let (payload, pad) = bytes[from..].split_at_mut(len);
        if !cursor.copy(payload) {
            return Err(Unread { sent: n });
        }
        pad.fill(0);
        each(n, bytes, seal);
    }
    Ok(())
}
