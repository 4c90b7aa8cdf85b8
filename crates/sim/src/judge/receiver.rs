//! Receive work requests of queue pairs, and of the shared receive queues of a host.

use core::time::Duration;
use std::collections::VecDeque;

use polypath_transport::{RecvWr, Sge, Sges};

use super::{Breach, Verdict, breach, demand};
use crate::host::SimHost;
use crate::io::{KEY, PD, key_in, pd_of};
use crate::layout::{BUFFER, SRQ_DEPTH};

/// A posted receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// XRC: the number of the shared receive queue that it was posted to.
    pub(crate) srqn: Option<u32>,
    pieces: Vec<Sge>,
}

impl Receive {
    /// Creates a receive of `len` bytes at `addr`, with two elements if `split`.
    pub(crate) fn new(wr_id: u64, addr: u64, len: u32, split: bool, lkey: u32) -> Self {
        let pieces = pieces(addr, len, lkey, split);
        Self { wr_id, srqn: None, pieces }
    }

    /// Creates a receive for a shared receive queue.
    fn shared(srqn: Option<u32>, wr_id: u64, addr: u64, split: bool) -> Self {
        let key = key_in(srqn.and_then(pd_of).unwrap_or(PD), KEY);
        Self { srqn, ..Self::new(wr_id, addr, BUFFER as u32, split, key) }
    }

    /// The work request as it is posted.
    pub(crate) fn wr(&self) -> RecvWr {
        RecvWr { wr_id: self.wr_id, sges: Sges::from_slice(&self.pieces) }
    }

    /// The address where byte `at` of a message goes; `None` if it is beyond the end.
    pub(crate) fn place(&self, mut at: u32) -> Option<u64> {
        for piece in &self.pieces {
            if at < piece.len {
                return Some(piece.addr + u64::from(at));
            }
            at -= piece.len;
        }
        None
    }

    /// The first `len` bytes of its buffer.
    pub(crate) fn read(&self, memory: &[u8], len: u32) -> Vec<u8> {
        let all = self.pieces.iter().flat_map(|p| &memory[p.addr as usize..][..p.len as usize]);
        all.take(len as usize).copied().collect()
    }
}

/// A scatter or gather list of one element, or of two if `split`.
pub(crate) fn pieces(addr: u64, len: u32, lkey: u32, split: bool) -> Vec<Sge> {
    if !split || len < 2 {
        return vec![Sge { addr, len, lkey }];
    }
    // The second element follows the first without a gap, but its memory is looked up separately.
    let first = len / 3 + 1;
    let rest = Sge { addr: addr + u64::from(first), len: len - first, lkey };
    vec![Sge { addr, len: first, lkey }, rest]
}

/// A shared receive queue of a host, as its application sees it.
#[derive(Debug, Default)]
pub(crate) struct SharedQueue {
    /// XRC: the number of the queue.
    srqn: Option<u32>,
    /// The address of its first buffer.
    base: u64,
    /// The times when receives are posted, in order.
    times: VecDeque<Duration>,
    /// Receives that are posted and not taken yet.
    pub(crate) posted: VecDeque<Receive>,
    free: Vec<u64>,
    next: u64,
}

impl SharedQueue {
    pub(crate) fn new(srqn: Option<u32>, base: u64, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self {
            srqn,
            base,
            times: times.into(),
            posted: VecDeque::new(),
            free: (0..SRQ_DEPTH).rev().collect(),
            next: 0,
        }
    }

    /// The time when it wants to post next; `None` if no receive is left or no buffer is free.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.times.front().copied().filter(|_| !self.free.is_empty())
    }

    /// Posts the receives that are due.
    pub(crate) fn post(&mut self, now: Duration, host: &mut SimHost) {
        while self.due().is_some_and(|at| at <= now) {
            self.times.pop_front();
            let Some(slot) = self.free.pop() else { return };
            // The number contains the slot, so that a completion tells which buffer becomes free.
            let wr_id = self.next * SRQ_DEPTH + slot;
            self.next += 1;
            let addr = self.base + slot * BUFFER;
            let split = self.next.is_multiple_of(2);
            let receive = Receive::shared(self.srqn, wr_id, addr, split);
            host.io.shared.entry(self.srqn).or_default().push_back(receive.wr());
            self.posted.push_back(receive);
        }
    }

    /// Notes that a queue pair took a receive, which must be the oldest, and returns it.
    pub(crate) fn took(&mut self, wr_id: u64) -> Result<Receive, Breach> {
        match self.posted.pop_front() {
            Some(receive) if receive.wr_id == wr_id => Ok(receive),
            other => breach(
                "receives of a shared queue are taken in order",
                format!("{wr_id} was taken, not {other:?}"),
            ),
        }
    }

    /// Notes that a receive has completed, so that its buffer is free.
    pub(crate) fn completed(&mut self, receive: &Receive) {
        self.free.push(receive.wr_id % SRQ_DEPTH);
    }
}

/// The receives of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    /// Receives posted to its own queue, oldest first.
    pub(crate) own: VecDeque<Receive>,
    /// The receive taken from the shared queue that has not completed yet.
    pub(crate) taken: Option<Receive>,
}

impl Receives {
    /// The receive that incoming data goes to now.
    pub(crate) fn current(&self) -> Option<&Receive> {
        self.taken.as_ref().or_else(|| self.own.front())
    }

    /// Notes that a receive was taken from the shared queue, which may happen only if none is current.
    pub(crate) fn take(&mut self, receive: Receive) -> Verdict {
        let before = self.taken.replace(receive);
        demand(before.is_none(), "one receive at a time", || format!("{before:?} is in hand"))
    }

    /// Notes that a receive has completed, and returns it. It must be the current one, and the
    /// completion must name the queue that it was taken from.
    pub(crate) fn completed(&mut self, srqn: Option<u32>, wr_id: u64) -> Result<Receive, Breach> {
        let receive = self.taken.take().or_else(|| self.own.pop_front());
        match receive {
            Some(receive) if (receive.srqn, receive.wr_id) == (srqn, wr_id) => Ok(receive),
            other => {
                breach("receives complete in order", format!("{srqn:?} {wr_id}, not {other:?}"))
            }
        }
    }
}
