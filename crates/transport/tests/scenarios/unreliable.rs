//! UC and UD.

use std::cell::RefCell;
use std::rc::Rc;

use polypath_transport::WcStatus::*;
use polypath_transport::*;
use polypath_wire::ext::MpHeader;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Headers;
use polypath_wire::psn::Psn;

use crate::host::ASSOCIATION;
use crate::pair::*;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn uc() -> Setup {
    Setup { qp_type: QpType::Uc, ..Setup::default() }
}

fn ud() -> Setup {
    Setup { qp_type: QpType::Ud, ..Setup::default() }
}

#[test]
fn uc_sends_and_writes() {
    let mut p = Pair::new(uc());
    p.nodes[0].write_memory(0, &pattern(5000, 1));
    p.nodes[1].recv(1, 0x10000, 5000);
    p.nodes[1].recv(2, 0x20000, 5000);
    p.nodes[0].post(0, SendOp::Send, 0, 5000);
    p.nodes[0].post(1, SendOp::WriteImm { va: 0x30000, rkey: ALL, imm: [1; 4] }, 0, 5000);
    p.nodes[0].post_with(2, SendOp::Write { va: 0x40000, rkey: ALL }, SIGNALED, 0, 0);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success), (2, Success)]);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(1, Success), (2, Success)]);
    assert_eq!(p.nodes[1].host.recv_completions[1].byte_len, 5000);
    assert_eq!(p.nodes[1].memory(0x10000, 5000), pattern(5000, 1));
    assert_eq!(p.nodes[1].memory(0x30000, 5000), pattern(5000, 1));
}

/// IBTA 9.8.2.2: the whole message is dropped, and the receive stays for the next one.
#[test]
fn uc_drops_a_message_with_a_gap() {
    let mut p = Pair::new(uc());
    let start = uc().psn[0];
    p.filter = Some(Box::new(move |_, k| k.headers.bth.psn.get() != start + 1));
    p.nodes[1].recv(1, 0x10000, 5000);
    p.nodes[0].post(0, SendOp::Send, 0, 5000);
    p.nodes[0].write_memory(0x8000, &[7; 3000]);
    p.nodes[0].post(1, SendOp::Send, 0x8000, 3000);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success)]);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(1, Success)]);
    assert_eq!(p.nodes[1].host.recv_completions[0].byte_len, 3000);
    assert_eq!(p.nodes[1].memory(0x10000, 3000), [7; 3000]);
}

#[test]
fn uc_without_receive_or_right_drops_and_goes_on() {
    let mut p = Pair::new(Setup { access: Access::empty(), ..uc() });
    p.nodes[0].post(0, SendOp::Send, 0, 100);
    p.nodes[0].post(1, SendOp::Write { va: 0, rkey: ALL }, 0, 100);
    p.run();
    let c = p.nodes[1].qp.counters();
    assert_eq!((c.dropped_no_receive, c.dropped_malformed), (1, 1));
    assert_eq!(p.nodes[1].qp.state(), QpState::Rts);
}

/// IBTA 10.3.1.6.
#[test]
fn a_uc_send_error_stops_sending_only() {
    let setup = uc();
    let mut p = Pair::new(setup);
    p.nodes[0].recv(5, 0, 100);
    let bad = [Sge { addr: 0, len: 100, lkey: 0xbad }];
    let data = SendData::Sges(&bad);
    let wr = SendWr { wr_id: 0, op: SendOp::Send, flags: SIGNALED, data, ud: None };
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.nodes[0].post(1, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, LocProtErr), (1, WrFlushErr)]);
    assert_eq!(p.nodes[0].qp.state(), QpState::Sqe);
    p.nodes[0].post(2, SendOp::Send, 0, 10);
    p.nodes[1].post(0, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.nodes[0].host.statuses()[2], (2, WrFlushErr));
    assert_eq!(p.nodes[0].host.recv_statuses(), [(5, Success)]);
    let attr = QpAttr { state: QpState::Rts, ..setup.attr(0) };
    let n = &mut p.nodes[0];
    n.qp.modify(&attr, QpAttrMask::STATE, &mut n.host).unwrap();
    p.nodes[0].post(3, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.nodes[0].host.statuses()[3], (3, Success));
}

