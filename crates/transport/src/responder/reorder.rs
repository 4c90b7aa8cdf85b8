//! Packets of a multi-path peer that arrived before their predecessors.
//!
//! They wait here so that memory is written strictly in order; the selective part of
//! acknowledgements tells the peer what is missing. A queue pair has memory for this only while it
//! needs it: the ring of places grows as far as a packet is ahead. When nothing waits any more,
//! everything is freed except a few buffers, so that a little reordering costs a copy and no
//! allocation. The host limits what all queue pairs keep together ([`EarlyRoom::reserve`]).

use std::collections::VecDeque;

use polypath_wire::ext::{MpHeader, SackBlock};
use polypath_wire::packet::Headers;
use polypath_wire::psn::Psn;

use super::data::{Data, Placed};
use crate::frozen::{Reader, ThawError, Writer, words};
use crate::host::EarlyRoom;
use crate::ranges::{Range, Ranges};
use polypath_types::PathId;

/// How many sequence numbers a packet may be ahead of the expected one if nothing else was agreed.
pub(crate) const REORDER_LIMIT: usize = 256;
/// What a waiting packet costs in addition to its payload, in bytes.
const EARLY_COST: usize = size_of::<Early>() + size_of::<Option<Box<Early>>>();
/// The numbers of buffers and of places of the ring that stay when nothing waits.
const SPARE_KEPT: usize = 4;
const PLACES_KEPT: usize = 64;
/// The number of separate arrivals that are remembered for the next acknowledgement.
const TOUCHED_MAX: usize = SackBlock::MAX;

/// A packet that waits.
#[derive(Clone, Debug)]
pub(super) struct Early {
    pub(super) headers: Headers,
    /// Empty if it is `placed`.
    payload: Vec<u8>,
    placed: Option<Placed>,
    pub(super) from: PathId,
}

impl Early {
    /// Its payload, or where that is.
    #[inline]
    pub(super) fn data(&self) -> Data<'_> {
        self.placed.map_or(Data::Here(&self.payload), Data::Placed)
    }

    /// What it costs in [`EarlyRoom::reserve`].
    fn cost(len: usize) -> u32 {
        u32::try_from(len + EARLY_COST).unwrap_or(u32::MAX)
    }
}

/// The packets that wait, by their distance from the expected one.
#[derive(Clone, Debug, Default)]
pub(super) struct Reorder {
    /// `None` while no packet has ever had to wait.
    waiting: Option<Box<Waiting>>,
}

#[derive(Clone, Debug, Default)]
struct Waiting {
    /// The number of the expected packet: it counts the sequence numbers executed.
    base: u64,
    /// The packets by their distance from `base`.
    places: VecDeque<Option<Box<Early>>>,
    /// The number of packets that wait.
    count: usize,
    /// The numbers of the packets that wait.
    arrived: Ranges,
    /// The numbers of the latest arrivals, one for each run, the latest last: the next
    /// acknowledgement has to report them.
    touched: Vec<u64>,
    /// Blocks before this number were reported last.
    told_to: u64,
    #[allow(clippy::vec_box)] // The boxes are what is kept.
    spare: Vec<Box<Early>>,
}

/// What happened to a packet that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    Kept,
    Duplicate,
    /// It asks for something else than the packet that is here: neither is kept.
    Contradicts,
    /// It is further ahead than was agreed, or there are too many ranges.
    TooFar,
    /// The host has no memory for it.
    NoMemory,
}

