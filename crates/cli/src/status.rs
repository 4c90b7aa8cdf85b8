//! `polypath status`: everything known, for people or as JSON.

use crate::args::Status as Arguments;
use crate::error::CliError;
use crate::text::{Columns, bytes, micros};
use polypath_ipc::status::{Counter, ProcessStatus, QpStatus};
use polypath_ipc::{Client, Hello, IpcError, Status};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Most fail-overs and errors shown per process; `--json` shows all that is kept.
const RECENT: usize = 8;

/// Shows the status once, or again and again.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let Some(interval_ms) = arguments.watch else {
        let text = match fetch()? {
            Some(status) if arguments.json => format!("{}\n", json(&status, true)),
            Some(status) => render(&status),
            None if arguments.json => "{}\n".to_owned(),
            None => NOTHING.to_owned(),
        };
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    loop {
        let text = match fetch()? {
            Some(status) if arguments.json => format!("{}\n", json(&status, false)),
            Some(status) => format!("{CLEAR}{}", render(&status)),
            None if arguments.json => "{}\n".to_owned(),
            None => format!("{CLEAR}{NOTHING}"),
        };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        drop(out);
        std::thread::sleep(Duration::from_millis(interval_ms.max(10)));
    }
}

const NOTHING: &str = "nothing runs: no broker in this network namespace\n";

