//! LAPs whose answer takes longer: the peer is told so by an MRA, and waits (IBTA 12.6.6).

mod common;

use core::time::Duration;

use common::migrating::*;
use polypath_cm::MadAddress;
use polypath_wire::cm::{ApStatus, CmMad, CmMessage, Lap, Mra, Mraed};

const MS: Duration = Duration::from_millis(1);
/// The time between two packets of one exchange, and more.
const SOON: Duration = Duration::from_millis(2);

/// The messages of one kind among those sent, which are forgotten.
fn sent<T>(two: &mut Two, pick: impl Fn(CmMad) -> Option<T>) -> Vec<T> {
    let sent = core::mem::take(&mut two.w.sent);
    sent.iter().filter_map(|m| pick(CmMad::parse(&m.mad).unwrap())).collect()
}

/// Two connected ends of which the active one has migrated, and asks the other one for a path. The
/// passive end's host has the order to follow, and takes its time.
fn behind() -> Two {
    let mut two = Two::connected(&[0, 1]);
    two.settle();
    two.take_orders();
    two.w.sent.clear();
    let [a_qp, _] = two.qps();
    two.w.migrated(two.a, a_qp, None);
    two
}

/// The passive end has followed.
fn follow(two: &mut Two) {
    let [_, b_qp] = two.qps();
    two.w.migrated(two.b, b_qp, Some((on(1, 1), on(1, 0))));
}

#[test]
fn who_can_not_answer_a_lap_yet_says_so_when_it_is_repeated() {
    let mut two = behind();
    // The LAP goes 20 ms after the migration, and is repeated after 250 ms.
    two.w.run_for(MS * 260);
    assert_eq!(two.w.sent_names(), ["LAP"]);
    two.w.run_for(MS * 20);
    let (mut laps, mut mras) = (Vec::new(), Vec::new());
    for CmMad { tid, message } in sent(&mut two, Some) {
        match message {
            CmMessage::Lap(lap) => laps.push((tid, lap)),
            CmMessage::Mra(mra) => mras.push((tid, mra)),
            other => panic!("{other:?}"),
        }
    }
    let (&[(tid, lap)], &[(mra_tid, mra)]) = (&laps[..], &mras[..]) else {
        panic!("{laps:?}, {mras:?}")
    };
    let Lap { local_comm_id, remote_comm_id, .. } = lap;
    assert_eq!((mra_tid, mra.mraed, mra.service_timeout), (tid, Mraed::Lap, 18));
    assert_eq!((mra.remote_comm_id, mra.local_comm_id), (local_comm_id, remote_comm_id));
    assert_eq!(two.w.hosts[1].cm.counters().mads_duplicate, 1);
    // The peer waits for the time that the MRA asked for, 1024 ms, and that of the way, 512 ms.
    two.w.run_for(MS * 1520);
    assert!(two.w.sent_names().is_empty());
    two.w.run_for(MS * 20);
    assert_eq!(two.w.sent_names(), ["LAP", "MRA"]);
    // No further repetition is needed for the answer.
    follow(&mut two);
    two.w.run_for(SOON);
    assert_eq!(two.w.sent_names(), ["APR"]);
    assert_eq!(two.alternate(), Some((on(0, 0), on(0, 1))));
    let orders = [two.w.orders(0), two.w.orders(1)];
    assert_eq!(loads(&orders[0]).len(), 1);
    assert_eq!(loads(&orders[1])[0].pair(), (on(0, 1), on(0, 0)));
    assert!(orders[1].len() > 1 && follows(&orders[1][..1]).len() == 1, "it follows first");
}

#[test]
fn a_lap_that_came_once_is_answered_without_an_mra() {
    let mut two = behind();
    two.w.run_for(MS * 100);
    follow(&mut two);
    two.settle();
    assert_eq!(two.w.sent_names(), ["LAP", "APR"]);
    assert_eq!(two.alternate(), Some((on(0, 0), on(0, 1))));
}