/// Whether two packets with the same sequence number ask for the same. The same request may come by
/// another path, and its sender may ask for an acknowledgement only the second time.
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
        self.waiting.as_ref().is_none_or(|w| w.count == 0)
    }

    /// Whether no packet is here that is `ahead` (below `limit`) sequence numbers ahead of the expected one.
    pub(super) fn is_vacant(&self, ahead: usize, limit: usize) -> bool {
        let here = self.waiting.as_ref().and_then(|w| w.places.get(ahead)?.as_ref());
        ahead < limit && here.is_none()
    }

    /// Keeps a packet that is `ahead` (below `limit`) sequence numbers ahead of the expected one.
    pub(super) fn offer<R: EarlyRoom>(
        &mut self,
        ahead: usize,
        limit: usize,
        headers: &Headers,
        data: Data<'_>,
        from: PathId,
        room: &mut R,
    ) -> Offered {
        if ahead >= limit {
            return Offered::TooFar;
        }
        self.waiting.get_or_insert_default().offer(ahead, headers, data, from, room)
    }

    /// Takes the expected packet, if it is here.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Box<Early>> {
        let w = self.waiting.as_mut()?;
        let packet = w.places.front_mut()?.take()?;
        w.count -= 1;
        w.arrived.remove(w.base);
        Some(packet)
    }

    /// Keeps a packet's buffer for another one.
    pub(super) fn recycle<R: EarlyRoom>(&mut self, packet: Box<Early>, room: &mut R) {
        if let Some(w) = &mut self.waiting {
            w.recycle(packet, room);
            w.tidy();
        }
    }

    /// Notes that `n` more sequence numbers have been executed.
    #[inline]
    pub(super) fn advance<R: EarlyRoom>(&mut self, n: u32, room: &mut R) {
        if let Some(w) = &mut self.waiting {
            w.base += u64::from(n);
            if w.count > 0 || !w.places.is_empty() {
                w.advance(n, room);
            }
        }
    }

    /// Bit `i` is set if the packet `i` after the expected one is here (the expected one is bit 0).
    pub(super) fn bitmap(&self) -> u64 {
        let Some(w) = &self.waiting else { return 0 };
        let near = w.arrived.iter().take_while(|r| r.start < w.base + 64);
        near.fold(0, |bits, r| {
            let (start, end) = (r.start - w.base, (r.end - w.base).min(64));
            bits | (u64::MAX >> (64 - (end - start))) << start
        })
    }

    /// Fills `out` with blocks of packets that are here but beyond the reach of
    /// [`Reorder::bitmap`], and returns the number of blocks. `expected` is the PSN of the expected
    /// packet. Packets that came since the last call are among them; the others take turns.
    pub(super) fn blocks(&mut self, expected: Psn, out: &mut [SackBlock; SackBlock::MAX]) -> usize {
        let Some(w) = &mut self.waiting else { return 0 };
        let mut chosen: [Range; SackBlock::MAX] = core::array::from_fn(|_| 0..0);
        let n = w.choose(&mut chosen);
        for (block, range) in out.iter_mut().zip(&chosen[..n]) {
            // A reach is far less than 2^24.
            *block = SackBlock {
                first: expected.add((range.start - w.base) as u32),
                count: (range.end - range.start) as u32,
            };
        }
        n
    }

    /// Writes the packets that wait.
    pub(super) fn freeze(&self, out: &mut Writer) {
        let places = self.waiting.iter().flat_map(|w| w.places.iter().zip(0u32..));
        let early = || places.clone().filter_map(|(place, at)| Some((place.as_ref()?, at)));
        out.count(early().count());
        for (packet, at) in early() {
            out.u32(at);
            out.u32(packet.from.0);
            words::put_headers(out, &packet.headers);
            out.bytes(&packet.payload);
            out.flag(packet.placed.is_some());
            if let Some(Placed { at, len }) = packet.placed {
                out.u32(at);
                out.u32(len);
            }
        }
    }

    /// `limit`: as for [`Reorder::offer`].
    ///
    /// # Errors
    /// See [`ThawError`]. Then nothing is reserved at the host.
    pub(super) fn thaw<R: EarlyRoom>(
        limit: usize,
        from: &mut Reader<'_>,
        room: &mut R,
    ) -> Result<Self, ThawError> {
        let mut all = Self::default();
        let done = all.fill(limit, from, room);
        if done.is_err() {
            all.clear(room);
        }
        done.map(|()| all)
    }

    fn fill<R: EarlyRoom>(
        &mut self,
        limit: usize,
        from: &mut Reader<'_>,
        room: &mut R,
    ) -> Result<(), ThawError> {
        for _ in 0..from.count(limit, "too many packets wait")? {
            let ahead = from.at_most(limit as u32, "a packet is too far ahead")? as usize;
            let path = PathId(from.u32()?);
            let headers = words::headers(from)?;
            let payload = words::payload(from)?;
            let data = match from.flag()? {
                false => Data::Here(payload),
                true => {
                    from.ensure(payload.is_empty(), "a packet's payload is in two places")?;
                    let at = from.u32()?;
                    let len = from.at_most(words::PAYLOAD_MAX as u32, "a payload is too long")?;
                    Data::Placed(Placed { at, len })
                }
            };
            match self.offer(ahead, limit, &headers, data, path, room) {
                Offered::Kept => {}
                Offered::NoMemory => return Err(ThawError::NoMemory),
                Offered::Duplicate | Offered::Contradicts => {
                    return Err(from.wrong("two packets wait in one place"));
                }
                Offered::TooFar => return Err(from.wrong("a packet is too far ahead")),
            }
        }
        Ok(())
    }

    /// # Errors
    /// A counter does not match the places, or there are more than `limit`.
    pub(super) fn check(&self, limit: usize) -> Result<(), String> {
        let Some(w) = &self.waiting else { return Ok(()) };
        let early = w.places.iter().flatten().count();
        if early != w.count {
            return Err(format!("{} packets are counted as waiting, {early} wait", w.count));
        }
        let mut numbers = w.arrived.iter().flat_map(Clone::clone);
        let places = w.places.iter().zip(w.base..).filter(|(place, _)| place.is_some());
        if !places.map(|(_, number)| number).eq(numbers.by_ref()) || numbers.next().is_some() {
            return Err(format!("what waits is not {:?} from {} on", w.arrived, w.base));
        }
        if w.places.len() > limit {
            return Err(format!("{} places for packets, of {limit}", w.places.len()));
        }
        Ok(())
    }

    /// Forgets all packets.
    pub(super) fn clear<R: EarlyRoom>(&mut self, room: &mut R) {
        if let Some(w) = self.waiting.take() {
            for packet in w.places.into_iter().flatten() {
                room.release(Early::cost(packet.payload.len()));
            }
        }
    }
}

