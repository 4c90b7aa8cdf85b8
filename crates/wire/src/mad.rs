//! Management datagrams: 256 bytes in a UD SEND to QP0 or QP1 (IBTA 13.4).

use crate::bytes::{array, be16, be32, be64, head, put};
use crate::error::ParseError;

/// Length of a management datagram in bytes.
pub const MAD_LEN: usize = 256;

/// Length in bytes of the data after the header.
pub const MAD_DATA_LEN: usize = MAD_LEN - MadHeader::LEN;

/// Management class of communication management.
pub const CLASS_CM: u8 = 0x07;

/// Method Send(), which all messages of communication management have.
pub const METHOD_SEND: u8 = 0x03;

/// The common header of a management datagram (IBTA 13.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// Version of this header; only 1 exists.
    pub base_version: u8,
    /// Management class.
    pub class: u8,
    /// Version of the class's own format.
    pub class_version: u8,
    /// Method; the top bit marks a response.
    pub method: u8,
    /// Status, 0 in requests.
    pub status: u16,
    /// A field whose meaning depends on the class.
    pub class_specific: u16,
    /// Transaction id, chosen by the requester.
    pub tid: u64,
    /// Attribute. In communication management, it identifies the message.
    pub attr_id: u16,
    /// Attribute modifier.
    pub attr_mod: u32,
}

impl MadHeader {
    /// Length in bytes.
    pub const LEN: usize = 24;

    /// The header of a communication management message.
    pub const fn cm(attr_id: u16, tid: u64) -> Self {
        Self {
            base_version: 1,
            class: CLASS_CM,
            class_version: 2,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            tid,
            attr_id,
            attr_mod: 0,
        }
    }

    /// Reads the header from the first bytes of `buf`.
    ///
    /// # Errors
    /// Too few bytes, or another base version.
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("MAD header", buf)?;
        if b[0] != 1 {
            return Err(ParseError::BadValue {
                what: "MAD base version",
                expected: "1",
                got: u64::from(b[0]),
            });
        }
        Ok(Self {
            base_version: b[0],
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: be16(b, 4),
            class_specific: be16(b, 6),
            tid: be64(b, 8),
            attr_id: be16(b, 16),
            attr_mod: be32(b, 20),
        })
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&[self.base_version, self.class, self.class_version, self.method]);
        put(&mut b, 4, self.status.to_be_bytes());
        put(&mut b, 6, self.class_specific.to_be_bytes());
        put(&mut b, 8, self.tid.to_be_bytes());
        put(&mut b, 16, self.attr_id.to_be_bytes());
        put(&mut b, 20, self.attr_mod.to_be_bytes());
        b
    }
}

/// Splits a datagram into header and data.
///
/// # Errors
/// The length is not [`MAD_LEN`]; and the errors of [`MadHeader::parse`].
pub fn parse(buf: &[u8]) -> Result<(MadHeader, [u8; MAD_DATA_LEN]), ParseError> {
    let mad: &[u8; MAD_LEN] = head("MAD", buf)?;
    if buf.len() > MAD_LEN {
        return Err(ParseError::TooLong { what: "MAD", expected: MAD_LEN, got: buf.len() });
    }
    Ok((MadHeader::parse(mad)?, array(mad, MadHeader::LEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_land_in_their_bytes() {
        let h =
            MadHeader { status: 0x0102, attr_mod: 9, ..MadHeader::cm(0x10, 0x1122_3344_5566_7788) };
        let b = h.to_bytes();
        assert_eq!(b[..8], [1, 7, 2, 3, 1, 2, 0, 0]);
        assert_eq!(
            b[8..],
            [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x10, 0, 0, 0, 0, 0, 9]
        );
        assert_eq!(MadHeader::parse(&b), Ok(h));
    }

    #[test]
    fn datagram_has_exactly_256_bytes() {
        let mut b = [0; 257];
        b[0] = 1;
        assert!(parse(&b[..255]).is_err());
        assert!(parse(&b[..256]).is_ok());
        assert!(parse(&b).is_err());
    }
}
