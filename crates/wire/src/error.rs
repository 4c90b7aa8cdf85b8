//! The error of bytes that can't be parsed.

/// A packet or message can't be parsed. The error names what was being read, what was expected, and
/// what was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// There are fewer bytes than the header or message needs.
    #[error("{what}: truncated: expected at least {expected} bytes, got {got}")]
    Truncated {
        /// The header or message that was being read.
        what: &'static str,
        /// The least number of bytes that it needs.
        expected: usize,
        /// The number of bytes that there were.
        got: usize,
    },
    /// There are more bytes than the message can have.
    #[error("{what}: too long: expected at most {expected} bytes, got {got}")]
    TooLong {
        /// The message that was being read or built.
        what: &'static str,
        /// The largest number of bytes that it may have.
        expected: usize,
        /// The number of bytes that there were.
        got: usize,
    },
    /// A field holds a value that it must not hold.
    #[error("{what}: expected {expected}, got {got:#x}")]
    BadValue {
        /// The field that was being read.
        what: &'static str,
        /// The values that it may hold.
        expected: &'static str,
        /// The value that it held.
        got: u64,
    },
}
