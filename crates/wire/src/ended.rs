//! What a host answers for a process that has ended.
//!
//! A lane whose peer is silent on all paths says HELLO again and again. If the peer's process has ended, its
//! slot has no socket, and the host that knows it answers in its place: nobody has to wait for a path. The
//! answer has the form of a HELLO of kind [`KIND`], and repeats the asker's nonce, which shows that it was
//! asked. Of a HELLO, this module knows no more than it needs for that:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | magic, version 1, kind: 1 HELLO |
//! | 6 | slot of the sender, number of addresses |
//! | 8 | instance of the sender (8) |
//! | 16 | nonce of the sender (16) |
//! | 32 | HELLO: zero; the answer: nonce of the receiver (16) |
//! | 48 | queue pair of the sender (4) |
//! | 52 | queue pair of the receiver (4) |
//! | 56 | the answer: zero (16) |
//! | 72 | HELLO: addresses |
//! | end | HELLO and the answer: zero (16) |

use crate::bth::Bth;
use crate::ext::Deth;
use crate::opcode::Opcode;
use crate::packet::{Headers, Packet};

/// Q_Key of handshake packets: "\x80POL". Its top bit keeps applications from using it by accident.
pub const HELLO_QKEY: u32 = 0x8050_4f4c;
/// The kind of the answer.
pub const KIND: u8 = 4;

/// What a HELLO begins with.
const HELLO: [u8; 6] = [b'P', b'P', b'T', b'H', 1, 1];
/// Where the nonce of the sender is in a HELLO, and in the answer that of the receiver.
const NONCE: usize = 16;
const ECHO: usize = 32;
/// The length of the answer's payload, and the least of a HELLO's, bytes.
const LEN: usize = 88;

/// A HELLO, as far as it has to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The queue pair that it is for.
    asked: u32,
    /// The queue pair that it is from.
    asker: u32,
    nonce: [u8; 16],
}

impl Question {
    /// Reads a packet. `None` if it is no HELLO from one queue pair to another.
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let deth = packet.headers.deth.filter(|_| packet.opcode() == Opcode::UD_SEND_ONLY)?;
        let payload = packet.payload;
        let number = |at: usize| Some(u32::from_be_bytes(*payload.get(at..)?.first_chunk()?));
        let question = Self {
            asked: packet.headers.bth.dest_qpn,
            asker: deth.src_qpn,
            nonce: *payload.get(NONCE..)?.first_chunk()?,
        };
        // The number of a lane, `slot << 16`, is none of a queue pair.
        let is_queue_pair = |qpn: u32| qpn >> 16 != 0 && qpn & 0xffff != 0;
        let fits = deth.qkey == HELLO_QKEY
            && payload.len() >= LEN
            && payload.starts_with(&HELLO)
            && number(48)? == question.asker
            && number(52)? == question.asked
            && is_queue_pair(question.asked)
            && is_queue_pair(question.asker)
            && question.nonce != [0; 16];
        fits.then_some(question)
    }

    /// The slot of the lane that it is for.
    pub fn slot(&self) -> u8 {
        (self.asked >> 16) as u8
    }

    /// The answer for a process that has ended, without its ICRC. It is never longer than the HELLO.
    pub fn answer(&self) -> Vec<u8> {
        let bth = Bth { dest_qpn: self.asker, ..Bth::new(Opcode::UD_SEND_ONLY) };
        let deth = Deth { qkey: HELLO_QKEY, src_qpn: self.asked };
        let mut payload = [0; LEN];
        payload[..HELLO.len()].copy_from_slice(&HELLO);
        payload[5] = KIND;
        payload[6] = self.slot();
        // It has no nonce of its own, and none of zeroes is allowed.
        payload[NONCE..ECHO].copy_from_slice(&self.nonce);
        payload[ECHO..48].copy_from_slice(&self.nonce);
        payload[48..52].copy_from_slice(&self.asked.to_be_bytes());
        payload[52..56].copy_from_slice(&self.asker.to_be_bytes());
        Headers { deth: Some(deth), ..Headers::new(bth) }.packet(&payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: u32 = 0x07_0011;
    const ASKER: u32 = 0x21_0a0b;

    /// A HELLO with one address.
    fn hello() -> Vec<u8> {
        let bth = Bth { dest_qpn: ASKED, ..Bth::new(Opcode::UD_SEND_ONLY) };
        let deth = Deth { qkey: HELLO_QKEY, src_qpn: ASKER };
        let mut payload = [0; LEN + 20];
        payload[..8].copy_from_slice(b"PPTH\x01\x01\x21\x01");
        payload[NONCE..ECHO].copy_from_slice(b"sixteen letters.");
        payload[48..52].copy_from_slice(&ASKER.to_be_bytes());
        payload[52..56].copy_from_slice(&ASKED.to_be_bytes());
        Headers { deth: Some(deth), ..Headers::new(bth) }.packet(&payload)
    }

    fn question(body: &[u8]) -> Option<Question> {
        Packet::parse_body_with(body, Question::of).ok().flatten()
    }

    #[test]
    fn a_hello_is_answered_with_its_nonce_to_its_queue_pair() {
        let asked = question(&hello()).unwrap();
        assert_eq!(asked.slot(), 7);
        let answer = asked.answer();
        assert!(answer.len() < hello().len());
        Packet::parse_body_with(&answer, |packet| {
            assert_eq!(packet.headers.bth.dest_qpn, ASKER);
            assert_eq!(packet.headers.deth.unwrap().src_qpn, ASKED);
            assert_eq!(packet.payload[..8], *b"PPTH\x01\x04\x07\x00");
            assert_eq!(packet.payload[ECHO..48], *b"sixteen letters.");
        })
        .unwrap();
        assert_eq!(question(&answer), None, "an answer asks nothing");
    }

    #[test]
    fn nothing_else_is_answered() {
        let whole = hello();
        let head = whole.len() - LEN - 20;
        // What is changed: the queue pairs, Q_Key, magic, version, kind, and the numbers within.
        for at in [5, 7, 12, 18, 19, head, head + 4, head + 5, head + 50, head + 54] {
            let mut other = whole.clone();
            other[at] ^= 0x02;
            assert_eq!(question(&other), None, "byte {at}");
        }
        let mut zero = whole.clone();
        zero[head + NONCE..head + ECHO].fill(0);
        assert_eq!(question(&zero), None);
        assert_eq!(question(&whole[..head + LEN - 4]), None);
    }
}