/// Without the MRA the peer repeats its LAP as ever; without the APR, in the time of the MRA.
#[test]
fn an_mra_or_the_answer_after_it_may_get_lost() {
    let mut two = behind();
    let mut left = 1;
    two.w.filter = Box::new(move |mad| {
        let drops = mad.message.name() == "MRA" && left > 0;
        left -= i32::from(drops);
        !drops
    });
    two.w.run_for(MS * 280);
    assert_eq!(two.w.sent_names(), ["LAP", "LAP", "MRA"]);
    two.w.run_for(MS * 500);
    assert_eq!(two.w.sent_names(), ["LAP", "MRA"]);
    two.w.filter = Box::new(|mad| mad.message.name() != "APR");
    follow(&mut two);
    two.w.run_for(SOON);
    let first: Vec<_> = sent(&mut two, Some);
    assert_eq!(first.len(), 1);
    two.w.filter = Box::new(|_| true);
    two.settle();
    let again = sent(&mut two, Some);
    assert!(matches!(again[0].message, CmMessage::Lap(_)));
    assert_eq!(again[1..], first, "a repetition gets the same answer");
    assert_eq!(two.alternate(), Some((on(0, 0), on(0, 1))));
}

/// The passive end's queue pair has gone to a third path meanwhile.
#[test]
fn who_has_migrated_elsewhere_goes_on_following() {
    let mut two = Two::connected(&[0, 1]);
    two.settle();
    for host in [0, 1] {
        two.w.hosts[host].env.addresses = addresses(host, &[0, 1, 2]);
    }
    let [a_qp, b_qp] = two.qps();
    two.w.migrated(two.a, a_qp, None);
    two.w.run_for(MS * 100);
    two.take_orders();
    two.w.migrated(two.b, b_qp, Some((on(2, 1), on(2, 0))));
    let orders = two.w.orders(1);
    assert_eq!(follows(&orders), [(on(1, 1), on(1, 0))], "{orders:?}");
    follow(&mut two);
    two.settle();
    assert!(two.alternate().is_some());
}

/// The passive end's queue pair has migrated twice meanwhile, so now the other end is behind.
#[test]
fn a_lap_of_a_peer_that_is_behind_by_then_is_refused() {
    let mut two = behind();
    let [_, b_qp] = two.qps();
    two.w.run_for(MS * 100);
    two.w.sent.clear();
    two.w.hosts[1].env.addresses = addresses(1, &[0, 1, 2]);
    two.w.migrated(two.b, b_qp, Some((on(2, 1), on(2, 0))));
    two.w.migrated(two.b, b_qp, Some((on(0, 1), on(0, 0))));
    two.w.run_for(SOON);
    let statuses = sent(&mut two, |mad| match mad.message {
        CmMessage::Apr(apr) => Some(apr.status),
        _ => None,
    });
    assert_eq!(statuses, [ApStatus::Reject]);
    assert_eq!(follows(&two.w.orders(0)), [(on(0, 0), on(0, 1))]);
}

#[test]
fn a_connection_that_ends_answers_no_lap_that_waited() {
    let mut two = behind();
    two.w.run_for(MS * 300);
    two.w.sent.clear();
    let [_, b_qp] = two.qps();
    two.w.close(two.b);
    two.w.migrated(two.b, b_qp, Some((on(1, 1), on(1, 0))));
    two.w.run_for(SOON);
    assert_eq!(two.w.sent_names(), ["DREQ"]);
    two.w.run_for(Duration::from_secs(60));
    assert!(!two.w.sent_names().iter().any(|name| ["APR", "MRA"].contains(name)));
}

/// An active end whose LAP nobody answers, with the LAP.
fn unanswered() -> (Two, u64, Lap) {
    let mut two = Two::new(&[0, 1], [true; 2]);
    two.w.filter = Box::new(|mad| !matches!(mad.message.name(), "LAP" | "SAP"));
    two.establish();
    two.w.run_for(MS * 100);
    let laps = sent(&mut two, |mad| match mad.message {
        CmMessage::Lap(lap) => Some((mad.tid, lap)),
        _ => None,
    });
    let [(tid, lap)] = laps[..] else { panic!("{laps:?}") };
    (two, tid, lap)
}

/// An MRA of the passive end comes.
fn postpone(two: &mut Two, tid: u64, lap: &Lap, change: impl Fn(&mut Mra)) {
    let mut mra = Mra {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        mraed: Mraed::Lap,
        service_timeout: 20,
        private_data: [0; Mra::PRIVATE_DATA_LEN],
    };
    change(&mut mra);
    let from = MadAddress { local: on(0, 0), remote: on(0, 1), ifindex: 2, source_qpn: 1 };
    let (now, host) = (two.w.now, &mut two.w.hosts[0]);
    host.cm.handle_mad(now, from, &CmMad::new(tid, mra).to_bytes(), &mut host.env);
}

fn laps(two: &mut Two) -> usize {
    two.w.sent_names().iter().filter(|name| **name == "LAP").count()
}

