//! The error of verbs, with the `errno` that the C ABI returns.

use std::borrow::Cow;

/// The error of a verb.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (errno {errno})")]
pub struct Error {
    /// The error number, positive, as in `errno.h`.
    pub errno: i32,
    /// The cause, and advice what to do about it.
    pub reason: Cow<'static, str>,
}

/// The result of a verb.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// Creates an error with this number and reason.
    pub fn new(errno: i32, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, reason: reason.into() }
    }
    /// `EINVAL`: an argument is invalid.
    pub fn invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(22, reason)
    }
    /// `ENOMEM`: a limit of the device or of the object was reached.
    pub fn no_memory(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(12, reason)
    }
    /// `EBUSY`: something still uses the object.
    pub fn busy(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(16, reason)
    }
    /// `EOPNOTSUPP`: this device does not have the verb or the option.
    pub fn unsupported(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(95, reason)
    }
}
