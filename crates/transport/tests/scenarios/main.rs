//! Scenarios of two queue pairs over simulated paths in virtual time; each test names its rule.

#![allow(unreachable_pub, missing_docs)]

mod basics;
mod errors;
mod host;
mod pair;
mod random;
