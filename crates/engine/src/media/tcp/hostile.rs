//! A stream whose other end writes what it likes, for the fuzzer and a test.

use super::PACKET_BYTES;
use super::frames::{HEADER, first, fits};

/// Takes packets from bytes as the receiving half does, cut in pieces of `piece` bytes. Returns how many
/// there were, and whether the stream was given up.
///
/// # Panics
/// A rule of the format was broken.
pub(crate) fn run(bytes: &[u8], piece: usize) -> (usize, bool) {
    let (mut packets, mut from) = (0, 0);
    for to in (0..=bytes.len()).step_by(piece.max(1)).chain([bytes.len()]) {
        while let Some(len) = match first(&bytes[from..to.max(from)]) {
            Ok(packet) => packet,
            Err(_) => return (packets, true),
        } {
            assert!(fits(len) && len <= PACKET_BYTES && from + HEADER + len <= to);
            from += HEADER + len;
            packets += 1;
        }
        // What is left over is less than the longest frame, so there is always room for the rest of it.
        assert!(to.max(from) - from < HEADER + PACKET_BYTES);
    }
    (packets, false)
}
