//! Endings that one side does not learn of at once: refusals and answers that get lost, and peers
//! that have forgotten the connection.

mod common;

use core::time::Duration;

use common::pairs::*;
use common::*;
use polypath_cm::CmConfig;
use polypath_wire::cm::CmMessage;

/// A REJ is sent once. If a side accepts and then refuses, or dies, its peer must not go on
/// believing that it is connected.
#[test]
fn a_lost_rejection_of_what_was_accepted_is_given_again_when_the_rtu_comes() {
    for (late, owned) in [(false, true), (true, true), (false, false), (true, false)] {
        let (mut w, a, b, _) = pair();
        w.filter = Box::new({
            let mut lost = false;
            move |mad| {
                let first = matches!(mad.message, CmMessage::Rej(_)) && !lost;
                lost |= first;
                !first
            }
        });
        let id = w.resolved(a, 0xa, PS_TCP, server());
        w.connect(a, id, &Param::new(1, b"")).unwrap();
        let request = w.expect(b, CONNECT_REQUEST);
        w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
        w.expect(a, CONNECT_RESPONSE);
        w.reject(b, request.id, b"no, after all").unwrap();
        if !owned {
            w.destroy(b, request.id).unwrap();
        }
        if late {
            w.run_for(Duration::from_secs(1));
        }
        w.confirm(a, id).unwrap();
        let rejected = w.expect(a, REJECTED);
        let is_forgotten = late && !owned;
        assert_eq!((rejected.id, rejected.status), (id, if is_forgotten { 6 } else { 28 }));
        let said: &[u8] = if is_forgotten { b"" } else { b"no, after all" };
        assert_eq!(&rejected.conn_private()[..said.len()], said);
        w.run_for(Duration::from_secs(100));
        assert!(w.try_event(a).is_none() && w.try_event(b).is_none());
    }
}

/// The peer repeats its DREQ for longer than a time-wait lasts.
#[test]
fn a_lost_drep_is_given_again_after_the_time_wait_too() {
    let (mut w, a, b, _) = pair();
    let (id, child) = establish(&mut w, a, b, server());
    let mut lost = 0;
    w.filter = Box::new(move |mad| {
        let is_drep = matches!(mad.message, CmMessage::Drep(_));
        lost += u32::from(is_drep);
        !is_drep || lost > 2
    });
    let start = w.now;
    w.disconnect(a, id).unwrap();
    w.expect(b, DISCONNECTED);
    w.disconnect(b, child).unwrap();
    w.expect(b, TIMEWAIT_EXIT);
    // The application keeps its id.
    assert_eq!(w.expect(a, DISCONNECTED).status, 0);
    assert!(w.now - start < Duration::from_secs(1), "{:?}", w.now - start);
    w.destroy(b, child).unwrap();
}

#[test]
fn a_queue_pair_connected_anew_ends_its_stale_connection() {
    let (mut w, a, b, _) = pair();
    let (_, child) = establish(&mut w, a, b, server());
    // The client's host forgets everything, and uses its queue pair number for a new connection.
    let fresh = World::with_config(2, 99, &CmConfig::default()).hosts.remove(0);
    w.hosts[0] = fresh;
    let a = w.open(0, 1);
    let id = w.resolved(a, 0xa, PS_TCP, server());
    let again = Param::new(0x10_0000, b"");
    w.connect(a, id, &again).unwrap();
    assert_eq!(w.expect(a, REJECTED).status, 10);
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
    assert_eq!(w.hosts[1].cm.counters().requests_stale, 1);
    w.expect(b, TIMEWAIT_EXIT);
    // Now it works.
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &again).unwrap();
    w.expect(b, CONNECT_REQUEST);
}

/// The same from the other side: a REP brings the queue pair number again, and its sender must be
/// told.
#[test]
fn an_answer_from_a_queue_pair_that_is_connected_already_is_refused_and_its_sender_told() {
    let (mut w, a, b, _) = pair();
    let (old, _) = establish(&mut w, a, b, server());
    let fresh = World::with_config(2, 99, &CmConfig::default()).hosts.remove(1);
    w.hosts[1] = fresh;
    let b = w.open(1, 1);
    w.listener(b, 0x100, PS_TCP, any());
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(0x77, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    // This is the number of the queue pair that was connected to `old`.
    w.accept(b, request.id, 0xb, &Param::new(0x20_0001, b"")).unwrap();
    let rejected = w.expect(b, REJECTED);
    assert_eq!((rejected.id, rejected.status), (request.id, 10));
    assert_eq!(w.hosts[0].cm.counters().requests_stale, 1);
    assert_eq!(w.expect(a, DISCONNECTED).id, old);
}
