//! Why a subcommand failed, and the exit status that says so.

use polypath_ipc::IpcError;
use std::io;

/// What is told to the user in one line.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The conversation with the broker failed.
    Broker(IpcError),
    /// The broker could not run.
    BrokerEnded(String),
    /// The command line asks for something that can't be.
    Usage(String),
    /// A program could not be started; the exit status is the shell's.
    Exec {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// Output could not be written.
    Output(io::Error),
}

impl CliError {
    /// Nobody reads the output any more, as after `polypath status | head`: nothing to complain of.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit status: 126, 127 and 141 (ended by `SIGPIPE`) as shells use them, 2 for a wrong command
    /// line, else 1.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            _ if self.is_broken_pipe() => 141,
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            Self::Usage(_) => 2,
            Self::Broker(_) | Self::BrokerEnded(_) | Self::Output(_) => 1,
        }
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broker(error) => write!(f, "{error}"),
            Self::Usage(text) | Self::BrokerEnded(text) => f.write_str(text),
            Self::Exec { program, source } => write!(f, "cannot run {program}: {source}"),
            Self::Output(error) => write!(f, "writing: {error}"),
        }
    }
}

impl From<IpcError> for CliError {
    fn from(error: IpcError) -> Self {
        Self::Broker(error)
    }
}

impl From<polypath_ipc::SelectionError> for CliError {
    fn from(error: polypath_ipc::SelectionError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
