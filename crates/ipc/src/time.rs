//! Times of day for logs and `polypath status`, in UTC.

/// Formats a time in milliseconds since 1970 according to RFC 3339: `2026-12-31T23:59:59.007Z`.
#[must_use]
pub fn rfc3339(unix_ms: u64) -> String {
    let (seconds, millis) = (unix_ms / 1000, unix_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The year, month and day of a day since 1970. Years are counted from March, so that leap days
/// come last, in eras of 400 years.
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
        let text = |seconds: u64| rfc3339(seconds * 1000 + 7);
        assert_eq!(text(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(text(1_798_761_599), "2026-12-31T23:59:59.007Z");
    }
}