impl Waiting {
    fn offer<R: EarlyRoom>(
        &mut self,
        ahead: usize,
        headers: &Headers,
        data: Data<'_>,
        from: PathId,
        room: &mut R,
    ) -> Offered {
        let number = self.base + ahead as u64;
        if let Some(place) = self.places.get_mut(ahead)
            && let Some(early) = place
        {
            if agree(&early.headers, headers) && early.data().len() == data.len() {
                return Offered::Duplicate;
            }
            // One of them is not from the peer, and nobody can tell which. A wrong guess must not
            // shut out the peer's own packet, which the peer sends again.
            if let Some(early) = place.take() {
                self.count -= 1;
                self.arrived.remove(number);
                self.recycle(early, room);
                self.tidy();
            }
            return Offered::Contradicts;
        }
        let payload = data.bytes();
        let placed = match data {
            Data::Here(_) => None,
            Data::Placed(placed) => Some(placed),
        };
        let cost = Early::cost(payload.len());
        if !room.reserve(cost) {
            return Offered::NoMemory;
        }
        if !self.arrived.insert(number..number + 1, |_| {}) {
            room.release(cost);
            return Offered::TooFar;
        }
        if self.places.len() <= ahead {
            self.places.resize(ahead + 1, None);
        }
        self.places[ahead] = Some(match self.spare.pop() {
            None => Box::new(Early { headers: *headers, payload: payload.to_vec(), placed, from }),
            Some(mut early) => {
                early.headers = *headers;
                early.payload.clear();
                early.payload.extend_from_slice(payload);
                early.placed = placed;
                early.from = from;
                early
            }
        });
        self.count += 1;
        self.touch(number);
        Offered::Kept
    }

    /// Notes that `number` has come.
    fn touch(&mut self, number: u64) {
        if let Some(last) = self.touched.last_mut().filter(|last| **last + 1 == number) {
            *last = number;
            return;
        }
        if self.touched.len() == TOUCHED_MAX {
            self.touched.remove(0);
        }
        self.touched.push(number);
    }

    fn advance<R: EarlyRoom>(&mut self, n: u32, room: &mut R) {
        for _ in 0..n {
            match self.places.pop_front() {
                None => break,
                Some(None) => {}
                Some(Some(packet)) => {
                    self.count -= 1;
                    self.recycle(packet, room);
                }
            }
        }
        self.arrived.trim(self.base);
        self.tidy();
    }

    fn recycle<R: EarlyRoom>(&mut self, packet: Box<Early>, room: &mut R) {
        room.release(Early::cost(packet.payload.len()));
        if self.spare.len() < SPARE_KEPT {
            self.spare.push(packet);
        }
    }

    /// Frees memory if nothing waits.
    fn tidy(&mut self) {
        if self.count == 0 {
            self.places.clear();
            self.places.shrink_to(PLACES_KEPT);
            self.touched.clear();
            self.arrived.clear();
        }
    }

