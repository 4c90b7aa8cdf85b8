//! Converts errors of the system to those of verbs.

use polypath_verbs::Error;

/// The system's error; `EIO` if it has no number.
pub(crate) fn os_error(e: &std::io::Error) -> Error {
    Error::new(e.raw_os_error().unwrap_or(libc::EIO), e.to_string())
}
