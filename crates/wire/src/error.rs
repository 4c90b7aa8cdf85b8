//! Why bytes could not be taken as what they were said to be.

/// A packet or message that can't be parsed: what was being read, what was expected, what was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// There are fewer bytes than the header or message needs.
    #[error("{what}: truncated: expected at least {expected} bytes, got {got}")]
    Truncated {
        /// The header or message that was being read.
        what: &'static str,
        /// How many bytes it needs at least.
        expected: usize,
        /// How many there were.
        got: usize,
    },
    /// There are more bytes than the message can have.
    #[error("{what}: too long: expected at most {expected} bytes, got {got}")]
    TooLong {
        /// The message that was being read or built.
        what: &'static str,
        /// How many bytes it may have at most.
        expected: usize,
        /// How many there were.
        got: usize,
    },
    /// A field holds a value that it must not hold.
    #[error("{what}: expected {expected}, got {got:#x}")]
    BadValue {
        /// The field that was being read.
        what: &'static str,
        /// What it may hold.
        expected: &'static str,
        /// What it held.
        got: u64,
    },
}