    /// Chooses the blocks to report, see [`Reorder::blocks`].
    fn choose(&mut self, out: &mut [Range; SackBlock::MAX]) -> usize {
        let near = self.base + 64;
        let beyond = |r: &Range| r.end > near;
        let mut n = 0;
        for number in self.touched.drain(..).rev() {
            let Some(range) = self.arrived.containing(number).filter(beyond) else { continue };
            if !out[..n].contains(&range) {
                out[n] = range;
                n += 1;
            }
        }
        let total = self.arrived.iter_from(near).count();
        let turn = self.told_to.max(near);
        let from_turn = self.arrived.iter_from(turn);
        let from_start = self.arrived.iter_from(near);
        for range in from_turn.chain(from_start).take(total) {
            if n == out.len() {
                break;
            }
            if !out[..n].contains(range) {
                out[n] = range.clone();
                n += 1;
            }
            self.told_to = range.end;
        }
        n
    }
}

#[cfg(test)]
mod tests {

    use polypath_wire::bth::Bth;
    use polypath_wire::opcode::Opcode;

    use super::*;

    /// A host that has memory for this many bytes, and nothing else.
    struct Memory(u32);

    impl EarlyRoom for Memory {
        fn reserve(&mut self, bytes: u32) -> bool {
            self.0.checked_sub(bytes).map(|left| self.0 = left).is_some()
        }
        fn release(&mut self, bytes: u32) {
            self.0 += bytes;
        }
    }

    const PLENTY: u32 = 1 << 30;
    const LIMIT: usize = 1 << 14;

