//! Finds out who has a UDP port, and what a user can do about it.
//!
//! The kernel is asked by `NETLINK_SOCK_DIAG`, which looks a port up within one system call.
//! `/proc/net/udp` is read one page at a time, and misses entries while other sockets are opened
//! and closed. So it is read only if the kernel has no `udp_diag`, and several times.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use crate::diag;
pub use crate::diag::Holder;

/// UDP destination port of RoCEv2 (IANA).
pub const ROCE_PORT: u16 = 4791;

/// A process, as far as it is visible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name, up to 15 bytes.
    pub name: String,
}

/// A port that is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// A sentence that says who has the port.
    pub what: String,
    /// A sentence that says what to do about it.
    pub cure: String,
}

/// How often `/proc/net/udp` is read. A permanent entry is missed only if sockets are opened and
/// closed during each reading.
const READINGS: usize = 8;

/// The sockets of this network namespace that are bound to a UDP port.
#[must_use]
pub fn holders(port: u16) -> BTreeSet<Holder> {
    diag::udp(port).unwrap_or_else(|_| {
        let mut found = BTreeSet::new();
        for _ in 0..READINGS {
            for file in ["/proc/self/net/udp", "/proc/self/net/udp6"] {
                found.extend(in_table(&fs::read_to_string(file).unwrap_or_default(), port));
            }
        }
        found
    })
}

/// Columns: number, local address:port in hex, remote, state, queues, timer, retransmits, user id,
/// timeout, inode.
fn in_table(table: &str, port: u16) -> Vec<Holder> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = words.get(1)?.rsplit_once(':')?;
        let matches = u16::from_str_radix(local, 16).ok()? == port;
        let holder =
            Holder { user: words.get(7)?.parse().ok()?, inode: words.get(9)?.parse().ok()? };
        matches.then_some(holder)
    };
    table.lines().filter_map(parse).collect()
}

/// The inodes of the sockets that a process has open; none if it is not visible.
#[must_use]
pub fn sockets_of(pid: u32) -> BTreeSet<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter_map(|link| socket_inode(&link.to_string_lossy())).collect()
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The visible processes that have one of these sockets open, by process id.
fn processes_with(inodes: &BTreeSet<u64>) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Process> = pids
        .filter(|&pid| !sockets_of(pid).is_disjoint(inodes))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Process { pid, name: name.trim_end().to_owned() }
        })
        .collect();
    found.sort();
    found
}

/// The users whose brokers listen in this network namespace, in ascending order. A name that is
/// taken does not prove that a broker has it; only a connection does.
#[must_use]
pub fn broker_users() -> Vec<u32> {
    let names = diag::listening_unix().unwrap_or_else(|_| {
        let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
        table.lines().filter_map(listening_name).collect()
    });
    let users = names.iter().filter_map(|name| name.strip_prefix("polypath-")?.parse().ok());
    users.collect::<BTreeSet<u32>>().into_iter().collect()
}

/// The abstract name in a line of `/proc/net/unix`, if its socket listens. Columns: address,
/// references, protocol, flags (`00010000`: listens), type, state, inode, path (`@` for the leading
/// NUL).
fn listening_name(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    (*words.get(3)? == "00010000").then_some(())?;
    Some(words.get(7)?.strip_prefix('@')?.to_owned())
}

/// The name of a user, or the number if there is no name.
#[must_use]
pub fn user_name(user: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| user.to_string())
}

/// The number of a user given by name or number.
#[must_use]
pub fn user_number(text: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == text).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Finds out who has a port.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if nobody has it, or no longer.
pub fn taken(port: u16) -> io::Result<Taken> {
    let holders = holders(port);
    if holders.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(judge(port, &holders))
}

/// Describes these holders of a port, and what to do about them.
#[must_use]
pub fn judge(port: u16, holders: &BTreeSet<Holder>) -> Taken {
    let inodes = holders.iter().map(|holder| holder.inode).filter(|&inode| inode != 0).collect();
    let me = crate::socket::user_id();
    let facts = Facts {
        port,
        user: holders.first().map_or(0, |holder| holder.user),
        kernel: holders.iter().all(|holder| holder.inode == 0),
        processes: processes_with(&inodes),
        // The asking user's own broker is left out: either there is none, or it is the one that
        // asks.
        brokers: broker_users().into_iter().filter(|&other| other != me).collect(),
        root: me == 0,
    };
    facts.judge(has_library)
}

/// Whether a process has our library loaded.
fn has_library(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("/libpolypath.so"))
}

struct Facts {
    port: u16,
    user: u32,
    kernel: bool,
    processes: Vec<Process>,
    brokers: Vec<u32>,
    /// Whether the asking user can see all processes.
    root: bool,
}

