//! The contents of `polypath status`: the broker's part and each process's part.
//!
//! Processes and the broker exchange these types. The command's JSON has its own types
//! (`crates/cli/src/json.rs`), so that these may change.

use std::iter::Peekable;
use std::net::IpAddr;

use crate::lacp::LacpPort;
use crate::text::cut_to;
use polypath_telemetry::{
    BrokerCounters, CmCounters, ControlDrops, Counters, Errno, FaultCounters, LaneCounters,
    LaneDrops, Occurrence, PathCounters, PathName, QpCounters, Reason,
};
use polypath_topology::Table;
use polypath_topology::rules::{Origin, PolicyChoice};
use serde::{Deserialize, Serialize};

/// Everything that is known in one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The broker's own part.
    pub broker: BrokerStatus,
    /// The processes' reports.
    pub processes: Vec<ProcessStatus>,
    /// Processes that did not answer in time (stopped in a debugger, for example).
    pub silent: Vec<u32>,
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
    /// The open connections.
    pub clients: Vec<ClientStatus>,
    /// The slots of lanes.
    pub slots: Vec<SlotStatus>,
    /// The identifiers of the connection manager.
    pub cm_ids: Vec<CmIdStatus>,
    /// The interfaces on which `polypath lacp` speaks.
    pub lacp: Vec<LacpPort>,
    /// Interfaces, addresses, GID tables, paths down by hand, rules.
    pub table: Table,
    /// The configuration file.
    pub config: ConfigStatus,
    /// The broker's counters.
    pub counters: BrokerCounters,
    /// The counters of its connection manager.
    pub cm_counters: CmCounters,
}

/// The configuration file, as the broker last read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// The file, which need not exist.
    pub path: String,
    /// The mistake for which it is not followed, with the file, the line and the cure; empty if there is
    /// none. The rules of the last file without a mistake are in force.
    pub error: String,
}

/// The number of clients, CM ids and LACP ports in one part of the broker's status. Each takes less than 300
/// bytes.
const BROKER_PART: usize = 128;

/// The longest text about a client or a CM id in bytes. Longer ones are truncated.
const CLIENT_TEXT_MAX: usize = 64;

impl BrokerStatus {
    /// Adds the next part of the same status. Its values replace all that are not lists.
    pub fn append(&mut self, mut part: Self) {
        self.clients.append(&mut part.clients);
        self.slots.append(&mut part.slots);
        self.cm_ids.append(&mut part.cm_ids);
        self.lacp.append(&mut part.lacp);
        part.clients = std::mem::take(&mut self.clients);
        part.slots = std::mem::take(&mut self.slots);
        part.cm_ids = std::mem::take(&mut self.cm_ids);
        part.lacp = std::mem::take(&mut self.lacp);
        *self = part;
    }

