//! The errors of subcommands, and their exit statuses.

use polypath_ipc::IpcError;
use std::io;
use std::path::PathBuf;

/// An error that is shown to the user in one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The conversation with the broker failed.
    #[error(transparent)]
    Broker(#[from] IpcError),
    /// The broker could not run.
    #[error("{0}")]
    BrokerEnded(String),
    /// The request is refused; the text says why.
    #[error("{0}")]
    Refused(String),
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(String),
    /// A program could not be started; the exit status is the shell's.
    #[error("cannot run {program}: {source}")]
    Exec {
        /// Its name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("writing {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Standard output could not be written.
    #[error("writing to standard output: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    /// Whether nobody reads the output any more, as after `polypath status | head`. That is no
    /// error.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit status: 126, 127 and 141 (ended by `SIGPIPE`) as shells use them, 2 for a wrong
    /// command line, else 1.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            _ if self.is_broken_pipe() => 141,
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            Self::Usage(_) => 2,
            Self::Broker(_)
            | Self::BrokerEnded(_)
            | Self::Refused(_)
            | Self::File { .. }
            | Self::Output(_) => 1,
        }
    }
}

impl From<polypath_topology::SelectionError> for CliError {
    fn from(error: polypath_topology::SelectionError) -> Self {
        Self::Usage(error.to_string())
    }
}
