//! What is wrong in a file.

/// A mistake in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Mistake {
    /// The line, counted from 1.
    pub line: u32,
    /// What is wrong there, and what to write instead.
    pub what: String,
}

impl Mistake {
    /// A mistake at this byte of the text.
    pub(crate) fn at(text: &str, byte: usize, what: impl Into<String>) -> Self {
        Self { line: line(text, byte), what: what.into().replace('\n', " ") }
    }
}

/// The line of a byte of the text, counted from 1.
pub(crate) fn line(text: &str, byte: usize) -> u32 {
    let before = &text.as_bytes()[..byte.min(text.len())];
    u32::try_from(before.iter().filter(|byte| **byte == b'\n').count() + 1).unwrap_or(u32::MAX)
}
