//! The promises of a lane to its owner.

mod full;
mod host;
mod labels;
mod marks;
mod view;

use core::time::Duration;

use host::{Host, QKEY, Sent, encode, index_of, ip, settle};
use polypath_lane::{Refusal, Taken};
use polypath_paths::{PathEvent, PathState};
use polypath_transport::{CqSide, QpConfig, QpState, QpType, QueuePair, RecvWr, Sge, WcStatus};
use polypath_wire::bth::Bth;
use polypath_wire::ext::Deth;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;
use polypath_wire::{MULTICAST_QPN, Opcode};

const QP: u16 = 0xffff;

fn pair(multipath: bool) -> [Host; 2] {
    [1, 2].map(|number| {
        let mut host = Host::new(number);
        host.add(QP, QpType::Rc, multipath);
        host
    })
}

/// An empty SEND to a queue pair of host 2.
fn send_only(qpn: u32) -> Headers {
    let mut headers = Headers::new(Bth::new(Opcode::RC_SEND_ONLY));
    headers.bth.dest_qpn = qpn;
    headers.bth.psn = Psn::new(101);
    headers.bth.ack_req = true;
    headers
}

#[test]
fn a_request_is_executed_and_everything_charged_comes_back() {
    for multipath in [false, true] {
        let mut hosts = pair(multipath);
        hosts[0].io.memory[..4].copy_from_slice(b"lane");
        hosts[0].post_write(QP, 100_000);
        settle(&mut hosts);
        assert_eq!(&hosts[1].io.memory[..4], b"lane");
        let [(CqSide::Send, done)] = &hosts[0].io.completions[..] else { panic!("one completion") };
        assert_eq!((done.status, done.wr_id), (WcStatus::Success, 7));
        assert_eq!(hosts[0].io.charged, 0);
    }
}

#[test]
fn what_the_path_manager_says_leaves_before_data_of_the_same_round() {
    let [mut host, _] = pair(true);
    host.post_write(QP, 3000);
    host.run();
    let kinds: Vec<bool> = host.io.out.iter().map(|sent| sent.control).collect();
    let first_data = kinds.iter().position(|control| !control).expect("data was sent");
    assert!(first_data > 0, "the handshake is under way");
    assert!(kinds[first_data..].iter().all(|control| !control), "{kinds:?}");
}

#[test]
fn a_round_gives_each_queue_pair_its_turn_and_ends() {
    let mut host = Host::new(1);
    let many = 100;
    for index in 1..=many {
        host.add(index, QpType::Rc, false);
        host.post_write(index, 10);
    }
    host.lane.transmit(&mut host.io);
    let sent = host.io.out.len();
    assert!(sent > 0 && sent < usize::from(many), "{sent} of {many} in one round");
    assert_eq!(host.lane.next_deadline(), Some(host.now), "the others want theirs now");
    host.lane.transmit(&mut host.io);
    assert_eq!(host.io.out.len(), usize::from(many));
    host.check();
    assert!(host.lane.is_idle());
}

#[test]
fn a_queue_pair_that_waits_for_the_window_goes_on_when_it_opens() {
    let mut hosts = pair(false);
    // This is far more than any first window takes.
    for _ in 0..200 {
        hosts[0].post_write(QP, 1 << 19);
    }
    hosts[0].run();
    let first = hosts[0].io.out.len();
    hosts[0].run();
    assert_eq!(hosts[0].io.out.len(), first, "the window is full");
    assert!(hosts[0].lane.is_idle(), "nobody is asked again before it opens");
    settle(&mut hosts);
    assert_eq!(hosts[0].io.completions.len(), 200);
    assert_eq!(hosts[0].io.charged, 0);
}

#[test]
fn queue_pairs_that_wait_for_one_window_get_their_room_in_turn() {
    const QPS: u16 = 100;
    let mut hosts = [Host::new(1), Host::new(2)];
    for index in 1..=QPS {
        hosts.iter_mut().for_each(|host| host.add(index, QpType::Rc, false));
        (0..8).for_each(|_| hosts[0].post_write(index, 1 << 16));
    }
    settle(&mut hosts);
    let mut done = vec![0; usize::from(QPS) + 1];
    for (_, completion) in &hosts[0].io.completions {
        done[usize::from(index_of(completion.qpn))] += 1;
        let (least, most) = (done[1..].iter().min().unwrap(), done[1..].iter().max().unwrap());
        assert!(most - least <= 4, "one has {least} and another {most} of 8 messages through");
    }
    assert_eq!(hosts[0].io.completions.len(), usize::from(QPS) * 8);
}

#[test]
fn a_destroyed_queue_pair_is_in_no_list() {
    let mut hosts = pair(false);
    let host = &mut hosts[0];
    host.post_write(QP, 10);
    assert!(!host.lane.is_idle());
    assert!(host.lane.remove(QP, &mut host.io).is_some());
    assert!(host.lane.remove(QP, &mut host.io).is_none());
    assert!(host.lane.is_idle());
    host.add(QP, QpType::Rc, false);
    host.check();
    host.run();
    assert!(host.io.out.is_empty(), "the new one has posted nothing");
    assert_eq!(host.lane.qps().len(), 1);
}

#[test]
#[should_panic(expected = "is not free")]
fn a_number_is_given_once() {
    let [mut host, _] = pair(false);
    host.add(QP, QpType::Rc, false);
}

