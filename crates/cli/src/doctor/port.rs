//! UDP port 4791: who has it?

use super::Finding;
use std::collections::BTreeSet;
use std::fs;

/// The RoCEv2 port (IANA).
const ROCE_V2_PORT: u16 = 4791;

/// Looks for sockets on the port that are neither the broker's nor a socket it has handed on.
pub(super) fn check(broker: Option<u32>) -> Vec<Finding> {
    let tables = ["udp", "udp6"]
        .map(|table| fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default());
    let inodes: BTreeSet<u64> = tables.iter().flat_map(|table| holders(table)).collect();
    let ours = broker.map(sockets_of).unwrap_or_default();
    let foreign: Vec<u64> = inodes.iter().copied().filter(|inode| !ours.contains(inode)).collect();
    if foreign.is_empty() {
        return vec![Finding::ok(format!("UDP port {ROCE_V2_PORT} is ours"))];
    }
    let owners = owners(&foreign);
    if owners.is_empty() {
        return vec![Finding::error(
            format!(
                "UDP port {ROCE_V2_PORT} is taken by the kernel (rxe) or another user's process"
            ),
            "as root: `rdma link`, then `rdma link delete NAME` for each rxe device; or \
             `ss -lunp sport = 4791` to see the process",
        )];
    }
    let names: Vec<String> = owners.into_iter().collect();
    vec![Finding::error(
        format!("UDP port {ROCE_V2_PORT} is taken by {}", names.join(", ")),
        "end that program; only one RoCE stack can have the port in a network namespace",
    )]
}

/// The inodes of the sockets bound to the port in a `/proc/net/udp` table; 0 for the kernel's own.
fn holders(table: &str) -> Vec<u64> {
    let suffix = format!(":{ROCE_V2_PORT:04X}");
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = fields.get(9)?.parse().ok()?;
        fields.get(1)?.ends_with(&suffix).then_some(inode)
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// The sockets that a process has open.
fn sockets_of(pid: u32) -> BTreeSet<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter_map(|link| socket_inode(&link.to_string_lossy())).collect()
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The processes we may look into that have one of these sockets open, by name and id.
fn owners(inodes: &[u64]) -> BTreeSet<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let pids = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| sockets_of(pid).iter().any(|inode| inodes.contains(inode)))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} (process {pid})", name.trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_found_by_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            5: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0\n\
            6: 00000000:1234 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0 0\n";
        assert_eq!(holders(table), [4711]);
    }

    #[test]
    fn socket_links_are_read() {
        assert_eq!(socket_inode("socket:[99]"), Some(99));
        assert_eq!(socket_inode("pipe:[99]"), None);
    }
}
