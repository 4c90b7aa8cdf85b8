//! Pings (`polypath ping`): a question that every RoCEv2 host with a connection manager answers at
//! once.
//!
//! It is a DREQ for a connection that does not exist. Linux's `ib_cm` and Polypath both answer it
//! with a DREP (IBTA 12.9.8.3.1). A mark at the beginning of the private data tells Polypath that
//! it is a ping, and the DREP of a Polypath broker has the mark too. Only peers that have sent it
//! get pings that are longer than a management datagram. These are padded with zeroes, to find out
//! what the network carries.

use std::time::Duration;

use polypath_ipc::message::PingAnswer;
use polypath_wire::cm::{CmMad, CmMessage, Drep, Dreq};
use polypath_wire::mad::MAD_LEN;

/// The beginning of the private data in both messages.
const MARK: &[u8; 16] = b"Polypath ping 1\0";

/// The largest number of pings in progress.
const PINGS_MAX: usize = 64;

/// A ping that waits for its answer.
#[derive(Debug)]
struct Ping<S> {
    /// The asking connection.
    asker: u64,
    number: u64,
    sent: Duration,
    deadline: Duration,
    /// The socket that it was sent from, which also receives ICMP errors.
    socket: S,
}

/// All pings in progress.
#[derive(Debug)]
pub(crate) struct Pings<S> {
    open: Vec<Ping<S>>,
}

impl<S> Default for Pings<S> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<S> Pings<S> {
    /// Whether another ping may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.open.len() < PINGS_MAX
    }

    /// Adds a ping. `number` is that of its [`question`].
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        asker: u64,
        number: u64,
        patience: Duration,
        socket: S,
    ) {
        self.open.push(Ping { asker, number, sent: now, deadline: now + patience, socket });
    }

    /// Handles an answer. Returns the asking connection and the result; `None` if nobody asked.
    pub(crate) fn answered(&mut self, now: Duration, mad: &[u8]) -> Option<(u64, PingAnswer)> {
        let CmMad { tid, message: CmMessage::Drep(drep) } = CmMad::parse(mad).ok()? else {
            return None;
        };
        let ping = self.take(tid)?;
        let rtt_us = u64::try_from((now - ping.sent).as_micros()).unwrap_or(u64::MAX);
        let polypath = drep.private_data.starts_with(MARK);
        Some((ping.asker, PingAnswer::Answered { rtt_us, polypath }))
    }

    fn take(&mut self, number: u64) -> Option<Ping<S>> {
        let at = self.open.iter().position(|ping| ping.number == number)?;
        Some(self.open.swap_remove(at))
    }

    /// Ends a ping after an ICMP error or its time-out. Returns the asking connection and the
    /// result.
    pub(crate) fn failed(&mut self, number: u64, why: PingAnswer) -> Option<(u64, PingAnswer)> {
        self.take(number).map(|ping| (ping.asker, why))
    }

    /// The socket of a ping.
    pub(crate) fn socket(&self, number: u64) -> Option<&S> {
        self.open.iter().find(|ping| ping.number == number).map(|ping| &ping.socket)
    }

    /// The numbers of pings whose time is over.
    pub(crate) fn overdue(&self, now: Duration) -> Vec<u64> {
        let late = self.open.iter().filter(|ping| ping.deadline <= now);
        late.map(|ping| ping.number).collect()
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.open.iter().map(|ping| ping.deadline).min()
    }

    /// Forgets the pings of a connection that is gone.
    pub(crate) fn forget(&mut self, asker: u64) {
        self.open.retain(|ping| ping.asker != asker);
    }
}

/// The question with this number. The ids of the connection in it are random as well, so that no
/// connection has them.
pub(crate) fn question(number: u64) -> [u8; MAD_LEN] {
    let mut private_data = [0; Dreq::PRIVATE_DATA_LEN];
    private_data[..MARK.len()].copy_from_slice(MARK);
    let dreq = Dreq {
        local_comm_id: (number >> 32) as u32,
        remote_comm_id: !(number as u32),
        remote_qpn: 0,
        private_data,
    };
    CmMad::new(number, dreq).to_bytes()
}

/// The answer to a MAD, if that is another broker's question.
pub(crate) fn answer(mad: &[u8]) -> Option<[u8; MAD_LEN]> {
    let CmMad { tid, message: CmMessage::Dreq(dreq) } = CmMad::parse(mad).ok()? else {
        return None;
    };
    if !dreq.private_data.starts_with(MARK) {
        return None;
    }
    let mut private_data = [0; Drep::PRIVATE_DATA_LEN];
    private_data[..MARK.len()].copy_from_slice(MARK);
    let drep = Drep {
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        private_data,
    };
    Some(CmMad::new(tid, drep).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_question_is_answered_once_and_the_answer_bears_the_mark() {
        let mut pings = Pings::default();
        pings.begin(SECOND, 7, 42, SECOND, ());
        let answer = answer(&question(42)).unwrap();
        let at = SECOND + Duration::from_micros(250);
        let told = PingAnswer::Answered { rtt_us: 250, polypath: true };
        assert_eq!(pings.answered(at, &answer), Some((7, told)));
        assert_eq!(pings.answered(at, &answer), None);
        assert_eq!(pings.next_deadline(), None);
    }

    #[test]
    fn a_drep_without_the_mark_is_another_stacks() {
        let mut pings = Pings::default();
        pings.begin(SECOND, 7, 42, SECOND, ());
        let private_data = [0; Drep::PRIVATE_DATA_LEN];
        let drep = CmMad::new(42, Drep { local_comm_id: 1, remote_comm_id: 2, private_data });
        let told = PingAnswer::Answered { rtt_us: 0, polypath: false };
        assert_eq!(pings.answered(SECOND, &drep.to_bytes()), Some((7, told)));
    }

    #[test]
    fn only_marked_questions_are_answered_here() {
        let private_data = [0; Dreq::PRIVATE_DATA_LEN];
        let dreq = Dreq { local_comm_id: 1, remote_comm_id: 2, remote_qpn: 3, private_data };
        assert_eq!(answer(&CmMad::new(1, dreq).to_bytes()), None);
        assert_eq!(answer(&answer(&question(1)).unwrap()), None, "an answer is no question");
        assert_eq!(answer(&[0; MAD_LEN]), None);
    }

    #[test]
    fn what_is_not_answered_in_time_is_told_and_forgotten() {
        let mut pings = Pings::default();
        pings.begin(SECOND, 7, 42, SECOND, ());
        assert_eq!(pings.overdue(SECOND), []);
        assert_eq!(pings.overdue(SECOND * 2), [42]);
        assert_eq!(pings.failed(42, PingAnswer::Silent), Some((7, PingAnswer::Silent)));
        assert_eq!(pings.failed(42, PingAnswer::Silent), None);
        (0..PINGS_MAX as u64).for_each(|n| pings.begin(SECOND, 8, n, SECOND, ()));
        assert!(!pings.has_room());
        pings.forget(8);
        assert!(pings.has_room());
    }
}
