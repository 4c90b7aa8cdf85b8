//! Peers that refuse at once a request that nobody serves yet, as Linux does.

mod common;

use core::net::SocketAddr;
use core::time::Duration;

use common::*;
use polypath_cm::MadAddress;
use polypath_wire::cm::{CmMad, CmMessage, Info, Rej, RejectReason, Rejected, SidrRep, SidrStatus};

const AT_ONCE: Duration = Duration::from_millis(1);

fn server() -> SocketAddr {
    SocketAddr::new(v4(1), 9999)
}

/// The answer of a host where nobody listens.
fn refusal(request: &CmMad) -> Option<CmMad> {
    let tid = request.tid;
    match &request.message {
        CmMessage::Req(req) => {
            let rej = Rej {
                local_comm_id: 0,
                remote_comm_id: req.local_comm_id,
                rejected: Rejected::Req,
                reason: RejectReason::InvalidServiceId,
                info: Info::EMPTY,
                private_data: [0; 148],
            };
            Some(CmMad::new(tid, rej))
        }
        CmMessage::SidrReq(req) => {
            let rep = SidrRep {
                request_id: req.request_id,
                status: SidrStatus::Unsupported,
                qpn: 0,
                service_id: req.service_id,
                qkey: 0,
                info: Info::EMPTY,
                private_data: [0; 136],
            };
            Some(CmMad::new(tid, rep))
        }
        _ => None,
    }
}

/// Lets time pass and refuses, after a millisecond, each request that comes meanwhile. Returns when
/// they came.
fn refuse_for(w: &mut World, time: Duration) -> Vec<Duration> {
    let (mut at, end) = (Vec::new(), w.now + time);
    while w.now < end {
        w.run_for(AT_ONCE);
        for mad in core::mem::take(&mut w.sent) {
            let Some(refusal) = refusal(&CmMad::parse(&mad.mad).unwrap()) else { continue };
            at.push(w.now);
            let from = MadAddress { local: v4(0), remote: v4(1), ifindex: 2, source_qpn: 1 };
            let (now, host) = (w.now, &mut w.hosts[0]);
            host.cm.handle_mad(now, from, &refusal.to_bytes(), &mut host.env);
        }
    }
    at
}

fn asking(space: u16) -> (World, Client, Client, u32) {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.filter = Box::new(|_| false);
    let id = w.resolved(a, 0xa, space, server());
    w.sent.clear();
    w.connect(a, id, &Param::new(0x11, b"hello")).unwrap();
    (w, a, b, id)
}

#[test]
fn a_listener_may_come_a_moment_after_the_refusal() {
    for (space, ends) in [(PS_TCP, CONNECT_RESPONSE), (PS_UDP, ESTABLISHED)] {
        let (mut w, a, b, id) = asking(space);
        assert!(refuse_for(&mut w, Duration::from_millis(60)).len() >= 3);
        assert!(w.try_event(a).is_none());
        w.filter = Box::new(|_| true);
        w.listener(b, 0x100, space, server());
        let request = w.expect(b, CONNECT_REQUEST);
        w.accept(b, request.id, 0xb, &Param::new(0x22, b"hi")).unwrap();
        assert_eq!(w.expect(a, ends).id, id);
    }
}

#[test]
fn what_stays_refused_is_told_after_a_fifth_of_a_second() {
    for (space, event, status) in [(PS_TCP, REJECTED, 8), (PS_UDP, UNREACHABLE, 1)] {
        let (mut w, a, _, id) = asking(space);
        let asked = refuse_for(&mut w, Duration::from_millis(190));
        assert!((5..10).contains(&asked.len()), "{asked:?}");
        assert!(w.try_event(a).is_none());
        let last = refuse_for(&mut w, Duration::from_millis(20));
        assert!((1..=2).contains(&last.len()), "{last:?}");
        let refused = w.try_event(a).expect("the application is told");
        assert_eq!((refused.kind, refused.id, refused.status), (event, id, status));
        assert!(refuse_for(&mut w, Duration::from_secs(20)).is_empty());
        w.destroy(a, id).unwrap();
        assert_eq!(w.hosts[0].cm.connection_count(), 0);
    }
}

/// An application that has lost interest stops asking.
#[test]
fn an_id_may_be_destroyed_while_it_waits_to_ask_again() {
    for space in [PS_TCP, PS_UDP] {
        let (mut w, a, _, id) = asking(space);
        refuse_for(&mut w, Duration::from_millis(30));
        w.destroy(a, id).unwrap();
        w.run_for(Duration::from_millis(10));
        w.sent.clear();
        w.run_for(Duration::from_secs(100));
        assert_eq!(w.sent_names(), Vec::<&str>::new());
        assert_eq!(w.hosts[0].cm.connection_count(), 0);
    }
}

/// A peer that refuses and then falls silent is asked as often as one that never answered.
#[test]
fn refusals_do_not_count_as_repetitions() {
    for space in [PS_TCP, PS_UDP] {
        let asked_in_silence = |time| {
            let (mut w, a, _, id) = asking(space);
            let refused = refuse_for(&mut w, time).len();
            w.run_for(Duration::from_secs(1000));
            let told = w.try_event(a).expect("the application is told");
            assert_eq!((told.kind, told.id), (UNREACHABLE, id));
            (refused, w.sent.len())
        };
        let (none, times) = asked_in_silence(Duration::ZERO);
        let (some, times_after) = asked_in_silence(Duration::from_millis(150));
        assert!(none == 0 && some >= 4, "{none}, {some}");
        assert_eq!(times_after, times);
    }
}