fn send(p: &mut Pair, wr_id: u64, qkey: u32, len: u32, op: SendOp) -> Result<(), PostError> {
    let ud = Some(UdDestination { path: PathId(0), twin: PathId::NONE, qpn: QPN[1], qkey });
    let sges = [sge(0, len)];
    let data = SendData::Sges(&sges);
    p.nodes[0].qp.post_send(&SendWr { wr_id, op, flags: SIGNALED, data, ud })
}

/// IBTA 11.4.1.2: 40 bytes of GRH come first, and count.
#[test]
fn ud_delivers_with_the_grh_in_front() {
    let mut p = Pair::new(ud());
    p.nodes[0].write_memory(0, b"hello");
    p.nodes[1].recv(1, 0x1000, 100);
    send(&mut p, 0, 0x11111111, 5, SendOp::SendImm([4, 3, 2, 1])).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success)]);
    let c = p.nodes[1].host.recv_completions[0];
    assert_eq!((c.byte_len, c.grh, c.src_qpn), (45, Some(NetworkHeader::Ipv4), QPN[0]));
    assert_eq!(c.imm, Some([4, 3, 2, 1]));
    assert_eq!(p.nodes[1].memory(0x1000, 40), [0xee; 40]);
    assert_eq!(p.nodes[1].memory(0x1028, 5), b"hello");
}

/// What tells them apart from others is for the host to see: this one takes both.
#[test]
fn a_datagram_goes_by_two_paths_with_one_number() {
    let multi = Setup { paths: 2, multipath: true, ..ud() };
    let mut p = Pair::new(multi);
    let log: Rc<RefCell<Vec<(Opcode, Psn, MpHeader)>>> = Rc::default();
    let seen = log.clone();
    p.filter = Some(Box::new(move |_, packet| {
        let Headers { bth, mp, .. } = packet.headers;
        seen.borrow_mut().push((bth.opcode, bth.psn, mp.unwrap()));
        true
    }));
    for id in 0..4 {
        p.nodes[1].recv(id, 0x1000, 100);
    }
    for (id, op) in [SendOp::Send, SendOp::SendImm([4, 3, 2, 1])].into_iter().enumerate() {
        let ud = UdDestination { path: PathId(0), twin: PathId(1), qpn: QPN[1], qkey: 0x11111111 };
        let sges = [sge(0, 5)];
        let (wr_id, data) = (id as u64, SendData::Sges(&sges));
        let wr = SendWr { wr_id, op, flags: SIGNALED, data, ud: Some(ud) };
        p.nodes[0].qp.post_send(&wr).unwrap();
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success)]);
    assert_eq!(p.nodes[1].host.recv_completions.len(), 4);
    let log = log.take();
    for (number, opcode) in [Opcode::MP_DATAGRAM, Opcode::MP_DATAGRAM_IMM].into_iter().enumerate() {
        let copies: Vec<_> = log.iter().filter(|(of, ..)| *of == opcode).collect();
        let [(_, one_psn, one), (_, other_psn, other)] = copies[..] else { panic!("{copies:?}") };
        assert_eq!((one_psn, one.msg, other.msg), (other_psn, number as u32, number as u32));
        let mut ways = [one, other].map(|mp| (mp.path_id, mp.is_copy(), mp.is_twice()));
        ways.sort_unstable();
        assert_eq!(ways, [(0, false, true), (1, true, true)]);
        assert_eq!([one.offset, other.offset], [ASSOCIATION; 2]);
    }
}

/// IBTA A17.4.5.1: the completion tells whether the datagram came by IPv4 or IPv6.
#[test]
fn a_datagrams_completion_tells_its_network_header() {
    let mut p = Pair::new(ud());
    for (id, header) in [NetworkHeader::Ipv4, NetworkHeader::Ipv6].into_iter().enumerate() {
        p.grh = [0; 40];
        match header {
            NetworkHeader::Ipv4 => p.grh[20] = 0x45,
            NetworkHeader::Ipv6 => p.grh[0] = 0x60,
        }
        p.nodes[1].recv(1, 0x1000, 100);
        send(&mut p, 0, 0x11111111, 5, SendOp::Send).unwrap();
        p.run();
        assert_eq!(p.nodes[1].host.recv_completions[id].grh, Some(header));
    }
}

