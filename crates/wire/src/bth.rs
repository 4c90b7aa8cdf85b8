//! The base transport header, the first 12 bytes of every packet (IBTA 9.2).

use crate::bytes::{be16, be24, head, put24};
use crate::error::ParseError;
use crate::opcode::Opcode;
use crate::psn::Psn;
use crate::{DEFAULT_PKEY, QPN_MASK};

/// The base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// The operation and the transport service, which determine the headers that follow.
    pub opcode: Opcode,
    /// Whether the sender asks for a solicited event at the receiver.
    pub solicited: bool,
    /// Migration request: whether the sender's migration state is MIGRATED (IBTA 17.2.8).
    pub mig_req: bool,
    /// Bytes added after the payload to make it a multiple of 4, 0 to 3.
    pub pad: u8,
    /// Transport header version, 0 to 15; only 0 exists.
    pub tver: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification: whether a switch on the way marked the packet.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The destination queue pair, 24 bits.
    pub dest_qpn: u32,
    /// Whether the sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// A header with `opcode`, the default partition key, and everything else zero or false.
    #[inline]
    pub const fn new(opcode: Opcode) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            tver: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn: 0,
            ack_req: false,
            psn: Psn::new(0),
        }
    }

    /// Reads the header from the first [`Bth::LEN`] bytes of `buf`.
    ///
    /// # Errors
    /// There are fewer than [`Bth::LEN`] bytes. Any value of any field is accepted.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("BTH", buf)?;
        Ok(Self {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: (b[1] >> 4) & 3,
            tver: b[1] & 0xf,
            pkey: be16(b, 2),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: be24(b, 5),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(be24(b, 9)),
        })
    }

    /// The header's bytes; reserved bits are zero.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        debug_assert!(self.pad < 4 && self.tver < 16 && self.dest_qpn <= QPN_MASK);
        let mut b = [0; Self::LEN];
        b[0] = self.opcode.0;
        b[1] = u8::from(self.solicited) << 7
            | u8::from(self.mig_req) << 6
            | (self.pad & 3) << 4
            | self.tver & 0xf;
        b[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        b[4] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        put24(&mut b, 5, self.dest_qpn);
        b[8] = u8::from(self.ack_req) << 7;
        put24(&mut b, 9, self.psn.get());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_and_lands_in_its_bits() {
        let bth = Bth {
            opcode: Opcode::RC_WRITE_LAST,
            solicited: true,
            mig_req: true,
            pad: 3,
            tver: 5,
            pkey: 0x1234,
            fecn: true,
            becn: true,
            dest_qpn: 0xab_cdef,
            ack_req: true,
            psn: Psn::new(0x01_0203),
        };
        let b = bth.to_bytes();
        assert_eq!(b, [8, 0xf5, 0x12, 0x34, 0xc0, 0xab, 0xcd, 0xef, 0x80, 1, 2, 3]);
        assert_eq!(Bth::parse(&b), Ok(bth));
    }

    #[test]
    fn truncated_header_says_what_is_missing() {
        let err = Bth::parse(&[0; 11]).unwrap_err();
        assert_eq!(err, ParseError::Truncated { what: "BTH", expected: 12, got: 11 });
    }
}
