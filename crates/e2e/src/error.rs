//! The errors of the lab. They say which program failed and what was expected.

use crate::threads::threads;
use std::io;
use std::time::Duration;

/// A failure of the lab or of a program in it.
#[derive(thiserror::Error)]
pub enum Error {
    /// The operating system refused something the lab needs.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Something that was waited for did not happen in time.
    #[error("waited {limit:?} for {what}{context}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// The time limit.
        limit: Duration,
        /// The output so far of the program concerned, if any.
        context: String,
    },
    /// A program did not end as expected.
    #[error("{program}: {problem}\n{output}")]
    Program {
        /// Its command line.
        program: String,
        /// What was wrong.
        problem: String,
        /// Everything it wrote.
        output: String,
    },
    /// A tool of the lab (`ip`, `bridge`, a compiler) failed.
    #[error("{tool} failed: {output}")]
    Tool {
        /// Its command line.
        tool: String,
        /// What it wrote to standard error.
        output: String,
    },
    /// A file that the tests need does not exist.
    #[error("{0}")]
    Missing(String),
}

/// Writes the text for people, because a failing test shows it.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Creates the error of a failed system call or file operation; `what` says what was being done.
    pub fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source }
    }

    /// Adds what the threads of a program do that did not end in time.
    pub(crate) fn with_threads(self, pid: u32) -> Self {
        match self {
            Self::Timeout { what, limit, context } => {
                let context = format!("\nits threads:\n{}{context}", threads(pid));
                Self::Timeout { what, limit, context }
            }
            other => other,
        }
    }

    /// Adds what the server wrote or does to an error of its client.
    #[must_use]
    pub fn with_server(self, server: &str) -> Self {
        match self {
            Self::Program { program, problem, output } => {
                let output = format!("{output}\nthe server:\n{server}");
                Self::Program { program, problem, output }
            }
            Self::Timeout { what, limit, context } => {
                let context = format!("{context}\nthe server:\n{server}");
                Self::Timeout { what, limit, context }
            }
            other => other,
        }
    }
}
