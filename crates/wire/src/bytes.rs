//! Reads and writes big-endian fields at fixed offsets of buffers whose length is known.
//!
//! Callers take a fixed-size array first (`head`). The offsets are constants, so that after inlining
//! the compiler removes the bounds checks, and nothing here can fail on input.

use crate::error::ParseError;

/// The first `N` bytes of `buf` as an array, or a [`ParseError::Truncated`] naming `what`.
#[inline]
pub(crate) fn head<'a, const N: usize>(
    what: &'static str,
    buf: &'a [u8],
) -> Result<&'a [u8; N], ParseError> {
    match buf.first_chunk() {
        Some(chunk) => Ok(chunk),
        None => Err(ParseError::Truncated { what, expected: N, got: buf.len() }),
    }
}

#[inline]
pub(crate) fn be16<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline]
pub(crate) fn be24<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline]
pub(crate) fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
pub(crate) fn be64<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    (u64::from(be32(b, at)) << 32) | u64::from(be32(b, at + 4))
}

/// The `M` bytes at `at`, which is a constant at every caller.
#[inline]
pub(crate) fn array<const M: usize, const N: usize>(b: &[u8; N], at: usize) -> [u8; M] {
    let mut out = [0; M];
    out.copy_from_slice(&b[at..at + M]);
    out
}

/// Writes `bytes` at `at`.
#[inline]
pub(crate) fn put<const M: usize, const N: usize>(b: &mut [u8; N], at: usize, bytes: [u8; M]) {
    b[at..at + M].copy_from_slice(&bytes);
}

/// Writes the low 24 bits of `v` at `at`.
#[inline]
pub(crate) fn put24<const N: usize>(b: &mut [u8; N], at: usize, v: u32) {
    b[at..at + 3].copy_from_slice(&v.to_be_bytes()[1..]);
}
