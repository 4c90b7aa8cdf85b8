//! The judge: a model of what verbs promise. It checks everything that the queue pairs do.
//!
//! [`direction`] follows one direction of a reliable connection: the work requests posted, what the
//! responder has executed of them, and the answers. [`refusal`] knows the error in which each wrong
//! work request has to end. [`receiver`] follows receive queues, and [`window`] follows memory windows.
//! [`datagram`] judges UC and UD, which promise less.

mod answers;
mod bound;
pub(crate) mod datagram;
pub(crate) mod direction;
pub(crate) mod pair;
pub(crate) mod receiver;
pub(crate) mod refusal;
pub(crate) mod window;

use crate::rng::Rng;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The name of the promise. It stays the same when a case is reduced.
    pub rule: &'static str,
    /// A description of what was seen instead, with the numbers of the objects concerned.
    pub what: String,
}

pub(crate) type Verdict = Result<(), Breach>;

pub(crate) fn breach<T>(rule: &'static str, what: impl Into<String>) -> Result<T, Breach> {
    Err(Breach { rule, what: what.into() })
}

/// Returns a breach of `rule`, described by `what`, unless `kept` is true.
pub(crate) fn demand(kept: bool, rule: &'static str, what: impl FnOnce() -> String) -> Verdict {
    if kept { Ok(()) } else { breach(rule, what()) }
}

/// Returns the payload of a work request: `len` bytes, determined by `seed`.
pub(crate) fn pattern(len: u32, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len as usize + 8);
    while out.len() < len as usize {
        out.extend_from_slice(&rng.bits().to_be_bytes());
    }
    out.truncate(len as usize);
    out
}
