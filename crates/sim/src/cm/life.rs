//! Checks what one application sees of one connection from first to last, whatever the network does:
//! each event comes at most once, in a legal order, and the connection ends once.

use core::time::Duration;

use super::abi::ETIMEDOUT;
use super::abi::event::{
    ADDR_CHANGE, ADDR_ERROR, ADDR_RESOLVED, CONNECT_RESPONSE, DEVICE_REMOVAL, DISCONNECTED,
    ESTABLISHED, REJECTED, ROUTE_RESOLVED, TIMEWAIT_EXIT, UNREACHABLE, name,
};
use super::case::{CmCase, CmFault, Decision, Quit};
use super::model::Half;
use crate::judge::{Verdict, demand};

/// The events that may follow an event of an id. `NONE` stands for no event yet.
fn may_follow(before: u32, active: bool, ud: bool) -> &'static [u32] {
    match (before, active, ud) {
        (NONE, true, _) => &[ADDR_RESOLVED, ADDR_ERROR],
        (ADDR_RESOLVED, true, _) => &[ROUTE_RESOLVED],
        (ROUTE_RESOLVED, true, false) => &[CONNECT_RESPONSE, REJECTED, UNREACHABLE],
        (ROUTE_RESOLVED, true, true) => &[ESTABLISHED, UNREACHABLE],
        (CONNECT_RESPONSE, true, false) => &[DISCONNECTED, REJECTED],
        (NONE, false, false) => &[ESTABLISHED, REJECTED, UNREACHABLE, DISCONNECTED],
        (ESTABLISHED, false, false) => &[DISCONNECTED, REJECTED],
        (DISCONNECTED, _, false) => &[TIMEWAIT_EXIT],
        _ => &[],
    }
}

/// No event has come yet.
const NONE: u32 = 0xffff;

/// Checks that an event may come now.
pub(super) fn next(half: &Half, kind: u32) -> Verdict {
    let before = half.told.last().copied().unwrap_or(NONE);
    // The device may be removed at any time, once. No event follows.
    let legal = match kind {
        DEVICE_REMOVAL => before != DEVICE_REMOVAL,
        // It comes only while there is no connection yet.
        ADDR_CHANGE => matches!(before, ADDR_RESOLVED | ROUTE_RESOLVED),
        _ => may_follow(before, half.active, half.ud).contains(&kind),
    };
    demand(legal, "events come in a legal order", || {
        let told: Vec<_> = half.told.iter().map(|k| name(*k)).collect();
        format!("attempt {} (active: {}): {} after {told:?}", half.attempt, half.active, name(kind))
    })
}

/// Checks, when nothing can happen any more, that each end that connected or accepted has got an
/// answer.
pub(super) fn complete(half: &Half) -> Verdict {
    let answers = [
        CONNECT_RESPONSE,
        REJECTED,
        UNREACHABLE,
        ESTABLISHED,
        DISCONNECTED,
        DEVICE_REMOVAL,
        ADDR_ERROR,
    ];
    let answered = half.told.iter().any(|k| answers.contains(k));
    let waits = if half.active { half.asked } else { half.named && !half.ud };
    demand(answered || !half.owned || !waits, "attempts end", || {
        format!("attempt {} was never answered: {half:?}", half.attempt)
    })?;
    let after = half.told.iter().skip_while(|k| **k != DISCONNECTED);
    let exits = after.clone().count() != 1 || !half.owned;
    demand(exits || half.state == super::model::State::DreqRcvd, "time-wait ends", || {
        format!("attempt {}: {half:?}", half.attempt)
    })
}

/// The longest time for which a packet may live (4.096 µs · 2^16). A later one can meet another
/// connection.
const PACKET_LIFE: Duration = Duration::from_millis(250);
/// A number of lost MADs in a thousand that is so small that all sixteen transmissions of a message are
/// never lost.
const RARE: u64 = 50;
/// The least room for private data that a rejection has.
const REJ_ROOM_MIN: usize = 136;
/// An answer within this time comes before the last repetition.
const SOON: Duration = Duration::from_secs(30);

/// Whether a case has no faults and nothing prevents success.
pub(super) fn is_calm(case: &CmCase) -> bool {
    case.faults.is_empty() && is_fair(case)
}

/// Whether repetitions are sure to succeed: hardly a MAD is lost, packets are in time, tables have
/// room, and no queue pair number is used twice.
pub(super) fn is_fair(case: &CmCase) -> bool {
    let is_fair = |fault: &CmFault| match fault {
        CmFault::LinkFaults { link_faults, .. } => {
            link_faults.loss <= RARE && link_faults.corrupt <= RARE && link_faults.straggle == 0
        }
        _ => false,
    };

    let mut qpns: Vec<_> = case.attempts.iter().map(|a| (a.place.host, a.active.qpn)).collect();
    qpns.extend(case.attempts.iter().map(|a| (a.to, a.passive.qpn)));
    let count = qpns.len();
    qpns.sort_unstable();
    qpns.dedup();
    case.faults.iter().all(|(_, fault)| is_fair(fault))
        && case.max_connections > count
        && case.links.iter().all(|l| l.delay + l.jitter < PACKET_LIFE)
        && qpns.len() == count
}

/// Checks in a fair case that a peer that answers is reached, and that a peer that agrees to a
/// disconnection is heard.
pub(super) fn reached(case: &CmCase, half: &Half, kind: u32, status: i32) -> Verdict {
    let plan = &case.attempts[half.attempt];
    let (own, other) = match half.active {
        true => (&plan.active, &plan.passive),
        false => (&plan.passive, &plan.active),
    };
    let leaves = |end: &super::case::EndPlan| matches!(end.quit, Some((_, Quit::Destroy)));
    let decides = match plan.decision {
        Decision::Ignore => false,
        // A rejection with more private data than there is room for fails.
        Decision::Reject => plan.passive.private_len <= REJ_ROOM_MIN,
        Decision::Accept | Decision::Destroy => true,
    };
    let answers = decides && (!half.ud || other.decide_after < SOON);
    let agrees = other.agree_after.is_some_and(|after| after < SOON);
    let wrong = match kind {
        UNREACHABLE => status == -ETIMEDOUT && answers && !leaves(other) && !leaves(own),
        DISCONNECTED => status != 0 && agrees,
        _ => false,
    };
    demand(!wrong, "a whole network reaches every peer", || {
        format!("attempt {} (active: {}): {} {status}", half.attempt, half.active, name(kind))
    })
}

/// Checks, when nothing can happen any more and nothing went wrong, that both ends are connected or
/// neither is.
pub(super) fn together(half: &Half, peer: &Half) -> Verdict {
    let ended = [DISCONNECTED, REJECTED, UNREACHABLE, DEVICE_REMOVAL];
    let is_up = |h: &Half| {
        let up = h.told.iter().any(|k| [CONNECT_RESPONSE, ESTABLISHED].contains(k));
        h.owned && up && !h.told.iter().any(|k| ended.contains(k))
    };
    demand(half.ud || !is_up(half) || is_up(peer), "both ends are connected, or none", || {
        format!("attempt {}: {half:?} without {peer:?}", half.attempt)
    })
}
