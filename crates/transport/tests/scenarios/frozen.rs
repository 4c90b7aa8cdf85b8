//! Queue pairs that are frozen and thawed in the middle of their work.

use polypath_transport::*;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{MpHeader, Reth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::host::{PD, SimHost};
use crate::pair::*;

/// Freezes a queue pair and thaws it from the bytes.
fn refreeze(p: &mut Pair, side: usize) -> Vec<u8> {
    let (now, node) = (p.now, &mut p.nodes[side]);
    let bytes = freeze(node, now);
    let config = QueuePair::frozen_config(&bytes).unwrap();
    assert_eq!(config.qpn, node.qp.config().qpn);
    let mut thawed = QueuePair::thaw(&bytes, config.pd, now, &mut node.host).unwrap();
    // Freezing again gives the same bytes, so nothing was lost on the way.
    let mut other = SimHost::new(2);
    other.early = node.host.early;
    assert!(thawed.clone().freeze(now, &mut other) == bytes, "not the same bytes again");
    thawed.set_peer(PeerId(1 - side as u32));
    node.qp = thawed;
    bytes
}

fn freeze(node: &mut Node, now: std::time::Duration) -> Vec<u8> {
    let fresh = QueuePair::new(*node.qp.config());
    let bytes = std::mem::replace(&mut node.qp, fresh).freeze(now, &mut node.host);
    assert!(node.host.paths.iter().all(|path| path.outstanding == 0), "the charges came back");
    assert_eq!(node.host.early, 0, "and so did the room for early packets");
    bytes
}

/// One of everything, in both directions; some receives come late.
fn work(p: &mut Pair) {
    for (side, node) in p.nodes.iter_mut().enumerate() {
        node.write_memory(0, &pattern(0x8000, side as u64));
        node.recv(100, 0x10000, 9000);
        node.recv(101, 0x14000, 9000);
        let rkey = ALL;
        node.post(1, SendOp::Send, 0, 7000);
        node.post(2, SendOp::Read { va: 0x100, rkey }, 0x20000, 30_000);
        node.post(3, SendOp::FetchAdd { va: 0x40000, rkey, add: 5 }, 0x40100, 8);
        node.post(4, SendOp::Write { va: 0x30000, rkey: RELAXED }, 0x200, 20_000);
        node.post(5, SendOp::FetchAdd { va: 0x40000, rkey, add: 7 }, 0x40108, 8);
        let data = SendData::Inline(b"sent inline");
        let (op, flags) = (SendOp::SendImm([1, 2, 3, 4]), SendFlags::SIGNALED);
        node.qp.post_send(&SendWr { wr_id: 6, op, flags, data, ud: None }).unwrap();
        let placement = Placement::GLOBAL;
        node.post(7, SendOp::Flush { rkey, scope: FlushScope::Region, placement }, 0, 0);
        // READs of memory that is overwritten right afterwards.
        node.post(8, SendOp::Read { va: 0x30000, rkey }, 0x50000, 5000);
        node.post(9, SendOp::Write { va: 0x30000, rkey: RELAXED }, 0x7000, 3000);
        node.post(10, SendOp::Send, 0x300, 4000);
        node.post(11, SendOp::Write { va: 0x60000, rkey }, 0x400, 100);
    }
}

/// The result that [`work`] must have, each time.
fn assert_done(p: &Pair) {
    for (side, node) in p.nodes.iter().enumerate() {
        let (own, peer) = (pattern(0x8000, side as u64), pattern(0x8000, 1 - side as u64));
        let done: Vec<_> = (1..=11).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(node.host.statuses(), done, "side {side}");
        let received: Vec<_> =
            node.host.recv_completions.iter().map(|c| (c.wr_id, c.byte_len)).collect();
        assert_eq!(received, [(100, 7000), (101, 11), (102, 4000)], "side {side}");
        assert_eq!(node.memory(0x10000, 7000), &peer[..7000]);
        assert_eq!(node.memory(0x14000, 11), b"sent inline");
        assert_eq!(node.memory(0x20000, 30_000), &peer[0x100..0x100 + 30_000]);
        // Each atomic is executed once: check the values found and the final value.
        let found = (node.u64_at(0x40100), node.u64_at(0x40108), node.u64_at(0x40000));
        assert_eq!(found, (0, 5, 12), "side {side}");
        // The READ returns what the WRITE before it wrote, not what the one after it did.
        assert_eq!(node.memory(0x50000, 5000), &own[0x200..0x200 + 5000], "side {side}");
        assert_eq!(node.memory(0x30000, 3000), &peer[0x7000..0x7000 + 3000], "side {side}");
        assert_eq!(node.memory(0x60000, 100), &peer[0x400..0x400 + 100]);
        assert_eq!(node.host.atomics, 2);
    }
    p.assert_settled();
}

/// Runs [`work`] and freezes the pair in between, at times that are `step` apart.
fn with_freezes(
    setup: Setup,
    links: Link,
    step: std::time::Duration,
    mut freeze: impl FnMut(&mut Pair, u32),
) {
    let mut p = Pair::new(setup);
    p.links.fill(links);
    work(&mut p);
    for at in 0..400 {
        if at == 60 {
            p.nodes.iter_mut().for_each(|node| node.recv(102, 0x18000, 9000));
        }
        let rest = p.run_to_rest(step);
        freeze(&mut p, at);
        if rest && at > 60 {
            break;
        }
    }
    p.run();
    assert_done(&p);
}

fn setups() -> [Setup; 3] {
    let multipath = Setup { multipath: true, paths: 2, reach: 1 << 20, ..Setup::default() };
    [Setup::default(), multipath, Setup { mtu: 256, ..multipath }]
}

#[test]
fn a_queue_pair_frozen_at_any_step_goes_on_and_nothing_is_lost_or_doubled() {
    for setup in setups() {
        for when in 0..40 {
            with_freezes(setup, Link::default(), 9 * US, |p, at| {
                if at == when {
                    refreeze(p, (when % 2) as usize);
                }
            });
        }
    }
}

#[test]
fn both_ends_may_be_frozen_all_the_time_while_packets_are_lost() {
    for setup in setups() {
        for seed in 0..10 {
            let links = Link { loss: 40, duplicate: 40, jitter: 5 * US, ..Link::default() };
            let jitter = if setup.multipath { links.jitter } else { std::time::Duration::ZERO };
            with_freezes(setup, Link { jitter, ..links }, 150 * US, |p, at| {
                if at == 0 {
                    p.rng = Rng(seed);
                }
                refreeze(p, (at % 2) as usize);
            });
        }
    }
}

#[test]
fn what_is_left_of_an_rnr_wait_is_waited_for() {
    let mut p = Pair::new(Setup { min_rnr_timer: 20, ..Setup::default() }); // 10.24 ms
    p.nodes[0].post(1, SendOp::Send, 0, 100);
    p.run_for(2 * MS);
    refreeze(&mut p, 0);
    let due = p.nodes[0].qp.next_deadline().unwrap() - p.now;
    assert!(due > 8 * MS && due < 9 * MS, "{due:?}");
    p.nodes[1].recv(1, 0x1000, 100);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn retries_that_were_spent_stay_spent() {
    let mut p = Pair::new(Setup { retry_cnt: 3, timeout: 10, ..Setup::default() });
    p.links[0].cut = [true; 2];
    p.nodes[0].post(1, SendOp::Send, 0, 100);
    for _ in 0..2000 {
        p.run_to_rest(MS);
        refreeze(&mut p, 0);
        // Freezing alone must not use up a queue pair's retries, so it gets time in between.
        p.run_to_rest(40 * MS);
        if !p.nodes[0].host.send_completions.is_empty() {
            break;
        }
    }
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn a_queue_that_drains_drains_on() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].post(1, SendOp::Write { va: 0, rkey: ALL }, 0, 100_000);
    p.run_to_rest(10 * US);
    let mut attr = QpAttr::new(QpState::Sqd);
    attr.en_sqd_async_notify = true;
    let node = &mut p.nodes[0];
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    node.qp.modify(&attr, mask, &mut node.host).unwrap();
    node.post(2, SendOp::Write { va: 0, rkey: ALL }, 0, 8);
    refreeze(&mut p, 0);
    assert!(p.nodes[0].qp.query().sq_draining);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)], "the second one waits");
    assert_eq!(p.nodes[0].host.events, [QpEvent::SqDrained]);
    refreeze(&mut p, 0);
    let node = &mut p.nodes[0];
    node.qp.modify(&QpAttr::new(QpState::Rts), QpAttrMask::STATE, &mut node.host).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
}

