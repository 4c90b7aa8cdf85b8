//! Packets in a stream of bytes: before each are its length in two bytes, the highest first, and two bytes
//! of zero.

use super::PACKET_BYTES;

/// The bytes before a packet.
pub(super) const HEADER: usize = 4;

/// The shortest packet, in bytes: a BTH.
const SHORTEST: usize = 12;

/// The other end does not keep to the format, so nothing that follows can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The bytes before a packet of `len` bytes, which fits ([`fits`]).
pub(super) fn header(len: usize) -> [u8; HEADER] {
    let [high, low] = u16::try_from(len).unwrap_or_default().to_be_bytes();
    [high, low, 0, 0]
}

/// Whether a packet may have this length.
pub(super) fn fits(len: usize) -> bool {
    (SHORTEST..=PACKET_BYTES).contains(&len) && len.is_multiple_of(4)
}

/// The length of the packet that begins after the header at the beginning of `bytes`; `None` if it has not
/// arrived as a whole.
pub(super) fn first(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    let Some((&[high, low, zero, more_zero], rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if !fits(len) || zero != 0 || more_zero != 0 {
        return Err(Broken);
    }
    Ok((rest.len() >= len).then_some(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_found_when_all_of_it_is_there() {
        let mut bytes = header(16).to_vec();
        bytes.extend([7; 16]);
        for len in 0..bytes.len() {
            assert_eq!(first(&bytes[..len]), Ok(None), "{len}");
        }
        assert_eq!(first(&bytes), Ok(Some(16)));
        bytes.extend([1, 2, 3]);
        assert_eq!(first(&bytes), Ok(Some(16)), "what follows does not matter");
    }

    #[test]
    fn an_impossible_length_is_told_before_the_packet_is_there() {
        for len in [0, 8, 13, 14, 4356, 65_532] {
            assert_eq!(first(&header(len)), Err(Broken), "{len}");
        }
        assert_eq!(first(&[0, 16, 1, 0]), Err(Broken));
        assert_eq!(first(&[0, 16, 0, 1]), Err(Broken));
        for len in [12, 16, PACKET_BYTES] {
            assert_eq!(first(&header(len)), Ok(None), "{len}");
        }
    }
}
