//! Tests of queue pairs without a peer.

use polypath_topology::{MP, Selection};
use polypath_verbs::{AhAttr, Context, CqRequest, SendData, SendFlags, SendOp, Sge, WcStatus};

use super::*;
use crate::devices;

fn request(qp_type: QpType, max_send_sge: u32, max_inline: u32) -> QpRequest {
    QpRequest {
        pd: None,
        qp_type,
        send_cq: None,
        recv_cq: None,
        srq: None,
        xrcd: None,
        sq_sig_all: false,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge,
        max_recv_sge: 1,
        max_inline,
        token: 1,
    }
}

/// `man 3 ibv_wr_complete`: if it fails, no work request was posted.
#[test]
fn a_list_that_is_posted_all_or_none_is_not_posted_in_part() {
    let lane = Lane::still(9).unwrap();
    let engine = EngineInner::alone(crate::fuzz::table(), Selection::of(MP), lane);
    let context = devices::first(&engine);
    let cq = CqRequest { cqe: 16, channel: None, token: 1, ignore_overrun: false };
    let cq = context.create_cq(&cq).unwrap();
    let (send_cq, recv_cq) = (Some(cq.clone()), Some(cq.clone()));
    let pd = Some(context.alloc_pd().unwrap());
    let mut wanted = QpRequest { pd, send_cq, recv_cq, ..request(QpType::Rc, 1, 0) };
    wanted.max_send_wr = 4;
    let qp = context.create_qp(&wanted).unwrap();
    let mut attr = QpAttr::new(QpState::Init);
    attr.port_num = 1;
    let mask = QpAttrMask::STATE | QpAttrMask::PORT;
    qp.modify(&attr, mask | QpAttrMask::PKEY_INDEX | QpAttrMask::ACCESS_FLAGS).unwrap();
    attr.state = QpState::Err;
    qp.modify(&attr, QpAttrMask::STATE).unwrap();

    let sges = [Sge::default(); 2];
    let send = |wr_id, sges| SendRequest {
        wr_id,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(sges),
        ud: None,
        xrc_srqn: 0,
    };
    let flushed = || {
        let mut ids = Vec::new();
        for _ in 0..2 {
            cq.poll(16, &mut |wc| ids.push(wc.completion.wr_id)).unwrap();
        }
        ids
    };
    let list = [send(1, &sges[..1]), send(2, &sges)];
    let failure = qp.post_send(&list, true).unwrap_err();
    assert_eq!((failure.index, failure.error.errno), (1, libc::EINVAL));
    assert_eq!(flushed(), [0; 0]);
    // ibv_post_send posts up to the request that it rejects.
    assert_eq!(qp.post_send(&list, false).unwrap_err().index, 1);
    assert_eq!(flushed(), [1]);
    qp.destroy().unwrap();
}

#[test]
fn inline_data_may_take_the_place_of_elements() {
    let room = |sges, inline| inline_room(&request(QpType::Rc, sges, inline));
    assert_eq!([room(0, 0), room(1, 0), room(4, 0)], [0, 16, 64]);
    assert_eq!([room(1, 10), room(1, 17), room(4, 200)], [16, 17, 200]);
    assert_eq!(inline_room(&request(QpType::XrcRecv, 1, 0)), 0, "it sends nothing");
}

#[test]
fn a_datagram_by_an_address_handle_of_another_protection_domain_fails() {
    let lane = Lane::still(10).unwrap();
    let engine = EngineInner::alone(crate::fuzz::table(), Selection::of(MP), lane);
    let context = devices::first(&engine);
    let cq = CqRequest { cqe: 16, channel: None, token: 1, ignore_overrun: false };
    let cq = context.create_cq(&cq).unwrap();
    let (send_cq, recv_cq) = (Some(cq.clone()), Some(cq.clone()));
    let pds = [context.alloc_pd().unwrap(), context.alloc_pd().unwrap()];
    let pd = Some(pds[0]);
    let wanted = QpRequest { pd, send_cq, recv_cq, ..request(QpType::Ud, 1, 0) };
    let qp = context.create_qp(&wanted).unwrap();
    let mut attr = QpAttr::new(QpState::Init);
    attr.port_num = 1;
    let mask = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::PKEY_INDEX;
    qp.modify(&attr, mask | QpAttrMask::QKEY).unwrap();
    attr.state = QpState::Rtr;
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
    attr.state = QpState::Rts;
    qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN).unwrap();

    let IpAddr::V4(peer) = crate::fuzz::ip(0, 1) else { panic!("IPv4") };
    let dgid = peer.to_ipv6_mapped().octets();
    let gids = context.gid_table();
    let sgid_index = gids.iter().find(|gid| gid.ip.is_ipv4()).unwrap().index as u8;
    let to = AhAttr { dgid, sgid_index, is_global: true, port_num: 1, ..AhAttr::default() };
    let ah = context.create_ah(pds[1], &to).unwrap();
    let send = SendRequest {
        wr_id: 7,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&[]),
        ud: Some(UdTarget { ah: &ah, qpn: 9, qkey: 1 }),
        xrc_srqn: 0,
    };
    qp.post_send(&[send], false).unwrap();
    let mut done = Vec::new();
    for _ in 0..2 {
        cq.poll(16, &mut |wc| done.push((wc.completion.wr_id, wc.completion.status))).unwrap();
    }
    assert_eq!(done, [(7, WcStatus::LocQpOpErr)]);
    assert_eq!(qp.query().unwrap().state, QpState::Sqe);
    qp.destroy().unwrap();
}