#[test]
fn what_was_posted_in_the_error_state_is_flushed_after_the_thaw() {
    let mut p = Pair::new(Setup::default());
    let node = &mut p.nodes[0];
    node.qp.modify(&QpAttr::new(QpState::Err), QpAttrMask::STATE, &mut node.host).unwrap();
    node.post(1, SendOp::Send, 0, 10);
    node.recv(2, 0, 10);
    refreeze(&mut p, 0);
    assert_eq!(p.nodes[0].host.statuses(), []);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(p.nodes[0].host.recv_completions[0].status, WcStatus::WrFlushErr);
}

#[test]
fn unreliable_queue_pairs_go_on_in_the_middle_of_a_message() {
    let mut p = Pair::new(Setup { qp_type: QpType::Uc, ..Setup::default() });
    p.links[0].rate = 100;
    let data = pattern(200_000, 3);
    p.nodes[0].write_memory(0, &data);
    p.nodes[1].recv(7, 0x40000, 200_000);
    p.nodes[0].post(1, SendOp::Send, 0, 200_000);
    let node = &mut p.nodes[0];
    node.qp.poll_transmit(p.now, &mut node.host);
    assert!(node.host.send_completions.is_empty(), "only a part of it is sent");
    refreeze(&mut p, 0);
    for _ in 0..20 {
        p.run_to_rest(100 * US);
        refreeze(&mut p, 1);
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.nodes[1].host.recv_completions[0].byte_len, 200_000);
    assert_eq!(p.nodes[1].memory(0x40000, 200_000), data);

    let mut p = Pair::new(Setup { qp_type: QpType::Ud, ..Setup::default() });
    p.nodes[1].recv(7, 0x1000, 500);
    let ud = UdDestination { path: PathId(0), twin: PathId::NONE, qpn: QPN[1], qkey: 0x11111111 };
    let (sges, op) = ([sge(0, 100)], SendOp::Send);
    let (data, flags) = (SendData::Sges(&sges), SendFlags::SIGNALED);
    p.nodes[0].qp.post_send(&SendWr { wr_id: 1, op, flags, data, ud: Some(ud) }).unwrap();
    refreeze(&mut p, 0);
    refreeze(&mut p, 1);
    p.run();
    assert_eq!(p.nodes[1].host.recv_completions[0].byte_len, 140);
}

