//! What `polypath status` shows: the broker's part and each process's part.
//!
//! These types are what processes and the broker send each other. The command's JSON has types of its
//! own (`crates/cli/src/json.rs`), so that these may change.

use std::net::IpAddr;

use polypath_telemetry::{Counters, LaneCounters};
use serde::{Deserialize, Serialize};

use crate::table::Table;

/// Everything known in one network namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The broker's own part.
    pub broker: BrokerStatus,
    /// The processes' reports.
    pub processes: Vec<ProcessStatus>,
    /// Processes that did not answer in time (stopped in a debugger, for example).
    pub silent: Vec<u32>,
}

/// A named counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// What is counted, in words with underscores: `icrc_wrong`.
    pub name: String,
    /// How many.
    pub value: u64,
}

impl Counter {
    /// All counters of a structure, those that are 0 too.
    pub fn all<C: Counters>(counters: &C) -> impl Iterator<Item = Self> {
        counters.iter().map(|(counter, value)| Self { name: counter.name.to_owned(), value })
    }
}

/// The broker's own part of the status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Process id.
    pub pid: u32,
    /// Version of the program.
    pub version: String,
    /// Time since its start in milliseconds.
    pub uptime_ms: u64,
    /// Connections open now.
    pub clients: Vec<ClientStatus>,
    /// Slots given to lanes now.
    pub slots: Vec<SlotStatus>,
    /// Identifiers of the connection manager.
    pub cm_ids: Vec<CmIdStatus>,
    /// Interfaces, addresses, GID tables, paths down by hand.
    pub table: Table,
    /// Everything that was counted: packets, MADs, drops by reason.
    pub counters: Vec<Counter>,
}

/// Clients and CM ids in one part of the broker's status: below 300 bytes each.
const BROKER_PART: usize = 128;

/// Longest text about a client or a CM id in bytes; longer ones are cut.
const CLIENT_TEXT_MAX: usize = 64;

impl BrokerStatus {
    /// Adds the next part of the same status; it counts for all that is no list.
    pub fn append(&mut self, mut part: Self) {
        self.clients.append(&mut part.clients);
        self.slots.append(&mut part.slots);
        self.cm_ids.append(&mut part.cm_ids);
        part.clients = std::mem::take(&mut self.clients);
        part.slots = std::mem::take(&mut self.slots);
        part.cm_ids = std::mem::take(&mut self.cm_ids);
        *self = part;
    }

    /// Splits the status into parts of which each fits into a message; at least one. The table is
    /// in a part of its own, the last. Over-long texts are cut.
    #[must_use]
    pub fn into_parts(mut self) -> Vec<Self> {
        for client in &mut self.clients {
            cut_to(&mut client.program, CLIENT_TEXT_MAX);
            cut_to(&mut client.selection, CLIENT_TEXT_MAX);
        }
        for id in &mut self.cm_ids {
            for text in [&mut id.state, &mut id.local, &mut id.remote] {
                cut_to(text, CLIENT_TEXT_MAX);
            }
        }
        let mut parts = Vec::new();
        while !self.clients.is_empty() || !self.slots.is_empty() || !self.cm_ids.is_empty() {
            parts.push(Self {
                pid: self.pid,
                clients: take(&mut self.clients, BROKER_PART),
                slots: take(&mut self.slots, BROKER_PART),
                cm_ids: take(&mut self.cm_ids, BROKER_PART),
                ..Self::default()
            });
        }
        parts.push(self);
        parts
    }
}

/// A connection to the broker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Process id, from the kernel.
    pub pid: u32,
    /// Program name, from the program.
    pub program: String,
    /// Device selection, from the program.
    pub selection: String,
    /// Whether this is an event stream.
    pub events: bool,
}

/// A slot in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// 1..=254.
    pub slot: u8,
    /// The process that has it.
    pub pid: u32,
    /// Packets that the kernel dropped because the socket's receive buffer was full.
    pub overflows: u64,
}

/// An identifier of the connection manager (`rdma_cm_id`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmIdStatus {
    /// The process that owns it.
    pub pid: u32,
    /// The number the process knows it by.
    pub id: u32,
    /// Its state, in words.
    pub state: String,
    /// Local address with port, if bound.
    pub local: String,
    /// Remote address with port, if any.
    pub remote: String,
    /// Queue pair number, 0 if none.
    pub qpn: u32,
}

/// A process's report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Process id (the broker puts in what the kernel told it).
    pub pid: u32,
    /// Program name.
    pub program: String,
    /// Open devices by name.
    pub devices: Vec<String>,
    /// Lanes.
    pub lanes: Vec<LaneStatus>,
    /// Queue pairs.
    pub qps: Vec<QpStatus>,
    /// Paths.
    pub paths: Vec<PathStatus>,
    /// The last fail-overs, oldest first.
    pub failovers: Vec<FailoverStatus>,
    /// Dropped packets by reason.
    pub drops: Vec<Counter>,
    /// What else happened lately, oldest first: paths given up and used again.
    pub events: Vec<EventStatus>,
    /// The last errors, oldest first, each explained: which QP, which PSN, which path, what
    /// happened and what to do.
    pub errors: Vec<EventStatus>,
}