/// IBTA 9.8.3.1, 10.2.5.
#[test]
fn ud_checks_the_q_key() {
    let mut p = Pair::new(ud());
    p.nodes[1].recv(1, 0x1000, 100);
    send(&mut p, 0, 0x2222, 5, SendOp::Send).unwrap();
    p.run();
    assert_eq!(p.nodes[1].qp.counters().dropped_qkey, 1);
    // With the highest bit set, the queue pair's own Q_Key is sent.
    send(&mut p, 1, 0x8000_0000, 5, SendOp::Send).unwrap();
    p.run();
    assert_eq!(p.nodes[1].host.recv_statuses(), [(1, Success)]);
}

/// As on Linux rxe. The host says by the path that the address handle is not one of the queue pair's.
#[test]
fn an_address_handle_of_another_protection_domain_fails_the_request() {
    let mut p = Pair::new(ud());
    p.nodes[1].recv(1, 0x1000, 100);
    let ud = Some(UdDestination {
        path: PathId::NONE,
        twin: PathId::NONE,
        qpn: QPN[1],
        qkey: 0x11111111,
    });
    let data = SendData::Sges(&[]);
    let wr = SendWr { wr_id: 7, op: SendOp::Send, flags: SIGNALED, data, ud };
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(7, LocQpOpErr)]);
    assert_eq!(p.nodes[0].qp.state(), QpState::Sqe);
    assert_eq!(p.nodes[1].host.recv_statuses(), []);
}

#[test]
fn ud_messages_that_do_not_fit_are_dropped() {
    let mut p = Pair::new(ud());
    assert!(send(&mut p, 0, 0, 8, SendOp::Read { va: 0, rkey: 0 }).is_err());
    p.nodes[1].recv(1, 0x1000, 100);
    send(&mut p, 1, 0x11111111, 61, SendOp::Send).unwrap();
    send(&mut p, 2, 0x11111111, 60, SendOp::Send).unwrap();
    send(&mut p, 3, 0x11111111, 60, SendOp::Send).unwrap();
    p.run();
    assert_eq!(p.nodes[1].host.recv_statuses(), [(1, Success)]);
    assert_eq!(p.nodes[1].host.recv_completions[0].byte_len, 100);
    let c = p.nodes[1].qp.counters();
    assert_eq!((c.dropped_malformed, c.dropped_no_receive), (1, 1));
}

/// C10-93.1.1: nothing is sent, and the work request succeeds.
#[test]
fn a_datagram_longer_than_the_mtu_is_not_sent_and_no_error() {
    let mut p = Pair::new(ud());
    p.nodes[0].qp.set_port_mtu(1024);
    p.nodes[1].recv(1, 0x1000, 4096);
    p.nodes[1].recv(2, 0x1000, 4096);
    for (wr_id, len) in [(0, 1025), (1, 1024), (2, 1025)] {
        send(&mut p, wr_id, 0x11111111, len, SendOp::Send).unwrap();
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success), (2, Success)]);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(1, Success)]);
    let c = p.nodes[0].qp.counters();
    assert_eq!((c.sent_packets, c.dropped_too_long), (1, 2));
    assert!(p.nodes[0].host.explanations[0].contains("MTU"), "{:?}", p.nodes[0].host.explanations);
}

#[test]
fn ud_drains_and_flushes() {
    let setup = ud();
    let mut p = Pair::new(setup);
    let mut attr = setup.attr(0);
    attr.state = QpState::Sqd;
    attr.en_sqd_async_notify = true;
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    let n = &mut p.nodes[0];
    n.qp.modify(&attr, mask, &mut n.host).unwrap();
    assert_eq!(n.host.events, [QpEvent::SqDrained]);
    send(&mut p, 0, 0x11111111, 5, SendOp::Send).unwrap();
    p.run();
    assert!(p.nodes[0].host.send_completions.is_empty());
    p.nodes[0].recv(3, 0, 10);
    p.nodes[0].modify(&setup.attr(0), QpState::Err).unwrap();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WrFlushErr)]);
    assert_eq!(p.nodes[0].host.recv_statuses(), [(3, WrFlushErr)]);
}