#[test]
fn a_host_with_other_paths_goes_on_by_its_own() {
    let setup = Setup { multipath: true, paths: 2, reach: 1 << 20, ..Setup::default() };
    let mut p = Pair::new(setup);
    work(&mut p);
    p.nodes.iter_mut().for_each(|node| node.recv(102, 0x18000, 9000));
    p.run_to_rest(60 * US);
    // What was path 0 leads nowhere here, so answers that are still to be sent have to take another
    // path.
    refreeze(&mut p, 0);
    let (now, node) = (p.now, &mut p.nodes[0]);
    (node.host.paths[0].alive, node.host.active) = (false, Some(1));
    node.qp.on_paths_unknown(now, |_| true, &mut node.host);
    p.run();
    assert_done(&p);
}

/// A queue pair in the middle of all kinds of work.
fn busy(setup: Setup) -> (Pair, Vec<u8>) {
    let mut p = Pair::new(setup);
    p.links.fill(Link { loss: 100, ..Link::default() });
    work(&mut p);
    p.run_to_rest(250 * US);
    let bytes = refreeze(&mut p, 0);
    (p, bytes)
}

#[test]
fn bytes_that_are_cut_off_changed_or_of_another_version_are_refused() {
    let (p, bytes) = busy(setups()[1]);
    let thaw = |bytes: &[u8]| {
        let mut host = SimHost::new(2);
        let result = QueuePair::thaw(bytes, PD, p.now, &mut host).map(drop);
        assert!(result.is_ok() || host.early == 0, "nothing stays reserved");
        result
    };
    for len in 0..bytes.len() {
        let expected = if len < 10 { ThawError::Truncated } else { ThawError::Checksum };
        assert_eq!(thaw(&bytes[..len]), Err(expected), "{len}");
    }
    for at in (0..bytes.len()).step_by(7) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(thaw(&changed).is_err(), "byte {at}");
    }
    let mut newer = bytes.clone();
    newer[4..6].copy_from_slice(&(FROZEN_VERSION + 1).to_be_bytes());
    let error = thaw(&newer).unwrap_err();
    assert_eq!(error, ThawError::Version(FROZEN_VERSION + 1));
    assert!(error.to_string().contains("with the version of Polypath that froze it"), "{error}");
    assert_eq!(thaw(b"a letter"), Err(ThawError::NotFrozen));
    assert_eq!(thaw(b""), Err(ThawError::Truncated));
    assert_eq!(thaw(&bytes), Ok(()));
}

