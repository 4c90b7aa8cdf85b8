//! Plain-text tables and numbers for people.

use std::time::{SystemTime, UNIX_EPOCH};

/// Clears a terminal and goes to its upper left corner.
pub(crate) const CLEAR: &str = "\x1b[H\x1b[2J";

/// Rows whose columns are aligned; the first row is the heading.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// A table with this heading.
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there is nothing but the heading.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// The table; `indent` is put before each line.
    pub(crate) fn render(&self, indent: &str) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A number of bytes with a binary unit: `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A queue pair number, written as hexadecimal.
pub(crate) fn hex(number: u32) -> String {
    format!("0x{number:06x}")
}

/// Microseconds in a suitable unit: `12.3 ms`, `2.5 s`, `3 min`, `4 h 5 min`, `6 d 7 h`.
pub(crate) fn duration(us: u64) -> String {
    let minutes = us / 60_000_000;
    match us {
        0..1000 => format!("{us} µs"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ if minutes < 60 => format!("{minutes} min"),
        _ if minutes < 24 * 60 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / (24 * 60), minutes / 60 % 24),
    }
}

/// A number of things: `1 path`, `2 paths`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The time, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A time in milliseconds since 1970, in UTC: the time of day, with the date if it is not that of
/// `now_ms`.
pub(crate) fn at(unix_ms: u64, now_ms: u64) -> String {
    const DAY_MS: u64 = 86_400_000;
    // 2026-12-31T23:59:59.007Z
    let text = polypath_ipc::time::rfc3339(unix_ms);
    let (date, rest) = text.split_once('T').unwrap_or(("", &text));
    let time = rest.split('.').next().unwrap_or(rest);
    match unix_ms / DAY_MS == now_ms / DAY_MS {
        true => format!("{time}Z"),
        false => format!("{date} {time}Z"),
    }
}

/// A time in microseconds since 1970, in UTC, to the millisecond: `2026-12-31 23:59:59.007Z`.
pub(crate) fn moment(unix_us: u64) -> String {
    polypath_ipc::time::rfc3339(unix_us / 1000).replacen('T', " ", 1)
}

/// A hardware address, as `ip link` writes it.
pub(crate) fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Columns::new(["A", "B"]);
        assert!(table.is_empty());
        table.row(["long".to_owned(), "x".to_owned()]);
        assert_eq!(table.render(" "), " A     B\n long  x\n");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(5), "5 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(duration(900), "900 µs");
        assert_eq!(duration(12_345), "12.3 ms");
        assert_eq!(duration(2_499_000), "2.5 s");
        assert_eq!(duration(150_000_000), "2 min");
        assert_eq!(duration(3_600_000_000 * 5), "5 h 0 min");
        assert_eq!(duration(3_600_000_000 * 50), "2 d 2 h");
        assert_eq!((count(1, "path").as_str(), count(0, "path").as_str()), ("1 path", "0 paths"));
    }

    #[test]
    fn a_time_of_another_day_has_its_date() {
        let now = 1_700_000_000_000;
        assert_eq!(at(now + 5_000, now), "22:13:25Z");
        assert_eq!(at(now - 86_400_000, now), "2023-11-13 22:13:20Z");
    }
}