    /// Splits the status into parts that each fit into a message; there is at least one. The table
    /// is in the last part, alone. Texts that are too long are truncated.
    #[must_use]
    pub fn into_parts(mut self) -> Vec<Self> {
        for client in &mut self.clients {
            cut_to(&mut client.program, CLIENT_TEXT_MAX);
            cut_to(&mut client.selection, CLIENT_TEXT_MAX);
        }
        for id in &mut self.cm_ids {
            let alternate = id.migration.as_mut().map(|migration| &mut migration.alternate);
            for text in [&mut id.state, &mut id.local, &mut id.remote].into_iter().chain(alternate)
            {
                cut_to(text, CLIENT_TEXT_MAX);
            }
        }
        cut(&mut self.config.path);
        cut_to(&mut self.config.error, ERROR_MAX);
        let mut parts = Vec::new();
        while !self.clients.is_empty()
            || !self.slots.is_empty()
            || !self.cm_ids.is_empty()
            || !self.lacp.is_empty()
        {
            parts.push(Self {
                pid: self.pid,
                clients: take(&mut self.clients, BROKER_PART),
                slots: take(&mut self.slots, BROKER_PART),
                cm_ids: take(&mut self.cm_ids, BROKER_PART),
                lacp: take(&mut self.lacp, BROKER_PART),
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
    /// The slot, 1..=254.
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
    /// The number by which the process knows it.
    pub id: u32,
    /// The name of its state.
    pub state: String,
    /// Local address with port, if bound.
    pub local: String,
    /// Remote address with port, if any.
    pub remote: String,
    /// Queue pair number, 0 if none.
    pub qpn: u32,
    /// What the connection managers have agreed on for automatic path migration; `None` unless both ends
    /// want it.
    pub migration: Option<CmMigrationStatus>,
}

/// The alternate path of a connection, as the connection manager knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmMigrationStatus {
    /// Its addresses, `local>remote`; empty if there is none.
    pub alternate: String,
    /// How often the connection has migrated.
    pub count: u32,
    /// The status of the latest APR that came (IBTA table 116).
    pub last_apr: Option<u8>,
    /// The status of the latest SPR that came: 0 accepted, 1 busy, 2 refused.
    pub last_spr: Option<u8>,
}

/// A process's report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Process id (the broker fills in the one that the kernel reported).
    pub pid: u32,
    /// Program name.
    pub program: String,
    /// Open devices by name.
    pub devices: Vec<String>,
    /// Its lanes with their counters.
    pub lanes: Vec<LaneStatus>,
    /// Queue pairs.
    pub qps: Vec<QpStatus>,
    /// The peers of its mp device, one entry for each lane that has one.
    pub peers: Vec<PeerStatus>,
    /// Its paths, one entry for each lane that uses one.
    pub paths: Vec<PathStatus>,
    /// The last fail-overs, oldest first.
    pub failovers: Vec<FailoverStatus>,
    /// Other recent events, oldest first: paths given up and used again.
    pub events: Vec<Occurrence>,
    /// The last errors, oldest first.
    pub errors: Vec<Occurrence>,
}

/// The largest size of the lists in one part of a report, estimated from above, so that a part is
/// smaller than [`MESSAGE_MAX`](crate::message::MESSAGE_MAX).
const PART: usize = 100 * 1024;

/// The longest text in a report in bytes. Longer ones are truncated.
const TEXT_MAX: usize = 256;

/// The longest explanation of an error in bytes. Longer ones are truncated.
const ERROR_MAX: usize = 1024;

/// The largest number of reasons of one path's errors that are reported.
const REASONS_MAX: usize = 16;

impl ProcessStatus {
    /// Adds another part of the same process's report.
    pub fn append(&mut self, part: Self) {
        self.devices.extend(part.devices);
        self.lanes.extend(part.lanes);
        self.qps.extend(part.qps);
        self.peers.extend(part.peers);
        self.paths.extend(part.paths);
        self.failovers.extend(part.failovers);
        self.events.extend(part.events);
        self.errors.extend(part.errors);
    }

    /// Splits a report into parts that each fit into a message; there is at least one. Texts that
    /// are too long are truncated.
    #[must_use]
    pub fn into_parts(mut self) -> Vec<Self> {
        self.cut_texts();
        let Self { pid, program, .. } = self;
        // Items are taken one by one, because splitting a part off the front would move the rest
        // each time.
        let mut devices = self.devices.into_iter().peekable();
        let mut lanes = self.lanes.into_iter().peekable();
        let mut qps = self.qps.into_iter().peekable();
        let mut peers = self.peers.into_iter().peekable();
        let mut paths = self.paths.into_iter().peekable();
        let mut failovers = self.failovers.into_iter().peekable();
        let mut events = self.events.into_iter().peekable();
        let mut errors = self.errors.into_iter().peekable();
        let mut parts = Vec::new();
        loop {
            let mut room = PART;
            parts.push(Self {
                pid,
                program: program.clone(),
                devices: fill(&mut devices, &mut room, |name| 8 + name.len()),
                lanes: fill(&mut lanes, &mut room, |_| LANE_BYTES),
                qps: fill(&mut qps, &mut room, QpStatus::bytes_max),
                peers: fill(&mut peers, &mut room, |_| PEER_BYTES),
                paths: fill(&mut paths, &mut room, PathStatus::bytes_max),
                failovers: fill(&mut failovers, &mut room, |_| FAILOVER_BYTES),
                events: fill(&mut events, &mut room, |_| EVENT_BYTES),
                errors: fill(&mut errors, &mut room, |_| EVENT_BYTES),
            });
            let left = devices.peek().is_some()
                || lanes.peek().is_some()
                || qps.peek().is_some()
                || peers.peek().is_some()
                || paths.peek().is_some()
                || failovers.peek().is_some()
                || events.peek().is_some()
                || errors.peek().is_some();
            if !left {
                return parts;
            }
        }
    }

    fn cut_texts(&mut self) {
        cut(&mut self.program);
        self.devices.iter_mut().for_each(cut);
        let notes = self.events.iter_mut().chain(&mut self.errors);
        notes.for_each(|note| note.event.cut(ERROR_MAX));
        for qp in &mut self.qps {
            cut_to(&mut qp.last_error, ERROR_MAX);
            for text in
                [&mut qp.kind, &mut qp.state, &mut qp.device, &mut qp.peer, &mut qp.active_path]
            {
                cut(text);
            }
        }
        for path in &mut self.paths {
            cut(&mut path.interface);
            cut(&mut path.state);
            path.send_errors.truncate(REASONS_MAX);
        }
    }
}

/// The largest size of a number in a message, in bytes.
const NUMBER_BYTES: usize = 10;
/// The largest size of a path's name.
const NAME_BYTES: usize = 64;
/// The largest size of a lane: its home and its counters.
const LANE_BYTES: usize = NAME_BYTES
    + NUMBER_BYTES
        * (1 + LaneCounters::DESCRIPTORS.len()
            + LaneDrops::DESCRIPTORS.len()
            + ControlDrops::DESCRIPTORS.len()
            + FaultCounters::DESCRIPTORS.len()
            + QpCounters::DESCRIPTORS.len());
/// The largest size of a peer.
const PEER_BYTES: usize = 2 * NAME_BYTES + 4 * NUMBER_BYTES;
/// The largest size of a fail-over.
const FAILOVER_BYTES: usize = 2 * NAME_BYTES + NAME_BYTES + 3 * NUMBER_BYTES;
/// The largest size of an event whose texts were truncated.
const EVENT_BYTES: usize = ERROR_MAX + 2 * NAME_BYTES + 8 * NUMBER_BYTES;

impl QpStatus {
    /// Its largest size in a message, in bytes.
    fn bytes_max(&self) -> usize {
        let texts = [
            &self.kind,
            &self.state,
            &self.device,
            &self.peer,
            &self.active_path,
            &self.last_error,
        ];
        let numbers = 9 + QpCounters::DESCRIPTORS.len() + texts.len();
        NUMBER_BYTES * numbers + texts.iter().map(|text| text.len()).sum::<usize>()
    }
}

impl PathStatus {
    /// Its largest size in a message, in bytes.
    fn bytes_max(&self) -> usize {
        let numbers = 14 + PathCounters::DESCRIPTORS.len() + 2 * self.send_errors.len();
        NUMBER_BYTES * numbers
            + NAME_BYTES
            + self.interface.len()
            + self.bond_port.len()
            + self.state.len()
            + self.kind.len()
    }
}

/// Takes as many items from a list as there is room for.
fn fill<T>(
    list: &mut Peekable<impl Iterator<Item = T>>,
    room: &mut usize,
    bytes: impl Fn(&T) -> usize,
) -> Vec<T> {
    let mut taken = Vec::new();
    while let Some(item) = list.next_if(|item| bytes(item) <= *room) {
        *room -= bytes(&item);
        taken.push(item);
    }
    taken
}

fn take<T>(list: &mut Vec<T>, most: usize) -> Vec<T> {
    let rest = list.split_off(list.len().min(most));
    std::mem::replace(list, rest)
}

fn cut(text: &mut String) {
    cut_to(text, TEXT_MAX);
}

/// A lane of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// The top byte of its QPNs.
    pub slot: u8,
    /// The name of the interface where its queue pairs are at home; empty if they have no home.
    pub home: String,
    /// The counters of what it received and sent.
    pub counters: LaneCounters,
    /// The counters of what it dropped.
    pub drops: LaneDrops,
    /// The counters of dropped packets of path management.
    pub control_drops: ControlDrops,
    /// The counters of injected faults.
    pub faults: FaultCounters,
    /// The sum of the counters of queue pairs that are gone.
    pub ended_qps: QpCounters,
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
    /// Path MTU in bytes; for UD the port's MTU.
    pub path_mtu: u32,
    /// Whether multi-path was negotiated with the peer.
    pub multipath: bool,
    /// The path that carries traffic now: `local>remote@interface`.
    pub active_path: String,
    /// Number of live paths.
    pub live_paths: u32,
    /// How it uses its paths; `None` if its device has only one.
    pub policy: Option<PolicyStatus>,
    /// Its two paths (automatic path migration); `None` if no alternate path was ever loaded.
    pub migration: Option<MigrationStatus>,
    /// Its counters.
    pub counters: QpCounters,
    /// Its last error in words; empty if there was none.
    pub last_error: String,
}

/// The migration of a queue pair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationStatus {
    /// `MIGRATED`, `REARM`, `ARMED`.
    pub state: String,
    /// The alternate path: `local>remote@interface`; the active one after a migration. Empty if there is
    /// none.
    pub alternate: String,
    /// The UDP source port of the alternate path, if only that tells it from the one in use.
    pub alternate_port: Option<u16>,
    /// How often it has migrated.
    pub count: u64,
    /// Why it migrated last, as a [`MigrationCause`](polypath_telemetry::MigrationCause) is named, and when,
    /// in microseconds since 1970 UTC.
    pub last: Option<(String, u64)>,
}

