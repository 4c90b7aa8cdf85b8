//! Packets that two hosts exchange through a third one, because neither knows the other's address.
//!
//! A lane that has new addresses and no path to a peer sends [`Relay`] packets to the *rendezvous*, the
//! address of a host that both ends were told before. That host remembers by which address and to which
//! queue pair number it reaches each token, and passes a packet on if it knows its other token. It can't
//! read what it passes on, as far as that is authenticated, nor make it up.
//!
//! The opcode is [`Opcode::MP_RELAY`]; to the rendezvous the destination is [`RENDEZVOUS_QPN`]. Payload:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | zero (3) |
//! | 4 | the number that packets for the sender are addressed to (4) |
//! | 8 | token of the sender (16) |
//! | 24 | token of the receiver (16) |
//! | 40 | source and destination address that the packet within was made for (16 each) |
//! | 72 | a packet, from its BTH to its padding |

use core::net::{IpAddr, Ipv6Addr};

use crate::bth::Bth;
use crate::opcode::Opcode;
use crate::packet::{Headers, MAX_HEADERS_LEN};

/// Where the rendezvous takes packets.
pub const RENDEZVOUS_QPN: u32 = 2;

const VERSION: u8 = 1;

/// The length of the payload before the packet within, in bytes.
const HEAD_LEN: usize = 72;

/// The longest packet within, in bytes: longer ones are not passed on.
const RELAYED_MAX: usize = 512;

/// What a lane is known by at the rendezvous. Only the two ends can derive it.
pub type Token = [u8; 16];

/// A packet to or from the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay<'a> {
    /// The number that packets for the sender are addressed to.
    pub answer_to: u32,
    /// The sender.
    pub from: Token,
    /// The receiver.
    pub to: Token,
    /// The source address that the packet within was made for.
    pub src: IpAddr,
    /// Its destination address.
    pub dst: IpAddr,
    /// The packet within.
    pub packet: &'a [u8],
}

impl<'a> Relay<'a> {
    /// The packet to this queue pair number, without the ICRC.
    pub fn encode(&self, dest_qpn: u32) -> Vec<u8> {
        let mut head = [0; MAX_HEADERS_LEN];
        let bth = Bth { dest_qpn, ..Bth::new(Opcode::MP_RELAY) };
        let len = Headers::new(bth).emit(&mut head);
        let mut packet = head[..len].to_vec();
        packet.extend_from_slice(&[VERSION, 0, 0, 0]);
        packet.extend_from_slice(&self.answer_to.to_be_bytes());
        packet.extend_from_slice(&self.from);
        packet.extend_from_slice(&self.to);
        packet.extend_from_slice(&bytes_of(self.src));
        packet.extend_from_slice(&bytes_of(self.dst));
        packet.extend_from_slice(self.packet);
        packet
    }

    /// Reads the payload of such a packet. `None` if it is none, of another version, or too long.
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let (head, packet) = payload.split_first_chunk::<HEAD_LEN>()?;
        let field = |at: usize| -> Option<[u8; 16]> { head.get(at..at + 16)?.try_into().ok() };
        let address = |at| field(at).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical());
        if head[..4] != [VERSION, 0, 0, 0] || packet.len() > RELAYED_MAX {
            return None;
        }
        let answer_to = u32::from_be_bytes(*head.get(4..)?.first_chunk()?);
        (answer_to >> 24 == 0).then_some(())?;
        Some(Self {
            answer_to,
            from: field(8)?,
            to: field(24)?,
            src: address(40)?,
            dst: address(56)?,
            packet,
        })
    }
}

fn bytes_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        let within = [7; 40];
        let relay = Relay {
            answer_to: 0x7f_0000,
            from: [1; 16],
            to: [2; 16],
            src: "10.1.2.3".parse().unwrap(),
            dst: "fd00::5".parse().unwrap(),
            packet: &within,
        };
        let bytes = relay.encode(RENDEZVOUS_QPN);
        let decoded = Packet::parse_body_with(&bytes, |packet| {
            assert_eq!(packet.opcode(), Opcode::MP_RELAY);
            assert_eq!(packet.headers.bth.dest_qpn, RENDEZVOUS_QPN);
            assert_eq!(Relay::decode(packet.payload), Some(relay));
            packet.payload.to_vec()
        });
        let payload = decoded.unwrap();
        for len in 0..HEAD_LEN {
            assert_eq!(Relay::decode(&payload[..len]), None, "{len}");
        }
        for at in 0..5 {
            let mut wrong = payload.clone();
            wrong[at] = 2;
            assert_eq!(Relay::decode(&wrong), None, "byte {at}");
        }
        let long = [&payload[..HEAD_LEN], &[0; RELAYED_MAX + 4]].concat();
        assert_eq!(Relay::decode(&long), None);
    }
}
