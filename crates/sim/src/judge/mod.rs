//! The judge: a model of what verbs promise, which reads all that the queue pairs do.
//!
//! [`direction`] knows one direction of a reliable connection: what was posted, what of it the responder has
//! executed, what came back. [`refusal`] knows which error each wrong work request has to end in.
//! [`receiver`] knows receive queues, [`window`] memory windows. [`datagram`] judges UC and UD, which
//! promise less.

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
    /// Which promise: stays the same when a case is cut down.
    pub rule: &'static str,
    /// What was seen instead, with the numbers of those concerned.
    pub what: String,
}

pub(crate) type Verdict = Result<(), Breach>;

pub(crate) fn breach<T>(rule: &'static str, what: impl Into<String>) -> Result<T, Breach> {
    Err(Breach { rule, what: what.into() })
}

/// Fails unless the promise was kept.
pub(crate) fn demand(kept: bool, rule: &'static str, what: impl FnOnce() -> String) -> Verdict {
    if kept { Ok(()) } else { breach(rule, what()) }
}

/// The payload of a work request.
pub(crate) fn pattern(len: u32, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len as usize + 8);
    while out.len() < len as usize {
        out.extend_from_slice(&rng.bits().to_be_bytes());
    }
    out.truncate(len as usize);
    out
}
