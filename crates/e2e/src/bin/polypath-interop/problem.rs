//! The reasons why the tests can't go on.

use std::io;

/// An error that stops the tests, or a part of them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// The machine lacks something that the tests need; nothing of ours is wrong.
    #[error("{0}")]
    Skip(String),
    /// Something is wrong.
    #[error("{0}")]
    Failed(String),
    /// Our program succeeded with losses, and rxe's did not end.
    #[error("{0}: our program succeeded, rxe's did not end")]
    Forsaken(String),
    /// The laboratory or a program in it failed.
    #[error("{0}")]
    Lab(#[from] polypath_e2e::Error),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Problem {
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source }
    }

    /// Turns the error into a reason to skip, which says what this machine lacks.
    pub(crate) fn or_skip(self, reason: &str) -> Self {
        Self::Skip(format!("{reason}: {self}"))
    }
}
