//! Log lines with time on standard error, which is the log file if a client started the broker.

use std::fmt;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes a line.
macro_rules! log {
    ($($argument:tt)*) => { $crate::log::line(format_args!($($argument)*)) };
}
pub(crate) use log;

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = polypath_ipc::time::rfc3339(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let line = format!("{time} polypath-broker[{}]: {text}\n", std::process::id());
    // Use one system call, because brokers of several namespaces may share a file, and lines must
    // stay whole. If it fails, nobody can be told.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
