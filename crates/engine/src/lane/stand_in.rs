//! The place of the lane's thread, which a thread of the application may take.
//!
//! A thread that waits for an event of a completion queue would sleep until the lane's thread, woken by a
//! packet, wakes it in turn. Each wake-up takes several times as long as handling the packet. So such a
//! thread waits for the packets itself, and handles them: it stands in for the lane's thread, which leaves
//! the socket meanwhile. Only one thread can, and none while the lane's thread must watch the socket itself
//! or others wait for events that it must bring.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Who waits for the lane's packets.
#[derive(Debug)]
pub(super) struct StandIn {
    taken: AtomicBool,
    times: AtomicU64,
    /// How often there was more to wait for, and how often when the thread that has the place last looked.
    changes: AtomicU32,
    known: AtomicU32,
    refuses: AtomicBool,
    /// The number of threads that wait for events that the lane's thread must bring.
    others: AtomicU32,
}

impl StandIn {
    pub(super) fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            times: AtomicU64::new(0),
            changes: AtomicU32::new(0),
            known: AtomicU32::new(0),
            refuses: AtomicBool::new(false),
            others: AtomicU32::new(0),
        }
    }

    /// Takes the place, if it is free and to be had.
    pub(super) fn take(&self) -> bool {
        if !self.may_stay() || self.taken.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.times.store(self.times().wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Gives the place back.
    pub(super) fn give_back(&self) {
        self.taken.swap(false, Ordering::SeqCst);
    }

    /// Whether a thread has it.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// Whether a thread has it that waits for all that there is to wait for. While it sleeps it learns
    /// nothing new, and the lane's thread waits beside it.
    pub(super) fn waits_for_all(&self) -> bool {
        let known = self.known.load(Ordering::Relaxed) == self.changes.load(Ordering::Relaxed);
        self.is_taken() && known
    }

    /// Notes that there is more to wait for.
    pub(super) fn more_to_wait_for(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes that the thread that has the place waits for all that there is from now on.
    pub(super) fn learn(&self) {
        self.known.store(self.changes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// How often it was taken.
    pub(super) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// Whether the place may be taken or kept.
    pub(super) fn may_stay(&self) -> bool {
        !self.refuses.load(Ordering::Relaxed) && self.others.load(Ordering::Relaxed) == 0
    }

    /// Says whether the lane's thread watches the socket itself for some time.
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Notes that one more (1) or one less (-1) thread waits for an event that the lane's thread must bring.
    pub(super) fn others(&self, change: i32) {
        match change {
            0.. => self.others.fetch_add(change.unsigned_abs(), Ordering::Relaxed),
            _ => self.others.fetch_sub(change.unsigned_abs(), Ordering::Relaxed),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::lane::sleeper::{LEFT, Sleeper, Woken};
    use crate::lane::watch::Watch;

    const TICK: Duration = Duration::from_millis(1);

    #[test]
    fn one_thread_at_a_time_and_none_while_others_need_the_lane_s_thread() {
        let place = StandIn::new();
        assert!(place.take());
        assert!(!place.take(), "it is taken");
        place.give_back();
        place.others(1);
        assert!(!place.take(), "somebody else waits");
        place.others(-1);
        place.refuse(true);
        assert!(!place.take(), "the lane's thread watches");
        place.refuse(false);
        assert!(place.take());
        assert_eq!(place.times(), 2);
    }

    /// A socket with a packet in it, if `full`.
    fn socket(full: bool) -> (UnixDatagram, UnixDatagram) {
        let (socket, sender) = UnixDatagram::pair().unwrap();
        if full {
            sender.send(b"a packet").unwrap();
        }
        (socket, sender)
    }

    #[test]
    fn the_lane_s_thread_leaves_the_socket_to_who_stands_in_and_comes_back() {
        let (socket, _sender) = socket(true);
        let fd = socket.as_raw_fd();
        let sleeper = Sleeper::new(None).unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        let mut sleep = |deadline| sleeper.sleep(fd, clock::now(), deadline, &mut watch, false);
        assert!(sleeper.step_in());
        assert_eq!(sleep(None), Woken::Drive, "nobody came back within the tick");
        // From now on only a deadline or the thread itself wakes it, not the packet.
        let deadline = clock::now() + TICK * 20;
        while clock::now() < deadline {
            assert_eq!(sleep(Some(deadline)), Woken::Drive);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| sleeper.step_back());
            while sleeper.stand_in.is_taken() {
                sleep(None);
            }
        });
        // The packet wakes it again, at the latest when it does not expect that thread any more.
        let long_since = clock::now() + TICK * 20;
        assert_eq!(sleeper.sleep(fd, long_since, None, &mut watch, false), Woken::Drive);
    }

    #[test]
    fn who_comes_and_goes_is_left_alone_but_packets_are_not_left_for_long() {
        let (empty, _other) = socket(false);
        let (full, _sender) = socket(true);
        let sleeper = Sleeper::new(None).unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        let come_and_go = || {
            assert!(sleeper.step_in());
            sleeper.step_back();
        };
        come_and_go();
        // A wake-up that came too early does not end the tick.
        let sleep = |fd: &UnixDatagram, watch: &mut Watch| {
            sleeper.sleep(fd.as_raw_fd(), clock::now(), None, watch, false)
        };
        assert_eq!(sleep(&empty, &mut watch), Woken::Drive, "it did not come back: timers count");
        for _ in 1..LEFT {
            come_and_go();
            assert_eq!(sleep(&full, &mut watch), Woken::Drive, "a packet is left");
        }
        come_and_go();
        assert_eq!(sleep(&full, &mut watch), Woken::Unpolled);
        watch.watch_socket(clock::now());
        assert_eq!(sleep(&full, &mut watch), Woken::Drive);
        assert!(!sleeper.step_in(), "the lane's thread watches");
    }

    #[test]
    fn the_lane_s_thread_waits_beside_who_does_not_know_of_all() {
        let (full, _sender) = socket(true);
        let sleeper = Sleeper::new(None).unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        assert!(sleeper.step_in());
        sleeper.stand_in_is_awake();
        assert!(sleeper.stand_in.waits_for_all());
        sleeper.more_to_wait_for();
        assert!(!sleeper.stand_in.waits_for_all());
        // It would wait for an hour beside a thread that waits for all; the packet wakes it.
        let long_since = clock::now() + TICK * 20;
        sleeper.sleep(full.as_raw_fd(), long_since, None, &mut watch, false);
        let woken =
            sleeper.sleep(full.as_raw_fd(), long_since + TICK * 20, None, &mut watch, false);
        assert_eq!((woken, watch.armed), (Woken::Drive, true));
        sleeper.stand_in_is_awake();
        assert!(sleeper.stand_in.waits_for_all());
    }

    #[test]
    fn who_sleeps_in_another_way_is_not_left_to_who_stands_in() {
        let sleeper = Sleeper::new(None).unwrap();
        assert!(sleeper.step_in());
        assert!(sleeper.may_stay());
        sleeper.others(1);
        assert!(!sleeper.may_stay());
        sleeper.others(-1);
        assert!(sleeper.may_stay());
    }
}
