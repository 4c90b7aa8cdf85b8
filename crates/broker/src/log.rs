//! Log lines with time on standard error, which is the log file when a client started us.

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
    let time = Time { seconds: now.as_secs(), millis: now.subsec_millis() };
    let line = format!("{time} polypath-broker[{}]: {text}\n", std::process::id());
    // By one system call: brokers of several namespaces may share a file, and lines stay whole then.
    // Nobody can be told that it failed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A time as RFC 3339 writes it, in UTC.
struct Time {
    seconds: u64,
    millis: u32,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.seconds / 86_400, self.seconds % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let millis = self.millis;
        write!(f, "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Year, month and day of a day since 1970, by counting years from March, so that leap days are
/// last, in eras of 400 years.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        let text = |seconds| Time { seconds, millis: 7 }.to_string();
        assert_eq!(text(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(text(1_798_761_599), "2026-12-31T23:59:59.007Z");
    }
}
