//! Scenarios of two queue pairs over simulated paths in virtual time; each test names its rule.
//!
//! A failing seed of `random` is run alone, and its packets printed, by
//! `POLYPATH_SEED=17 POLYPATH_TRACE=1 cargo test -p polypath-transport --test scenarios NAME`.
#![allow(unreachable_pub, missing_docs)]

mod apart;
mod basics;
mod deep;
mod errors;
mod frozen;
mod host;
mod loss;
mod migration;
mod pair;
mod paths;
mod patience;
mod placement;
mod random;
mod reads;
mod relaxed;
mod repeats;
mod silence;
mod spread;
mod twice;
mod unreliable;
mod xrc;

#[path = "../../../wire/tests/common/mod.rs"]
mod captures;
mod golden;
