//! Messages of the connection manager by TCP, for networks that let no UDP through: their frames, and which
//! stream a message may go by.
//!
//! Such a stream begins like that of a lane ([`streams`](crate::streams)), with slot 0 for both ends, which
//! no lane has, and the first message as its opening. Frames follow: two bytes with the length, which is
//! always the same, two bytes of zero, and the packet that would go by UDP, from the BTH on, without ICRC.
//!
//! Who opened a stream to the peer's port may send everything by it. Who was called may not: another user of
//! the peer's host can call, too. By such a stream go only messages about connections that it has brought
//! messages of, so that it brings nobody what the peer's own broker should get.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use polypath_wire::Packet;
use polypath_wire::cm::{CmMad, CmMessage};
use polypath_wire::mad::MAD_LEN;

use crate::qp1::{self, BODY_LEN};
use crate::streams::Nonsense;

/// The slot in the preamble that means the broker.
pub(crate) const BROKER: u8 = 0;

/// The most streams that other hosts have opened. The one that was silent for the longest time makes room.
pub(crate) const ACCEPTED_MAX: usize = 64;
/// The most of these that one address has opened.
pub(crate) const ACCEPTED_OF_ONE_MAX: usize = 4;
/// The most streams that this host has opened.
pub(crate) const OPENED_MAX: usize = 64;
/// How long a stream stays without messages: the end that opened it gives it up first, so that messages
/// seldom meet its end.
pub(crate) const IDLE_OPENED: Duration = Duration::from_secs(60);
pub(crate) const IDLE_ACCEPTED: Duration = Duration::from_secs(90);

/// The most bytes that wait to be sent by a stream.
const OUTBOX_MAX: usize = 256 << 10;
/// The most connections that a stream knows. The oldest is forgotten.
const KNOWN_MAX: usize = 4096;

const HEADER: [u8; 4] = [(BODY_LEN >> 8) as u8, BODY_LEN as u8, 0, 0];
const FRAME: usize = HEADER.len() + BODY_LEN;

/// What arrives by a stream: the part of a frame that is there.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: [u8; FRAME],
    len: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; FRAME], len: 0 }
    }

    /// Where the bytes go that are missing; never empty after [`take`](Self::take).
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.len..]
    }

    /// Notes that so many bytes were put there.
    pub(crate) fn arrived(&mut self, len: usize) {
        self.len = (self.len + len).min(FRAME);
    }

    /// Takes the message, if all of it is there.
    pub(crate) fn take(&mut self) -> Result<Option<[u8; MAD_LEN]>, Nonsense> {
        // A wrong length need not be waited for.
        let known = self.len.min(HEADER.len());
        if self.bytes[..known] != HEADER[..known] {
            return Err(Nonsense);
        }
        if self.len < FRAME {
            return Ok(None);
        }
        self.len = 0;
        mad_in(&self.bytes[HEADER.len()..]).map(Some)
    }
}

/// The message in a packet without ICRC.
pub(crate) fn mad_in(body: &[u8]) -> Result<[u8; MAD_LEN], Nonsense> {
    let parsed = Packet::parse_body_with(body, |packet| {
        let (source_qpn, mad) = qp1::mad_in(packet).ok()?;
        let exact = packet.payload.len() == MAD_LEN && source_qpn == qp1::QP1;
        mad.try_into().ok().filter(|_| exact)
    });
    let mad = parsed.ok().flatten().ok_or(Nonsense)?;
    if goes_by_tcp(&mad) { Ok(mad) } else { Err(Nonsense) }
}

/// The bytes that wait to be sent by a stream.
#[derive(Debug)]
pub(crate) struct Outbox(VecDeque<u8>);

impl Outbox {
    /// `first`: what is sent before all messages.
    pub(crate) fn new(first: Vec<u8>) -> Self {
        Self(first.into())
    }

    /// Adds a message, from the BTH on. Returns false if there is no room.
    pub(crate) fn push(&mut self, body: &[u8; BODY_LEN]) -> bool {
        let fits = self.0.len() + FRAME <= OUTBOX_MAX;
        if fits {
            self.0.extend(HEADER);
            self.0.extend(body);
        }
        fits
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes to send.
    pub(crate) fn next(&self) -> &[u8] {
        self.0.as_slices().0
    }

    /// Notes that so many bytes were sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.0.drain(..len.min(self.0.len()));
    }
}

/// The connections that a stream has brought messages of, by the peer's communication id.
#[derive(Debug, Default)]
pub(crate) struct Known {
    ids: BTreeSet<u32>,
    order: VecDeque<u32>,
}

