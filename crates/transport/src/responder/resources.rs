//! The requests that were executed and may have to be answered again: READs, atomics, ATOMIC WRITEs
//! and FLUSHes (the responder resources of IBTA 9.7.4.1.5), and the data that READs return.
//!
//! A READ returns the memory as it was before any later request of the queue pair was executed,
//! however late or often its answer is sent. The answer is read from memory when it is sent.
//! Therefore, before a later request changes memory that a remembered READ returns, those packets
//! of the answer are copied and kept ([`Resources::admit`]). Where no READ lies, this costs one
//! comparison.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use polypath_wire::ext::{AtomicEth, Feth, Reth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Headers;
use polypath_wire::psn::Psn;

use super::answer::Job;
use crate::common::Core;
use crate::frozen::words::{self, put_reth, reth};
use crate::frozen::{Reader, ThawError, Writer};
use crate::memory::{Memory, RemoteAccess, RemoteKey, Segment};
use crate::state::MAX_MESSAGE;
use polypath_types::Access;

/// At least this many are remembered, even if `max_dest_rd_atomic` is less.
const REMEMBERED_MIN: usize = 16;

/// The most bytes of answers that are kept for one queue pair. When they are used up, the oldest READ
/// whose answer has been sent gives up its share; if it is asked for again, it is read from memory as
/// that is then. A request that would change what has not been sent yet waits. Our own requester never
/// has so much in flight, so its READs are never given up.
const PUT_BY_MAX: usize = 16 << 20;

// A Polypath peer has at most `REACH` bytes in flight, so that none of its READs is given up.
const _: () = assert!(crate::REACH as usize <= PUT_BY_MAX);

/// An executed request that may be asked for again.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    /// Its first sequence number.
    first: u64,
    packets: u32,
    /// XRC: the shared receive queue that the request named.
    srqn: Option<u32>,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Read(Read),
    Atomic {
        opcode: Opcode,
        eth: AtomicEth,
        value: u64,
    },
    /// An ATOMIC WRITE or FLUSH: the answer only says that it was executed.
    Placement {
        opcode: Opcode,
        reth: Reth,
        feth: Option<Feth>,
    },
}

#[derive(Clone, Debug)]
struct Read {
    reth: Reth,
    pd: u32,
    /// The packets of the answer that memory does not hold any more.
    put_by: BTreeMap<u32, Box<[u8]>>,
}

/// How to answer a request that came again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// With this many packets of memory, checked for this protection domain.
    Read { pd: u32, packets: u32 },
    /// With the value that was there before.
    Atomic { value: u64 },
    /// With a response without data.
    Empty,
}

/// The requests that are remembered, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources {
    list: VecDeque<Resource>,
    /// Where each lies in the host's memory, from and to; empty except for READs.
    spans: VecDeque<(u64, u64)>,
    /// A span that contains all the others.
    around: (u64, u64),
    /// The number of bytes that are kept.
    bytes: usize,
}

impl Resource {
    fn new(first: u64, packets: u32, headers: &Headers, what: What) -> Self {
        Self { first, packets, srqn: headers.xrc.map(|eth| eth.srqn), what }
    }

    /// A READ in protection domain `pd`, which takes `packets` sequence numbers from `first` on.
    pub(super) fn read(first: u64, packets: u32, headers: &Headers, reth: Reth, pd: u32) -> Self {
        let read = Read { reth, pd, put_by: BTreeMap::new() };
        Self::new(first, packets, headers, What::Read(read))
    }

    /// An atomic that found `value`.
    pub(super) fn atomic(first: u64, headers: &Headers, eth: AtomicEth, value: u64) -> Self {
        let opcode = headers.bth.opcode.base();
        Self::new(first, 1, headers, What::Atomic { opcode, eth, value })
    }

    /// An ATOMIC WRITE or FLUSH.
    pub(super) fn placement(first: u64, headers: &Headers) -> Self {
        let opcode = headers.bth.opcode.base();
        let (reth, feth) = (headers.reth.unwrap_or_default(), headers.feth);
        Self::new(first, 1, headers, What::Placement { opcode, reth, feth })
    }

