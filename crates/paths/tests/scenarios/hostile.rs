//! Forged, replayed and damaged control.

use std::net::IpAddr;
use std::time::Duration;

use polypath_paths::*;
use polypath_wire::ended::Question;
use polypath_wire::packet::Packet;

use crate::net::*;

#[test]
fn forged_replayed_and_damaged_control_is_refused() {
    let mut net = Net::new(11, 2);
    net.keep_log = true;
    net.connect();
    net.run(Duration::from_secs(1));
    let before = net.hosts[1].paths.status();
    let log = net.log.clone();
    let frames: Vec<_> = log
        .iter()
        .filter(|f| f.to == 1)
        .filter_map(|f| match &f.wire {
            // Not the handshake, which is accepted again and changes nothing.
            Wire::Control(b) if b[0] != 0x64 => Some((f.src, f.dst, b.clone())),
            _ => None,
        })
        .collect();
    assert!(frames.len() > 4);
    for (src, dst, bytes) in &frames {
        let again = net.control(1, *src, *dst, bytes);
        assert_eq!(again, Handled::Refused(Refused::Replay));
        for at in 12..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(matches!(net.control(1, *src, *dst, &bad), Handled::Refused(_)));
        }
        // From or to other addresses.
        for (src, dst) in [(ip(0, 0), ip(1, 1)), ("10.9.9.9".parse().unwrap(), *dst)] {
            let got = net.control(1, src, dst, bytes);
            assert_eq!(got, Handled::Refused(Refused::Authentication));
        }
        // Reflected to its sender.
        assert!(matches!(net.control(0, *dst, *src, bytes), Handled::Refused(_)));
    }
    let after = net.hosts[1].paths.status();
    assert_eq!(before.peers, after.peers);
    assert!(net.refused(1, Refused::Authentication) > 0);
    assert!(net.refused(1, Refused::Replay) > 0);
}

/// Whoever has seen a packet of a path knows its tag, and may send from elsewhere.
#[test]
fn the_tag_of_a_path_is_good_for_its_addresses_only() {
    let mut net = Net::new(12, 2);
    net.connect();
    net.run(Duration::from_secs(1));
    let host = &mut net.hosts[1];
    let peer = host.peer.unwrap();
    let known = host.paths.status().peers[0].paths.clone();
    assert_eq!(known.len(), 2);
    for p in &known {
        let (src, dst) = (p.address.remote, p.address.local);
        assert_eq!(host.paths.classify(peer, src, dst, UDP, p.tag, 100), Ok(p.path));
        let elsewhere = "10.9.9.9".parse().unwrap();
        for (src, dst) in [(elsewhere, dst), (src, elsewhere), (dst, src)] {
            let got = host.paths.classify(peer, src, dst, UDP, p.tag, 100);
            assert_eq!(got, Err(Refused::UnknownSource), "{src} > {dst}");
        }
    }
    let crossed = (known[0].address.remote, known[0].address.local);
    let got = host.paths.classify(peer, crossed.0, crossed.1, UDP, known[1].tag, 100);
    assert_eq!(got, Err(Refused::UnknownSource), "by the other path's addresses");
}

/// The last HELLO of the first host, as its peer's host answers it for a process that has ended.
fn answer_for_one_that_has_ended(net: &Net) -> (IpAddr, IpAddr, Vec<u8>) {
    let hellos = net.log.iter().rev().filter(|f| f.to == 1);
    let mut answers = hellos.filter_map(|f| {
        let Wire::Control(bytes) = &f.wire else { return None };
        let question = Packet::parse_body_with(bytes, Question::of).ok().flatten()?;
        Some((f.dst, f.src, question.answer()))
    });
    answers.next().expect("the first host has said HELLO")
}

/// Whoever has heard the handshake can make the answer up, but it counts only while nothing is heard.
#[test]
fn a_process_has_ended_only_if_it_is_silent_and_its_host_was_asked() {
    let mut net = Net::new(13, 2);
    net.keep_log = true;
    net.connect();
    net.start_traffic();
    net.run(MS * 100);
    let peer = net.hosts[0].peer.unwrap();
    let (src, dst, answer) = answer_for_one_that_has_ended(&net);
    let early = net.control(0, src, dst, &answer);
    assert_eq!(early, Handled::Refused(Refused::Unsolicited));
    net.pause(1, Duration::from_secs(1000));
    net.run(Duration::from_secs(1));
    assert!(net.has(0, |e| matches!(e, PathEvent::NoPath { .. })));
    assert!(net.hosts[0].paths.route(peer).is_none(), "its queue pairs are held");

    let (src, dst, answer) = answer_for_one_that_has_ended(&net);
    let mut forged = answer.clone();
    // The nonce that is repeated.
    forged[52] ^= 1;
    let got = net.control(0, src, dst, &forged);
    assert_eq!(got, Handled::Refused(Refused::Authentication));
    let elsewhere = net.control(0, "10.9.9.9".parse().unwrap(), dst, &answer);
    assert_eq!(elsewhere, Handled::Refused(Refused::UnknownSource));
    assert!(net.hosts[0].paths.route(peer).is_none());
    assert_eq!(net.control(0, src, dst, &answer), Handled::Accepted);
    assert!(net.hosts[0].paths.route(peer).is_some(), "retries may run out");
    let again = net.control(0, src, dst, &answer);
    assert_eq!(again, Handled::Refused(Refused::NoAssociation));
}