impl Facts {
    fn judge(&self, has_library: impl Fn(u32) -> bool) -> Taken {
        let Self { port, user, .. } = *self;
        let name = user_name(user);
        let own = "run in a network namespace of your own: `unshare -Urn`";
        if port == ROCE_PORT && self.brokers.contains(&user) {
            return Taken {
                what: format!(
                    "UDP port {port} is in use by the Polypath broker of user {name}. Each network \
                     namespace serves one user"
                ),
                cure: format!("run as user {name}, or {own}"),
            };
        }
        if self.kernel || (self.processes.is_empty() && self.root) {
            return Taken {
                what: format!(
                    "UDP port {port} is in use by the kernel, most likely by Linux rxe (rdma_rxe). \
                     Only one RoCE stack can use it per network namespace"
                ),
                cure: format!(
                    "as root: `rdma link`, then `rdma link delete NAME` for each rxe device and \
                     `modprobe -r rdma_rxe`; or {own}"
                ),
            };
        }
        if self.processes.is_empty() {
            return Taken {
                what: format!(
                    "UDP port {port} is in use by a process of user {name}, or by the kernel. Only one \
                     RoCE stack can use it per network namespace"
                ),
                cure: format!("as root: `ss -lunp sport = {port}` shows the process; or {own}"),
            };
        }
        let list: Vec<String> = self
            .processes
            .iter()
            .take(8)
            .map(|Process { pid, name }| format!("{name} (pid {pid})"))
            .collect();
        let list = list.join(", ");
        if self.processes.iter().all(|process| has_library(process.pid)) {
            return Taken {
                what: format!(
                    "UDP port {port} is still held by programs whose Polypath broker was killed: \
                     {list}, user {name}"
                ),
                cure: "restart these programs: until they exit, no new broker can start".to_owned(),
            };
        }
        Taken {
            what: format!(
                "UDP port {port} is in use by {list}, user {name}. Only one RoCE stack can use it per \
                 network namespace"
            ),
            cure: format!("stop that program, or {own}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
         retrnsmt   uid  timeout inode ref pointer drops\n\
         100: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
         1000        0 4242 2 0000 0\n";

    #[test]
    fn holders_are_found_by_port() {
        assert_eq!(in_table(TABLE, 4791), [Holder { user: 1000, inode: 4242 }]);
        assert_eq!(in_table(TABLE, 4792), []);
        assert_eq!(in_table("garbage\n1: x y", 4791), []);
        assert_eq!(socket_inode("socket:[99]"), Some(99));
        assert_eq!(socket_inode("pipe:[99]"), None);
    }

    #[test]
    fn listening_names_are_told_from_others() {
        let line = "0000000000000000: 00000002 00000000 00010000 0005 01 4711 @polypath-1000";
        assert_eq!(listening_name(line).as_deref(), Some("polypath-1000"));
        assert_eq!(listening_name(&line.replace("00010000", "00000000")), None);
        assert_eq!(listening_name("Num RefCount Protocol Flags Type St Inode Path"), None);
    }

    #[test]
    fn the_process_that_has_the_port_is_named_while_other_sockets_come_and_go() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A single reading of /proc/net/udp misses the socket in some of these hundred
            // attempts.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let some: Vec<_> = (0..200).map(|_| UdpSocket::bind("127.0.0.1:0")).collect();
                    drop(some);
                }
            });
            let found = (0..100).all(|_| !holders(port).is_empty());
            done.store(true, Ordering::Relaxed);
            assert!(found);
        });
        let inodes = holders(port).iter().map(|holder| holder.inode).collect();
        let pid = std::process::id();
        assert!(processes_with(&inodes).iter().any(|process| process.pid == pid));
        let said = taken(port).unwrap().what;
        assert!(said.contains(&format!("(pid {pid})")), "{said}");
    }

    #[test]
    fn a_port_that_nobody_has_is_nobodys() {
        // No socket gets this port by chance.
        assert_eq!(taken(1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    fn facts() -> Facts {
        let python = Process { pid: 7, name: "python3".into() };
        let processes = vec![python];
        Facts { port: 4791, user: 0, kernel: false, processes, brokers: vec![], root: true }
    }

    #[test]
    fn nobody_is_told_to_end_a_broker_that_works() {
        let of_another = Facts { user: 4242, brokers: vec![0, 4242], ..facts() };
        let said = of_another.judge(|_| false);
        assert!(said.what.contains("Polypath broker of user 4242"), "{said:?}");
        assert!(said.cure.contains("run as user 4242"), "{said:?}");
        let unseen = Facts { processes: vec![], root: false, ..of_another };
        assert!(unseen.judge(|_| false).what.contains("Polypath broker of user 4242"));
    }

    #[test]
    fn another_program_the_kernel_and_what_a_killed_broker_left_are_told_apart() {
        let said = facts().judge(|_| false);
        assert!(said.what.contains("python3 (pid 7), user root"), "{said:?}");
        assert!(said.cure.contains("stop that program"), "{said:?}");
        assert!(facts().judge(|_| true).cure.contains("restart these programs"));
        for kernel in [Facts { kernel: true, ..facts() }, Facts { processes: vec![], ..facts() }] {
            assert!(kernel.judge(|_| false).what.contains("rxe"));
        }
        let unseen = Facts { processes: vec![], root: false, ..facts() };
        assert!(unseen.judge(|_| false).cure.contains("ss -lunp"));
    }

    #[test]
    fn users_are_known_by_name_and_number() {
        assert_eq!((user_name(0).as_str(), user_number("root")), ("root", Some(0)));
        assert_eq!(
            (user_name(4_000_000_000).as_str(), user_number("77")),
            ("4000000000", Some(77))
        );
        assert_eq!(user_number("no such user"), None);
    }
}
