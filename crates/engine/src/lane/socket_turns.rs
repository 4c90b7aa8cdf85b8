//! Decides how often a thread that polls asks the kernel for packets.
//!
//! To look into a socket is a system call, and dear beside a look into memory that is shared with another
//! lane. While everything comes by such memory, a thread that polls looks there each time, and into the
//! socket only every few microseconds.

use std::time::Duration;

/// The longest time for which the socket is left alone.
const REST: Duration = Duration::from_micros(3);
/// The number of looks in vain after which the socket may be left alone.
const VAIN: u32 = 16;
/// How long after the last packet by other media that is so.
const LULL: Duration = Duration::from_micros(500);

/// What came by a lane's socket, and by its other media.
#[derive(Debug, Default)]
pub(super) struct SocketTurns {
    /// When the socket was last looked into.
    looked: Duration,
    /// The looks in vain since a packet last came by the socket.
    vain: u32,
    /// When packets last came by other media.
    others: Option<Duration>,
}

impl SocketTurns {
    /// Whether a thread that polls should look into the socket.
    #[inline]
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let spared = self.vain >= VAIN
            && now.saturating_sub(self.looked) < REST
            && self.others.is_some_and(|at| now.saturating_sub(at) < LULL);
        !spared
    }

    /// Notes that this many packets came by the socket.
    #[inline]
    pub(super) fn looked(&mut self, now: Duration, packets: usize) {
        self.looked = now;
        self.vain = if packets > 0 { 0 } else { self.vain.saturating_add(1) };
    }

    /// Notes that packets came by other media.
    #[inline]
    pub(super) fn others(&mut self, now: Duration) {
        self.others = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1);
    const POLL: Duration = Duration::from_nanos(100);

    /// The state after the socket was looked into in vain often enough.
    fn quiet() -> SocketTurns {
        let mut turns = SocketTurns::default();
        turns.others(START);
        for _ in 0..VAIN {
            assert!(turns.is_due(START));
            turns.looked(START, 0);
        }
        turns
    }

    #[test]
    fn a_quiet_socket_is_looked_into_every_few_microseconds() {
        let mut turns = quiet();
        let polls = (LULL.as_nanos() / POLL.as_nanos()) as u32;
        let looks = (1..polls).filter(|n| {
            let now = START + POLL * *n;
            let due = turns.is_due(now);
            if due {
                turns.looked(now, 0);
            }
            due
        });
        assert_eq!(looks.count() as u32, (polls - 1) / (REST.as_nanos() / POLL.as_nanos()) as u32);
        assert!(turns.is_due(START + LULL), "nothing comes by other media any more");
    }

    #[test]
    fn a_socket_that_brings_packets_is_looked_into_each_time() {
        let mut turns = quiet();
        assert!(!turns.is_due(START));
        turns.looked(START + REST, 1);
        assert!(turns.is_due(START + REST));
    }

    #[test]
    fn a_lane_without_other_media_looks_into_its_socket_each_time() {
        let mut turns = SocketTurns::default();
        for _ in 0..VAIN * 2 {
            turns.looked(START, 0);
            assert!(turns.is_due(START));
        }
    }
}
