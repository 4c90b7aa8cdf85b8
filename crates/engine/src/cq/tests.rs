//! Completions and events of one queue.

use polypath_verbs::{CompletionChannel, WcOpcode};

use super::*;
use crate::deferrals::Deferrals;
use crate::events::tests::Recorder;
use crate::lanes::Lanes;

fn cq(cqe: u32, channel: Option<&Arc<Channel>>, owner: &Arc<Recorder>) -> Arc<Cq> {
    let request = CqRequest {
        cqe,
        channel: channel.map(|c| c.clone() as Arc<dyn CompletionChannel>),
        token: 77,
        ignore_overrun: false,
    };
    Cq::new(&request, owner.owner(), Lanes::default().driver(), None).unwrap()
}

fn completion(wr_id: u64, qpn: u32, solicited: bool) -> Completion {
    Completion {
        wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        vendor_err: 0,
        byte_len: 0,
        imm: None,
        invalidated_rkey: None,
        qpn,
        src_qpn: 0,
        grh: None,
        solicited,
    }
}

fn push(cq: &Cq, completion: Completion, now: Duration) -> Option<Duration> {
    cq.push(completion, now).unwrap_or(None)
}

fn ids(cq: &Cq) -> Vec<u64> {
    let mut ids = Vec::new();
    cq.poll(100, &mut |wc| ids.push(wc.completion.wr_id)).unwrap();
    ids
}

#[test]
fn completions_come_out_in_order_and_a_reset_queue_pair_s_do_not() {
    let cq = cq(8, None, &Arc::default());
    for (wr_id, qpn) in [(1, 5), (2, 6), (3, 5)] {
        push(&cq, completion(wr_id, qpn, false), Duration::ZERO);
    }
    cq.purge(6);
    assert_eq!(ids(&cq), [1, 3]);
}

#[test]
fn what_succeeded_before_its_queue_pair_was_destroyed_stays_and_what_was_flushed_does_not() {
    let cq = cq(8, None, &Arc::default());
    let flushed =
        |wr_id| Completion { status: WcStatus::WrFlushErr, ..completion(wr_id, 6, false) };
    for done in [completion(1, 6, false), flushed(2), completion(3, 5, false)] {
        push(&cq, done, Duration::ZERO);
    }
    cq.attach(0);
    cq.detach(6);
    assert_eq!(ids(&cq), [1, 3]);
}

#[test]
fn an_overrun_is_told_once_and_then_ends_polling() {
    let owner = Arc::default();
    let cq = cq(2, None, &owner);
    for wr_id in 0..4 {
        push(&cq, completion(wr_id, 1, false), Duration::ZERO);
    }
    let event = AsyncEvent { kind: AsyncKind::CqErr, element: Element::Cq(77) };
    assert_eq!(*owner.0.lock().unwrap(), [event]);
    assert_eq!(ids(&cq), [0, 1]);
    assert_eq!(cq.poll(1, &mut |_| ()).unwrap_err().errno, libc::EIO);
    cq.destroy().unwrap();
    assert!(owner.0.lock().unwrap().is_empty(), "nobody could acknowledge it any more");
}

/// IBTA 11.6.3.2: the lane makes the queue pair fail whose completion is lost.
#[test]
fn each_completion_that_finds_no_room_is_an_overrun_to_the_lane() {
    let cq = cq(1, None, &Arc::default());
    assert!(cq.push(completion(1, 1, false), Duration::ZERO).is_ok());
    for wr_id in 2..4 {
        assert!(cq.push(completion(wr_id, 1, false), Duration::ZERO).is_err(), "{wr_id}");
    }
    assert_eq!(ids(&cq), [1]);
}

