//! The JSON of `polypath status --json`. It has types of its own, so that scripts do not depend on
//! the messages between processes and the broker. docs/status-json.md describes it.
//!
//! Within one [`FORMAT`], keys may be added, but none is removed, renamed or given another meaning.

use crate::text::mac;
use polypath_ipc::port;
use polypath_ipc::status as ipc;
use polypath_telemetry::{Counters as Declared, Occurrence};
use polypath_topology::Port;
use polypath_topology::rules::Origin;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The number of the format.
pub(crate) const FORMAT: u32 = 1;

/// One user's broker and programs. All keys are always present.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    /// [`FORMAT`].
    format: u32,
    /// The user whose broker and programs these are.
    user: User,
    /// `null` if none runs.
    broker: Option<Broker>,
    processes: Vec<Process>,
    /// Processes that did not answer in time, as when stopped by a debugger.
    silent: Vec<u32>,
    /// Other users whose brokers run in this network namespace.
    other_users: Vec<User>,
}

#[derive(Debug, Serialize)]
pub(crate) struct User {
    uid: u32,
    /// The name, or the number as text if the user has no name.
    name: String,
}

#[derive(Debug, Serialize)]
struct Broker {
    pid: u32,
    version: String,
    uptime_ms: u64,
    clients: Vec<Client>,
    slots: Vec<Slot>,
    cm_ids: Vec<CmId>,
    lacp: Vec<LacpPort>,
    interfaces: Vec<Interface>,
    /// The selectors given to `polypath path down`.
    paths_down: Vec<String>,
    config: Config,
    rules: Vec<Rule>,
    counters: Counters,
}

#[derive(Debug, Serialize)]
struct Config {
    path: String,
    error: String,
}

#[derive(Debug, Serialize)]
struct Rule {
    scope: String,
    settings: String,
    source: String,
}

type Counters = BTreeMap<String, u64>;

#[derive(Debug, Serialize)]
struct Client {
    pid: u32,
    program: String,
    selection: String,
    events: bool,
}

#[derive(Debug, Serialize)]
struct LacpPort {
    interface: String,
    distributing: bool,
    /// `null` if it belongs to none.
    aggregator: Option<u16>,
    selected: String,
    receive: String,
    mux: String,
    actor_churn: String,
    partner_churn: String,
    actor: LacpEnd,
    partner: LacpEnd,
}

#[derive(Debug, Serialize)]
struct LacpEnd {
    system_priority: u16,
    system: String,
    key: u16,
    port_priority: u16,
    port: u16,
    state: u8,
}

#[derive(Debug, Serialize)]
struct Slot {
    slot: u8,
    pid: u32,
    overflows: u64,
}

#[derive(Debug, Serialize)]
struct CmId {
    id: u32,
    pid: u32,
    state: String,
    local: String,
    remote: String,
    qpn: u32,
    /// `null` unless both ends want it.
    migration: Option<CmMigration>,
}

#[derive(Debug, Serialize)]
struct CmMigration {
    alternate: String,
    count: u32,
    last_apr: Option<u8>,
    last_spr: Option<u8>,
}

#[derive(Debug, Serialize)]
struct Interface {
    name: String,
    index: u32,
    mac: String,
    mtu: u32,
    link_up: bool,
    speed_mbps: Option<u32>,
    addresses: Vec<Address>,
}