/// Clears a terminal and goes to its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn fetch() -> Result<Option<Status>, CliError> {
    match Client::connect(&Hello::of_this_process("")) {
        Ok(mut broker) => Ok(Some(broker.status()?)),
        Err(IpcError::NoBroker) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn json(status: &Status, pretty: bool) -> String {
    let text =
        if pretty { serde_json::to_string_pretty(status) } else { serde_json::to_string(status) };
    // Only maps with keys other than text could fail, and there are none.
    text.unwrap_or_default()
}

/// The status as text.
fn render(status: &Status) -> String {
    let broker = &status.broker;
    let mut text = format!(
        "broker {}, version {}, up {}, {} slots in use\n",
        broker.pid,
        broker.version,
        micros(broker.uptime_ms.saturating_mul(1000)),
        broker.slots.len()
    );
    for selector in &broker.table.down {
        text += &format!("  paths taken down by hand: {selector}\n");
    }
    text += &counters("  counted: ", &broker.counters);
    for slot in broker.slots.iter().filter(|slot| slot.overflows > 0) {
        let lost = slot.overflows;
        text += &format!("  slot {}: {lost} packets lost to a full receive buffer\n", slot.slot);
    }
    let mut ids = Columns::new(["CM ID", "PROCESS", "STATE", "LOCAL", "REMOTE", "QP"]);
    for id in &broker.cm_ids {
        let qp = if id.qpn == 0 { "-".to_owned() } else { hex(id.qpn) };
        let row = [id.id.to_string(), id.pid.to_string(), id.state.clone()];
        let [number, process, state] = row;
        ids.row([number, process, state, id.local.clone(), id.remote.clone(), qp]);
    }
    if !ids.is_empty() {
        text += &ids.render("  ");
    }
    for process in &status.processes {
        text.push('\n');
        text += &render_process(process);
    }
    for pid in &status.silent {
        text += &format!("\nprocess {pid} did not answer (is it stopped?)\n");
    }
    text
}

fn render_process(process: &ProcessStatus) -> String {
    let mut text =
        format!("{} (process {}): {}\n", process.program, process.pid, process.devices.join(", "));
    for lane in &process.lanes {
        text += &format!(
            "  lane {}: received {} in {} packets, sent {} in {} packets\n",
            lane.slot,
            bytes(lane.received_bytes),
            lane.received_packets,
            bytes(lane.sent_bytes),
            lane.sent_packets
        );
    }
    let heading = ["QP", "KIND", "STATE", "DEVICE", "PEER", "PEER QP", "PATHS", "ACTIVE PATH"];
    let mut qps = Columns::new(heading);
    for qp in &process.qps {
        qps.row([
            hex(qp.qpn),
            qp.kind.clone(),
            qp.state.clone(),
            qp.device.clone(),
            if qp.peer.is_empty() { "-".to_owned() } else { qp.peer.clone() },
            if qp.dest_qpn == 0 { "-".to_owned() } else { hex(qp.dest_qpn) },
            format!("{} ({})", qp.live_paths, if qp.multipath { "mp" } else { "plain" }),
            if qp.active_path.is_empty() { "-".to_owned() } else { qp.active_path.clone() },
        ]);
    }
    if !qps.is_empty() {
        text += &qps.render("  ");
    }
    text += &qp_details(&process.qps);
    let heading = ["PATH", "OVER", "STATE", "RTT", "SENT", "RECEIVED", "LOST", "FAIL-OVERS"];
    let mut paths = Columns::new(heading);
    for path in &process.paths {
        paths.row([
            format!("{} > {}", path.local, path.remote),
            path.interface.clone(),
            path.state.clone(),
            path.rtt_us.map_or_else(|| "-".to_owned(), micros),
            bytes(path.sent_bytes),
            bytes(path.received_bytes),
            bytes(path.lost_bytes),
            path.failovers.to_string(),
        ]);
    }
    if !paths.is_empty() {
        text += &paths.render("  ");
    }
    for failover in last(&process.failovers) {
        let to = if failover.to.is_empty() { "no path" } else { &failover.to };
        text += &format!(
            "  fail-over: {} to {to}, {}, blackout {}\n",
            failover.from,
            failover.reason,
            micros(failover.blackout_us)
        );
    }
    text += &counters("  dropped: ", &process.drops);
    for error in last(&process.errors) {
        text += &format!("  error: {error}\n");
    }
    text
}

fn qp_details(qps: &[QpStatus]) -> String {
    let mut text = String::new();
    for qp in qps {
        text += &counters(&format!("  {}: ", hex(qp.qpn)), &qp.counters);
        if !qp.last_error.is_empty() {
            text += &format!("  {}: failed: {}\n", hex(qp.qpn), qp.last_error);
        }
    }
    text
}

fn last<T>(list: &[T]) -> &[T] {
    &list[list.len().saturating_sub(RECENT)..]
}

fn hex(number: u32) -> String {
    format!("0x{number:06x}")
}

/// One line with the counters that are not zero; nothing if all are.
fn counters(head: &str, list: &[Counter]) -> String {
    let shown: Vec<String> = list
        .iter()
        .filter(|counter| counter.value > 0)
        .map(|counter| format!("{} {}", counter.value, counter.name))
        .collect();
    if shown.is_empty() { String::new() } else { format!("{head}{}\n", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_ipc::status::{BrokerStatus, FailoverStatus, PathStatus};

    fn example() -> Status {
        let qp = QpStatus {
            qpn: 0x01_2345,
            kind: "RC".into(),
            last_error: "retries exhausted".into(),
            counters: vec![Counter { name: "retransmitted".into(), value: 3 }],
            ..QpStatus::default()
        };
        let path = PathStatus {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            interface: "eth0".into(),
            state: "active".into(),
            rtt_us: Some(17),
            sent_bytes: 2048,
            received_bytes: 0,
            lost_bytes: 0,
            failovers: 1,
            last_blackout_us: Some(4200),
        };
        let failovers = (0..20)
            .map(|n| FailoverStatus { reason: format!("reason {n}"), ..FailoverStatus::default() })
            .collect();
        Status {
            broker: BrokerStatus { pid: 7, ..BrokerStatus::default() },
            processes: vec![ProcessStatus {
                pid: 8,
                program: "rping".into(),
                qps: vec![qp],
                paths: vec![path],
                failovers,
                ..ProcessStatus::default()
            }],
            silent: vec![9],
        }
    }

    #[test]
    fn everything_that_matters_is_shown() {
        let text = render(&example());
        for part in ["rping", "0x012345", "RC", "retries exhausted", "3 retransmitted"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for part in ["10.0.0.1 > 10.0.0.2", "17 µs", "2.0 KiB", "reason 19", "process 9"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("reason 11"), "only the last few");
    }

    #[test]
    fn json_has_the_names_of_the_types() {
        let value: serde_json::Value = serde_json::from_str(&json(&example(), true)).unwrap();
        assert_eq!(value["processes"][0]["paths"][0]["rtt_us"], 17);
    }
}
