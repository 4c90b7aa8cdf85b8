//! A link with a long delay between two hosts: how much is in flight, judged like everything else.

use core::time::Duration;

use polypath_sim::{
    Case, EndPlan, Fault, LanePlan, LinkFaults, LinkPlan, Op, OpKind, PairPlan, Report, When, run,
};
use polypath_transport::{Access, QpType, REACH};

const WRITES: u32 = 1200;
const LEN: u32 = 12 << 10;

fn end(host: usize, psn: u32, writes: u32) -> EndPlan {
    let op = |i: u32| Op {
        at: Duration::ZERO,
        kind: OpKind::Write,
        len: LEN,
        offset: i % 3 * LEN,
        fill: u64::from(i),
        signaled: i.is_multiple_of(4),
        inline: false,
        solicited: false,
        fence: false,
        split: false,
        receive_at: Duration::ZERO,
        wrong: None,
    };
    EndPlan {
        host,
        qpn: (host as u32 + 1) << 16 | 0x77,
        psn,
        srq: false,
        access: Access::REMOTE_WRITE,
        ops: (0..writes).map(op).collect(),
    }
}

/// A transfer of 14 MiB in small packets over a link with 10 ms of delay and 1 Gbit/s.
fn case(lane: LanePlan, reorders: bool, faults: Vec<(When, Fault)>) -> Case {
    let link = LinkPlan {
        delay: Duration::from_millis(10),
        jitter: if reorders { Duration::from_micros(100) } else { Duration::ZERO },
        reorders,
        rate_mbps: 1000,
        queue: 4 << 20,
        marks: false,
    };
    let pair = PairPlan {
        service: QpType::Rc,
        alternate: None,
        labels: [0; 2],
        multipath: true,
        link: 0,
        mtu: 256,
        timeout: 16,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 1,
        max_rd_atomic: 1,
        unfenced: false,
        // The PSNs wrap during the transfer.
        ends: [end(0, 0xff_f000, WRITES), end(1, 0x12_3456, 0)],
    };
    Case {
        seed: 1,
        v6: false,
        hosts: 2,
        links: vec![link],
        pairs: vec![pair],
        faults,
        attacks: vec![],
        lanes: vec![lane; 2],
    }
}

fn judged(case: &Case) -> Report {
    run(case, None, None).0.unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn one_queue_pair_fills_a_long_way_to_a_peer_that_keeps_what_comes_early() {
    let wide = LanePlan { reach: REACH, receive_window: REACH, ..LanePlan::default() };
    let calm = |lane| judged(&case(lane, false, vec![])).time;
    // 12 requests are outstanding, 144 KiB in 576 packets. That takes 100 round trips, and a rest at
    // the end.
    let time = calm(wide);
    assert!(time < Duration::from_millis(2700), "{time:?}");
    // A peer of an older version keeps 256 packets, 64 KiB.
    let old = calm(LanePlan { reach: 0, ..wide });
    assert!(old > Duration::from_millis(4500), "{old:?}");
    // A small receive buffer does not overflow, because a share for each packet counts as well.
    let small = judged(&case(LanePlan { receive_window: 104 << 10, ..wide }, false, vec![]));
    assert_eq!(small.dropped, 0);
    assert!(small.time > Duration::from_millis(4000), "{:?}", small.time);
}

#[test]
fn losses_and_reordering_on_a_long_way_cost_little_beside_themselves() {
    let wide = LanePlan { reach: REACH, receive_window: REACH, ..LanePlan::default() };
    for (reorders, loss) in [(false, 1), (true, 0), (true, 1)] {
        let link_faults = Fault::LinkFaults {
            link: 0,
            link_faults: LinkFaults { loss, ..LinkFaults::default() },
        };
        // The simulator mends everything after the last fault.
        let times = [0, 10].map(|s| (When::At(Duration::from_secs(s)), link_faults));
        let report = judged(&case(wide, reorders, times.to_vec()));
        let most = report.dropped * 2 + if reorders { 1000 } else { 10 };
        assert!(report.resent <= most, "{reorders} {loss}: {report:?}");
        assert_eq!(report.dropped > 20, loss > 0, "{report:?}");
    }
}

#[test]
fn a_link_that_marks_loses_less() {
    let wide = LanePlan { reach: REACH, receive_window: REACH, ..LanePlan::default() };
    let through = |marks| {
        let mut case = case(wide, false, vec![]);
        // 25 KB are on their way at once, and twelve requests are outstanding.
        let delay = Duration::from_millis(1);
        case.links[0] = LinkPlan { delay, rate_mbps: 100, queue: 64 << 10, marks, ..case.links[0] };
        judged(&case)
    };
    let (drops, marks) = (through(false), through(true));
    assert!(drops.marked == 0 && drops.dropped > 100, "{drops:?}");
    assert!(marks.marked > 10 && marks.dropped < drops.dropped / 10, "{marks:?} {drops:?}");
    assert!(marks.time < drops.time * 11 / 10, "{marks:?} {drops:?}");
}
