//! Packets that are delayed until others have overtaken them, or for a time.

use std::collections::BTreeMap;
use std::time::Duration;

/// The longest time that a packet waits for others to overtake it.
const OVERTAKEN_WITHIN: Duration = Duration::from_millis(2);

/// The largest number of packets that are delayed at a time, because a queue in a network is
/// bounded too.
pub(super) const HELD_MAX: usize = 16_384;

/// The delayed packets, each a `T`.
#[derive(Debug)]
pub(super) struct DelayQueue<T> {
    /// Packets that others overtake: the number of packets still to overtake it, the latest time
    /// until which it waits for them, and the delay after that.
    behind: Vec<(u32, Duration, Duration, T)>,
    /// Packets that wait until a time, ordered by that time and by arrival.
    until: BTreeMap<(Duration, u64), T>,
    serial: u64,
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self { behind: Vec::new(), until: BTreeMap::new(), serial: 0 }
    }
}

impl<T> DelayQueue<T> {
    /// Whether packets that pass change nothing in this queue.
    pub(super) fn is_idle(&self) -> bool {
        self.behind.is_empty()
    }

    /// Whether no further packet can be delayed.
    pub(super) fn is_full(&self) -> bool {
        self.behind.len() + self.until.len() >= HELD_MAX
    }

    /// Enters a packet that `overtakers` other packets overtake and that is delayed by `delay`
    /// after that. Packets that may continue now are appended to `out`.
    pub(super) fn enter(
        &mut self,
        now: Duration,
        overtakers: u32,
        delay: Duration,
        packet: T,
        out: &mut Vec<T>,
    ) {
        if overtakers > 0 {
            self.behind.push((overtakers, now + OVERTAKEN_WITHIN, delay, packet));
            return;
        }
        self.delay(now, delay, packet, out);
        self.pass(now, out);
    }

    /// Notes that a packet passes without delay. It overtakes the packets that wait to be
    /// overtaken.
    pub(super) fn pass(&mut self, now: Duration, out: &mut Vec<T>) {
        for (left, ..) in &mut self.behind {
            *left -= 1;
        }
        self.release(now, out, |(left, ..)| *left == 0);
    }

    /// Appends to `out` the packets that have waited long enough.
    pub(super) fn take_due(&mut self, now: Duration, out: &mut Vec<T>) {
        self.release(now, out, |(_, latest, ..)| *latest <= now);
        while let Some(first) = self.until.first_entry()
            && first.key().0 <= now
        {
            out.push(first.remove());
        }
    }

    /// The time at which [`DelayQueue::take_due`] next has a packet.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let behind = self.behind.iter().map(|(_, latest, ..)| *latest);
        let until = self.until.first_key_value().map(|((at, _), _)| *at);
        behind.chain(until).min()
    }

    fn release(
        &mut self,
        now: Duration,
        out: &mut Vec<T>,
        mut is_ready: impl FnMut(&(u32, Duration, Duration, T)) -> bool,
    ) {
        let mut at = 0;
        while at < self.behind.len() {
            if is_ready(&self.behind[at]) {
                let (_, _, delay, packet) = self.behind.remove(at);
                self.delay(now, delay, packet, out);
            } else {
                at += 1;
            }
        }
    }

    fn delay(&mut self, now: Duration, delay: Duration, packet: T, out: &mut Vec<T>) {
        if delay.is_zero() {
            out.push(packet);
            return;
        }
        self.until.insert((now + delay, self.serial), packet);
        self.serial += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_packet_comes_behind_as_many_as_were_to_overtake_it() {
        let (mut queue, mut out) = (DelayQueue::default(), Vec::new());
        queue.enter(MS, 2, Duration::ZERO, "late", &mut out);
        for (packet, gone) in [("a", vec!["a"]), ("b", vec!["b", "late"]), ("c", vec!["c"])] {
            queue.enter(MS, 0, Duration::ZERO, packet, &mut out);
            assert_eq!(std::mem::take(&mut out), gone);
        }
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn a_packet_that_nothing_overtakes_goes_on_by_itself() {
        let (mut queue, mut out) = (DelayQueue::default(), Vec::new());
        queue.enter(MS, 3, Duration::ZERO, "late", &mut out);
        assert_eq!(queue.next_deadline(), Some(3 * MS));
        queue.take_due(2 * MS, &mut out);
        assert_eq!(out, [""; 0]);
        queue.take_due(3 * MS, &mut out);
        assert_eq!((out, queue.next_deadline()), (vec!["late"], None));
    }

    #[test]
    fn packets_that_are_delayed_equally_long_keep_their_order() {
        let (mut queue, mut out) = (DelayQueue::default(), Vec::new());
        for packet in 0..5 {
            queue.enter(MS, 0, 5 * MS, packet, &mut out);
        }
        queue.enter(2 * MS, 0, MS, 9, &mut out);
        assert_eq!((out.as_slice(), queue.next_deadline()), ([].as_slice(), Some(3 * MS)));
        queue.take_due(5 * MS, &mut out);
        assert_eq!(out, [9]);
        queue.take_due(6 * MS, &mut out);
        assert_eq!(out, [9, 0, 1, 2, 3, 4]);
    }
}
