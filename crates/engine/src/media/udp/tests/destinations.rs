//! Tests of destination addresses: the host's own, wrong ones, and ones where nobody listens.

use super::*;

/// The ICMP message about the first packet arrives before the next packet is sent.
#[test]
fn icmp_errors_fail_no_send() {
    for ip in [V4, V6] {
        let (receiver, mut sender) = pair();
        drop(receiver);
        let flow = sender.open(key(ip, ip)).unwrap();
        for psn in 0..3 {
            sender.queue_raw(flow, &headers_only(psn));
            assert_eq!(flush(&mut sender), (1, 0));
        }
        assert!(!sender.has_flow_errors());
    }
}

#[test]
fn flow_that_fails_does_not_keep_others_from_being_sent() {
    let (mut receiver, mut sender) = pair();
    // The loopback address cannot send to another host.
    let bad = sender.open(key(V4, "203.0.113.7".parse().unwrap())).unwrap();
    let good = sender.open(key(V4, V4)).unwrap();
    for flow in [good, bad, good, bad, good] {
        sender.queue_raw(flow, &headers_only(0));
    }
    assert_eq!(flush(&mut sender), (3, 2));
    let errors = sender.take_flow_errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].flow, bad);
    assert!(drain(&mut receiver).iter().all(|g| g.good));
}

#[test]
fn addresses_that_do_not_fit_are_refused() {
    let mut sender = Sender::new();
    assert_eq!(sender.open(key(V4, V6)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let elsewhere = "203.0.113.7".parse().unwrap();
    let error = sender.open(key(elsewhere, V4)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
}

/// An address of this host on a real interface, with the interface's number.
fn own_addresses() -> Vec<(IpAddr, u32)> {
    let text = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let ip = u128::from_str_radix(words.next()?, 16).ok()?;
            let ifindex = u32::from_str_radix(words.next()?, 16).ok()?;
            let flags = u32::from_str_radix(words.nth(2)?, 16).ok()?;
            // Tentative addresses can't be bound.
            (flags & 0x40 == 0).then_some((IpAddr::V6(Ipv6Addr::from(ip)), ifindex))
        })
        .chain(UdpSocket::bind("0.0.0.0:0").ok().and_then(|s| {
            // This finds the address that would be used; nothing is sent.
            s.connect("203.0.113.7:9").ok()?;
            Some((s.local_addr().ok()?.ip(), 0))
        }))
        .collect()
}

#[test]
fn own_addresses_are_reached_link_local_ones_too() {
    for (ip, ifindex) in own_addresses() {
        let (mut receiver, mut sender) = pair();
        let ifindex = (ifindex > 0).then_some(ifindex);
        let flow = sender.open(FlowKey { ifindex, ..key(ip, ip) }).unwrap();
        sender.queue(flow, &write(0, 1024, Payload::Bytes(&[5; 3000])).burst()).unwrap();
        assert_eq!(sender.flush().dropped, 0, "{ip}");
        let got = drain(&mut receiver);
        assert_eq!(got.len(), 3, "{ip}");
        assert!(got.iter().all(|g| g.good && g.src == ip && g.dst == ip), "{ip}");
    }
}
