//! Why bytes can't be thawed.

/// The version of the bytes that [`QueuePair::freeze`](crate::QueuePair::freeze) returns.
pub const VERSION: u16 = 4;

/// Why bytes are not a frozen queue pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThawError {
    /// They do not begin as a frozen queue pair does.
    #[error("these bytes are no frozen queue pair: those begin with `PPQP`")]
    NotFrozen,
    /// They were written by another version.
    #[error(
        "the queue pair was frozen in version {0} of the format, and this is version {VERSION}: thaw it \
         with the version of Polypath that froze it"
    )]
    Version(u16),
    /// They end too soon.
    #[error("the frozen queue pair is cut off: was all of it copied?")]
    Truncated,
    /// They were changed after they were written.
    #[error("the frozen queue pair has changed since it was written: its checksum is wrong")]
    Checksum,
    /// A value makes no sense.
    #[error("the frozen queue pair makes no sense at byte {at}: {what}")]
    Value {
        /// Where the value ends, in bytes after the magic number and version.
        at: usize,
        /// What should hold.
        what: &'static str,
    },
    /// Values contradict each other.
    #[error("the frozen queue pair contradicts itself: {0}")]
    Contradiction(String),
    /// The host has no memory for the packets that wait.
    #[error("no memory for the packets that wait for their predecessors: try again later")]
    NoMemory,
}