#[test]
fn one_event_per_arming_and_solicited_ones_only_if_asked() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = cq(8, Some(&channel), &Arc::default());
    push(&cq, completion(1, 1, true), Duration::ZERO);
    assert_eq!(channel.take(), None, "not armed");
    assert!(!cq.is_awaited());
    cq.arm(true).unwrap();
    assert!(cq.is_awaited());
    push(&cq, completion(2, 1, false), Duration::ZERO);
    assert_eq!(channel.take(), None, "not solicited");
    push(&cq, completion(3, 1, true), Duration::ZERO);
    push(&cq, completion(4, 1, true), Duration::ZERO);
    assert_eq!(channel.take(), Some(77));
    assert_eq!(channel.take(), None, "armed once");
    assert!(!cq.is_awaited());
    cq.arm(false).unwrap();
    cq.arm(true).unwrap();
    push(&cq, completion(5, 1, false), Duration::ZERO);
    assert_eq!(channel.take(), Some(77), "the wider arming stays (man 3 ibv_req_notify_cq)");
}

/// UCX looks, arms and sleeps. The usual order is to sleep, arm and look.
#[test]
fn what_came_after_a_look_makes_the_event_of_the_next_arming() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = cq(8, Some(&channel), &Arc::default());
    assert_eq!(ids(&cq), [0; 0]);
    push(&cq, completion(1, 1, false), Duration::ZERO);
    cq.arm(true).unwrap();
    assert_eq!(channel.take(), None, "it is not solicited");
    cq.arm(false).unwrap();
    assert_eq!(channel.take(), Some(77));
    assert!(!cq.is_awaited());

    cq.arm(false).unwrap();
    assert_eq!(channel.take(), None, "the program has not looked since the event");
    assert!(cq.is_awaited());
    push(&cq, completion(2, 1, false), Duration::ZERO);
    assert_eq!(channel.take(), Some(77));
    cq.poll(1, &mut |_| ()).unwrap();
    cq.arm(false).unwrap();
    assert_eq!(channel.take(), Some(77), "it has looked, and left one");
    assert_eq!(ids(&cq), [2]);
    cq.arm(false).unwrap();
    assert_eq!(channel.take(), None, "there is nothing");
}

#[test]
fn an_error_raises_the_event_of_an_arming_for_solicited_completions() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = cq(8, Some(&channel), &Arc::default());
    cq.arm(true).unwrap();
    push(&cq, completion(1, 1, false), Duration::ZERO);
    assert_eq!(channel.take(), None, "neither solicited nor an error");
    let failed = Completion { status: WcStatus::WrFlushErr, ..completion(2, 1, false) };
    push(&cq, failed, Duration::ZERO);
    assert_eq!(channel.take(), Some(77), "an error (man 3 ibv_req_notify_cq)");
}

/// A queue of 16 with events of 3 completions or 100 µs, armed.
fn moderated(channel: &Arc<Channel>) -> Arc<Cq> {
    let cq = cq(16, Some(channel), &Arc::default());
    cq.moderate(3, 100).unwrap();
    cq.arm(false).unwrap();
    cq
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn a_moderated_queue_raises_one_event_for_the_count() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = moderated(&channel);
    assert_eq!(push(&cq, completion(1, 1, false), us(0)), Some(us(100)));
    // Arming again keeps what is deferred, and does not restart the count.
    cq.arm(false).unwrap();
    assert_eq!(push(&cq, completion(2, 1, false), us(1)), None);
    assert_eq!(channel.take(), None, "deferred");
    push(&cq, completion(3, 1, false), us(2));
    assert_eq!(channel.take(), Some(77));
    push(&cq, completion(4, 1, false), us(3));
    assert_eq!(channel.take(), None, "not armed");
}

#[test]
fn a_lane_raises_what_is_deferred_when_the_period_is_over() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = moderated(&channel);
    let mut deferrals = Deferrals::default();
    deferrals.add(push(&cq, completion(1, 1, false), us(5)).unwrap(), &cq);
    assert!(deferrals.take_news() && !deferrals.take_news());
    assert_eq!(deferrals.next_deadline(), Some(us(105)));
    deferrals.run(us(104));
    assert_eq!(channel.take(), None);
    deferrals.run(us(105));
    assert_eq!(channel.take(), Some(77));
    assert_eq!((channel.take(), deferrals.next_deadline()), (None, None));
}

