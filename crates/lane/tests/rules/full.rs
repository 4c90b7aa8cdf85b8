//! Queue pairs that wait for room in a window that their peer never opens.

use core::time::Duration;

use polypath_transport::{
    CqSide, QpAttr, QpAttrMask as M, QpState, QpType, SendData, SendFlags, SendOp, SendWr, Sge,
};

use crate::host::{Host, KEY, ip};

const QPS: u16 = 20;

/// More is posted for each queue pair than all of them may send, so the last ones send nothing.
fn full() -> Host {
    let mut host = Host::new(1);
    for index in 1..=QPS {
        host.add(index, QpType::Rc, false);
        for _ in 0..8 {
            host.post_write(index, 1 << 19);
        }
    }
    settle(&mut host);
    host
}

fn settle(host: &mut Host) {
    for _ in 0..20 {
        host.run();
    }
}

fn post(host: &mut Host, sges: &[Sge]) {
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 99, op, flags, data: SendData::Sges(sges), ud: None };
    host.with(QPS, |visit| visit.qp.post_send(&wr)).unwrap();
    settle(host);
}

/// IBTA 10.3.1.7: what is posted in the error state is flushed.
#[test]
fn what_is_posted_in_the_error_state_is_flushed_at_once() {
    let mut host = full();
    let error = QpAttr::new(QpState::Err);
    host.with(QPS, |visit| visit.qp.modify(&error, M::STATE, &mut visit.host)).unwrap();
    settle(&mut host);
    post(&mut host, &[]);
    let flushed = host.io.completions.iter().any(|(s, c)| *s == CqSide::Send && c.wr_id == 99);
    assert!(flushed);
}

#[test]
fn a_queue_pair_that_was_reset_does_not_wait_for_its_former_peer() {
    let mut host = full();
    let to_reset = QpAttr::new(QpState::Reset);
    host.with(QPS, |visit| {
        visit.qp.modify(&to_reset, M::STATE, &mut visit.host).unwrap();
        visit.detach();
    });
    settle(&mut host);
    host.connect(QPS, (0x09_0001, ip(9)), false);
    host.io.out.clear();
    let before = host.now;
    post(&mut host, &[Sge { addr: 0, len: 10, lkey: KEY }]);
    assert!(host.io.out.iter().any(|sent| sent.ends.1 == ip(9)));
    assert_eq!(host.now - before, Duration::ZERO);
}
