//! Keys of associations, authentication codes, and protection from replay.
//!
//! Both lanes put a random nonce into the handshake; the key is SipHash-2-4-128 over both nonces and
//! instances, the smaller nonce first, so that both ends derive the same key, whichever of them began.
//! The nonces travel in clear, as the keys of MPTCP's MP_CAPABLE do (RFC 8684, section 3.1). So the key
//! keeps out everyone who did not see the handshake, but not someone who reads the link.

use core::net::IpAddr;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

use crate::bytes::ip_bytes;
use crate::seen::Bits;

/// Length of an authentication code, bytes.
pub(crate) const MAC_LEN: usize = 16;

/// The random number that a lane contributes to a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nonce(pub(crate) [u8; 16]);

/// The addresses of a packet. The authentication code covers them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
}

/// Key of an association.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u8; 16]);

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The key that two lanes share. Each lane is given as its instance and nonce; the order does not
    /// matter.
    pub(crate) fn derive(a: (u64, Nonce), b: (u64, Nonce)) -> Self {
        let (low, high) = if (a.1, a.0) <= (b.1, b.0) { (a, b) } else { (b, a) };
        let mut h = SipHasher24::new_with_key(b"polypath paths 1");
        for (instance, nonce) in [low, high] {
            h.write(&instance.to_be_bytes());
            h.write(&nonce.0);
        }
        Self(h.finish128().as_bytes())
    }

    /// Authentication code of a payload sent by the lane `instance`.
    pub(crate) fn mac(
        &self,
        instance: u64,
        opcode: u8,
        ends: Ends,
        payload: &[u8],
    ) -> [u8; MAC_LEN] {
        let mut h = SipHasher24::new_with_key(&self.0);
        h.write(&instance.to_be_bytes());
        h.write(&[opcode]);
        h.write(&ip_bytes(ends.src));
        h.write(&ip_bytes(ends.dst));
        h.write(payload);
        h.finish128().as_bytes()
    }

    /// Whether `payload` ends with the right code for what comes before.
    pub(crate) fn check(&self, instance: u64, opcode: u8, ends: Ends, payload: &[u8]) -> bool {
        let Some((body, code)) = payload.split_last_chunk::<MAC_LEN>() else { return false };
        let right = self.mac(instance, opcode, ends, body);
        // No early exit, so that the time taken does not show how many bytes were right.
        right.iter().zip(code).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
    }
}

/// Random numbers from a secret seed: SipHash in counter mode. The same seed gives the same numbers,
/// which the simulator needs.
#[derive(Clone)]
pub(crate) struct Random {
    seed: [u8; 16],
    counter: u64,
}

impl core::fmt::Debug for Random {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Random(..)")
    }
}

impl Random {
    pub(crate) fn new(seed: [u8; 16]) -> Self {
        Self { seed, counter: 0 }
    }

    pub(crate) fn bytes(&mut self) -> [u8; 16] {
        let mut h = SipHasher24::new_with_key(&self.seed);
        h.write(&self.counter.to_be_bytes());
        self.counter += 1;
        h.finish128().as_bytes()
    }

    pub(crate) fn u32(&mut self) -> u32 {
        let b = self.bytes();
        u32::from_be_bytes([b[0], b[1], b[2], b[3]])
    }
}

/// Remembers which sequence numbers of the peer were seen: the newest and a window below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayWindow {
    newest: u64,
    seen: Bits<WINDOW_WORDS>,
}

const WINDOW_WORDS: usize = 16;
/// A packet whose number is this much below the newest one is refused.
const WINDOW: u64 = WINDOW_WORDS as u64 * 64;

impl ReplayWindow {
    /// Returns `true` once for each number. Numbers begin with 1.
    pub(crate) fn accept(&mut self, sequence: u64) -> bool {
        if sequence == 0 {
            return false;
        }
        if sequence > self.newest {
            let jump = sequence - self.newest;
            if jump >= WINDOW {
                self.seen = Bits::default();
            } else {
                for n in self.newest + 1..sequence {
                    self.seen.set(n, false);
                }
            }
            self.newest = sequence;
        } else if self.newest - sequence >= WINDOW || self.seen.get(sequence) {
            return false;
        }
        self.seen.set(sequence, true);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_derive_the_same_key() {
        let a = (7, Nonce([1; 16]));
        let b = (3, Nonce([2; 16]));
        assert!(Key::derive(a, b) == Key::derive(b, a));
        assert!(Key::derive(a, b) != Key::derive((8, a.1), b));
        assert!(Key::derive(a, b) != Key::derive(a, (3, Nonce([3; 16]))));
    }

    #[test]
    fn code_covers_sender_addresses_and_payload() {
        let key = Key::derive((7, Nonce([1; 16])), (3, Nonce([2; 16])));
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let ends = Ends { src: ip(1), dst: ip(2) };
        let mut payload = b"abcd".to_vec();
        payload.extend_from_slice(&key.mac(7, 0xd8, ends, b"abcd"));
        assert!(key.check(7, 0xd8, ends, &payload));
        assert!(!key.check(3, 0xd8, ends, &payload));
        assert!(!key.check(7, 0xd9, ends, &payload));
        assert!(!key.check(7, 0xd8, Ends { src: ip(3), dst: ip(2) }, &payload));
        for i in 0..payload.len() {
            let mut bad = payload.clone();
            bad[i] ^= 1;
            assert!(!key.check(7, 0xd8, ends, &bad));
        }
        assert!(!key.check(7, 0xd8, ends, b"short"));
    }

    #[test]
    fn replayed_and_ancient_numbers_are_refused() {
        let mut w = ReplayWindow::default();
        assert!(!w.accept(0));
        assert!(w.accept(1));
        assert!(!w.accept(1));
        assert!(w.accept(5));
        assert!(w.accept(3));
        assert!(!w.accept(3));
        assert!(w.accept(5000));
        assert!(!w.accept(5000 - WINDOW));
        assert!(w.accept(5000 - WINDOW + 1));
        assert!(!w.accept(2));
        for n in (5001..7000).rev() {
            let fits = n + WINDOW > 6999;
            assert_eq!(w.accept(n), fits, "{n}");
        }
    }
}
