//! Requests that use the same memory. They are drawn from a stream of their own, so that the rest of a
//! seed's meaning stays as it was.
//!
//! A WRITE, an ATOMIC WRITE, an atomic or a SEND to the memory that a READ reads follows the READ at
//! once and without a fence, or precedes it.

use crate::case::{Op, OpKind, PairPlan};
use crate::layout::{AREA, Layout};
use crate::rng::Rng;

/// Makes requests of some pairs use the same memory.
pub(crate) fn draw(seed: u64, pairs: &mut [PairPlan]) {
    let rng = &mut Rng::new(seed.rotate_left(23) ^ 0x7265_6164_206f_7264);
    for pair in pairs.iter_mut().filter(|p| p.is_reliable()) {
        pair.unfenced = rng.chance(700);
        if pair.unfenced {
            for end in 0..2 {
                meet(rng, pair, end);
            }
        }
    }
}

fn meet(rng: &mut Rng, pair: &mut PairPlan, end: usize) {
    let layout = Layout::new(pair.service, 0);
    let own_receives = !pair.shares_receives(1 - end);
    let ops = &mut pair.ends[end].ops;
    let mut last: Option<u32> = None;
    for i in 0..ops.len() {
        let near = (i + 1)..ops.len().min(i + 4);
        let send = near.clone().find(|n| ops[*n].kind.is_send() && own_receives);
        let counts = near.into_iter().any(|n| ops[n].kind.is_atomic());
        let choice = rng.below(8);
        let op = &mut ops[i];
        if op.wrong.is_some() {
            continue;
        }
        match (op.kind, choice, send) {
            (OpKind::Read, 0, _) | (OpKind::Read, 1..=3, None) if counts => {
                place(op, layout.counter(), 8);
            }
            (OpKind::Read, 0..=3, Some(send)) => {
                let at = layout.receive(send as u64) + rng.below(64);
                place(op, at, op.len.min((layout.buffer - 64) as u32));
            }
            (OpKind::Read, ..) => {
                meet_at(op, last, rng);
                last = Some(op.offset);
            }
            (kind, 0..=5, _) if kind.is_write() => meet_at(op, last, rng),
            (kind, ..) if kind.is_write() => last = Some(op.offset),
            _ => {}
        }
    }
}

/// Moves a READ out of the area, to another address of the peer's memory.
fn place(op: &mut Op, at: u64, len: u32) {
    (op.offset, op.len) = (at as u32, len);
}

/// Moves a request to about the place where the last READ or WRITE was.
fn meet_at(op: &mut Op, last: Option<u32>, rng: &mut Rng) {
    let Some(last) = last else { return };
    let most = (AREA - u64::from(op.len)) as u32;
    let shift = if rng.chance(500) { 0 } else { rng.below(600) as u32 };
    let at = (last + shift).min(most);
    op.offset = if op.kind.is_word() { at & !7 } else { at };
}