/// Entries of each list in one part of a report. With the limits below, 16 of everything
/// take less than 128 KiB, so that a part stays below [`MESSAGE_MAX`](crate::message::MESSAGE_MAX).
const PART: usize = 16;

/// Counters of a queue pair: more than there are.
const COUNTERS: usize = 40;

/// Longest text in a report in bytes; longer ones are cut.
const TEXT_MAX: usize = 256;

/// Longest explanation of an error in bytes; longer ones are cut.
const ERROR_MAX: usize = 1024;

impl ProcessStatus {
    /// Adds another part of the same process's report.
    pub fn append(&mut self, part: Self) {
        self.devices.extend(part.devices);
        self.lanes.extend(part.lanes);
        self.qps.extend(part.qps);
        self.paths.extend(part.paths);
        self.failovers.extend(part.failovers);
        self.drops.extend(part.drops);
        self.events.extend(part.events);
        self.errors.extend(part.errors);
    }

    /// Splits a report into parts of which each fits into a message; at least one. Over-long texts
    /// are cut.
    #[must_use]
    pub fn into_parts(mut self) -> Vec<Self> {
        self.cut_texts();
        let Self { pid, program, .. } = self;
        // Taken one by one: to cut a part off the front would move all the rest each time.
        let mut devices = self.devices.into_iter();
        let mut lanes = self.lanes.into_iter();
        let mut qps = self.qps.into_iter();
        let mut paths = self.paths.into_iter();
        let mut failovers = self.failovers.into_iter();
        let mut drops = self.drops.into_iter();
        let mut events = self.events.into_iter();
        let mut errors = self.errors.into_iter();
        let mut parts = Vec::new();
        loop {
            parts.push(Self {
                pid,
                program: program.clone(),
                devices: devices.by_ref().take(PART).collect(),
                lanes: lanes.by_ref().take(PART).collect(),
                qps: qps.by_ref().take(PART).collect(),
                paths: paths.by_ref().take(PART).collect(),
                failovers: failovers.by_ref().take(PART).collect(),
                drops: drops.by_ref().take(PART).collect(),
                events: events.by_ref().take(PART).collect(),
                errors: errors.by_ref().take(PART).collect(),
            });
            let left = [
                devices.len(),
                lanes.len(),
                qps.len(),
                paths.len(),
                failovers.len(),
                drops.len(),
                events.len(),
                errors.len(),
            ];
            if left.iter().all(|n| *n == 0) {
                return parts;
            }
        }
    }

    fn cut_texts(&mut self) {
        cut(&mut self.program);
        self.devices.iter_mut().for_each(cut);
        let notes = self.events.iter_mut().chain(&mut self.errors);
        notes.for_each(|note| cut_to(&mut note.text, ERROR_MAX));
        for qp in &mut self.qps {
            for text in [
                &mut qp.kind,
                &mut qp.state,
                &mut qp.device,
                &mut qp.peer,
                &mut qp.active_path,
                &mut qp.last_error,
            ] {
                cut(text);
            }
            qp.counters.truncate(COUNTERS);
            qp.counters.iter_mut().for_each(|counter| cut_to(&mut counter.name, 32));
        }
        for path in &mut self.paths {
            cut(&mut path.interface);
            cut(&mut path.state);
            path.send_errors.truncate(PART);
            path.send_errors.iter_mut().for_each(|counter| cut_to(&mut counter.name, 32));
        }
        for failover in &mut self.failovers {
            cut(&mut failover.from);
            cut(&mut failover.to);
            cut(&mut failover.reason);
        }
        for drop in &mut self.drops {
            cut(&mut drop.name);
        }
    }
}

fn take<T>(list: &mut Vec<T>, most: usize) -> Vec<T> {
    let rest = list.split_off(list.len().min(most));
    std::mem::replace(list, rest)
}

fn cut(text: &mut String) {
    cut_to(text, TEXT_MAX);
}

fn cut_to(text: &mut String, max: usize) {
    if text.len() > max {
        let end = (0..=max).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(end);
    }
}

/// A lane of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// The top byte of its QPNs.
    pub slot: u8,
    /// What it received and sent.
    pub counters: LaneCounters,
}