#[derive(Debug, Serialize)]
struct Address {
    ip: IpAddr,
    prefix_len: u8,
    link_local: bool,
    tentative: bool,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    program: String,
    devices: Vec<String>,
    lanes: Vec<Lane>,
    qps: Vec<QueuePair>,
    peers: Vec<Peer>,
    paths: Vec<Path>,
    failovers: Vec<FailOver>,
    drops: Counters,
    events: Vec<Event>,
    errors: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Lane {
    slot: u8,
    /// The interface where its queue pairs are at home; empty if they have no home.
    home: String,
    #[serde(flatten)]
    counters: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
struct QueuePair {
    qpn: u32,
    dest_qpn: u32,
    kind: String,
    state: String,
    device: String,
    peer: String,
    path_mtu: u32,
    multipath: bool,
    active_path: String,
    live_paths: u32,
    /// `null` if the device has one path only.
    policy: Option<Policy>,
    /// `null` if no alternate path was ever loaded.
    migration: Option<Migration>,
    counters: Counters,
    last_error: String,
}

#[derive(Debug, Serialize)]
struct Migration {
    state: String,
    alternate: String,
    alternate_port: Option<u16>,
    count: u64,
    last_cause: Option<String>,
    last_at_unix_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Policy {
    name: String,
    source: String,
    own: bool,
}

#[derive(Debug, Serialize)]
struct Peer {
    remote: IpAddr,
    policy: Policy,
}

#[derive(Debug, Serialize)]
struct Path {
    local: IpAddr,
    remote: IpAddr,
    kind: String,
    interface: String,
    bond_port: Option<String>,
    source_port: u16,
    state: String,
    rtt_us: Option<u64>,
    window: u64,
    in_flight: u64,
    coupled: u8,
    sent_bytes: u64,
    received_bytes: u64,
    lost_bytes: u64,
    counters: Counters,
    send_errors: Counters,
    failovers: u64,
    last_blackout_us: Option<u64>,
}

#[derive(Debug, Serialize)]
struct FailOver {
    at_unix_ms: u64,
    from: String,
    to: String,
    reason: String,
    blackout_us: u64,
}

#[derive(Debug, Serialize)]
struct Event {
    at_unix_ms: u64,
    text: String,
}

impl User {
    pub(crate) fn of(uid: u32) -> Self {
        Self { uid, name: port::user_name(uid) }
    }
}

impl Document {
    /// Builds the document of a user. A `status` of `None` means that the user has no broker.
    pub(crate) fn new(user: u32, status: Option<ipc::Status>, others: &[u32]) -> Self {
        let (broker, processes, silent) = match status {
            Some(ipc::Status { broker, processes, silent }) => {
                (Some(Broker::from(broker)), list(processes), silent)
            }
            None => (None, Vec::new(), Vec::new()),
        };
        Self {
            format: FORMAT,
            user: User::of(user),
            broker,
            processes,
            silent,
            other_users: others.iter().map(|&user| User::of(user)).collect(),
        }
    }

    /// As text: indented, or on one line.
    pub(crate) fn text(&self, pretty: bool) -> String {
        let text =
            if pretty { serde_json::to_string_pretty(self) } else { serde_json::to_string(self) };
        // Only maps with keys other than text could fail, and there are none.
        text.unwrap_or_default() + "\n"
    }
}

fn list<A, B: From<A>>(items: Vec<A>) -> Vec<B> {
    items.into_iter().map(B::from).collect()
}

/// Adds counters to an object. Several lanes of a process are added up.
fn add(to: &mut Counters, counters: &impl Declared) {
    for (counter, value) in counters.iter() {
        *to.entry(counter.name.to_owned()).or_default() += value;
    }
}

/// Converts microseconds to the format's unit.
fn ms(us: u64) -> u64 {
    us / 1000
}

impl From<ipc::BrokerStatus> for Broker {
    fn from(status: ipc::BrokerStatus) -> Self {
        let mut counters = Counters::new();
        add(&mut counters, &status.counters);
        add(&mut counters, &status.cm_counters);
        Self {
            pid: status.pid,
            version: status.version,
            uptime_ms: status.uptime_ms,
            clients: list(status.clients),
            slots: list(status.slots),
            cm_ids: list(status.cm_ids),
            lacp: list(status.lacp),
            interfaces: list(status.table.ports),
            config: Config { path: status.config.path, error: status.config.error },
            rules: list(status.table.rules),
            paths_down: status.table.down.iter().map(ToString::to_string).collect(),
            counters,
        }
    }
}

impl From<polypath_topology::Rule> for Rule {
    fn from(rule: polypath_topology::Rule) -> Self {
        Self {
            scope: rule.scope.to_string(),
            settings: rule.settings.to_string(),
            source: Origin::from(rule.source).to_string(),
        }
    }
}

impl From<ipc::PolicyStatus> for Policy {
    fn from(status: ipc::PolicyStatus) -> Self {
        let ipc::PolicyStatus { choice, origin, own } = status;
        Self { name: choice.to_string(), source: origin.to_string(), own }
    }
}

impl From<ipc::PeerStatus> for Peer {
    fn from(status: ipc::PeerStatus) -> Self {
        Self { remote: status.remote, policy: status.policy.into() }
    }
}

impl From<ipc::ClientStatus> for Client {
    fn from(status: ipc::ClientStatus) -> Self {
        let ipc::ClientStatus { pid, program, selection, events } = status;
        Self { pid, program, selection, events }
    }
}

impl From<polypath_ipc::lacp::LacpPort> for LacpPort {
    fn from(port: polypath_ipc::lacp::LacpPort) -> Self {
        Self {
            interface: port.interface,
            distributing: port.distributing,
            aggregator: port.aggregator,
            selected: port.selected,
            receive: port.receive,
            mux: port.mux,
            actor_churn: port.actor_churn,
            partner_churn: port.partner_churn,
            actor: port.actor.into(),
            partner: port.partner.into(),
        }
    }
}

impl From<polypath_ipc::lacp::LacpEnd> for LacpEnd {
    fn from(end: polypath_ipc::lacp::LacpEnd) -> Self {
        let polypath_ipc::lacp::LacpEnd { system_priority, system, key, .. } = end;
        let (port_priority, port, state) = (end.port_priority, end.port, end.state);
        Self { system_priority, system: mac(system), key, port_priority, port, state }
    }
}

impl From<ipc::SlotStatus> for Slot {
    fn from(status: ipc::SlotStatus) -> Self {
        let ipc::SlotStatus { slot, pid, overflows } = status;
        Self { slot, pid, overflows }
    }
}

impl From<ipc::CmIdStatus> for CmId {
    fn from(status: ipc::CmIdStatus) -> Self {
        let ipc::CmIdStatus { pid, id, state, local, remote, qpn, migration } = status;
        let migration = migration.map(CmMigration::from);
        Self { id, pid, state, local, remote, qpn, migration }
    }
}

impl From<ipc::CmMigrationStatus> for CmMigration {
    fn from(status: ipc::CmMigrationStatus) -> Self {
        let ipc::CmMigrationStatus { alternate, count, last_apr, last_spr } = status;
        Self { alternate, count, last_apr, last_spr }
    }
}

impl From<Port> for Interface {
    fn from(port: Port) -> Self {
        let address = |address: polypath_topology::Address| Address {
            ip: address.ip,
            prefix_len: address.prefix_len,
            link_local: address.link_local,
            tentative: address.tentative,
        };
        Self {
            name: port.name,
            index: port.ifindex,
            mac: mac(port.mac),
            mtu: port.mtu,
            link_up: port.link_up,
            speed_mbps: port.speed_mbps,
            addresses: port.addresses.into_iter().map(address).collect(),
        }
    }
}

impl From<ipc::ProcessStatus> for Process {
    fn from(status: ipc::ProcessStatus) -> Self {
        let mut drops = Counters::new();
        for lane in &status.lanes {
            add(&mut drops, &lane.drops);
            add(&mut drops, &lane.control_drops);
            add(&mut drops, &lane.faults);
        }
        Self {
            pid: status.pid,
            program: status.program,
            devices: status.devices,
            lanes: list(status.lanes),
            qps: list(status.qps),
            peers: list(status.peers),
            paths: list(status.paths),
            failovers: list(status.failovers),
            drops,
            events: list(status.events),
            errors: list(status.errors),
        }
    }
}

impl From<ipc::LaneStatus> for Lane {
    fn from(status: ipc::LaneStatus) -> Self {
        let counters = status.counters.iter().map(|(counter, value)| (counter.name, value));
        Self { slot: status.slot, home: status.home, counters: counters.collect() }
    }
}

impl From<ipc::QpStatus> for QueuePair {
    fn from(status: ipc::QpStatus) -> Self {
        let counted = status.counters.iter().filter(|(_, value)| *value > 0);
        Self {
            qpn: status.qpn,
            dest_qpn: status.dest_qpn,
            kind: status.kind,
            state: status.state,
            device: status.device,
            peer: status.peer,
            path_mtu: status.path_mtu,
            multipath: status.multipath,
            active_path: status.active_path,
            live_paths: status.live_paths,
            policy: status.policy.map(Policy::from),
            migration: status.migration.map(Migration::from),
            counters: counted.map(|(counter, n)| (counter.name.to_owned(), n)).collect(),
            last_error: status.last_error,
        }
    }
}

impl From<ipc::MigrationStatus> for Migration {
    fn from(status: ipc::MigrationStatus) -> Self {
        let (last_cause, last_at) = status.last.unzip();
        Self {
            state: status.state,
            alternate: status.alternate,
            alternate_port: status.alternate_port,
            count: status.count,
            last_cause,
            last_at_unix_ms: last_at.map(|us| us / 1000),
        }
    }
}

impl From<ipc::PathStatus> for Path {
    fn from(status: ipc::PathStatus) -> Self {
        Self {
            local: status.local,
            remote: status.remote,
            kind: status.kind,
            interface: status.interface,
            bond_port: Some(status.bond_port).filter(|port| !port.is_empty()),
            source_port: status.source_port,
            state: status.state,
            rtt_us: status.rtt_us,
            window: status.window,
            in_flight: status.in_flight,
            coupled: status.coupled,
            sent_bytes: status.counters.sent_bytes,
            received_bytes: status.counters.received_bytes,
            lost_bytes: status.counters.resent_bytes,
            counters: status
                .counters
                .iter()
                .map(|(counter, n)| (counter.name.to_owned(), n))
                .collect(),
            send_errors: status
                .send_errors
                .into_iter()
                .map(|(errno, packets)| (errno.name_or_number(), packets))
                .collect(),
            failovers: status.counters.given_up,
            last_blackout_us: status.last_blackout_us,
        }
    }
}

impl From<ipc::FailoverStatus> for FailOver {
    fn from(status: ipc::FailoverStatus) -> Self {
        let ipc::FailoverStatus { at_unix_us, from, to, reason, blackout_us, .. } = status;
        Self {
            at_unix_ms: ms(at_unix_us),
            from: from.map_or_else(|| "no path".to_owned(), |path| path.to_string()),
            to: to.to_string(),
            reason: reason.to_string(),
            blackout_us,
        }
    }
}

impl From<Occurrence> for Event {
    fn from(occurrence: Occurrence) -> Self {
        let Occurrence { at_unix_us, event } = occurrence;
        Self { at_unix_ms: ms(at_unix_us), text: event.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::example;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const GOLDEN: &str = include_str!("../golden/status.json");
    const PAGE: &str = include_str!("../../../docs/status-json.md");

    /// Scripts rely on this file's text. Keys may be added; any other change needs a new `FORMAT`.
    #[test]
    fn the_format_is_that_of_the_golden_file() {
        let text = Document::new(0, Some(example()), &[4_000_000_000]).text(true);
        assert_eq!(text, GOLDEN, "the new text, for crates/cli/golden/status.json:\n{text}");
    }

    fn keys(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    // Counters are explained in docs/counters.md.
                    if key != "counters" && key != "drops" {
                        keys(value, found);
                    }
                    found.insert(key.clone());
                }
            }
            Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_key_is_described() {
        let mut found = BTreeSet::new();
        keys(&serde_json::from_str(GOLDEN).unwrap(), &mut found);
        for key in found {
            assert!(PAGE.contains(&format!("`{key}`")), "`{key}` in docs/status-json.md");
        }
    }

    /// The same keys are present, so that `jq '.processes[].failovers'` works.
    #[test]
    fn the_same_keys_are_there_when_nothing_runs() {
        let keys = |status| {
            let text = Document::new(0, status, &[]).text(false);
            let value: Value = serde_json::from_str(&text).unwrap();
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(None), keys(Some(example())));
        let nothing: Value =
            serde_json::from_str(&Document::new(0, None, &[]).text(false)).unwrap();
        assert_eq!(
            (&nothing["broker"], &nothing["processes"]),
            (&Value::Null, &Value::from([""; 0].to_vec()))
        );
    }
}