/// How paths are used, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// The policy.
    pub choice: PolicyChoice,
    /// The place that it comes from.
    pub origin: Origin,
    /// Whether it is of the queue pair alone. A peer has none that is.
    pub own: bool,
}

/// A peer of an mp device: a lane of another process, as reached by one pair of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The address that its queue pairs were connected to.
    pub remote: IpAddr,
    /// How its paths are used.
    pub policy: PolicyStatus,
}

/// A path to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Local address.
    pub local: IpAddr,
    /// Remote address.
    pub remote: IpAddr,
    /// What carries its packets: `roce` or `local`.
    pub kind: String,
    /// Name of the interface; `local` if the packets go through shared memory.
    pub interface: String,
    /// Name of the port by which its packets leave, if the interface is a bond of the kernel's that tells;
    /// otherwise empty.
    pub bond_port: String,
    /// UDP source port of its packets.
    pub source_port: u16,
    /// `active`, `standby`, `probing`, `suspect`, `dead`, `down` (by hand). Several paths of a peer are
    /// `active` if its policy uses them all.
    pub state: String,
    /// The bytes that may be in flight by it.
    pub window: u64,
    /// The bytes that are.
    pub in_flight: u64,
    /// Smoothed round-trip time in microseconds, `None` before the first measurement.
    pub rtt_us: Option<u64>,
    /// The number of other paths to the peer that share a bottleneck with it, as their delays tell.
    pub coupled: u8,
    /// Its counters.
    pub counters: PathCounters,
    /// Packets that the kernel refused to send, by reason.
    pub send_errors: Vec<(Errno, u64)>,
    /// How long traffic stopped at the last fail-over, in microseconds.
    pub last_blackout_us: Option<u64>,
}

