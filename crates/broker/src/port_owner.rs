//! Who has a UDP port: for an error message that says what to do.

use std::fs;
use std::path::Path;

/// A sentence about who has the port and what to do about it.
pub(crate) fn describe(port: u16) -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let tables = [read("/proc/net/udp"), read("/proc/net/udp6")];
    let Some(entry) = tables.iter().find_map(|table| find(table, port)) else {
        return "somebody who has let go of it just now; try again".to_owned();
    };
    if entry.inode == 0 {
        return "the kernel, most likely by rdma_rxe: remove its devices with `rdma link delete` and \
                the module with `modprobe -r rdma_rxe`, or use a network namespace of your own"
            .to_owned();
    }
    match process_with(entry.inode) {
        Some((pid, name)) => format!(
            "process {pid} ({name}) of user {}: end it, or use a network namespace of your own. If it \
             uses Polypath, its broker was killed: it can't go on anyway",
            entry.user
        ),
        None => format!(
            "a process of user {} that can't be seen from here (another user's broker?): one user per \
             network namespace can use RoCEv2; use a namespace of your own (`unshare -Urn`)",
            entry.user
        ),
    }
}

/// A line of `/proc/net/udp`.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    user: u32,
    inode: u64,
}

/// Columns: number, local address:port in hex, remote, state, queues, timer, retransmits, user id,
/// timeout, inode.
fn find(table: &str, port: u16) -> Option<Entry> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = words.get(1)?.rsplit_once(':')?;
        let matches = u16::from_str_radix(local, 16).ok()? == port;
        let entry = Entry { user: words.get(7)?.parse().ok()?, inode: words.get(9)?.parse().ok()? };
        matches.then_some(entry)
    };
    table.lines().find_map(parse)
}

/// The process that has a socket open, as far as we may see.
fn process_with(inode: u64) -> Option<(u32, String)> {
    let socket = format!("socket:[{inode}]");
    let numbered = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let mut pids = fs::read_dir("/proc").ok()?.filter_map(|entry| numbered(entry.ok()?));
    pids.find_map(|pid| {
        let directory = Path::new("/proc").join(pid.to_string());
        let mut open = fs::read_dir(directory.join("fd")).ok()?;
        let is_it = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
        open.any(|entry| {
            entry.ok().and_then(is_it).is_some_and(|link| link.as_os_str() == socket.as_str())
        })
        .then(|| {
            let name = fs::read_to_string(directory.join("comm")).unwrap_or_default();
            (pid, name.trim_end().to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
         100: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0000 0\n";

    #[test]
    fn the_owner_is_found_by_port() {
        assert_eq!(find(TABLE, 4791), Some(Entry { user: 1000, inode: 4242 }));
        assert_eq!(find(TABLE, 4792), None);
        assert_eq!(find("garbage\n1: x y", 4791), None);
    }

    #[test]
    fn a_process_of_ours_is_named() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let said = describe(socket.local_addr().unwrap().port());
        assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
    }
}