    /// The number of bytes that are kept for it.
    fn bytes(&self) -> usize {
        match &self.what {
            What::Read(read) => read.put_by.values().map(|data| data.len()).sum(),
            _ => 0,
        }
    }

    /// Whether part of its answer is still to be sent.
    fn is_unsent(&self, jobs: &VecDeque<Job>, mtu: u32) -> bool {
        let first = Psn::new(self.first as u32);
        jobs.iter().any(|job| {
            let at = job.psn().diff(first);
            at < self.packets as i32 && at + job.packets(mtu) as i32 > 0
        })
    }
}

/// Reads the packets that are kept for a READ.
fn put_by(
    core: &Core,
    reth: &Reth,
    packets: u32,
    from: &mut Reader<'_>,
) -> Result<BTreeMap<u32, Box<[u8]>>, ThawError> {
    let mtu = core.attr.path_mtu;
    let right = packets == reth.len.div_ceil(mtu).max(1);
    from.ensure(right, "a READ has not as many packets as it has bytes for")?;
    let mut put_by = BTreeMap::new();
    for _ in 0..from.count(packets as usize, "more of a READ is kept than it has")? {
        let k = from.u32()?;
        let data = words::payload(from)?;
        let len = if k < packets { (reth.len - k * mtu).min(mtu) } else { 0 };
        let fits = len > 0 && data.len() == len as usize;
        from.ensure(
            fits && put_by.insert(k, data.into()).is_none(),
            "a kept packet of a READ has the wrong size or comes twice",
        )?;
    }
    Ok(put_by)
}

/// How many requests are remembered.
fn most(core: &Core) -> usize {
    usize::from(core.attr.max_dest_rd_atomic).max(REMEMBERED_MIN)
}

impl Resources {
    /// Remembers a request that was just executed; a READ's memory has the addresses `span`.
    pub(super) fn remember(&mut self, core: &Core, resource: Resource, span: Range<u64>) {
        while self.list.len() >= most(core) {
            self.forget_oldest();
        }
        let span = (span.start, span.end);
        self.list.push_back(resource);
        self.spans.push_back(span);
        self.reach(span);
    }

    /// Whether a READ with sequence number `first` begins where the latest one ends, so that both are one:
    /// the peer asks for a long READ in parts.
    pub(super) fn would_join(
        &self,
        core: &Core,
        first: u64,
        headers: &Headers,
        reth: &Reth,
    ) -> bool {
        let Some(Resource { first: start, packets, srqn, what: What::Read(read) }) =
            self.list.back()
        else {
            return false;
        };
        let Reth { va, rkey, len } = read.reth;
        start + u64::from(*packets) == first
            && *srqn == headers.xrc.map(|eth| eth.srqn)
            && (read.pd, rkey) == (core.peer_pd, reth.rkey)
            && va.wrapping_add(u64::from(len)) == reth.va
            && len > 0
            && reth.len > 0
            && len.is_multiple_of(core.attr.path_mtu)
            && u64::from(len) + u64::from(reth.len) <= MAX_MESSAGE
    }

    /// Joins `packets` of a READ of `len` bytes, in memory at `span`, to the latest one, which
    /// [`Resources::would_join`] has allowed. Returns false if the memory does not continue that of the
    /// latest one.
    pub(super) fn join(&mut self, packets: u32, len: u32, span: &Range<u64>) -> bool {
        let (Some(latest), Some((from, to))) = (self.list.back_mut(), self.spans.back_mut()) else {
            return false;
        };
        let What::Read(read) = &mut latest.what else { return false };
        if *from == *to || *to != span.start {
            return false;
        }
        read.reth.len += len;
        latest.packets += packets;
        *to = span.end;
        self.reach((span.start, span.end));
        true
    }

    fn reach(&mut self, (from, to): (u64, u64)) {
        if from < to {
            let (a, b) = self.around;
            self.around = if a < b { (a.min(from), b.max(to)) } else { (from, to) };
        }
    }

    fn forget_oldest(&mut self) {
        self.give_up(0);
        self.list.pop_front();
        self.spans.pop_front();
    }

