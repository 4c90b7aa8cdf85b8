//! Finds requests that the peer has never received, although it has later ones of the same path.
//!
//! A peer executes requests in their order. It keeps those that come early, and its selective
//! acknowledgements tell of them. A READ or atomic is not done then, because its answer is still to come, but
//! its request has arrived, so a request that was sent before it by the same path and is not there is
//! probably lost. No answer overtakes the one that is missing: the peer answers nothing before it has the
//! lost request. So without this search only a probe would find it, some round trips later.

use smallvec::SmallVec;

use super::{ANSWERED, DONE, Flight, HEARD, LOST, TWICE};
use crate::requester::on_path::REORDERING_MIN;
use crate::requester::tally::Tally;
use polypath_types::PathId;

/// A request that the peer has not executed.
struct Waiting {
    first: u64,
    path: PathId,
    order: u32,
    heard: bool,
    twice: bool,
}

impl Flight {
    /// Notes that the peer has the request `seq`.
    pub(super) fn hear(&mut self, seq: u64) {
        let slot = &mut self.slots[(seq - self.una) as usize];
        self.heard |= !slot.is(HEARD);
        slot.flags |= HEARD;
    }

    /// Marks as lost the requests from `from` on, which the peer has not executed, that later ones of the
    /// same path have overtaken. One is enough, unless the path has proved to reorder packets. If a request
    /// was sent by two paths, the other one may still bring it, so that it is not lost.
    pub(crate) fn lose_unheard(&mut self, from: u64, tally: &mut Tally) {
        if !core::mem::take(&mut self.heard) {
            return;
        }
        let requests = self.not_executed(from.max(self.una));
        for request in requests.iter().filter(|r| !r.heard && !r.twice) {
            let later = |r: &&Waiting| {
                r.heard
                    && r.path == request.path
                    && (r.order.wrapping_sub(request.order) as i32) > 0
            };
            let overtaken_by = requests.iter().filter(later).count();
            let reordering =
                self.paths.get(request.path).map_or(REORDERING_MIN, |on| on.reordering);
            if overtaken_by > (reordering - REORDERING_MIN) as usize {
                self.lose_range(request.first, self.answer_end(request.first), tally);
            }
        }
    }

    /// The READs and atomics from `from` on that are not to be sent again anyway.
    fn not_executed(&self, from: u64) -> SmallVec<[Waiting; 16]> {
        let mut requests = SmallVec::new();
        let mut seq = from;
        while let Some(slot) = self.slot(seq) {
            if !slot.is(ANSWERED) {
                seq += 1;
                continue;
            }
            if !slot.is(DONE | LOST) {
                let (heard, twice) = (slot.is(HEARD), slot.is(TWICE));
                let (path, order) = (slot.path, slot.order);
                requests.push(Waiting { first: seq, path, order, heard, twice });
            }
            seq = self.answer_end(seq);
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::super::END;
    use super::*;

    const PACKETS: u64 = 4;

    fn push_request(f: &mut Flight, path: u32) {
        for i in 1..=PACKETS {
            let flags = if i == PACKETS { ANSWERED | END } else { ANSWERED };
            f.push(PathId(path), 1024, flags, 0);
        }
    }

    /// Requests of four packets each by these paths, oldest first.
    fn requests(paths: &[u32]) -> Flight {
        let mut f = Flight::new(0);
        for path in paths {
            push_request(&mut f, *path);
        }
        f
    }

    /// The peer tells that it has these requests. Gives those that are lost.
    fn hear(f: &mut Flight, which: &[u64]) -> Vec<u64> {
        let mut tally = Tally::default();
        for at in which {
            f.sack(at * PACKETS..at * PACKETS + 1, &mut tally);
        }
        f.lose_unheard(0, &mut tally);
        f.check().unwrap();
        let lost = |at: &u64| f.slot(at * PACKETS).is_some_and(|slot| slot.is(LOST));
        (0..f.next() / PACKETS).filter(lost).collect()
    }

    #[test]
    fn a_request_is_lost_when_a_later_one_of_its_path_is_there() {
        let mut f = requests(&[0, 1, 0, 1]);
        assert_eq!(hear(&mut f, &[1]), [], "another path");
        assert_eq!(hear(&mut f, &[1, 2]), [0]);
        assert_eq!(f.lost, PACKETS as u32, "all of its answer");
        let mut f = requests(&[0, 0, 0, 0]);
        assert_eq!(hear(&mut f, &[2]), [0, 1], "not the one behind it");
    }

    #[test]
    fn one_that_was_sent_again_is_newer_than_those_that_overtook_it() {
        let mut f = requests(&[0, 0, 0]);
        assert_eq!(hear(&mut f, &[1]), [0]);
        f.resend(0, PACKETS as u32, PathId(0), 0, 0);
        assert_eq!(hear(&mut f, &[1, 2]), []);
        push_request(&mut f, 0);
        assert_eq!(hear(&mut f, &[3]), [0], "it was lost again");
    }

    #[test]
    fn a_path_that_reorders_is_given_more_time() {
        let mut f = requests(&[0, 0, 0]);
        f.paths.on(PathId(0)).was_late(true);
        assert_eq!(hear(&mut f, &[1]), []);
        assert_eq!(hear(&mut f, &[1, 2]), [0]);
    }
}