/// A fail-over that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverStatus {
    /// The time, in microseconds since 1970 UTC.
    pub at_unix_us: u64,
    /// The peer's address.
    pub peer: IpAddr,
    /// The path that failed; `None` if there was none before.
    pub from: Option<PathName>,
    /// The path that took over.
    pub to: PathName,
    /// How it was noticed.
    pub reason: Reason,
    /// The time from the last acknowledged packet on the old path to the first one on the new path,
    /// in microseconds.
    pub blackout_us: u64,
}

#[cfg(test)]
mod tests {
    use polypath_telemetry::{Event, Qpn};

    use super::*;
    use crate::message::{Request, decode, encode};

    /// The largest number in postcard's encoding.
    const MOST: [u8; 10] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

    fn long_report() -> ProcessStatus {
        let bytes: Vec<u8> = QpCounters::DESCRIPTORS.iter().flat_map(|_| MOST).collect();
        let counters: QpCounters = decode(&bytes).unwrap();
        let long = || "é".repeat(4000);
        let (peer, last_error) = (long(), long());
        let qp = QpStatus { qpn: 1, peer, last_error, counters, ..QpStatus::default() };
        let error = Event::QueuePairError { qpn: Qpn(u32::MAX), text: "x".repeat(100_000) };
        let error = Occurrence { at_unix_us: u64::MAX, event: error };
        ProcessStatus {
            pid: 1,
            qps: vec![qp; 1000],
            events: vec![error.clone(); 200],
            errors: vec![error; 200],
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
        assert!(whole.qps.iter().all(|qp| qp.counters.dropped_malformed == u64::MAX));
        assert_eq!((whole.events.len(), whole.errors.len()), (200, 200));
    }

    #[test]
    fn every_part_of_a_long_broker_status_fits_into_a_message() {
        let client = ClientStatus { program: "x".repeat(1024), ..ClientStatus::default() };
        let alternate = "z".repeat(1024);
        let migration = Some(CmMigrationStatus { alternate, ..CmMigrationStatus::default() });
        let id = CmIdStatus { remote: "y".repeat(1024), migration, ..CmIdStatus::default() };
        let status = BrokerStatus {
            pid: 7,
            clients: vec![client; 1000],
            slots: vec![SlotStatus::default(); 254],
            cm_ids: vec![id; 5000],
            lacp: vec![LacpPort { mux: "x".repeat(32), ..LacpPort::default() }; 256],
            counters: BrokerCounters { clients_slow: 1, ..BrokerCounters::default() },
            ..BrokerStatus::default()
        };
        let mut whole = BrokerStatus::default();
        for part in status.into_parts() {
            let bytes = encode(&part).unwrap();
            whole.append(decode(&bytes).unwrap());
        }
        assert_eq!(whole.lacp.len(), 256);
        let lists = (whole.clients.len(), whole.slots.len(), whole.cm_ids.len());
        assert_eq!((whole.pid, lists, whole.counters.clients_slow), (7, (1000, 254, 5000), 1));
    }

    #[test]
    fn an_empty_report_is_one_part() {
        assert_eq!(ProcessStatus::default().into_parts().len(), 1);
    }
}
