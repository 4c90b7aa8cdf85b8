//! `polypath status`: everything that is known, for people or as JSON.

use crate::args::Status as Arguments;
use crate::cm_ids;
use crate::error::CliError;
use crate::history::{RECENT, history};
use crate::json::Document;
use crate::lacp;
use crate::paths_table::paths;
use crate::policy::policies;
use crate::prometheus;
use crate::text::{CLEAR, Columns, at, bytes, count, duration, hex, now_ms};
use polypath_ipc::status::{MigrationStatus, ProcessStatus, QpStatus};
use polypath_ipc::{Client, Hello, IpcError, Status, port, socket};
use polypath_telemetry::{ControlDrops, Counters, Descriptor, FaultCounters, LaneDrops};
use polypath_topology::rules::Origin;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

/// Shows the status once or repeatedly.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let me = socket::user_id();
    let user = match &arguments.user {
        Some(user) => port::user_number(user)
            .ok_or_else(|| CliError::Usage(format!("there is no user `{user}`")))?,
        None => me,
    };
    let mut watched =
        Watched { me, user, all: arguments.all, pid: arguments.pid, open: Vec::new() };
    let Some(interval) = arguments.watch else {
        let seen = watched.look()?;
        std::io::stdout().write_all(show(&seen, arguments, true).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    let terminal = std::io::stdout().is_terminal() && !arguments.json;
    loop {
        let seen = watched.look()?;
        let mut out = std::io::stdout().lock();
        if terminal {
            out.write_all(CLEAR.as_bytes())?;
        } else if !arguments.json {
            writeln!(out, "--- {}", at(now_ms(), 0))?;
        }
        out.write_all(show(&seen, arguments, false).as_bytes())?;
        out.flush()?;
        drop(out);
        std::thread::sleep(Duration::from_millis(interval));
    }
}

/// What was found out about one user's broker.
struct Seen {
    user: u32,
    /// `None` if the user has no broker.
    status: Option<Status>,
    /// Other users who have a broker here.
    others: Vec<u32>,
    /// The reason why it can't be looked at, if there is one.
    hidden: Option<String>,
}

/// The users to look at, and the connections to their brokers. Connections are kept open between
/// two looks, because a new one each time would show up in the status.
struct Watched {
    me: u32,
    user: u32,
    all: bool,
    pid: Option<u32>,
    open: Vec<(u32, Client)>,
}

impl Watched {
    fn look(&mut self) -> Result<Vec<Seen>, CliError> {
        let present = port::broker_users();
        let mut users = vec![self.user];
        if self.all {
            users.extend(present.iter().filter(|&&user| user != self.user));
        }
        let all = self.all;
        users
            .into_iter()
            .map(|user| {
                let answer = self.ask(user).map_err(|error| explained(error, user, self.me));
                let (status, hidden) = match answer {
                    Ok(status) => (status, None),
                    // With `--all`, show the brokers that can be seen.
                    Err(error) if all && user != self.user => (None, Some(error.to_string())),
                    Err(error) => return Err(error),
                };
                let others = present.iter().copied().filter(|&other| other != user).collect();
                Ok(Seen { user, status, others, hidden })
            })
            .collect()
    }

    fn ask(&mut self, user: u32) -> Result<Option<Status>, IpcError> {
        if let Some(at) = self.open.iter().position(|(other, _)| *other == user) {
            let (_, mut client) = self.open.swap_remove(at);
            // If the broker has ended, another one may have been started.
            if let Ok(status) = client.status() {
                self.open.push((user, client));
                return Ok(Some(self.only(status)));
            }
        }
        match Client::connect_to(user, &Hello::of_this_process("")) {
            Ok(mut client) => {
                let status = client.status()?;
                self.open.push((user, client));
                Ok(Some(self.only(status)))
            }
            Err(IpcError::NoBroker) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reduces the status to the process that `--pid` asks for.
    fn only(&self, mut status: Status) -> Status {
        if let Some(pid) = self.pid {
            status.processes.retain(|process| process.pid == pid);
            status.silent.retain(|other| *other == pid);
            status.broker.cm_ids.retain(|id| id.pid == pid);
            status.broker.slots.retain(|slot| slot.pid == pid);
        }
        status
    }
}

/// Explains an error. Another user's broker closes the connection without an answer, so this says
/// what that means.
fn explained(error: IpcError, user: u32, me: u32) -> CliError {
    let closed = match &error {
        IpcError::Closed => true,
        IpcError::Io { source, .. } => {
            matches!(source.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        _ => false,
    };
    if !closed || user == me || me == 0 {
        return error.into();
    }
    let name = port::user_name(user);
    let who = if user == 0 { "root".to_owned() } else { format!("user {name} and root") };
    CliError::Refused(format!("only {who} may look at the programs of user {name}: use sudo"))
}

fn show(seen: &[Seen], arguments: &Arguments, pretty: bool) -> String {
    let mut text = String::new();
    for one in seen {
        if arguments.prometheus {
            text += &prometheus::render(one.status.as_ref());
            continue;
        }
        if arguments.json {
            let document = Document::new(one.user, one.status.clone(), &one.others);
            text += &document.text(pretty);
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text += &match (&one.status, &one.hidden) {
            (Some(status), _) => render(one.user, status, arguments.verbose),
            (None, Some(why)) => {
                format!("Polypath broker of user {}: {why}\n", port::user_name(one.user))
            }
            (None, None) => nothing(one.user),
        };
        if !arguments.all {
            text += &others(&one.others);
        }
    }
    text
}

fn nothing(user: u32) -> String {
    let name = port::user_name(user);
    format!("No Polypath broker of user {name} is running in this network namespace.\n")
}

/// A line about other users' brokers; empty if there are none.
fn others(users: &[u32]) -> String {
    let names: Vec<String> = users.iter().map(|&user| port::user_name(user)).collect();
    match names.as_slice() {
        [] => String::new(),
        [name] => format!("User {name} has a broker here (see --user {name}).\n"),
        names => format!("Users {} have brokers here (see --all).\n", names.join(", ")),
    }
}

/// The status as text.
fn render(user: u32, status: &Status, verbose: bool) -> String {
    let broker = &status.broker;
    let mut text = format!(
        "Polypath broker of user {} (pid {}, version {}), running for {}\n",
        port::user_name(user),
        broker.pid,
        broker.version,
        duration(broker.uptime_ms.saturating_mul(1000)),
    );
    for selector in &broker.table.down {
        text += &format!("  paths taken down by hand: {selector}\n");
    }
    if !broker.config.error.is_empty() {
        text += &format!("  configuration file not followed: {}\n", broker.config.error);
    }
    for rule in &broker.table.rules {
        text +=
            &format!("  rule ({}): {}: {}\n", Origin::from(rule.source), rule.scope, rule.settings);
    }
    if verbose {
        text += &counters("  counters: ", broker.counters.iter().chain(broker.cm_counters.iter()));
    }
    for slot in broker.slots.iter().filter(|slot| slot.overflows > 0) {
        let lost = count(slot.overflows, "packet");
        text += &format!("  slot {}: {lost} lost to a full receive buffer\n", slot.slot);
    }
    text += &lacp::render(&broker.lacp);
    text += &cm_ids::render(&broker.cm_ids);
    for process in &status.processes {
        text.push('\n');
        text += &render_process(process, verbose);
    }
    for pid in &status.silent {
        text += &format!("\nprocess {pid} did not answer (is it stopped?)\n");
    }
    text
}

fn render_process(process: &ProcessStatus, verbose: bool) -> String {
    let mut text =
        format!("{} (pid {}): {}\n", process.program, process.pid, process.devices.join(", "));
    for lane in &process.lanes {
        let counters = &lane.counters;
        let fragments = match counters.fragmented_packets {
            0 => String::new(),
            packets => format!(", {packets} of them in fragments"),
        };
        let home = match &lane.home[..] {
            "" => String::new(),
            interface => format!(" (at home on {interface})"),
        };
        text += &format!(
            "  lane {}{home}: received {} in {}, sent {} in {}{fragments}\n",
            lane.slot,
            bytes(counters.received_bytes),
            count(counters.received_packets, "packet"),
            bytes(counters.sent_bytes),
            count(counters.sent_packets, "packet")
        );
    }
    let heading = ["QP", "KIND", "STATE", "DEVICE", "PEER", "PEER QP", "PATHS", "ACTIVE PATH"];
    let mut qps = Columns::new(heading);
    let if_any = |text: String, there: bool| if there { text } else { "-".to_owned() };
    for qp in &process.qps {
        let (is_mp, has_peer) = (qp.multipath, !qp.peer.is_empty());
        qps.row([
            hex(qp.qpn),
            qp.kind.clone(),
            qp.state.clone(),
            qp.device.clone(),
            if_any(qp.peer.clone(), has_peer),
            if_any(hex(qp.dest_qpn), qp.dest_qpn != 0),
            if_any(format!("{} ({})", qp.live_paths, if is_mp { "mp" } else { "plain" }), has_peer),
            if_any(qp.active_path.clone(), !qp.active_path.is_empty()),
        ]);
    }
    if !qps.is_empty() {
        text += &qps.render("  ");
    }
    text += &policies(process, RECENT);
    text += &qp_details(&process.qps, verbose);
    text += &paths(&process.paths);
    let (mut drops, mut control) = (LaneDrops::default(), ControlDrops::default());
    let mut faults = FaultCounters::default();
    for lane in &process.lanes {
        drops.add(&lane.drops);
        control.add(&lane.control_drops);
        faults.add(&lane.faults);
    }
    text += &counters("  dropped: ", drops.iter().chain(control.iter()));
    text += &counters("  faults: ", faults.iter());
    text += &history(process, now_ms());
    text
}

/// The alternate path of a queue pair, and its migrations.
fn migration_words(migration: &MigrationStatus) -> String {
    let MigrationStatus { state, alternate, alternate_port, count, last } = migration;
    let to = if alternate.is_empty() { "no path" } else { alternate };
    let by = alternate_port.map(|port| format!(" by source port {port}")).unwrap_or_default();
    let last = match last {
        None => String::new(),
        Some((cause, us)) => format!(
            ", migrated {}, last {} ({cause})",
            self::count(*count, "time"),
            at(us / 1000, now_ms())
        ),
    };
    format!("{state}, alternate path {to}{by}{last}")
}

fn qp_details(qps: &[QpStatus], verbose: bool) -> String {
    let mut text = String::new();
    for qp in qps {
        if verbose {
            text += &counters(&format!("  {}: ", hex(qp.qpn)), qp.counters.iter());
        }
        if let Some(migration) = &qp.migration {
            text += &format!("  {}: {}\n", hex(qp.qpn), migration_words(migration));
        }
        if !qp.last_error.is_empty() {
            text += &format!("  {}: failed: {}\n", hex(qp.qpn), qp.last_error);
        }
    }
    text
}

/// One line with the counters that are not zero; nothing if all are.
fn counters<'a>(head: &str, list: impl Iterator<Item = (&'a Descriptor, u64)>) -> String {
    let counted = list.filter(|(_, value)| *value > 0);
    let shown: Vec<String> =
        counted.map(|(counter, value)| format!("{} {value}", counter.name)).collect();
    if shown.is_empty() { String::new() } else { format!("{head}{}\n", shown.join(", ")) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use polypath_ipc::status::{
        BrokerStatus, ClientStatus, CmIdStatus, CmMigrationStatus, ConfigStatus, FailoverStatus,
        LaneStatus, PathStatus, PeerStatus, PolicyStatus, SlotStatus,
    };
    use polypath_telemetry::Occurrence;
    use polypath_telemetry::{
        BrokerCounters, CmCounters, Event, InterfaceName, PathCounters, PathName, QpCounters,
        Reason,
    };
    use polypath_topology::rules::PolicyChoice;
    use polypath_topology::{
        Address, AffinityRule, Bonding, Policy, Port, Rule, RuleScope, RuleSource, Table,
    };

    /// A status in which every field has a value.
    pub(crate) fn example() -> Status {
        let qp = QpStatus {
            qpn: 0x01_2345,
            dest_qpn: 0x02_0001,
            kind: "RC".into(),
            state: "RTS".into(),
            device: "mp0".into(),
            peer: "10.0.0.2".into(),
            path_mtu: 1024,
            multipath: true,
            active_path: "10.0.0.1>10.0.0.2@eth0".into(),
            live_paths: 2,
            policy: Some(PolicyStatus {
                choice: PolicyChoice {
                    policy: Policy::Affinity,
                    affinity: Some(AffinityRule::Hash),
                },
                origin: Origin::Command,
                own: true,
            }),
            migration: Some(MigrationStatus {
                state: "ARMED".into(),
                alternate: "10.0.1.1>10.0.1.2@eth1".into(),
                alternate_port: None,
                count: 3,
                last: Some(("path_lost".into(), 1_700_000_000_000_000)),
            }),
            last_error: "retries exhausted".into(),
            counters: QpCounters { retransmitted_packets: 3, ..QpCounters::default() },
        };
        let path = PathStatus {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            kind: "roce".into(),
            interface: "eth0".into(),
            bond_port: "eth2".into(),
            source_port: 0xc001,
            state: "active".into(),
            window: 65536,
            in_flight: 4096,
            coupled: 1,
            rtt_us: Some(17),
            counters: PathCounters {
                sent_bytes: 2048,
                given_up: 1,
                port_changes: 2,
                ..PathCounters::default()
            },
            send_errors: Vec::new(),
            last_blackout_us: Some(4200),
        };
        let name = |n: u8, interface: &str| PathName {
            local: [10, 0, n, 1].into(),
            remote: [10, 0, n, 2].into(),
            interface: InterfaceName::new(interface),
        };
        let failovers = (0..20)
            .map(|n| FailoverStatus {
                at_unix_us: 1_700_000_000_000_000 + n * 1000,
                peer: [10, 0, 0, 2].into(),
                from: Some(name(0, "eth0")),
                to: name(1, "eth1"),
                reason: Reason::LinkDown,
                blackout_us: 1000 * n,
            })
            .skip(10)
            .collect();
        let note = |event| Occurrence { at_unix_us: 1_700_000_000_500_000, event };
        let given_up = Event::PathGivenUp { path: name(0, "eth0"), reason: Reason::LinkDown };
        let no_path = Event::NoPath { peer: [10, 0, 0, 2].into() };
        let port = Port {
            mac: [0xd6, 0xd7, 0x16, 0, 0, 1],
            mtu: 9000,
            speed_mbps: Some(10_000),
            device_number: Some(0),
            addresses: vec![Address {
                ip: "10.0.0.1".parse().unwrap(),
                prefix_len: 24,
                link_local: false,
                tentative: false,
            }],
            ..Port::ethernet(2, "eth0")
        };
        let rule = Rule {
            scope: RuleScope {
                queue_pair: Some(0x01_2345),
                process: Some(8),
                ..RuleScope::default()
            },
            settings: Bonding::parse("affinity").unwrap(),
            source: RuleSource::Command,
        };
        Status {
            broker: BrokerStatus {
                pid: 7,
                version: "1.2.3".into(),
                uptime_ms: 150_000,
                clients: vec![ClientStatus {
                    pid: 8,
                    program: "rping".into(),
                    selection: "mp".into(),
                    events: true,
                }],
                slots: vec![SlotStatus { slot: 1, pid: 8, overflows: 1 }],
                cm_ids: vec![CmIdStatus {
                    pid: 8,
                    id: 5,
                    state: "TCP connected".into(),
                    local: "10.0.0.1:7174".into(),
                    remote: "10.0.0.2:40000".into(),
                    qpn: 0x01_2345,
                    migration: Some(CmMigrationStatus {
                        alternate: "10.1.0.1>10.1.0.2".into(),
                        count: 2,
                        last_apr: Some(0),
                        last_spr: None,
                    }),
                }],
                lacp: vec![lacp::tests::example()],
                table: Table {
                    ports: vec![port],
                    down: vec!["eth1".parse().unwrap()],
                    rules: vec![rule],
                    ..Table::default()
                },
                config: ConfigStatus {
                    path: "/etc/polypath/config.toml".into(),
                    error: String::new(),
                },
                counters: BrokerCounters { clients_accepted: 4, ..BrokerCounters::default() },
                cm_counters: CmCounters { mads_sent: 5, ..CmCounters::default() },
            },
            processes: vec![ProcessStatus {
                pid: 8,
                program: "rping".into(),
                devices: vec!["mp0".into()],
                lanes: vec![LaneStatus {
                    home: "eth1".to_owned(),
                    slot: 1,
                    counters: polypath_telemetry::LaneCounters {
                        received_packets: 1,
                        received_bytes: 100,
                        sent_packets: 2,
                        sent_bytes: 200,
                        ..Default::default()
                    },
                    drops: LaneDrops { icrc_wrong: 2, ..LaneDrops::default() },
                    control_drops: ControlDrops { generation: 3, ..ControlDrops::default() },
                    faults: FaultCounters::default(),
                    ended_qps: QpCounters { retransmitted_packets: 10, ..QpCounters::default() },
                }],
                qps: vec![qp],
                peers: vec![PeerStatus {
                    remote: [10, 0, 0, 2].into(),
                    policy: PolicyStatus {
                        choice: PolicyChoice { policy: Policy::Balance, affinity: None },
                        origin: Origin::Environment,
                        own: false,
                    },
                }],
                paths: vec![path],
                failovers,
                events: vec![note(given_up)],
                errors: vec![note(no_path)],
            }],
            silent: vec![9],
        }
    }

    #[test]
    fn everything_that_matters_is_shown() {
        let text = render(0, &example(), false);
        for part in ["user root", "rping", "0x012345", "RC", "retries exhausted", "2.0 KiB"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for part in ["10.0.0.1 > 10.0.0.2", "17 µs", "19.0 ms", "process 9", "icrc_wrong 2"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for part in [
            "1 packet lost",
            "lane 1 (at home on eth1): received 100 B in 1 packet, sent 200 B in 2 packets",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for part in [
            "  policy balance (POLYPATH_MP): 10.0.0.2\n",
            "  policy affinity,affinity=hash (command): queue pair 0x012345\n",
            "  rule (command): queue pair 0x012345, process 8: affinity\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("11.0 ms"), "only the last few");
        assert!(
            !text.contains("clients_accepted") && !text.contains("retransmitted_packets"),
            "{text}"
        );
        let all = render(0, &example(), true);
        assert!(
            all.contains("clients_accepted 4") && all.contains("retransmitted_packets 3"),
            "{all}"
        );
    }

    #[test]
    fn only_errors_are_called_errors_and_all_have_their_time() {
        let text = render(0, &example(), false);
        let errors: Vec<&str> = text.lines().filter(|line| line.contains("error:")).collect();
        assert_eq!(
            errors,
            ["  2023-11-14 22:13:20Z  error: no path to 10.0.0.2 lives; its queue pairs are held"]
        );
        let moved = "22:13:20Z  fail-over from 10.0.0.1>10.0.0.2@eth0 to 10.0.1.1>10.0.1.2@eth1: \
                     local link down; traffic stood still for 19.0 ms";
        assert!(text.contains(moved), "{text}");
        assert!(text.contains("22:13:20Z  path 10.0.0.1>10.0.0.2@eth0 is given up"), "{text}");
    }

    #[test]
    fn who_may_not_look_at_another_users_programs_is_told_so() {
        let said = explained(IpcError::Closed, 0, 4_000_000_000).to_string();
        assert_eq!(said, "only root may look at the programs of user root: use sudo");
        let reset = std::io::Error::from(ErrorKind::ConnectionReset);
        let reset = IpcError::Io { doing: "waiting", source: reset };
        assert_eq!(
            explained(reset, 4_000_000_001, 4_000_000_000).to_string(),
            "only user 4000000001 and root may look at the programs of user 4000000001: use sudo"
        );
        for (user, me) in [(0, 0), (4_000_000_000, 0), (5, 5)] {
            let said = explained(IpcError::Closed, user, me).to_string();
            assert!(said.contains("closed the connection"), "{said}");
        }
    }

    #[test]
    fn a_user_without_a_broker_is_told_of_those_who_have_one() {
        let seen = |others: &[u32]| {
            let seen = Seen { user: 0, status: None, others: others.to_vec(), hidden: None };
            show(&[seen], &Arguments::default(), false)
        };
        assert_eq!(
            seen(&[]),
            "No Polypath broker of user root is running in this network namespace.\n"
        );
        assert!(seen(&[4_000_000_000]).contains("User 4000000000 has a broker here"));
        assert!(seen(&[4_000_000_000, 4_000_000_001]).contains("--all"));
    }
}
