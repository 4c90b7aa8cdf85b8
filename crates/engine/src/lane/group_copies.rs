//! Second copies of packets to multicast groups. A multi-path device listens on all its interfaces, and if
//! two of them are on one network, each packet comes by both. A queue pair gets the first copy only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use polypath_wire::Psn;

/// The senders that are told apart. If there are more, the one that has been silent for the longest time is
/// forgotten.
const MAX_SENDERS: usize = 64;
/// The packets of a sender that are remembered: how far one interface may be behind another.
const REMEMBERED: usize = 1024;
/// Copies come soon. What comes later with the same number is another packet.
const SOON: Duration = Duration::from_secs(1);

/// A packet that has come.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    psn: u32,
    /// 0 if there was none.
    ifindex: u32,
    at: Duration,
}

#[derive(Debug)]
struct Sender {
    heard_at: Duration,
    seen: Box<[Seen]>,
}

/// The packets that have come to groups lately.
#[derive(Debug, Default)]
pub(crate) struct GroupCopies(HashMap<(IpAddr, IpAddr, u32), Sender>);

impl GroupCopies {
    /// Takes note of a packet from an address and a queue pair to a group. Returns the interface by which
    /// its first copy came, if it is another one than this.
    pub(super) fn first_copy(
        &mut self,
        now: Duration,
        sender: (IpAddr, IpAddr, u32),
        psn: Psn,
        ifindex: u32,
    ) -> Option<u32> {
        if self.0.len() >= MAX_SENDERS && !self.0.contains_key(&sender) {
            let silent = self.0.iter().min_by_key(|(_, s)| s.heard_at).map(|(sender, _)| *sender);
            silent.and_then(|silent| self.0.remove(&silent));
        }
        let sender = self.0.entry(sender).or_insert_with(|| Sender {
            heard_at: now,
            seen: vec![Seen::default(); REMEMBERED].into(),
        });
        sender.heard_at = now;
        let seen = sender.seen.get_mut(psn.get() as usize % REMEMBERED)?;
        let is_copy = seen.psn == psn.get()
            && ![0, ifindex].contains(&seen.ifindex)
            && now.saturating_sub(seen.at) < SOON;
        if is_copy {
            return Some(seen.ifindex);
        }
        *seen = Seen { psn: psn.get(), ifindex, at: now };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn sender(n: u32) -> (IpAddr, IpAddr, u32) {
        ([10, 0, 0, 1].into(), [239, 1, 2, 3].into(), n)
    }

    #[test]
    fn a_copy_is_what_comes_by_another_interface_soon() {
        let mut copies = GroupCopies::default();
        let mut came = |at: u32, n, psn, ifindex| {
            copies.first_copy(MS * at, sender(n), Psn::new(psn), ifindex)
        };
        assert_eq!(
            (came(0, 1, 0, 2), came(1, 1, 0, 3), came(1, 1, 0, 4)),
            (None, Some(2), Some(2))
        );
        assert_eq!(came(1, 2, 0, 3), None, "another sender");
        assert_eq!(came(1, 1, 1, 3), None, "another packet");
        assert_eq!(came(2, 1, 1, 3), None, "the sender has begun anew");
        assert_eq!(came(2, 1, 1, 2), Some(3));
        assert_eq!(came(2, 1, 1 + REMEMBERED as u32, 3), None);
        assert_eq!(came(2, 1, 1, 2), None, "forgotten");
        assert_eq!(
            (came(500, 1, 9, 2), came(1499, 1, 9, 3), came(1500, 1, 9, 3)),
            (None, Some(2), None)
        );
    }

    #[test]
    fn strangers_take_bounded_room() {
        let mut copies = GroupCopies::default();
        for n in 0..1000 {
            copies.first_copy(MS * n, sender(n), Psn::new(0), 2);
            assert_eq!(copies.first_copy(MS * n, sender(n), Psn::new(0), 3), Some(2));
            // One that goes on is remembered.
            copies.first_copy(MS * n, sender(5000), Psn::new(n), 2);
        }
        assert_eq!(copies.0.len(), MAX_SENDERS);
        assert_eq!(copies.first_copy(MS * 1000, sender(5000), Psn::new(999), 3), Some(2));
    }
}