    fn offer_to(r: &mut Reorder, ahead: usize, payload: &[u8], host: &mut Memory) -> Offered {
        let headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY));
        r.offer(ahead, LIMIT, &headers, Data::Here(payload), PathId(1), host)
    }

    fn offer(r: &mut Reorder, ahead: usize) -> Offered {
        offer_to(r, ahead, &[ahead as u8], &mut Memory(PLENTY))
    }

    /// Everything that is reported: bits and blocks, as distances from the expected packet.
    fn told(r: &mut Reorder) -> (u64, Vec<(u32, u32)>) {
        let mut blocks = [SackBlock::default(); SackBlock::MAX];
        let n = r.blocks(Psn::new(0xff_fff0), &mut blocks);
        let distance = |b: &SackBlock| (b.first.diff(Psn::new(0xff_fff0)) as u32, b.count);
        (r.bitmap(), blocks[..n].iter().map(distance).collect())
    }

    #[test]
    fn holds_up_to_its_limit_each_packet_once() {
        let mut r = Reorder::default();
        assert_eq!(offer(&mut r, 3), Offered::Kept);
        assert_eq!(offer(&mut r, 3), Offered::Duplicate);
        assert_eq!(offer(&mut r, LIMIT - 1), Offered::Kept);
        assert_eq!(offer(&mut r, LIMIT), Offered::TooFar);
        assert_eq!(told(&mut r), (1 << 3, vec![(LIMIT as u32 - 1, 1)]));
    }

    #[test]
    fn of_two_packets_that_contradict_each_other_it_keeps_neither() {
        let mut r = Reorder::default();
        let host = &mut Memory(PLENTY);
        let mut offer = |headers: &Headers, payload: &[u8], path| {
            let offered = r.offer(2, LIMIT, headers, Data::Here(payload), PathId(path), host);
            assert_eq!(r.check(LIMIT), Ok(()));
            (offered, r.is_empty())
        };
        let mut headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY.to_mp()));
        headers.mp = Some(MpHeader { msg: 7, ..MpHeader::default() });
        assert_eq!(offer(&headers, &[1; 8], 1), (Offered::Kept, false));
        let mut again = headers;
        again.bth.ack_req = true;
        again.mp = headers.mp.map(|mp| MpHeader { path_id: 1, generation: 4, timestamp: 9, ..mp });
        assert_eq!(offer(&again, &[1; 8], 2), (Offered::Duplicate, false));
        let other = Headers { mp: Some(MpHeader { msg: 8, ..MpHeader::default() }), ..headers };
        assert_eq!(offer(&other, &[1; 8], 1), (Offered::Contradicts, true));
        assert_eq!(offer(&headers, &[1; 8], 1), (Offered::Kept, false));
        assert_eq!(offer(&headers, &[1; 4], 1), (Offered::Contradicts, true));
        assert_eq!(host.0, PLENTY);
    }

    #[test]
    fn gives_back_in_order_and_moves_on() {
        let mut r = Reorder::default();
        let host = &mut Memory(PLENTY);
        offer_to(&mut r, 1, &[1], host);
        offer_to(&mut r, 2, &[2], host);
        assert!(r.take().is_none());
        r.advance(1, host);
        assert_eq!(r.bitmap(), 0b11);
        let first = r.take().unwrap();
        assert_eq!(first.data(), Data::Here(&[1]));
        r.recycle(first, host);
        r.advance(1, host);
        assert_eq!(r.bitmap(), 1);
        let second = r.take().unwrap();
        assert_eq!(second.data(), Data::Here(&[2]));
        r.recycle(second, host);
        assert!(r.is_empty());
        r.advance(100, host);
        assert_eq!(r.bitmap(), 0);
        assert_eq!(host.0, PLENTY, "all that was granted came back");
    }

    /// A packet that no acknowledgement names would be sent again.
    #[test]
    fn what_came_since_the_last_acknowledgement_is_told_by_the_next_one() {
        let mut r = Reorder::default();
        let host = &mut Memory(PLENTY);
        for i in 0..500 {
            offer_to(&mut r, 100 + 20 * i, &[0], host);
        }
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..20 {
            seen.extend(told(&mut r).1);
        }
        let all = (0..500).map(|i| (100 + 20 * i, 1));
        assert!(seen.into_iter().eq(all), "in turns, all are told");
        for i in [400, 3, 250] {
            offer_to(&mut r, 101 + 20 * i, &[0], host);
        }
        let (_, blocks) = told(&mut r);
        let first: Vec<_> = [250, 3, 400].iter().map(|i| (100 + 20 * *i as u32, 2)).collect();
        assert_eq!((&blocks[..3], blocks.len()), (&first[..], SackBlock::MAX));
    }

    #[test]
    fn bits_reach_as_far_as_64_packets_and_blocks_take_over_there() {
        let mut r = Reorder::default();
        for ahead in 60..70 {
            offer(&mut r, ahead);
        }
        offer(&mut r, 1);
        assert_eq!(told(&mut r), (0b1111 << 60 | 2, vec![(60, 10)]));
    }

    #[test]
    fn what_the_host_has_no_memory_for_is_not_kept() {
        let mut r = Reorder::default();
        let host = &mut Memory(2 * Early::cost(1000));
        assert_eq!(offer_to(&mut r, 1, &[0; 1000], host), Offered::Kept);
        assert_eq!(offer_to(&mut r, 2, &[0; 1000], host), Offered::Kept);
        assert_eq!(offer_to(&mut r, 3, &[0; 1000], host), Offered::NoMemory);
        assert_eq!(told(&mut r), (0b110, vec![]));
        r.advance(2, host);
        assert_eq!(offer_to(&mut r, 3, &[0; 1000], host), Offered::Kept);
        r.clear(host);
        assert_eq!(host.0, 2 * Early::cost(1000));
    }

    #[test]
    fn what_is_in_memory_already_takes_the_room_of_its_headers() {
        let mut r = Reorder::default();
        let host = &mut Memory(2 * Early::cost(0));
        let headers = Headers::new(Bth::new(Opcode::RC_WRITE_MIDDLE));
        let placed = Data::Placed(Placed { at: 4096, len: 4096 });
        assert!(r.is_vacant(1, LIMIT) && !r.is_vacant(LIMIT, LIMIT));
        assert_eq!(r.offer(1, LIMIT, &headers, placed, PathId(1), host), Offered::Kept);
        assert!(!r.is_vacant(1, LIMIT) && r.is_vacant(2, LIMIT));
        let again = Data::Here(&[0; 4096]);
        assert_eq!(r.offer(1, LIMIT, &headers, again, PathId(2), host), Offered::Duplicate);
        assert_eq!(r.offer(2, LIMIT, &headers, placed, PathId(1), host), Offered::Kept);
        assert_eq!(host.0, 0);
        r.advance(1, host);
        let early = r.take().unwrap();
        assert_eq!(early.data(), placed);
        r.recycle(early, host);
        // Its buffer serves another packet, which has its payload here.
        let here = Data::Here(&[]);
        assert_eq!(r.offer(5, LIMIT, &headers, here, PathId(1), host), Offered::Kept);
        r.advance(5, host);
        assert_eq!(r.take().unwrap().data(), here);
    }

    #[test]
    fn a_buffer_that_is_empty_again_keeps_a_few_packets_memory() {
        let mut r = Reorder::default();
        let host = &mut Memory(PLENTY);
        for ahead in 1..5000 {
            offer_to(&mut r, ahead, &[7; 4096], host);
        }
        r.advance(1, host);
        while let Some(packet) = r.take() {
            r.advance(1, host);
            r.recycle(packet, host);
        }
        let w = r.waiting.as_ref().unwrap();
        assert!(w.places.capacity() <= 2 * PLACES_KEPT, "{}", w.places.capacity());
        assert_eq!(w.spare.len(), SPARE_KEPT);
        assert_eq!(host.0, PLENTY);
    }
}
