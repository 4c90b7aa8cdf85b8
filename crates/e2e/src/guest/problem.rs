//! The reasons why the tests can't go on.

use std::io;
use std::process::ExitCode;

/// An error that stops the tests, or a part of them.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The machine lacks something that the tests need; nothing of ours is wrong.
    #[error("{0}")]
    Skip(String),
    /// Something is wrong.
    #[error("{0}")]
    Failed(String),
    /// With losses, one program succeeded, and the other one waits for its last message, which was lost.
    #[error("{0}: the other program succeeded and ended, and this one waits for its last message")]
    Forsaken(String),
    /// The laboratory or a program in it failed.
    #[error("{0}")]
    Lab(#[from] crate::Error),
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
    /// Creates the error of a failed system call or file operation; `what` says what was being done.
    pub fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source }
    }

    /// Says how the tests ended, as CI reads it, and returns their exit status. `result`: whether all was
    /// right.
    /// `untested`: what was not done if the machine can't.
    pub fn conclude(result: Result<bool, Self>, untested: &str) -> ExitCode {
        match result {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(Self::Skip(reason)) => {
                crate::say!("SKIPPED: {untested}: {reason}");
                ExitCode::SUCCESS
            }
            Err(problem) => {
                crate::say!("FAILED: {problem}");
                ExitCode::FAILURE
            }
        }
    }

    /// Turns the error into a reason to skip, which says what this machine lacks.
    #[must_use]
    pub fn or_skip(self, reason: &str) -> Self {
        Self::Skip(format!("{reason}: {self}"))
    }
}
