//! Errors of the system, as the verbs give them.

use polypath_verbs::Error;

/// What the system said; `EIO` where it gave no number.
pub(crate) fn os_error(e: &std::io::Error) -> Error {
    Error::new(e.raw_os_error().unwrap_or(libc::EIO), e.to_string())
}