#[test]
fn a_lane_comes_back_again_for_completions_of_the_next_arming() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = moderated(&channel);
    let mut deferrals = Deferrals::default();
    deferrals.add(push(&cq, completion(1, 1, false), us(0)).unwrap(), &cq);
    (2..4).for_each(|wr_id| assert_eq!(push(&cq, completion(wr_id, 1, false), us(1)), None));
    assert_eq!(channel.take(), Some(77));
    assert_eq!(ids(&cq), [1, 2, 3]);
    cq.arm(false).unwrap();
    assert_eq!(push(&cq, completion(4, 1, false), us(50)), None, "one timer at a time");
    deferrals.run(us(100));
    assert_eq!((channel.take(), deferrals.next_deadline()), (None, Some(us(150))));
    deferrals.run(us(150));
    assert_eq!(channel.take(), Some(77));
}

#[test]
fn failures_a_queue_half_full_and_new_settings_defer_nothing() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = moderated(&channel);
    push(&cq, completion(1, 1, false), us(0));
    let failed = Completion { status: WcStatus::WrFlushErr, ..completion(2, 1, false) };
    assert_eq!(push(&cq, failed, us(1)), None);
    assert_eq!(channel.take(), Some(77), "a failure");

    cq.arm(false).unwrap();
    push(&cq, completion(3, 1, false), us(2));
    cq.moderate(0, 0).unwrap();
    assert_eq!(channel.take(), Some(77), "moderation ends");
    cq.arm(false).unwrap();
    push(&cq, completion(4, 1, false), us(3));
    assert_eq!(channel.take(), Some(77), "off");

    cq.moderate(u16::MAX, u16::MAX).unwrap();
    cq.arm(false).unwrap();
    for wr_id in 5..8 {
        push(&cq, completion(wr_id, 1, false), us(4));
    }
    assert_eq!(channel.take(), None);
    push(&cq, completion(8, 1, false), us(4));
    assert_eq!(channel.take(), Some(77), "8 of 16 entries are taken");
}

#[test]
fn an_arming_for_solicited_completions_counts_these_alone() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = cq(16, Some(&channel), &Arc::default());
    cq.moderate(2, 100).unwrap();
    cq.arm(true).unwrap();
    assert_eq!(push(&cq, completion(1, 1, false), us(0)), None);
    assert_eq!(push(&cq, completion(2, 1, true), us(10)), Some(us(110)));
    assert_eq!(push(&cq, completion(3, 1, false), us(11)), None);
    assert_eq!(channel.take(), None);
    push(&cq, completion(4, 1, true), us(12));
    assert_eq!(channel.take(), Some(77));
}

#[test]
fn a_destroyed_queue_raises_nothing_more() {
    let channel = Arc::new(Channel::new().unwrap());
    let cq = moderated(&channel);
    let mut deferrals = Deferrals::default();
    deferrals.add(push(&cq, completion(1, 1, false), us(0)).unwrap(), &cq);
    cq.destroy().unwrap();
    deferrals.run(us(100));
    assert_eq!(channel.take(), None);
    deferrals.add(us(200), &cq);
    drop(cq);
    deferrals.run(us(200));
    assert_eq!(deferrals.next_deadline(), None);
}

#[test]
fn a_queue_does_not_shrink_below_what_it_holds() {
    let cq = cq(8, None, &Arc::default());
    for wr_id in 0..4 {
        push(&cq, completion(wr_id, 1, false), Duration::ZERO);
    }
    assert_eq!(cq.resize(3).unwrap_err().errno, libc::EINVAL);
    assert_eq!(cq.resize(4), Ok(4));
    assert_eq!(cq.capacity(), 4);
}
