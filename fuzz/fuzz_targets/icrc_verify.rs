//! A packet with an ICRC: checking never panics, and an identification that it finds is the right one.
//!
//! Input: family (1, odd is IPv6), guess (2), source (16), destination (16), source port (2), UDP
//! payload.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use polypath_wire::icrc::{Flow, FlowCrc};

fuzz_target!(|data: &[u8]| {
    let Some((head, payload)) = data.split_first_chunk::<37>() else { return };
    let addr = |at: usize| {
        if head[0] & 1 == 0 {
            IpAddr::V4(Ipv4Addr::new(head[at + 12], head[at + 13], head[at + 14], head[at + 15]))
        } else {
            let bytes: [u8; 16] = head[at..at + 16].try_into().unwrap();
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
    };
    let guess = u16::from_be_bytes([head[1], head[2]]);
    let crc = FlowCrc::new(&Flow::new(addr(3), addr(19), u16::from_be_bytes([head[35], head[36]])));
    if let Some(id) = crc.verify(payload, guess) {
        let (body, sent) = payload.split_last_chunk::<4>().expect("verified, so long enough");
        assert_eq!(crc.compute(id, body), *sent);
    }
    // Made right, it must verify with any guess.
    let mut right = payload.to_vec();
    right.extend(crc.compute(guess, payload));
    assert_eq!(crc.verify(&right, 0), Some(if crc.is_ipv4() { guess } else { 0 }));
    assert_eq!(crc.verify(&right, guess), Some(if crc.is_ipv4() { guess } else { 0 }));
});
