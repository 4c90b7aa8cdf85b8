//! Marks of congestion: who is told, and what follows.

use polypath_paths::{Config, PathStatus, Usage};
use polypath_transport::QpType;
use polypath_wire::Opcode;
use polypath_wire::packet::Packet;

use crate::host::{Host, Sent, settle};
use crate::{QP, pair};

/// The ECN field of packets that may be marked (RFC 3168, section 5).
const ECT: u8 = 2;

fn path(host: &Host) -> PathStatus {
    host.lane.paths().status().peers[0].paths[0].clone()
}

fn is_marked(sent: &Sent) -> bool {
    Packet::parse(&sent.bytes).unwrap().headers.mp.is_some_and(|mp| mp.is_marked())
}

/// Two hosts that have agreed on multi-path, the first of which sends so much that its window limits it.
fn busy(multipath: bool) -> [Host; 2] {
    let mut hosts = pair(multipath);
    hosts[0].post_write(QP, 1);
    settle(&mut hosts);
    (0..20).for_each(|_| hosts[0].post_write(QP, 1 << 19));
    hosts[0].run();
    hosts
}

#[test]
fn a_marked_request_shrinks_the_window_of_its_path_once() {
    let mut hosts = busy(true);
    let before = path(&hosts[0]).window;
    let sent = core::mem::take(&mut hosts[0].io.out);
    assert!(sent.iter().all(|sent| sent.traffic_class == ECT), "they may be marked");
    for packet in &sent {
        hosts[1].take_marked(&packet.bytes).unwrap();
    }
    assert_eq!(path(&hosts[1]).counters.marked_received, sent.len() as u64);
    hosts[1].run();
    let answers = core::mem::take(&mut hosts[1].io.out);
    assert_eq!(answers.iter().filter(|sent| is_marked(sent)).count(), 1, "one answer tells it");
    for answer in &answers {
        let _ = hosts[0].take(&answer.bytes);
    }
    let after = path(&hosts[0]);
    assert_eq!(after.counters.marks, 1);
    assert!(after.window < before && after.window > before / 4 * 3, "{before} {}", after.window);
    settle(&mut hosts);
    assert_eq!(hosts[0].io.completions.len(), 21);
    assert_eq!(path(&hosts[0]).counters.marks, 1, "it is said once");
}

#[test]
fn a_marked_answer_to_a_read_shrinks_the_window_of_who_asked() {
    let mut hosts = pair(true);
    hosts[0].post_write(QP, 1);
    settle(&mut hosts);
    hosts[0].post_read(QP, 1 << 15);
    hosts[0].run();
    for packet in core::mem::take(&mut hosts[0].io.out) {
        let _ = hosts[1].take(&packet.bytes);
    }
    hosts[1].run();
    let answers = core::mem::take(&mut hosts[1].io.out);
    let before = path(&hosts[0]).window;
    hosts[0].take_marked(&answers[0].bytes).unwrap();
    let after = path(&hosts[0]);
    assert_eq!((after.counters.marks, after.counters.marked_received), (1, 0));
    assert!(after.window < before, "{before} {}", after.window);
}

#[test]
fn a_plain_peer_is_notified_and_not_more_often_than_it_should_be() {
    let mut hosts = busy(false);
    let notified = |host: &mut Host| {
        host.run();
        let out = core::mem::take(&mut host.io.out);
        out.iter().filter(|sent| sent.opcode() == Opcode::CNP).cloned().collect::<Vec<_>>()
    };
    let sent = core::mem::take(&mut hosts[0].io.out);
    assert!(sent.iter().all(|sent| sent.traffic_class == 0), "the program has not asked for it");
    for packet in &sent {
        hosts[1].take_marked(&packet.bytes).unwrap();
    }
    let [notification] = &notified(&mut hosts[1])[..] else { panic!("one for all") };
    let bth = Packet::parse(&notification.bytes).unwrap().headers.bth;
    assert_eq!((bth.dest_qpn, bth.becn), (hosts[0].qpn(QP), true));
    assert_eq!(notification.bytes.len(), 12 + 16 + 4, "IBTA annex A17");
    let before = path_window(&hosts[0]);
    hosts[0].take(&notification.bytes).unwrap();
    assert_eq!(path_window(&hosts[0]), before, "its packets could not have been marked");
}

fn path_window(host: &Host) -> u32 {
    path(host).window
}

#[test]
fn packets_may_be_marked_only_if_both_ends_want_it_and_that_may_change() {
    let mut hosts = busy(true);
    let mut usage = Usage::of(&Config::default());
    usage.ecn = false;
    let now = hosts[0].now;
    hosts[0].lane.paths_mut().set_usage(now, &usage);
    settle(&mut hosts);
    hosts[0].post_write(QP, 100);
    hosts[0].run();
    assert!(hosts[0].io.out.iter().all(|sent| sent.traffic_class == 0));
    usage.ecn = true;
    hosts[0].lane.paths_mut().set_usage(now, &usage);
    settle(&mut hosts);
    hosts[0].post_write(QP, 100);
    hosts[0].run();
    assert!(hosts[0].io.out.iter().any(|sent| !sent.control && sent.traffic_class == ECT));
    // Datagrams are no part of it.
    hosts[0].add(7, QpType::Ud, true);
    hosts[0].check();
}