#[test]
fn an_mra_gives_the_answer_to_a_lap_more_time() {
    let (mut two, tid, lap) = unanswered();
    postpone(&mut two, tid, &lap, |_| {});
    // 4096 ms, and 512 ms for the way.
    two.w.run_for(MS * 4600);
    assert_eq!(laps(&mut two), 0);
    // Another one changes nothing, as with a REQ.
    postpone(&mut two, tid, &lap, |mra| mra.service_timeout = 26);
    assert_eq!(two.w.hosts[0].cm.counters().mads_duplicate, 1);
    for _ in 0..15 {
        two.w.run_for(MS * 20);
        assert_eq!(laps(&mut two), 1);
        two.w.run_for(MS * 4588);
        assert_eq!(laps(&mut two), 0);
    }
    // All fifteen repetitions are used up. The next LAP is another one, which nobody has postponed.
    two.w.run_for(MS * 600);
    let next = sent(&mut two, |mad| matches!(mad.message, CmMessage::Lap(_)).then_some(mad.tid));
    assert!(next.len() >= 2 && next.iter().all(|next| *next != tid), "{next:?}");
}

#[test]
fn no_mra_makes_an_end_wait_for_hours_or_hurry() {
    // Exponents above 26 count as 26. The second repetition would come after 500 ms.
    for (exponent, wait) in [(31, 262_144 + 512), (0, 500)] {
        let (mut two, tid, lap) = unanswered();
        two.w.run_for(MS * 250);
        assert_eq!(laps(&mut two), 1);
        postpone(&mut two, tid, &lap, |mra| mra.service_timeout = exponent);
        two.w.run_for(MS * (wait - 1));
        assert_eq!(laps(&mut two), 0, "{exponent}");
        two.w.run_for(MS * 20);
        assert_eq!(laps(&mut two), 1, "{exponent}");
    }
}

#[test]
fn an_mra_of_something_else_gives_a_lap_no_time() {
    let (mut two, tid, lap) = unanswered();
    let before = two.w.hosts[0].cm.counters().mads_unmatched;
    postpone(&mut two, tid.wrapping_add(1 << 32), &lap, |_| {});
    postpone(&mut two, tid, &lap, |mra| mra.mraed = Mraed::Req);
    postpone(&mut two, tid, &lap, |mra| mra.mraed = Mraed::Rep);
    postpone(&mut two, tid, &lap, |mra| mra.local_comm_id ^= 1);
    assert_eq!(two.w.hosts[0].cm.counters().mads_unmatched, before + 4);
    two.w.run_for(MS * 260);
    assert_eq!(laps(&mut two), 1);
}

/// The statuses of the APRs among the messages sent, which are forgotten.
fn statuses(two: &mut Two) -> Vec<ApStatus> {
    sent(two, |mad| match mad.message {
        CmMessage::Apr(apr) => Some(apr.status),
        _ => None,
    })
}

#[test]
fn a_lap_that_the_host_can_not_follow_is_refused_as_soon_as_the_host_says_so() {
    let mut two = behind();
    two.w.run_for(MS * 100);
    assert!(statuses(&mut two).is_empty());
    // The queue pair is still where it was.
    let [_, b_qp] = two.qps();
    two.w.migrated(two.b, b_qp, Some((on(0, 1), on(0, 0))));
    two.w.run_for(SOON);
    assert_eq!(statuses(&mut two), [ApStatus::Reject]);
    // It is asked again, and follows after all.
    two.w.run_for(MS * 500);
    follow(&mut two);
    two.settle();
    assert_eq!(statuses(&mut two), [ApStatus::Ok]);
    assert!(two.alternate().is_some());
}

/// The passive end has lost the address, and knows it before it hears where the peer is.
#[test]
fn a_lap_from_a_path_that_this_end_does_not_have_is_refused_at_once() {
    let mut two = Two::connected(&[0, 1, 2]);
    two.settle();
    two.take_orders();
    two.w.sent.clear();
    let [a_qp, _] = two.qps();
    // A path that this end has not loaded.
    let loaded = two.alternate().unwrap();
    let other = if loaded.0 == on(1, 0) { 2 } else { 1 };
    two.w.hosts[1].env.addresses = addresses(1, &[0, 3 - other]);
    two.w.migrated(two.a, a_qp, Some((on(other, 0), on(other, 1))));
    // The LAP is repeated by other addresses.
    two.w.run_for(MS * 2000);
    let statuses = statuses(&mut two);
    assert!(
        !statuses.is_empty() && statuses.iter().all(|s| *s == ApStatus::Reject),
        "{statuses:?}"
    );
    assert!(two.w.orders(1).is_empty());
}
