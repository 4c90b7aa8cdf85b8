//! The rendezvous (`polypath broker --rendezvous`): hosts that have both got new addresses find each other
//! here.
//!
//! Each sends what it wants the other to know, with a token of its own and the other's
//! ([`polypath_wire::relay`]). The rendezvous remembers where each token was heard last, and passes on what
//! is for a token that it knows. A packet makes no more than one of the same length, and goes only where
//! such packets came from.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::relay::{RENDEZVOUS_QPN, Relay, Token};
use polypath_wire::{Opcode, Packet};

use crate::host::{canonical, is_unicast};
use crate::sys::udp::Datagram;

/// The most tokens that are remembered.
const TOKENS_MAX: usize = 4096;
/// For how long one is remembered that is not heard again.
const KEEP: Duration = Duration::from_secs(120);

/// How somebody is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) ifindex: u32,
    /// The queue pair number that packets are addressed to.
    number: u32,
    heard: Duration,
}

/// Why a datagram is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stays {
    /// It is damaged, or does not come from who looks for somebody.
    Invalid,
    /// Whom it is for was not heard lately.
    Unknown,
}

/// Where tokens were heard.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous(HashMap<Token, Place>);

impl Rendezvous {
    /// Whether a datagram is for the rendezvous. Nothing else is looked at.
    pub(crate) fn is_for(bytes: &[u8]) -> bool {
        bytes.first() == Some(&Opcode::MP_RELAY.0)
    }

    /// Takes a datagram. Returns the packet to pass on, without its ICRC, and where to.
    ///
    /// # Errors
    /// It goes nowhere.
    pub(crate) fn take(
        &mut self,
        now: Duration,
        datagram: &Datagram,
        buffer: &[u8],
    ) -> Result<(Place, Vec<u8>), Stays> {
        let bytes = buffer.get(..datagram.len).ok_or(Stays::Invalid)?;
        let (remote, local) = (canonical(datagram.from.ip()), canonical(datagram.to));
        let flow = Flow::new(remote, local, datagram.from.port());
        FlowCrc::new(&flow).verify(bytes, 0).ok_or(Stays::Invalid)?;
        let packet = Packet::parse(bytes).map_err(|_| Stays::Invalid)?;
        let relay = Relay::decode(packet.payload).ok_or(Stays::Invalid)?;
        let right = packet.headers.bth.dest_qpn == RENDEZVOUS_QPN && is_unicast(remote);
        if !right || relay.from == relay.to {
            return Err(Stays::Invalid);
        }
        if self.0.len() >= TOKENS_MAX && !self.0.contains_key(&relay.from) {
            self.0.retain(|_, place| now.saturating_sub(place.heard) < KEEP);
        }
        let place =
            Place { local, remote, ifindex: datagram.ifindex, number: relay.answer_to, heard: now };
        if self.0.len() < TOKENS_MAX || self.0.contains_key(&relay.from) {
            self.0.insert(relay.from, place);
        }
        let to = self.0.get(&relay.to).filter(|to| now.saturating_sub(to.heard) < KEEP);
        let to = *to.ok_or(Stays::Unknown)?;
        Ok((to, relay.encode(to.number)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const HERE: &str = "10.0.0.9";
    const SECOND: Duration = Duration::from_secs(1);

    /// A datagram of a host, whose number is the last byte of its address and both its tokens' first.
    fn datagram(host: u8, to: u8, damaged: bool) -> (Datagram, Vec<u8>) {
        let remote: IpAddr = [10, 0, 0, host].into();
        let from = SocketAddr::new(remote, 50_000);
        let relay = Relay {
            answer_to: u32::from(host) << 16,
            from: [host; 16],
            to: [to; 16],
            src: remote,
            dst: [10, 1, 0, to].into(),
            packet: &[host; 40],
        };
        let mut bytes = relay.encode(RENDEZVOUS_QPN);
        let flow = Flow::new(remote, HERE.parse().unwrap(), from.port());
        let icrc = FlowCrc::new(&flow).compute(0, &bytes);
        bytes.extend_from_slice(&icrc);
        if damaged {
            bytes[90] ^= 1;
        }
        (Datagram { len: bytes.len(), from, to: HERE.parse().unwrap(), ifindex: 4 }, bytes)
    }

    fn take(
        at: &mut Rendezvous,
        now: Duration,
        host: u8,
        to: u8,
    ) -> Result<(Place, Vec<u8>), Stays> {
        let (datagram, bytes) = datagram(host, to, false);
        assert!(Rendezvous::is_for(&bytes));
        at.take(now, &datagram, &bytes)
    }

    #[test]
    fn who_comes_second_is_heard_by_the_first_and_then_both_by_each_other() {
        let mut at = Rendezvous::default();
        assert_eq!(take(&mut at, SECOND, 1, 2), Err(Stays::Unknown), "nobody is there");
        assert_eq!(take(&mut at, SECOND, 3, 4), Err(Stays::Unknown), "another pair");
        let (place, bytes) = take(&mut at, SECOND, 2, 1).unwrap();
        assert_eq!((place.remote, place.ifindex), ([10, 0, 0, 1].into(), 4));
        let told = Packet::parse_body_with(&bytes, |packet| {
            assert_eq!(packet.headers.bth.dest_qpn, 1 << 16);
            let relay = Relay::decode(packet.payload).unwrap();
            assert_eq!((relay.from, relay.src), ([2; 16], [10, 0, 0, 2].into()));
            assert_eq!(relay.packet, [2; 40]);
        });
        told.unwrap();
        let (place, _) = take(&mut at, 2 * SECOND, 1, 2).unwrap();
        assert_eq!(place.remote, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(
            take(&mut at, 2 * SECOND + KEEP, 1, 2),
            Err(Stays::Unknown),
            "nobody has heard it for long"
        );
    }

    #[test]
    fn nothing_is_passed_on_that_is_damaged_cut_off_or_for_its_sender() {
        let mut at = Rendezvous::default();
        let _ = take(&mut at, SECOND, 1, 2);
        let (whole, bytes) = datagram(2, 1, true);
        assert_eq!(at.take(SECOND, &whole, &bytes), Err(Stays::Invalid));
        let (whole, bytes) = datagram(2, 1, false);
        for len in 0..bytes.len() {
            let part = Datagram { len, ..whole };
            assert_eq!(at.take(SECOND, &part, &bytes), Err(Stays::Invalid), "{len}");
        }
        assert_eq!(take(&mut at, SECOND, 1, 1), Err(Stays::Invalid));
    }

    #[test]
    fn tokens_are_limited_and_old_ones_make_room() {
        let mut at = Rendezvous::default();
        let place = |heard| Place {
            local: HERE.parse().unwrap(),
            remote: [10, 0, 0, 5].into(),
            ifindex: 1,
            number: 0,
            heard,
        };
        for n in 0..TOKENS_MAX as u32 {
            let mut token = [255; 16];
            token[..4].copy_from_slice(&n.to_be_bytes());
            at.0.insert(token, place(SECOND * (n % 2) * 100));
        }
        let _ = take(&mut at, SECOND, 1, 2);
        assert!(!at.0.contains_key(&[1; 16]), "there is no room");
        let _ = take(&mut at, KEEP + SECOND, 1, 2);
        assert!(at.0.contains_key(&[1; 16]));
        assert_eq!(at.0.len(), TOKENS_MAX / 2 + 1);
    }
}
