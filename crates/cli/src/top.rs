//! `polypath top`: what each path carries, live.
//!
//! Two looks at the counters of all programs, an interval apart, give what each path did in between.

use crate::args::Top as Arguments;
use crate::error::CliError;
use crate::paths_table::{over, source_port};
use crate::text::{CLEAR, Columns, at, bytes, duration, now_ms};
use polypath_ipc::status::{PathStatus, ProcessStatus};
use polypath_ipc::{Client, Hello, IpcError, Status};
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Shows the paths until it has done so as often as was asked, or is interrupted.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let terminal = std::io::stdout().is_terminal();
    let mut client = None;
    let mut before = look(&mut client)?;
    let mut since = Instant::now();
    let mut shown = 0;
    loop {
        // The interval is what was asked for; nothing else is waited for.
        std::thread::sleep(Duration::from_millis(arguments.interval));
        let after = look(&mut client)?;
        let now = Instant::now();
        let text = render(&before, &after, now - since);
        (before, since) = (after, now);
        let mut out = std::io::stdout().lock();
        let clock = at(now_ms(), 0);
        write!(out, "{}{clock}\n{text}", if terminal { CLEAR } else { "" })?;
        out.flush()?;
        shown += 1;
        if arguments.count.is_some_and(|count| shown >= count) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The traffic of all programs; none if no broker runs. The connection is kept for the next look.
fn look(client: &mut Option<Client>) -> Result<Status, CliError> {
    let open = match client.take() {
        Some(open) => Ok(open),
        None => Client::connect(&Hello::of_this_process("")),
    };
    let answer = open.and_then(|mut open| Ok((open.traffic()?, open)));
    match answer {
        Ok((status, open)) => {
            *client = Some(open);
            Ok(status)
        }
        // The broker has ended, or another one takes its place.
        Err(IpcError::NoBroker | IpcError::Closed) => Ok(Status::default()),
        Err(error) => Err(error.into()),
    }
}

/// What a path did in an interval.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    process: &'a ProcessStatus,
    path: &'a PathStatus,
    /// Bytes a second.
    sends: u64,
    receives: u64,
    /// Of all that the process sent and received.
    share: f64,
    /// Requests that were sent again, of all that were sent.
    resent: f64,
    /// Marks of congestion a second.
    marks: u64,
}

fn rows<'a>(before: &Status, after: &'a Status, took: Duration) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for process in &after.processes {
        let old = before.processes.iter().find(|old| old.pid == process.pid);
        let mut taken = vec![false; old.map_or(0, |old| old.paths.len())];
        let first = rows.len();
        for path in &process.paths {
            // Several lanes of a process may have paths between the same addresses, in the same order.
            let same = |(at, old): &(usize, &PathStatus)| {
                !taken[*at]
                    && (old.local, old.remote, &old.interface)
                        == (path.local, path.remote, &path.interface)
            };
            let known = old.and_then(|old| old.paths.iter().enumerate().find(same));
            if let Some((at, _)) = known {
                taken[at] = true;
            }
            let old = known.map(|(_, old)| old.counters).unwrap_or_default();
            let new = path.counters;
            // A path that was removed and added counts from zero again.
            let grown = |new: u64, old: u64| new.checked_sub(old).unwrap_or(new);
            let a_second = |count: u64| (count as f64 / took.as_secs_f64().max(1e-3)) as u64;
            let sent = grown(new.sent_bytes, old.sent_bytes);
            let resent = grown(new.resent_bytes, old.resent_bytes);
            rows.push(Row {
                process,
                path,
                sends: a_second(sent),
                receives: a_second(grown(new.received_bytes, old.received_bytes)),
                share: 0.0,
                resent: part(resent, sent),
                marks: a_second(grown(new.marks, old.marks)),
            });
        }
        let of_process = &mut rows[first..];
        let whole = of_process.iter().map(|row| row.sends + row.receives).sum();
        for row in of_process {
            row.share = part(row.sends + row.receives, whole);
        }
    }
    rows
}

