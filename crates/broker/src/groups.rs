//! Leaves the multicast groups that a dead process's socket is still in.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::sys::udp::UdpSocket;

/// The largest number of groups that are read. It is larger than what a socket may join by default
/// (`net.ipv4.igmp_max_memberships` is 20).
const GROUPS_MAX: usize = 4096;

/// Makes a socket leave every group that it is in. The kernel does not report a socket's groups,
/// but all groups of the namespace. Leaving a group that the socket is not in has no effect.
pub(crate) fn leave_all(socket: &UdpSocket) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let v4 = parse_v4(&read("/proc/net/igmp"));
    let v6 = parse_v6(&read("/proc/net/igmp6"));
    for (ifindex, group) in v4.into_iter().chain(v6).take(GROUPS_MAX) {
        // EADDRNOTAVAIL means that it is not a member.
        let _ = socket.membership(group, ifindex, false);
    }
}

/// Parses `/proc/net/igmp`. It has a line per interface that begins with its index, followed by
/// indented lines that begin with a group: the number that its four bytes form in memory.
fn parse_v4(text: &str) -> Vec<(u32, IpAddr)> {
    let (mut ifindex, mut groups) = (None, Vec::new());
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if line.starts_with(char::is_whitespace) {
            if let (Some(ifindex), Ok(group)) = (ifindex, u32::from_str_radix(first, 16)) {
                groups.push((ifindex, Ipv4Addr::from(group.to_ne_bytes()).into()));
            }
        } else {
            ifindex = first.parse().ok();
        }
    }
    groups
}

/// Parses `/proc/net/igmp6`: index, interface, group in hex.
fn parse_v6(text: &str) -> Vec<(u32, IpAddr)> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let ifindex = words.next()?.parse().ok()?;
        let group = u128::from_str_radix(words.nth(1)?, 16).ok()?;
        Some((ifindex, Ipv6Addr::from_bits(group).into()))
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_proc() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    2\teth0      :     2      V3\n\
                    \t\t\t\tFB0000E0     1 0:00000000\t\t0\n";
        let expect: [(u32, IpAddr); 2] =
            [(1, "224.0.0.1".parse().unwrap()), (2, "224.0.0.251".parse().unwrap())];
        if cfg!(target_endian = "little") {
            assert_eq!(parse_v4(text), expect);
        }
        let text = "2    eth0            ff020000000000000000000000000001     1 0000000C 0\n";
        assert_eq!(parse_v6(text), [(2, "ff02::1".parse().unwrap())]);
    }

    #[test]
    fn nonsense_is_passed_over() {
        assert!(parse_v4("\t\tzz\nx y\n\t\t1").is_empty());
        assert!(parse_v6("1 eth0\n\nx").is_empty());
    }
}
