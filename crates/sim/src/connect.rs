//! Takes a queue pair of a plan to the state in which it sends.

use core::net::IpAddr;

use polypath_transport::{AhAttr, QpAttr, QpAttrMask as M, QpConfig, QpState, QpType, QueuePair};

use crate::case::PairPlan;
use crate::host::SimHost;
use crate::io::{PD, QKEY};
use crate::judge::direction::INLINE_MAX;

/// Creates one end's queue pair, with queues of `depth` work requests, and takes it to RTS. `ips` are
/// the addresses of both ends, in the order of the plan.
pub(crate) fn connect(plan: &PairPlan, e: usize, ips: [IpAddr; 2], depth: u32, host: &mut SimHost) {
    let (end, peer) = (&plan.ends[e], &plan.ends[1 - e]);
    let mut qp = QueuePair::new(QpConfig {
        qpn: end.qpn,
        qp_type: plan.qp_type(e),
        pd: PD,
        sq_sig_all: false,
        srq: end.srq,
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: INLINE_MAX,
    });
    qp.set_port_mtu(plan.mtu);
    host.lane.insert(qp, end.qpn);
    if plan.qp_type(e) == QpType::Ud {
        host.lane.take_datagrams();
    }
    let attr = QpAttr {
        access: end.access,
        port_num: 1,
        ah: AhAttr {
            is_global: true,
            port_num: 1,
            flow_label: plan.labels[0],
            ..AhAttr::default()
        },
        path_mtu: plan.mtu,
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        sq_psn: end.psn,
        qkey: QKEY,
        max_rd_atomic: plan.max_rd_atomic,
        max_dest_rd_atomic: plan.max_rd_atomic,
        min_rnr_timer: plan.min_rnr_timer,
        timeout: plan.timeout,
        retry_cnt: plan.retry_cnt,
        rnr_retry: plan.rnr_retry,
        ..QpAttr::new(QpState::Init)
    };
    let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let (init, rtr, rts) = match plan.service {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv => (
            M::ACCESS_FLAGS,
            connected | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        ),
        QpType::Uc => (M::ACCESS_FLAGS, connected, M::empty()),
        QpType::Ud => (M::QKEY, M::empty(), M::empty()),
    };
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | init),
        (QpState::Rtr, rtr),
        (QpState::Rts, M::SQ_PSN | rts),
    ];
    for (state, mask) in steps {
        if state == QpState::Rtr && plan.service != QpType::Ud {
            host.attach(end.qpn, peer.qpn, ips[e], ips[1 - e], plan.options());
        }
        let done = host.with(end.qpn, |visit| {
            let attr = QpAttr { state, cur_state: visit.qp.state(), ..attr };
            visit.qp.modify(&attr, mask | M::STATE, &mut visit.host)
        });
        done.expect("it was added").expect("the transitions are legal");
    }
}