/// Changed bytes with the right checksum, as an attacker would write them.
#[test]
fn bytes_that_were_made_up_are_refused_or_give_a_queue_pair_that_holds_together() {
    let mut rng = Rng(11);
    let mut thawed = 0;
    for setup in setups() {
        let (mut p, bytes) = busy(setup);
        p.nodes[0].host.made_up = true;
        drop(freeze(&mut p.nodes[0], p.now));
        for _ in 0..1000 {
            let mut changed = bytes[..bytes.len() - 4].to_vec();
            for _ in 0..=rng.below(3) {
                let at = 6 + rng.below(changed.len() as u64 - 6) as usize;
                changed[at] = if rng.chance(500) { rng.next() as u8 } else { changed[at] ^ 1 };
            }
            changed.extend(crc32fast::hash(&changed).to_be_bytes());
            let node = &mut p.nodes[0];
            let fresh = QueuePair::new(*node.qp.config());
            node.qp = fresh;
            let Ok(mut qp) = QueuePair::thaw(&changed, PD, p.now, &mut node.host) else { continue };
            thawed += 1;
            qp.set_peer(PeerId(1));
            node.qp = qp;
            // It may do nonsense, but must not panic.
            p.run_to_rest(MS);
            assert_eq!(p.nodes[0].qp.check(), Ok(()));
            drop(freeze(&mut p.nodes[0], p.now));
            p.nodes[0].host.out.clear();
        }
    }
    assert!(thawed > 30, "{thawed} of them say something else that can be");
}

/// Whoever changes the meaning of the bytes has to raise the version.
#[test]
fn the_bytes_of_this_version_stay_as_they_are() {
    let mut all = Vec::new();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
        let mut p = Pair::new(Setup { qp_type, ..Setup::default() });
        if qp_type == QpType::Rc {
            work(&mut p);
            let node = &mut p.nodes[0];
            // A READ that is still to be answered, and a packet that waits for its predecessor.
            let psn = Psn::new(Setup::default().psn[1]);
            let reth = Some(Reth { va: 0x100, rkey: ALL, len: 3000 });
            let read = Headers { reth, ..Headers::new(bth(Opcode::RC_READ_REQUEST, psn)) };
            let packet = Packet { headers: read, payload: &[] };
            node.qp.handle_packet(p.now, &packet, PathId(0), None, &mut node.host);
            let mp = Some(MpHeader { msg: 2, ..MpHeader::default() });
            let send =
                Headers { mp, ..Headers::new(bth(Opcode::RC_SEND_ONLY.to_mp(), psn.add(9))) };
            let packet = Packet { headers: send, payload: b"early" };
            node.qp.handle_packet(p.now, &packet, PathId(0), None, &mut node.host);
        }
        all.extend(refreeze(&mut p, 0));
        all.extend(refreeze(&mut p, 1));
    }
    let crc = crc32fast::hash(&all);
    assert_eq!((FROZEN_VERSION, all.len(), crc), (4, 3572, 3_812_602_080), "see src/frozen/mod.rs");
}

fn bth(opcode: Opcode, psn: Psn) -> Bth {
    Bth { dest_qpn: QPN[0], psn, ..Bth::new(opcode) }
}
