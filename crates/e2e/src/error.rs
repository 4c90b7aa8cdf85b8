//! What can go wrong in the lab, said so that the reader knows which program and what was expected.

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
    /// Something awaited did not happen in time.
    #[error("waited {limit:?} for {what}{context}")]
    Timeout {
        /// What was awaited.
        what: String,
        /// For how long.
        limit: Duration,
        /// Output so far of the program concerned, if any.
        context: String,
    },
    /// A program ended otherwise than expected.
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
    /// A file the tests need was not built.
    #[error("{0}")]
    Missing(String),
}

/// As for people: it is what a failing test shows.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// A system call or file operation failed: what was being done.
    pub fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source }
    }
}
