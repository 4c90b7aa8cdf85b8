//! What is sent by two paths at once, as each of the two counts it.
//!
//! Which of two copies arrives first says nothing of the path of the other one. So the bytes of both count
//! against the window of their own path, not of the queue pair, until an answer comes by that very path: to
//! the packet itself, to a later one, or to a later probe, because a path keeps the order.

use core::time::Duration;
use std::collections::VecDeque;

/// The most times of sending that are told apart on a path. What is sent later counts as sent at the last
/// of them.
const TIMES_MAX: usize = 4096;

/// What is on its way by one path, and was sent by another one as well.
#[derive(Clone, Debug, Default)]
pub(crate) struct Twice {
    /// When it was sent, and the bytes sent then, in that order.
    sent: VecDeque<(Duration, u32)>,
    bytes: u32,
}

impl Twice {
    /// All bytes that are on their way.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether [`Twice::bytes`] is the sum of what was sent.
    pub(crate) fn is_consistent(&self) -> bool {
        let sum: u64 = self.sent.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        sum == u64::from(self.bytes)
    }

    pub(crate) fn push(&mut self, now: Duration, bytes: u32) {
        self.bytes += bytes;
        let full = self.sent.len() >= TIMES_MAX;
        match self.sent.back_mut() {
            Some((at, sum)) if *at == now || full => (*at, *sum) = (now, *sum + bytes),
            _ => self.sent.push_back((now, bytes)),
        }
    }

    /// Takes what was sent while `gone` is true of the time, from the oldest on.
    fn take_while(&mut self, gone: impl Fn(Duration) -> bool) -> u32 {
        let mut taken = 0;
        while let Some((_, bytes)) = self.sent.pop_front_if(|(at, _)| gone(*at)) {
            taken += bytes;
        }
        self.bytes -= taken;
        taken
    }

    /// Takes what was sent until `at`.
    pub(crate) fn take_until(&mut self, at: Duration) -> u32 {
        self.take_while(|sent| sent <= at)
    }

    /// Takes what was sent before the time `echo_us` (microseconds, wrapping). Of what was sent at that time,
    /// it takes at most `bytes`.
    pub(crate) fn take_answered(&mut self, echo_us: u32, bytes: Option<u32>) -> u32 {
        let age = |at: Duration| echo_us.wrapping_sub(at.as_micros() as u32) as i32;
        let Some(most) = bytes else { return self.take_while(|at| age(at) >= 0) };
        let mut taken = self.take_while(|at| age(at) > 0);
        if let Some((at, left)) = self.sent.front_mut()
            && age(*at) == 0
        {
            let part = most.min(*left);
            *left -= part;
            self.bytes -= part;
            taken += part;
        }
        taken
    }

    /// Takes everything.
    pub(crate) fn take_all(&mut self) -> u32 {
        self.take_while(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn three() -> Twice {
        let mut twice = Twice::default();
        for (at, bytes) in [(1, 100), (1, 50), (2, 200), (3, 400)] {
            twice.push(MS * at, bytes);
        }
        assert_eq!(twice.bytes(), 750);
        twice
    }

    #[test]
    fn an_answer_takes_back_what_was_sent_until_then_on_its_path() {
        let mut twice = three();
        assert_eq!(twice.take_answered(999, None), 0);
        assert_eq!(twice.take_answered(2000, None), 350);
        assert_eq!((twice.take_answered(2000, None), twice.bytes()), (0, 400), "it counts once");
        assert_eq!(twice.take_until(MS * 3), 400);
        assert!(twice.is_consistent() && twice.bytes() == 0);
    }

    #[test]
    fn a_part_of_an_answer_takes_back_its_own_bytes() {
        let mut twice = three();
        assert_eq!(twice.take_answered(2000, Some(60)), 150 + 60);
        assert_eq!(twice.take_answered(2000, Some(1000)), 140);
        assert_eq!(twice.bytes(), 400);
        assert_eq!((twice.take_all(), twice.is_consistent()), (400, true));
    }

    #[test]
    fn timestamps_wrap() {
        let mut twice = Twice::default();
        let wrap = Duration::from_micros(1 << 32);
        twice.push(wrap - MS, 1);
        twice.push(wrap + MS, 2);
        assert_eq!(twice.take_answered(u32::MAX, None), 1);
        assert_eq!(twice.take_answered(1000, None), 2);
    }

    #[test]
    fn times_are_bounded_and_lose_no_byte() {
        let mut twice = Twice::default();
        for n in 0..10_000u32 {
            twice.push(MS * n, 1);
        }
        assert_eq!((twice.sent.len(), twice.bytes()), (TIMES_MAX, 10_000));
        assert_eq!(twice.take_until(MS * 9_998), TIMES_MAX as u32 - 1, "the last are the latest");
        assert_eq!(twice.take_until(MS * 9_999), 10_000 - TIMES_MAX as u32 + 1);
    }
}
