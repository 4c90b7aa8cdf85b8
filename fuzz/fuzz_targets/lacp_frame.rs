//! Frames of slow protocols from any partner, at any time, on two ports whose links come and go: nothing
//! panics, what parses is rebuilt as it was, and no port sends more than three LACPDUs and ten frames a
//! second.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polypath_lacp::{Actor, Config, SlowFrame};

/// The interval in which frames are counted.
const SECOND: Duration = Duration::from_secs(1);

fuzz_target!(|data: &[u8]| {
    let mut config = Config::new([2, 0, 0, 0, 0, 1]);
    let Some((&options, mut rest)) = data.split_first() else { return };
    config.lacp_active = options & 1 == 0;
    config.coupled_control = options & 2 == 0;
    config.lacp_strict = options & 4 == 0;
    let mut actor = Actor::new(config).expect("valid options");
    let ports = [1, 2].map(|n| actor.add_port([2, 0, 0, 0, n, 1]).expect("room for two"));
    let mut now = Duration::ZERO;
    let mut sent: Vec<(u16, bool, Duration)> = Vec::new();
    // Each step: what happens, for how long nothing does before, and a frame.
    while let [what, pause, tail @ ..] = rest {
        now += Duration::from_millis(u64::from(*pause) * 40);
        let port = ports[usize::from(what & 1)];
        let frame = &tail[..tail.len().min(usize::from(what >> 1))];
        rest = &tail[frame.len()..];
        actor.handle_timeout(now);
        match what >> 1 {
            0 => actor.link_changed(now, port, true, 10_000, true),
            1 => actor.link_changed(now, port, false, 0, true),
            _ => {
                // The Ethernet header is given, so that inputs are about what follows it.
                let mut whole = vec![1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 9, 9, 0x88, 0x09];
                whole.extend(frame);
                whole.resize(whole.len().max(124), 0);
                if let Ok(SlowFrame::Lacpdu(pdu)) = SlowFrame::parse(&whole) {
                    let again = SlowFrame::parse(&pdu.to_frame([2; 6]));
                    assert_eq!(again, Ok(SlowFrame::Lacpdu(pdu)));
                }
                let _ = actor.handle_frame(now, port, &whole);
            }
        }
        while let Some((port, frame)) = actor.poll_transmit(now) {
            let is_lacpdu = matches!(SlowFrame::parse(&frame), Ok(SlowFrame::Lacpdu(_)));
            sent.push((port, is_lacpdu, now));
            let recent = |lacpdus: bool| {
                let all = sent.iter().rev().take_while(|(.., at)| now < *at + SECOND);
                all.filter(|(by, is, _)| *by == port && (*is || !lacpdus)).count()
            };
            assert!(recent(true) <= 3 && recent(false) <= 10, "too many frames");
        }
        while actor.poll_event().is_some() {}
    }
});
