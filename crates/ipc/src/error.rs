//! The errors between a process and the broker.

use std::io;

use polypath_topology::SelectionError;

/// The reason why a call to the broker failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum IpcError {
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No broker listens in this network namespace.
    #[error("no Polypath broker runs in this network namespace; start one with `polypath broker`")]
    NoBroker,
    /// The broker could not be started.
    #[error("cannot start the broker: {0}")]
    Start(String),
    /// The broker closed the connection.
    #[error("the broker closed the connection; its log says why")]
    Closed,
    /// The other end of the socket does not belong to the user in its name.
    #[error(
        "the socket @polypath-{named} is held by process {pid} ({program}) of user {theirs}, not by user \
         {named}: it is not used. Stop that process, or use a network namespace of your own"
    )]
    ForeignUser {
        /// The user id in the name.
        named: u32,
        /// The user id of the other end.
        theirs: u32,
        /// Its process id.
        pid: u32,
        /// Its program's name, if the system reports it.
        program: String,
    },
    /// The broker runs, and does not answer.
    #[error(
        "the broker (pid {pid}) does not answer. If it was stopped (SIGSTOP, a frozen container), let it go \
         on (`kill -CONT {pid}`); what is connected already does not need it"
    )]
    Silent {
        /// Its process id.
        pid: u32,
    },
    /// The broker uses another version of the protocol.
    #[error(
        "the running broker (pid {pid}) speaks version {theirs} of the protocol, this program version \
         {ours}: end the programs that use it, then `kill {pid}`, and try again"
    )]
    Version {
        /// Our version.
        ours: u32,
        /// The broker's version.
        theirs: u32,
        /// The broker's process id.
        pid: u32,
    },
    /// A message did not decode, was too long, or was not the one expected.
    #[error("the broker's message makes no sense: {0}")]
    Protocol(&'static str),
    /// A message to be sent is longer than [`MESSAGE_MAX`](crate::message::MESSAGE_MAX).
    #[error("a message of {0} bytes is too long for the broker's socket")]
    TooLong(usize),
    /// The broker refused the request, with the errno that the kernel would give.
    #[error("{text}")]
    Refused {
        /// A Linux errno, positive.
        errno: i32,
        /// What was refused, and why.
        text: String,
    },
    /// This connection belongs to the parent process. Connect again after a fork.
    #[error("this connection to the broker was made before fork(); the child needs its own")]
    Forked,
    /// The device selection is wrong.
    #[error(transparent)]
    Selection(#[from] SelectionError),
}

impl IpcError {
    /// The errno for an application that only understands errnos.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::NoBroker | Self::Start(_) => libc::ENODEV,
            Self::Closed => libc::EPIPE,
            Self::Silent { .. } => libc::ETIMEDOUT,
            Self::ForeignUser { .. } => libc::EPERM,
            Self::Version { .. } | Self::Protocol(_) => libc::EPROTO,
            Self::TooLong(_) => libc::EMSGSIZE,
            Self::Refused { errno, .. } => *errno,
            Self::Forked => libc::EBADF,
            Self::Selection(_) => libc::EINVAL,
        }
    }
}
