//! Rules of the source that neither the compiler nor clippy checks. `tests/tree.rs` applies them to the
//! whole tree.
//!
//! Nothing is compiled: a rule reads text in which comments and strings are told apart ([`source`]), and
//! gives [`Finding`]s. What the tree does not keep yet is in the lists of [`allow`], which may only shrink.
//!
//! | module | rule |
//! |---|---|
//! | [`length`] | lines have at most 110 characters, files at most 620 lines |
//! | [`circles`] | the files of a crate do not use each other in a circle |
//! | [`dead`] | another file uses each `pub` item |
//! | [`counters`] | each counter is counted up somewhere |
//! | [`prose`] | no documentation of one question word; citations can be looked up |
#![forbid(unsafe_code)]

pub mod allow;
pub mod circles;
pub mod counters;
pub mod dead;
pub mod imports;
pub mod length;
pub mod prose;
pub mod source;
pub mod tree;

use std::fmt;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the tree.
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The rule's name, as the list of exceptions has it.
    pub rule: &'static str,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.file, self.line, self.what, self.rule)
    }
}