#[test]
#[should_panic(expected = "is not free")]
fn a_number_of_another_lane_is_not_taken() {
    let [mut host, other] = pair(false);
    let config = QpConfig { qpn: other.qpn(5), ..*other.lane.qps().get(QP).unwrap().qp.config() };
    host.lane.insert(QueuePair::new(config), ());
}

#[test]
fn packets_are_for_the_lane_by_slot_key_and_source() {
    let [_, mut host] = pair(false);
    let good = send_only(host.qpn(QP));
    let mut other_slot = good;
    other_slot.bth.dest_qpn = 0x07_0000 | u32::from(QP);
    assert_eq!(host.take(&encode(&other_slot, &[])), Err(Refusal::UnknownQp));
    let mut nobody = good;
    nobody.bth.dest_qpn = host.qpn(5);
    assert_eq!(host.take(&encode(&nobody, &[])), Err(Refusal::UnknownQp));
    let mut pkey = good;
    pkey.bth.pkey = 0x8001;
    assert_eq!(host.take(&encode(&pkey, &[])), Err(Refusal::WrongPkey));
    assert_eq!(host.take_from(ip(9), &encode(&good, &[])), Err(Refusal::WrongSource));
    host.run();
    assert!(host.io.out.is_empty(), "what was refused has no answer");
    assert_eq!(host.take(&encode(&good, &[])), Ok(Taken::QueuePair));
}

#[test]
fn a_datagram_with_a_wrong_key_is_a_violation_and_groups_are_the_owners() {
    let mut host = Host::new(2);
    host.add(QP, QpType::Ud, false);
    let room = Sge { addr: 0, len: 64, lkey: host::KEY };
    let receive = RecvWr { wr_id: 1, sges: [room].as_slice().into() };
    host.with(QP, |visit| visit.qp.post_recv(receive)).unwrap();
    let mut headers = send_only(host.qpn(QP));
    headers.bth.opcode = Opcode::UD_SEND_ONLY;
    headers.bth.ack_req = false;
    headers.deth = Some(Deth { qkey: QKEY + 1, src_qpn: 5 });
    assert_eq!(host.take(&encode(&headers, &[])), Ok(Taken::QueuePair));
    assert_eq!((host.io.qkey_violations, host.io.completions.len()), (1, 0));
    headers.deth = Some(Deth { qkey: QKEY, src_qpn: 5 });
    headers.bth.dest_qpn = MULTICAST_QPN;
    let bytes = encode(&headers, &[]);
    assert_eq!(host.take(&bytes), Ok(Taken::Multicast));
    assert_eq!(host.io.completions.len(), 0, "the owner says who listens");
    let packet = Packet::parse(&bytes).unwrap();
    let arrival = host::arrival(ip(1), ip(2), &bytes);
    assert_eq!(host.lane.deliver(QP, &arrival, &packet, &mut host.io), Ok(()));
    assert_eq!(host.lane.deliver(3, &arrival, &packet, &mut host.io), Err(Refusal::UnknownQp));
    assert_eq!((host.io.qkey_violations, host.io.completions.len()), (1, 1));
}

/// IBTA 11.6.3.2, `man 3 ibv_poll_cq`.
#[test]
fn a_lost_completion_ends_its_queue_pair_once() {
    let mut hosts = pair(false);
    hosts[0].io.full = true;
    for _ in 0..3 {
        hosts[0].post_write(QP, 10);
    }
    settle(&mut hosts);
    assert_eq!(hosts[0].state(QP), QpState::Err);
    assert_eq!(hosts[0].io.overrun, [hosts[0].qpn(QP)]);
}

#[test]
fn a_burst_that_cannot_be_sent_has_the_path_probed() {
    let mut hosts = pair(true);
    settle(&mut hosts);
    assert!(hosts[0].lane.qps().get(QP).unwrap().qp.is_multipath(), "they have agreed");
    hosts[0].io.mute = true;
    hosts[0].post_write(QP, 10);
    hosts[0].run();
    let status = hosts[0].lane.paths().status();
    let states: Vec<_> = status.peers[0].paths.iter().map(|path| path.state).collect();
    assert_eq!(states, [PathState::Suspect]);
}

#[test]
fn timers_run_when_they_are_due_and_no_earlier() {
    let [mut host, _] = pair(false);
    host.post_write(QP, 10);
    host.run();
    let sent = core::mem::take(&mut host.io.out).len();
    assert_eq!(sent, 1);
    let due = host.lane.next_deadline().expect("an ACK timeout");
    assert!(due > host.now);
    host.pass(due - host.now - Duration::from_nanos(1));
    host.run();
    assert!(host.io.out.is_empty());
    // Some of its timers only check something; in the end the request is sent again.
    for _ in 0..100 {
        let due = host.lane.next_deadline().expect("the next");
        host.pass(due.saturating_sub(host.now));
        host.run();
        if let Some(Sent { control: false, .. }) = host.io.out.first() {
            assert_eq!(host.io.out[0].opcode(), Opcode::RC_WRITE_ONLY);
            return;
        }
    }
    panic!("never sent again");
}

#[test]
fn the_owner_hears_of_path_events_and_reach_is_agreed() {
    let mut hosts = pair(true);
    settle(&mut hosts);
    for host in &hosts {
        let qpn = host.qpn(QP);
        let agreed =
            |e: &PathEvent| matches!(e, PathEvent::MultipathAgreed { qpn: q, .. } if *q == qpn);
        assert!(host.io.events.iter().any(agreed), "{:?}", host.io.events);
        assert_eq!(index_of(qpn), QP);
    }
}
