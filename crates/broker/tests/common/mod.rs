//! Runs tests in their own network namespace: each runs itself again under `unshare -Urn`, which
//! any user may do, and does its work there.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polypath_ipc::{Client, EventStream, Hello, IpcError, Push};
use polypath_telemetry::Counters as _;
use polypath_topology::Table;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The environment variable that names the test that runs inside its namespace.
const INSIDE: &str = "POLYPATH_TEST_INSIDE";

/// The longest time for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The broker's program.
pub(crate) const BROKER: &str = env!("CARGO_BIN_EXE_polypath-broker");

/// Runs `body` in a fresh network namespace. `name` is the test's own.
pub(crate) fn in_namespace(name: &str, body: impl FnOnce()) {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        run("ip link set lo up");
        body();
        return;
    }
    let state = std::env::temp_dir().join(format!("polypath-test-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&state).unwrap();
    let output = Command::new("unshare")
        .args(["-Urn", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, name)
        .env("POLYPATH_BROKER_BIN", BROKER)
        .env("XDG_STATE_HOME", &state)
        .env("XDG_CONFIG_HOME", &state)
        .env_remove("POLYPATH_CONFIG")
        .output()
        .expect("unshare of util-linux is needed");
    let log = std::fs::read_to_string(state.join("polypath/broker.log")).unwrap_or_default();
    std::fs::remove_dir_all(&state).unwrap();
    assert!(
        output.status.success(),
        "inside the namespace: {}\n{}\n{}\nbroker's log:\n{log}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

/// Runs a command; it must succeed.
pub(crate) fn run(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{command}`: {said}");
}

/// A veth pair, both ends up, in this namespace.
pub(crate) fn veth(a: &str, b: &str) {
    run(&format!("ip link add {a} type veth peer name {b}"));
    run(&format!("ip link set {a} up"));
    run(&format!("ip link set {b} up"));
}

/// Connects to the broker, which is started if necessary.
pub(crate) fn client(selection: &str) -> Client {
    Client::connect_or_start(&Hello::of_this_process(selection)).unwrap()
}

/// Gives a command to a CM file, as librdmacm writes it: its number, the room for its response, and its body.
pub(crate) fn cm_command(
    client: &mut Client,
    file: u64,
    (command, room): (u32, u16),
    body: &[u8],
) -> Result<Vec<u8>, IpcError> {
    let mut bytes = command.to_ne_bytes().to_vec();
    bytes.extend(u16::try_from(body.len()).unwrap().to_ne_bytes());
    bytes.extend(room.to_ne_bytes());
    bytes.extend(body);
    static COMMANDS: AtomicU64 = AtomicU64::new(1);
    client.cm_command(file, COMMANDS.fetch_add(1, Ordering::Relaxed), &bytes)
}

/// Creates an id of a TCP-like port space with this name.
pub(crate) fn create_id(client: &mut Client, file: u64, uid: u64) -> Result<u32, IpcError> {
    const CREATE_ID: u32 = 0;
    let response = cm_command(client, file, (CREATE_ID, 4), &create_id_body(uid))?;
    Ok(u32::from_ne_bytes(response[..4].try_into().unwrap()))
}

/// The body of the command that does so.
pub(crate) fn create_id_body(uid: u64) -> Vec<u8> {
    const PS_TCP: u16 = 0x0106;
    const QPT_RC: u8 = 2;
    let mut body = uid.to_ne_bytes().to_vec();
    body.extend(1_u64.to_ne_bytes());
    body.extend(PS_TCP.to_ne_bytes());
    body.extend([QPT_RC, 0, 0, 0, 0, 0]);
    body
}

/// `struct sockaddr_in6` with either family in it.
pub(crate) fn address(address: Option<SocketAddr>) -> [u8; 28] {
    let mut bytes = [0; 28];
    let Some(address) = address else { return bytes };
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[8..24].copy_from_slice(&ip.octets());
        }
    }
    if let SocketAddr::V6(address) = address {
        bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
    }
    bytes
}

/// Resolves the address of an id.
pub(crate) fn resolve_address(
    client: &mut Client,
    file: u64,
    id: u32,
    to: SocketAddr,
) -> Result<Vec<u8>, IpcError> {
    const RESOLVE_IP: u32 = 3;
    let mut body = address(None).to_vec();
    body.extend(address(Some(to)));
    body.extend(id.to_ne_bytes());
    body.extend(2000_u32.to_ne_bytes());
    cm_command(client, file, (RESOLVE_IP, 0), &body)
}

/// Waits until something can be read. Returns false if it takes too long.
pub(crate) fn readable(fd: &impl AsFd, patience: Duration) -> bool {
    is_ready(fd, PollFlags::IN, patience)
}

/// Waits until something can be written. Returns false if it takes too long.
pub(crate) fn writable(fd: &impl AsFd) -> bool {
    is_ready(fd, PollFlags::OUT, PATIENCE)
}

fn is_ready(fd: &impl AsFd, events: PollFlags, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).unwrap();
    poll(&mut [PollFd::new(fd, events)], Some(&patience)) == Ok(1)
}

/// The next event.
pub(crate) fn next(events: &mut EventStream) -> Push {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(push) = events.next_event().unwrap() {
            return push;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(readable(&events.as_fd(), left), "no event came");
    }
}

/// The first pushed table that fits.
pub(crate) fn table_where(events: &mut EventStream, wanted: impl Fn(&Table) -> bool) -> Table {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Push::Table(table) = next(events)
            && wanted(&table)
        {
            return *table;
        }
    }
    panic!("no such table came");
}

/// A counter of the broker.
pub(crate) fn counter(client: &mut Client, name: &str) -> u64 {
    let status = client.status().unwrap();
    let broker = &status.broker;
    let mut counters = broker.counters.iter().chain(broker.cm_counters.iter());
    counters.find(|(counter, _)| counter.name == name).unwrap_or_else(|| panic!("{name}")).1
}

/// Starts a broker by hand and waits until it is ready. `arguments` follow `--ready-fd`.
pub(crate) fn start_broker(arguments: &str) -> Child {
    let script = format!("exec {BROKER} broker --ready-fd 3 {arguments} 3>&1");
    let mut child =
        Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Waits for the end of a process.
pub(crate) fn wait_for_end(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    assert!(readable(&fd, PATIENCE), "{pid:?} does not end");
}
