//! `polypath ping` between two network namespaces: with Polypath at the other end, with nothing
//! there, behind a firewall, and over a link that carries less than its MTU says.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

/// The environment variable that says that the test runs inside its namespace.
const INSIDE: &str = "POLYPATH_TEST_INSIDE";
const POLYPATH: &str = env!("CARGO_BIN_EXE_polypath");
const PEER: &str = "10.9.0.2";

/// A process that ends with the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{command}`: {said}");
}

/// Another network namespace, with a link to this one.
fn peer() -> Guard {
    let script = "ip link set lo up && echo ready && exec cat";
    let mut child = Command::new("unshare")
        .args(["-n", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = child.id();
    run(&format!(
        "ip link set lo up; ip link add v0 mtu 9000 type veth peer name v1 netns {pid} && \
         ip addr add 10.9.0.1/24 dev v0 && ip link set v0 up && \
         nsenter -t {pid} -n sh -c 'ip addr add {PEER}/24 dev v1; ip link set v1 mtu 9000 up'"
    ));
    Guard(child)
}

/// A broker in the peer's namespace, ready.
fn broker(peer: &Guard) -> Guard {
    let script = format!("exec {POLYPATH} broker --ready-fd 3 --idle-timeout 0 3>&1");
    let mut child = Command::new("nsenter")
        .args(["-t", &peer.0.id().to_string(), "-n", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Guard(child)
}

/// The exit status, and what was printed.
fn ping(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(POLYPATH).arg("ping").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn ping_tells_what_is_at_the_other_end() {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        return;
    }
    let mut child = Command::new("unshare")
        .args(["-Urn", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "ping_tells_what_is_at_the_other_end", "--nocapture"])
        .env(INSIDE, "1")
        .env("POLYPATH_BROKER_BIN", POLYPATH)
        .env(
            "XDG_STATE_HOME",
            std::env::temp_dir().join(format!("polypath-ping-{}", std::process::id())),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare of util-linux is needed");
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success(), "{out}\n{err}");
}

fn inside() {
    let peer = peer();
    let enter = format!("nsenter -t {} -n", peer.0.id());

    let (code, said) = ping(&["--count", "1", PEER]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nothing has UDP port 4791"), "{said}");

    let broker = broker(&peer);
    // The answer may take seconds if the machine is busy.
    let (code, said) = ping(&["--timeout", "10000", PEER]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Polypath; 3 of 3 questions answered"), "{said}");
    assert!(said.contains("path MTU 4096"), "{said}");
    let (code, json) = ping(&["--timeout", "10000", "--json", PEER]);
    assert_eq!(code, Some(0), "{json}");
    assert!(
        json.contains("\"peer\": \"polypath\"") && json.contains("\"path_mtu\": 4096"),
        "{json}"
    );

    // The link silently drops longer packets.
    run(&format!("{enter} ip link set v1 mtu 1500"));
    let (code, said) = ping(&["--count", "1", "--timeout", "2000", PEER]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("path MTU 1024") && said.contains("do not pass"), "{said}");

    // A packet filter drops the port. Where there is none, answers go to a station that is not
    // there. (A route that drops them would not do: the kernel takes no notice of it if a packet
    // names its interface.)
    let filter = "nft add table ip t && nft add chain ip t c '{ type filter hook input priority 0; }' && \
                  nft add rule ip t c udp dport 4791 drop";
    let nobody = "ip neigh replace 10.9.0.1 lladdr 02:00:00:00:00:99 dev v1 nud permanent";
    let drop = format!("{enter} sh -c \"{filter}\" || {enter} {nobody}");
    run(&drop);
    let (code, said) = ping(&["--count", "1", "--timeout", "300", PEER]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("firewall drops UDP port 4791"), "{said}");
    drop_all(broker, peer);
}

fn drop_all(broker: Guard, peer: Guard) {
    drop(broker);
    drop(peer);
}
