//! Forged, replayed and damaged control.

use std::time::Duration;

use polypath_paths::*;

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
