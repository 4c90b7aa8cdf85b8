//! Packets of a multi-path peer that arrived before their predecessors.
//!
//! They wait here so that memory is written strictly in order; what is missing is told to the peer by
//! the selective part of acknowledgements. Buffers are kept and used again: a packet that finds one
//! costs a copy, no allocation.

use std::collections::VecDeque;

use polypath_wire::ext::MpHeader;
use polypath_wire::packet::Headers;

use crate::host::PathId;

/// Most sequence numbers that a packet may be ahead of the expected one. A peer does not send further
/// ahead of its oldest unacknowledged packet ([`crate::requester`]).
pub(crate) const REORDER_LIMIT: usize = 256;

/// A packet that waits.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) headers: Headers,
    pub(super) payload: Vec<u8>,
    pub(super) from: PathId,
}

/// The packets that wait, by their distance from the expected one.
#[derive(Clone, Debug, Default)]
pub(super) struct Reorder {
    slots: VecDeque<Option<Held>>,
    held: usize,
    spare: Vec<Vec<u8>>,
}

/// What became of a packet that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    Held,
    Duplicate,
    /// It asks for something else than the one that is here: neither is kept.
    Contradicts,
    TooFar,
}

/// Whether two packets with the same sequence number ask for the same. The same request may come by another
/// path, and its sender may ask for an acknowledgement the second time only.
fn agree(a: &Headers, b: &Headers) -> bool {
    let plain = |h: &Headers| {
        let mut h = *h;
        (h.bth.ack_req, h.bth.mig_req) = (false, false);
        h.mp = h.mp.map(|mp| MpHeader { path_id: 0, generation: 0, timestamp: 0, ..mp });
        h
    };
    plain(a) == plain(b)
}

impl Reorder {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Keeps a packet that is `ahead` sequence numbers ahead of the expected one.
    pub(super) fn offer(
        &mut self,
        ahead: usize,
        headers: &Headers,
        payload: &[u8],
        from: PathId,
    ) -> Offered {
        if ahead >= REORDER_LIMIT {
            return Offered::TooFar;
        }
        while self.slots.len() <= ahead {
            self.slots.push_back(None);
        }
        let slot = &mut self.slots[ahead];
        if let Some(held) = slot {
            if agree(&held.headers, headers) && held.payload.len() == payload.len() {
                return Offered::Duplicate;
            }
            // One of them is not the peer's, and nobody can tell which: a wrong guess must not shut the
            // peer's own out. It sends it again.
            if let Some(held) = slot.take() {
                self.held -= 1;
                self.recycle(held);
            }
            return Offered::Contradicts;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(payload);
        *slot = Some(Held { headers: *headers, payload: buffer, from });
        self.held += 1;
        Offered::Held
    }

    /// Takes the expected packet, if it is here.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Held> {
        let held = self.slots.front_mut()?.take()?;
        self.held -= 1;
        Some(held)
    }

    /// Keeps a packet's buffer for another.
    pub(super) fn recycle(&mut self, packet: Held) {
        self.spare.push(packet.payload);
    }

    /// `n` more sequence numbers have been executed.
    #[inline]
    pub(super) fn advance(&mut self, n: u32) {
        for _ in 0..n {
            match self.slots.pop_front() {
                None => return,
                Some(None) => {}
                Some(Some(packet)) => {
                    self.held -= 1;
                    self.recycle(packet);
                }
            }
        }
    }

    /// Bit `i` is set if the packet `i` after the expected one is here (the expected one is bit 0).
    pub(super) fn bitmap(&self) -> u64 {
        if self.held == 0 {
            return 0;
        }
        self.slots
            .iter()
            .take(64)
            .enumerate()
            .fold(0, |bits, (i, slot)| bits | u64::from(slot.is_some()) << i)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// # Errors
    /// The counter is not what the slots say.
    pub(super) fn check(&self) -> Result<(), String> {
        let held = self.slots.iter().flatten().count();
        if held != self.held {
            return Err(format!("{} packets are counted as waiting, {held} wait", self.held));
        }
        if self.slots.len() > REORDER_LIMIT {
            return Err(format!("{} places for packets, of {REORDER_LIMIT}", self.slots.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use polypath_wire::bth::Bth;
    use polypath_wire::opcode::Opcode;

    use super::*;

    fn offer(r: &mut Reorder, ahead: usize) -> Offered {
        r.offer(ahead, &Headers::new(Bth::new(Opcode::RC_SEND_ONLY)), &[ahead as u8], PathId(1))
    }

    #[test]
    fn holds_up_to_its_limit_each_packet_once() {
        let mut r = Reorder::default();
        assert_eq!(offer(&mut r, 3), Offered::Held);
        assert_eq!(offer(&mut r, 3), Offered::Duplicate);
        assert_eq!(offer(&mut r, REORDER_LIMIT - 1), Offered::Held);
        assert_eq!(offer(&mut r, REORDER_LIMIT), Offered::TooFar);
        assert_eq!(r.bitmap(), 1 << 3);
    }

    #[test]
    fn of_two_packets_that_contradict_each_other_it_keeps_neither() {
        let mut r = Reorder::default();
        let mut headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY.to_mp()));
        headers.mp = Some(MpHeader { msg: 7, ..MpHeader::default() });
        assert_eq!(r.offer(2, &headers, &[1; 8], PathId(1)), Offered::Held);
        let mut again = headers;
        again.bth.ack_req = true;
        again.mp = headers.mp.map(|mp| MpHeader { path_id: 1, generation: 4, timestamp: 9, ..mp });
        assert_eq!(r.offer(2, &again, &[1; 8], PathId(2)), Offered::Duplicate);
        let other = Headers { mp: Some(MpHeader { msg: 8, ..MpHeader::default() }), ..headers };
        assert_eq!(r.offer(2, &other, &[1; 8], PathId(1)), Offered::Contradicts);
        assert!(r.is_empty());
        assert_eq!(r.offer(2, &headers, &[1; 8], PathId(1)), Offered::Held);
        assert_eq!(r.offer(2, &headers, &[1; 4], PathId(1)), Offered::Contradicts);
        assert_eq!(r.check(), Ok(()));
    }

    #[test]
    fn gives_back_in_order_and_moves_on() {
        let mut r = Reorder::default();
        offer(&mut r, 1);
        offer(&mut r, 2);
        assert!(r.take().is_none());
        r.advance(1);
        assert_eq!(r.bitmap(), 0b11);
        let first = r.take().unwrap();
        assert_eq!(first.payload, [1]);
        r.recycle(first);
        r.advance(1);
        assert_eq!(r.take().unwrap().payload, [2]);
        assert!(r.is_empty());
        r.advance(100);
        assert_eq!(r.bitmap(), 0);
    }
}