/// A part of a whole, 0 to 1.
fn part(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

fn render(before: &Status, after: &Status, took: Duration) -> String {
    let mut table = Columns::new([
        "PROCESS",
        "PATH",
        "OVER",
        "PORT",
        "STATE",
        "SHARE",
        "SENDS",
        "RECEIVES",
        "RTT",
        "RESENT",
        "MARKS",
        "IN FLIGHT",
        "WINDOW",
    ]);
    for row in rows(before, after, took) {
        let (process, path) = (row.process, row.path);
        table.row([
            format!("{}[{}]", process.program, process.pid),
            format!("{} > {}", path.local, path.remote),
            over(path),
            source_port(path),
            path.state.clone(),
            format!("{:.0} %", row.share * 100.0),
            format!("{}/s", bytes(row.sends)),
            format!("{}/s", bytes(row.receives)),
            path.rtt_us.map_or_else(|| "-".to_owned(), duration),
            format!("{:.1} %", row.resent * 100.0),
            format!("{}/s", row.marks),
            bytes(path.in_flight),
            bytes(path.window),
        ]);
    }
    if table.is_empty() { "no program has paths\n".to_owned() } else { table.render("") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_telemetry::PathCounters;

    fn path(number: u8, counters: PathCounters) -> PathStatus {
        PathStatus {
            local: [10, 0, number, 1].into(),
            remote: [10, 0, number, 2].into(),
            interface: format!("eth{number}"),
            bond_port: String::new(),
            kind: "roce".into(),
            source_port: 49152,
            state: "active".into(),
            rtt_us: Some(120),
            counters,
            send_errors: vec![],
            last_blackout_us: None,
            window: 1 << 20,
            in_flight: 4096,
            coupled: 0,
        }
    }

    fn status(paths: Vec<PathStatus>) -> Status {
        let process =
            ProcessStatus { pid: 7, program: "rping".into(), paths, ..ProcessStatus::default() };
        Status { processes: vec![process], ..Status::default() }
    }

    fn sent(sent_bytes: u64, resent_bytes: u64) -> PathCounters {
        PathCounters { sent_bytes, resent_bytes, ..PathCounters::default() }
    }

    #[test]
    fn a_path_shows_what_it_did_since_the_last_look() {
        let before = status(vec![path(0, sent(1000, 0)), path(1, sent(0, 0))]);
        let after = status(vec![path(0, sent(7000, 600)), path(1, sent(2000, 0))]);
        let rows = rows(&before, &after, Duration::from_secs(2));
        let seen: Vec<_> = rows.iter().map(|row| (row.sends, row.share, row.resent)).collect();
        assert_eq!(seen, [(3000, 0.75, 0.1), (1000, 0.25, 0.0)]);
        let text = render(&before, &after, Duration::from_secs(2));
        assert!(text.starts_with("PROCESS   PATH "), "{text}");
        assert!(
            text.contains("rping[7]  10.0.0.1 > 10.0.0.2  eth0  49152  active  75 %   2.9 KiB/s"),
            "{text}"
        );
    }

    #[test]
    fn lanes_with_paths_between_the_same_addresses_are_told_apart_by_their_order() {
        let before = status(vec![path(0, sent(1000, 0)), path(0, sent(5000, 0))]);
        let after = status(vec![path(0, sent(2000, 0)), path(0, sent(5000, 0))]);
        let rows = rows(&before, &after, Duration::from_secs(1));
        assert_eq!((rows[0].sends, rows[1].sends), (1000, 0));
    }

    #[test]
    fn a_path_that_is_new_or_began_again_counts_from_zero() {
        let before = status(vec![path(0, sent(9000, 0))]);
        let after = status(vec![path(0, sent(300, 0)), path(1, sent(100, 0))]);
        let rows = rows(&before, &after, Duration::from_secs(1));
        assert_eq!((rows[0].sends, rows[1].sends), (300, 100));
        assert_eq!(render(&before, &Status::default(), Duration::ZERO), "no program has paths\n");
    }
}