impl Known {
    /// Notes the connection of a message of the peer.
    pub(crate) fn add(&mut self, mad: &[u8; MAD_LEN]) {
        let id = senders_id(mad);
        if id == 0 || !self.ids.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    /// Whether a message to the peer is about one of them.
    pub(crate) fn has(&self, mad: &[u8; MAD_LEN]) -> bool {
        self.ids.contains(&receivers_id(mad))
    }
}

/// Whether a message goes by TCP at all. Those about datagram services do not, as their datagrams can't.
pub(crate) fn goes_by_tcp(mad: &[u8; MAD_LEN]) -> bool {
    let message = CmMad::parse(mad).map(|mad| mad.message);
    message.is_ok_and(|message| !matches!(message, CmMessage::SidrReq(_) | CmMessage::SidrRep(_)))
}

/// Whether a message ends a connection.
pub(crate) fn is_dreq(mad: &[u8; MAD_LEN]) -> bool {
    CmMad::parse(mad).is_ok_and(|mad| matches!(mad.message, CmMessage::Dreq(_)))
}

/// The communication id of the end that sends a message (IBTA 12.6): the first field of all but SIDR's.
fn senders_id(mad: &[u8; MAD_LEN]) -> u32 {
    u32::from_be_bytes([mad[24], mad[25], mad[26], mad[27]])
}

/// That of the end that receives it: the second field, zero in a REQ.
fn receivers_id(mad: &[u8; MAD_LEN]) -> u32 {
    u32::from_be_bytes([mad[28], mad[29], mad[30], mad[31]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_wire::Psn;
    use polypath_wire::cm::{Drep, Dreq, Rtu};

    fn rtu(local: u32, remote: u32) -> [u8; MAD_LEN] {
        let private_data = [9; Rtu::PRIVATE_DATA_LEN];
        CmMad::new(5, Rtu { local_comm_id: local, remote_comm_id: remote, private_data }).to_bytes()
    }

    fn body(mad: &[u8; MAD_LEN]) -> [u8; BODY_LEN] {
        qp1::build_body(Psn::new(3), mad)
    }

    /// Puts bytes into an inbox in pieces. What came out, until the end of the stream.
    fn receive(bytes: &[u8], piece: usize) -> (Vec<[u8; MAD_LEN]>, bool) {
        let (mut inbox, mut mads) = (Inbox::new(), Vec::new());
        let mut left = bytes;
        while !left.is_empty() {
            let room = inbox.room();
            let (now, rest) = left.split_at(left.len().min(room.len()).min(piece));
            room[..now.len()].copy_from_slice(now);
            inbox.arrived(now.len());
            left = rest;
            match inbox.take() {
                Ok(mad) => mads.extend(mad),
                Err(Nonsense) => return (mads, false),
            }
        }
        (mads, true)
    }

    #[test]
    fn messages_are_taken_in_any_pieces() {
        let mads: Vec<_> = (1..5).map(|id| rtu(id, 7)).collect();
        let mut outbox = Outbox::new(Vec::new());
        assert!(mads.iter().all(|mad| outbox.push(&body(mad))));
        let mut bytes = Vec::new();
        while !outbox.is_empty() {
            let some = outbox.next().len().min(100);
            bytes.extend_from_slice(&outbox.next()[..some]);
            outbox.sent(some);
        }
        assert_eq!(bytes.len(), 4 * 280);
        for piece in [1, 3, 4, 279, 280, 281, 4096] {
            assert_eq!(receive(&bytes, piece), (mads.clone(), true), "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_message_ends_the_stream_and_nothing_after_it_is_read() {
        let good = [&HEADER[..], &body(&rtu(1, 2))].concat();
        // The header, the BTH's opcode, P_Key, queue pair and padding, the Q_Key, the source queue pair, the
        // class and the attribute.
        for at in [0, 1, 2, 3, 4, 5, 6, 11, 16, 23, 25, 41] {
            let mut bad = good.clone();
            bad[at] ^= 0x30;
            let all = [&bad[..], &good].concat();
            assert_eq!(receive(&all, 4096), (vec![], false), "byte {at}");
        }
        assert_eq!(receive(b"GE", 1), (vec![], false), "it is known by its first bytes");
        assert_eq!(mad_in(&good[4..200]), Err(Nonsense));
        // SIDR_REQ and SIDR_REP.
        for attribute in [0x17, 0x18] {
            let mut mad = rtu(1, 2);
            mad[17] = attribute;
            assert!(CmMad::parse(&mad).is_ok() && !goes_by_tcp(&mad));
            assert_eq!(mad_in(&body(&mad)), Err(Nonsense));
        }
    }

    #[test]
    fn the_outbox_is_bounded() {
        let mut outbox = Outbox::new(vec![1; 288]);
        let fitting = (0..).take_while(|_| outbox.push(&body(&rtu(1, 2)))).count();
        assert_eq!(fitting, (OUTBOX_MAX - 288) / FRAME);
        outbox.sent(FRAME);
        assert!(outbox.push(&body(&rtu(1, 2))) && !outbox.push(&body(&rtu(1, 2))));
    }

    #[test]
    fn a_called_stream_takes_only_what_is_about_connections_that_it_brought() {
        let mut known = Known::default();
        assert!(!known.has(&rtu(1, 7)));
        known.add(&rtu(7, 1));
        assert!(known.has(&rtu(1, 7)) && !known.has(&rtu(7, 1)));
        // A REQ names no connection of its receiver's.
        known.add(&rtu(0, 1));
        assert!(!known.has(&rtu(9, 0)));
        (100..100 + KNOWN_MAX as u32).for_each(|id| known.add(&rtu(id, 1)));
        assert!(!known.has(&rtu(1, 7)) && known.has(&rtu(1, 100)));
        assert_eq!((known.ids.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
    }

    #[test]
    fn only_a_dreq_ends_a_connection() {
        let private_data = [0; Dreq::PRIVATE_DATA_LEN];
        let dreq = Dreq { local_comm_id: 1, remote_comm_id: 2, remote_qpn: 3, private_data };
        assert!(is_dreq(&CmMad::new(1, dreq).to_bytes()));
        let private_data = [0; Drep::PRIVATE_DATA_LEN];
        let drep = Drep { local_comm_id: 1, remote_comm_id: 2, private_data };
        assert!(!is_dreq(&CmMad::new(1, drep).to_bytes()) && !is_dreq(&[0; MAD_LEN]));
    }
}
