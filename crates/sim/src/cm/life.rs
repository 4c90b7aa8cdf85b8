//! What one application sees of one connection, from first to last, whatever the network did: each
//! event at most once, in a legal order, and one end.

use super::abi::event::{
    ADDR_ERROR, ADDR_RESOLVED, CONNECT_RESPONSE, DEVICE_REMOVAL, DISCONNECTED, ESTABLISHED,
    REJECTED, ROUTE_RESOLVED, TIMEWAIT_EXIT, UNREACHABLE, name,
};
use super::model::Half;
use crate::judge::{Verdict, demand};

/// The events that may follow one of an id; 0xffff stands for none yet.
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

const NONE: u32 = 0xffff;

/// Whether an event may come now.
pub(super) fn next(half: &Half, kind: u32) -> Verdict {
    let before = half.told.last().copied().unwrap_or(NONE);
    // The device may go at any time, once, and is the last that is heard.
    let legal = if kind == DEVICE_REMOVAL {
        before != DEVICE_REMOVAL
    } else {
        may_follow(before, half.active, half.ud).contains(&kind)
    };
    demand(legal, "events come in a legal order", || {
        let told: Vec<_> = half.told.iter().map(|k| name(*k)).collect();
        format!("attempt {} (active: {}): {} after {told:?}", half.attempt, half.active, name(kind))
    })
}

/// When nothing can happen any more: whoever has asked has got an answer.
pub(super) fn complete(half: &Half) -> Verdict {
    let answers =
        [CONNECT_RESPONSE, REJECTED, UNREACHABLE, ESTABLISHED, DEVICE_REMOVAL, ADDR_ERROR];
    let answered = half.told.iter().any(|k| answers.contains(k));
    demand(answered || !(half.active && half.owned && half.asked), "attempts end", || {
        format!("attempt {} was never answered: {half:?}", half.attempt)
    })?;
    let after = half.told.iter().skip_while(|k| **k != DISCONNECTED);
    let exits = after.clone().count() != 1 || !half.owned;
    demand(exits || half.state == super::model::State::DreqRcvd, "time-wait ends", || {
        format!("attempt {}: {half:?}", half.attempt)
    })
}