    /// Gives up the packets that are kept for a READ; from now on its answer is read from memory as
    /// that is.
    fn give_up(&mut self, at: usize) {
        self.bytes -= self.list[at].bytes();
        if let What::Read(read) = &mut self.list[at].what {
            read.put_by.clear();
        }
        let (from, to) = core::mem::take(&mut self.spans[at]);
        if from < to && (from == self.around.0 || to == self.around.1) {
            self.around = (0, 0);
            for at in 0..self.spans.len() {
                self.reach(self.spans[at]);
            }
        }
    }

    /// A request of the queue pair is about to change memory: copies and keeps what remembered
    /// READs return of it. `jobs` are the answers that are still to be sent. Returns false if there
    /// is no room and some of it has not been sent yet; then memory must stay as it is.
    #[inline]
    pub(super) fn admit<M: Memory>(
        &mut self,
        core: &Core,
        jobs: &VecDeque<Job>,
        segment: M::Segment,
        memory: &mut M,
    ) -> bool {
        let Range { start: from, end: to } = segment.span();
        from >= self.around.1 || to <= self.around.0 || self.preserve(core, jobs, from, to, memory)
    }

    /// See [`Resources::admit`]: some address between the two may belong to a READ.
    #[inline(never)]
    fn preserve<M: Memory>(
        &mut self,
        core: &Core,
        jobs: &VecDeque<Job>,
        from: u64,
        to: u64,
        memory: &mut M,
    ) -> bool {
        let mtu = u64::from(core.attr.path_mtu);
        for at in 0..self.spans.len() {
            let (start, end) = self.spans[at];
            let (from, to) = (from.max(start), to.min(end));
            if from < to {
                let (first, last) = ((from - start) / mtu, (to - 1 - start) / mtu);
                for k in first..=last {
                    if !self.put_by(core, jobs, at, k as u32, memory) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Keeps packet `k` of a READ's answer. Returns false if there is no room and it has not been
    /// sent.
    fn put_by<M: Memory>(
        &mut self,
        core: &Core,
        jobs: &VecDeque<Job>,
        at: usize,
        k: u32,
        memory: &mut M,
    ) -> bool {
        let mtu = core.attr.path_mtu;
        let What::Read(read) = &self.list[at].what else { return true };
        if read.put_by.contains_key(&k) {
            return true;
        }
        let Reth { va, rkey, len } = read.reth;
        let (pd, start) = (read.pd, k * mtu);
        let len = (len - start).min(mtu);
        while self.bytes + len as usize > PUT_BY_MAX {
            let sent = |i: &usize| !self.list[*i].is_unsent(jobs, mtu);
            let holds = |i: &usize| match &self.list[*i].what {
                What::Read(read) => *i == at || !read.put_by.is_empty(),
                _ => false,
            };
            let Some(oldest) = (0..self.list.len()).filter(holds).find(sent) else { return false };
            self.give_up(oldest);
            if oldest == at {
                return true;
            }
        }
        // Looked up anew, because a region that has gone must not be touched; its READ can't be
        // answered.
        let va = va.wrapping_add(u64::from(start));
        let part = Reth { va, rkey, len };
        if let Ok(segment) = memory.resolve_remote(&core.remote(pd, &part, Access::REMOTE_READ))
            && let What::Read(read) = &mut self.list[at].what
        {
            let mut data = vec![0; len as usize].into_boxed_slice();
            if memory.load(segment, &mut data).is_ok() {
                read.put_by.insert(k, data);
                self.bytes += len as usize;
            }
        }
        true
    }

    /// Writes the requests.
    pub(super) fn freeze(&self, out: &mut Writer) {
        out.count(self.list.len());
        for (resource, (start, end)) in self.list.iter().zip(&self.spans) {
            out.u64(resource.first);
            out.u32(resource.packets);
            out.option(resource.srqn, Writer::u32);
            match &resource.what {
                What::Read(read) => {
                    out.u8(0);
                    put_reth(out, &read.reth);
                    out.u32(read.pd);
                    out.flag(start < end);
                    out.count(read.put_by.len());
                    for (k, data) in &read.put_by {
                        out.u32(*k);
                        out.bytes(data);
                    }
                }
                What::Atomic { opcode, eth, value } => {
                    out.raw(&[1, opcode.0]);
                    out.raw(&eth.to_bytes());
                    out.u64(*value);
                }
                What::Placement { opcode, reth, feth } => {
                    out.raw(&[2, opcode.0]);
                    put_reth(out, reth);
                    out.option(*feth, |out, feth| out.raw(&[feth.placement, feth.selectivity]));
                }
            }
        }
    }

    /// The memory that READs return is looked up at the host, where it may have another address
    /// than before.
    ///
    /// # Errors
    /// See [`ThawError`].
    pub(super) fn thaw<M: Memory>(
        core: &Core,
        from: &mut Reader<'_>,
        memory: &mut M,
    ) -> Result<Self, ThawError> {
        let mut all = Self::default();
        for _ in 0..from.count(most(core), "too many requests are remembered")? {
            let (first, packets) = (from.u64()?, from.u32()?);
            from.ensure(first < 1 << 56, "a sequence number is out of range")?;
            let srqn = from.option(Reader::u32)?;
            let mut span = 0..0;
            let what = match from.u8()? {
                0 => {
                    let (reth, pd) = (reth(from)?, from.pd()?);
                    let Reth { va, rkey, len } = reth;
                    if from.flag()? && len > 0 {
                        let key = RemoteKey { pd, qpn: core.config.qpn, rkey };
                        let access = RemoteAccess { key, va, len, rights: Access::REMOTE_READ };
                        // Memory that is not there any more can be neither read nor changed.
                        span =
                            memory.resolve_remote(&access).map_or(0..0, |segment| segment.span());
                    }
                    let put_by = put_by(core, &reth, packets, from)?;
                    all.bytes += put_by.values().map(|data| data.len()).sum::<usize>();
                    What::Read(Read { reth, pd, put_by })
                }
                1 => What::Atomic {
                    opcode: Opcode(from.u8()?),
                    eth: AtomicEth::parse(from.raw(AtomicEth::LEN)?)
                        .map_err(|_| from.wrong("an atomic"))?,
                    value: from.u64()?,
                },
                2 => What::Placement {
                    opcode: Opcode(from.u8()?),
                    reth: reth(from)?,
                    feth: from.option(|from| {
                        Ok(Feth { placement: from.u8()?, selectivity: from.u8()? })
                    })?,
                },
                _ => return Err(from.wrong("no such request is remembered")),
            };
            let one = packets == 1 || matches!(what, What::Read(_));
            from.ensure(one, "what is not a READ has one packet")?;
            from.ensure(all.bytes <= PUT_BY_MAX, "too much of READs is kept")?;
            all.remember(core, Resource { first, packets, srqn, what }, span);
        }
        Ok(all)
    }

    /// How to answer the packet with sequence number `seq`, if it asks for something that was
    /// executed. A READ may be repeated from the beginning or from a later packet on, either all of
    /// the rest or whole packets of it (IBTA 9.7.4.1.3).
    pub(super) fn find(&self, seq: u64, headers: &Headers, mtu: u32) -> Option<Again> {
        let of = |r: &&Resource| r.first <= seq && seq - r.first < u64::from(r.packets);
        let resource = self.list.iter().rev().find(of)?;
        let opcode = headers.bth.opcode.base();
        if headers.xrc.map(|eth| eth.srqn) != resource.srqn {
            return None;
        }
        match &resource.what {
            What::Read(read) => {
                let (asked, all) = (headers.reth?, read.reth);
                let start = (seq - resource.first) as u32 * mtu;
                let rest = all.len - start;
                let same = opcode.is_read_request()
                    && asked.rkey == all.rkey
                    && asked.va == all.va.wrapping_add(u64::from(start));
                let whole = asked.len > 0 && asked.len < rest && asked.len.is_multiple_of(mtu);
                let packets = asked.len.div_ceil(mtu).max(1);
                (same && (whole || asked.len == rest))
                    .then_some(Again::Read { pd: read.pd, packets })
            }
            What::Atomic { opcode: was, eth, value } => (opcode == *was
                && headers.atomic == Some(*eth))
            .then_some(Again::Atomic { value: *value }),
            What::Placement { opcode: was, reth, feth } => {
                let same = opcode == *was && headers.reth == Some(*reth) && headers.feth == *feth;
                same.then_some(Again::Empty)
            }
        }
    }

    /// The kept bytes of the answer with sequence number `seq`, if any, and the number of packets
    /// (at most `most`) that this applies to: 1 if bytes are kept, else all packets before the next
    /// one that has any.
    #[inline]
    pub(super) fn kept(&self, seq: u64, most: u32) -> (Option<&[u8]>, u32) {
        if self.bytes == 0 { (None, most) } else { self.look_up(seq, most) }
    }

    #[inline(never)]
    fn look_up(&self, seq: u64, most: u32) -> (Option<&[u8]>, u32) {
        let of = |r: &&Resource| r.first <= seq && seq - r.first < u64::from(r.packets);
        let Some(Resource { first, what: What::Read(read), .. }) = self.list.iter().rev().find(of)
        else {
            return (None, most);
        };
        let k = (seq - first) as u32;
        match read.put_by.range(k..k + most).next() {
            Some((&at, data)) if at == k => (Some(data), 1),
            Some((&at, _)) => (None, at - k),
            None => (None, most),
        }
    }

    /// # Errors
    /// See [`crate::QueuePair::check`].
    pub(super) fn check(&self, core: &Core) -> Result<(), String> {
        let sum: usize = self.list.iter().map(Resource::bytes).sum();
        let (a, b) = self.around;
        let out = self.spans.iter().any(|(from, to)| from < to && (*from < a || *to > b));
        if self.list.len() > most(core) || self.spans.len() != self.list.len() {
            let (n, spans) = (self.list.len(), self.spans.len());
            return Err(format!("{n} requests are remembered, and {spans} places"));
        }
        if sum != self.bytes || sum > PUT_BY_MAX {
            return Err(format!("{sum} bytes are kept, of which {} were counted", self.bytes));
        }
        if out {
            return Err(format!("a READ lies outside of {a:#x}..{b:#x}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use polypath_wire::bth::Bth;

    use super::*;
    use polypath_types::{QpConfig, QpType};

    fn core() -> Core {
        Core::new(QpConfig {
            qpn: 1,
            qp_type: QpType::Rc,
            pd: 1,
            sq_sig_all: false,
            srq: false,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        })
    }

    fn fetch_add() -> Headers {
        let atomic = Some(AtomicEth { va: 8, rkey: 1, swap_add: 1, compare: 0 });
        Headers { atomic, ..Headers::new(Bth::new(Opcode::RC_FETCH_ADD)) }
    }

    /// After 2^24 packets the PSN is the same, and the request may look the same.
    #[test]
    fn an_atomic_is_not_answered_by_its_namesake() {
        let (core, h) = (core(), fetch_add());
        let mut r = Resources::default();
        let (first, second) = (1 << 24, 2 << 24);
        r.remember(&core, Resource::atomic(first, &h, h.atomic.unwrap(), 5), 0..0);
        assert_eq!(r.find(second, &h, 256), None, "nothing of that name was executed lately");
        r.remember(&core, Resource::atomic(second, &h, h.atomic.unwrap(), 6), 0..0);
        assert_eq!(r.find(second, &h, 256), Some(Again::Atomic { value: 6 }));
    }

    #[test]
    fn only_reads_that_are_remembered_are_in_the_way() {
        let core = core();
        let mut r = Resources::default();
        let mut read = |i: u64, len| {
            let reth = Reth { va: 0, rkey: 1, len };
            let headers = Headers::new(Bth::new(Opcode::RC_READ_REQUEST));
            let span = 0x1000 * i..0x1000 * i + u64::from(len);
            r.remember(&core, Resource::read(i, 1, &headers, reth, 1), span);
            r.around
        };
        assert_eq!(read(9, 0), (0, 0));
        assert_eq!(read(3, 100), (0x3000, 0x3064));
        assert_eq!(read(5, 100), (0x3000, 0x5064));
        for _ in 2..REMEMBERED_MIN {
            assert_eq!(read(4, 10), (0x3000, 0x5064));
        }
        assert_eq!(read(4, 10), (0x4000, 0x5064));
        assert_eq!(read(4, 10), (0x4000, 0x400a));
    }
}