/// A queue pair.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QpStatus {
    /// Its number.
    pub qpn: u32,
    /// The peer's number, 0 if not connected.
    pub dest_qpn: u32,
    /// `RC`, `UC`, `UD`.
    pub kind: String,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE`, `ERR`.
    pub state: String,
    /// The device's name.
    pub device: String,
    /// The peer's address, empty if not connected.
    pub peer: String,
    /// Path MTU, bytes; of UD the port's MTU.
    pub path_mtu: u32,
    /// Whether multi-path was negotiated with the peer.
    pub multipath: bool,
    /// The path that carries traffic now: `local>remote@interface`.
    pub active_path: String,
    /// Number of live paths.
    pub live_paths: u32,
    /// Counters of the queue pair: `sent_packets`, `retransmitted`, `rnr_naks` …
    pub counters: Vec<Counter>,
    /// What went wrong last, in words; empty if nothing did.
    pub last_error: String,
}

/// A path to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Local address.
    pub local: IpAddr,
    /// Remote address.
    pub remote: IpAddr,
    /// Name of the interface.
    pub interface: String,
    /// `active`, `standby`, `probing`, `dead`, `down` (by hand).
    pub state: String,
    /// Smoothed round-trip time in microseconds, `None` before the first measurement.
    pub rtt_us: Option<u64>,
    /// UDP payload sent, in bytes, of all services, answers and control packets.
    pub sent_bytes: u64,
    /// Packets that the kernel refused to send, by the name of the error: `EPERM`, `ENETUNREACH` …
    pub send_errors: Vec<Counter>,
    /// UDP payload received, in bytes.
    pub received_bytes: u64,
    /// Payload of requests that had to be sent again, and 128 bytes for each of their packets.
    pub lost_bytes: u64,
    /// How often the path was given up, whether it carried traffic then or not.
    pub failovers: u32,
    /// How long traffic stood still at the last fail-over, in microseconds.
    pub last_blackout_us: Option<u64>,
}

/// Something that happened, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStatus {
    /// When, in milliseconds since 1970 UTC.
    pub at_unix_ms: u64,
    /// What happened, as a sentence.
    pub text: String,
}

/// A fail-over that happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverStatus {
    /// When, in milliseconds since 1970 UTC.
    pub at_unix_ms: u64,
    /// The path that failed: `local>remote@interface`.
    pub from: String,
    /// The path that took over, empty if none could.
    pub to: String,
    /// How it was noticed: `link down`, `probes unanswered`, …
    pub reason: String,
    /// From the last acknowledged packet on the old path to the first one on the new, in
    /// microseconds.
    pub blackout_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Request, decode, encode};

    fn long_report() -> ProcessStatus {
        let counters =
            (0..40).map(|i| Counter { name: format!("counter_{i}"), value: u64::MAX }).collect();
        let qp = QpStatus { qpn: 1, peer: "é".repeat(4000), counters, ..QpStatus::default() };
        ProcessStatus {
            pid: 1,
            qps: vec![qp; 1000],
            events: vec![EventStatus { at_unix_ms: u64::MAX, text: "x".repeat(100_000) }; 40],
            errors: vec![EventStatus { at_unix_ms: u64::MAX, text: "x".repeat(100_000) }; 40],
            ..ProcessStatus::default()
        }
    }

    #[test]
    fn every_part_of_a_long_report_fits_into_a_message() {
        let parts = long_report().into_parts();
        let mut whole: Option<ProcessStatus> = None;
        for status in parts {
            let message = Request::StatusReport { id: 1, more: true, status: Box::new(status) };
            let bytes = encode(&message).unwrap();
            let Request::StatusReport { status, .. } = decode(&bytes).unwrap() else { panic!() };
            match &mut whole {
                None => whole = Some(*status),
                Some(whole) => whole.append(*status),
            }
        }
        let whole = whole.unwrap();
        assert_eq!(whole.qps.len(), 1000);
        assert!(whole.qps.iter().all(|qp| qp.counters.len() == 40));
        assert_eq!((whole.events.len(), whole.errors.len()), (40, 40));
    }

    #[test]
    fn every_part_of_a_long_broker_status_fits_into_a_message() {
        let client = ClientStatus { program: "x".repeat(1024), ..ClientStatus::default() };
        let id = CmIdStatus { remote: "y".repeat(1024), ..CmIdStatus::default() };
        let status = BrokerStatus {
            pid: 7,
            clients: vec![client; 1000],
            slots: vec![SlotStatus::default(); 254],
            cm_ids: vec![id; 5000],
            counters: vec![Counter { name: "n".into(), value: 1 }],
            ..BrokerStatus::default()
        };
        let mut whole = BrokerStatus::default();
        for part in status.into_parts() {
            let bytes = encode(&part).unwrap();
            whole.append(decode(&bytes).unwrap());
        }
        let lists = (whole.clients.len(), whole.slots.len(), whole.cm_ids.len());
        assert_eq!((whole.pid, lists, whole.counters.len()), (7, (1000, 254, 5000), 1));
    }

    #[test]
    fn an_empty_report_is_one_part() {
        assert_eq!(ProcessStatus::default().into_parts().len(), 1);
    }
}
