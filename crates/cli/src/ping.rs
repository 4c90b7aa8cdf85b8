//! `polypath ping`: checks whether another host can be reached, what answers there, and how fast.

use crate::args::Ping as Arguments;
use crate::error::CliError;
use crate::text::{count, duration};
use polypath_ipc::message::{Ping, PingAnswer};
use polypath_ipc::{Client, Hello, IpcError};
use polypath_topology::{Port, Table, roce_mtu, same_prefix};
use serde::Serialize;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::process::ExitCode;

/// Bytes of a management datagram.
const MAD_LEN: u16 = 256;
/// The bytes that a device's packet needs beside the payload of its path MTU and that a ping does
/// not have: multi-path header, RETH and immediate data, less the DETH.
const HEADROOM: u32 = 20 + 16 + 4 - 8;
/// All path MTUs.
const PATH_MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// Sends pings over each way to the host, and shows the results.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let (remote, zone) = resolve(&arguments.host)?;
    let (mut broker, table) = Client::begin_with_table(&Hello::of_this_process(""))?;
    let ways = ways(&table, remote, zone);
    if ways.is_empty() {
        let text = format!(
            "no interface has a way to {remote}; `ip route get {remote}` shows the kernel's route"
        );
        return Err(CliError::Refused(text));
    }
    let mut results = Vec::new();
    for way in ways {
        let result = try_way(&mut broker, &way, remote, arguments)?;
        if !arguments.json {
            std::io::stdout().write_all(result.text().as_bytes())?;
        }
        results.push(result);
    }
    let reached = results.iter().any(|result| result.answered > 0);
    if arguments.json {
        let document = serde_json::json!({
            "format": crate::json::FORMAT, "host": arguments.host, "address": remote,
            "reached": reached, "paths": results,
        });
        std::io::stdout().write_all(format!("{document:#}\n").as_bytes())?;
    }
    Ok(if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The address, and the index of the interface that its zone names (RFC 4007, section 11), or 0.
fn resolve(host: &str) -> Result<(IpAddr, u32), CliError> {
    if let Ok(ip) = host.parse() {
        return Ok((ip, 0));
    }
    let unknown = |why: String| CliError::Refused(format!("{host}: {why}"));
    let mut found = (host, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let first = found.next().ok_or_else(|| unknown("the name has no address".to_owned()))?;
    let zone = if let SocketAddr::V6(address) = first { address.scope_id() } else { 0 };
    Ok((first.ip(), zone))
}

/// A local address and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    local: IpAddr,
    ifindex: u32,
    interface: String,
    mtu: u32,
}

/// The way that the kernel would choose, and the ways over interfaces in the same subnet.
fn ways(table: &Table, remote: IpAddr, zone: u32) -> Vec<Way> {
    let chosen = UdpSocket::bind(if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })
        .and_then(|socket| {
            let mut address = SocketAddr::new(remote, polypath_ipc::port::ROCE_PORT);
            if let SocketAddr::V6(address) = &mut address {
                address.set_scope_id(zone);
            }
            socket.connect(address)?;
            Ok(socket.local_addr()?.ip())
        })
        .ok();
    let mut ways = ways_of(table, remote, chosen);
    ways.retain(|way| zone == 0 || way.ifindex == zone);
    ways
}

fn ways_of(table: &Table, remote: IpAddr, chosen: Option<IpAddr>) -> Vec<Way> {
    let way = |port: &Port, local: IpAddr| Way {
        local,
        ifindex: port.ifindex,
        interface: port.name.clone(),
        mtu: port.mtu,
    };
    let mut ways = Vec::new();
    if let Some(port) = chosen.and_then(|local| table.port_with_address(local)) {
        ways.extend(chosen.map(|local| way(port, local)));
    }
    // There is only one way to an address of this host.
    if table.port_with_address(remote).is_some() {
        return ways;
    }
    for port in table.ports.iter().filter(|port| port.link_up && port.usable()) {
        let near = |address: &&polypath_topology::Address| {
            !address.tentative && same_prefix(address.ip, remote, address.prefix_len)
        };
        if let Some(address) = port.addresses.iter().find(near)
            && !ways.iter().any(|known: &Way| known.ifindex == port.ifindex)
        {
            ways.push(way(port, address.ip));
        }
    }
    ways
}

/// The result of the pings over one way.
#[derive(Debug, Serialize)]
struct Outcome {
    local: IpAddr,
    interface: String,
    remote: IpAddr,
    asked: u32,
    answered: u32,
    /// `polypath`, `roce` (another stack), or `null` if nothing answered.
    peer: Option<&'static str>,
    rtt_us_min: Option<u64>,
    rtt_us_avg: Option<u64>,
    rtt_us_max: Option<u64>,
    /// The largest path MTU whose packets get through; `null` if it was not measured.
    path_mtu: Option<u32>,
    /// The path MTU that the device has because of the interface's MTU.
    device_mtu: u32,
    /// Why nothing answered, and what to do; empty if something did.
    cause: String,
    cure: String,
}

fn try_way(
    broker: &mut Client,
    way: &Way,
    remote: IpAddr,
    arguments: &Arguments,
) -> Result<Outcome, IpcError> {
    let timeout_ms = u32::try_from(arguments.timeout).unwrap_or(u32::MAX);
    let mut ask = |payload: u16| {
        let Way { local, ifindex, .. } = *way;
        broker.ping(Ping { local, remote, ifindex, payload, timeout_ms })
    };
    let (mut rtts, mut polypath, mut failure) = (Vec::new(), false, PingAnswer::Silent);
    for _ in 0..arguments.count {
        match ask(MAD_LEN)? {
            PingAnswer::Answered { rtt_us, polypath: mark } => {
                rtts.push(rtt_us);
                polypath |= mark;
            }
            other => failure = other,
        }
    }
    let device_mtu = roce_mtu(way.mtu);
    let mut path_mtu = None;
    if polypath {
        for mtu in PATH_MTUS.into_iter().filter(|&mtu| mtu <= device_mtu) {
            let payload = u16::try_from(mtu + HEADROOM).unwrap_or(u16::MAX);
            // A single lost packet does not mean that the size is too large.
            let mut passes = false;
            for _ in 0..2 {
                passes = passes || matches!(ask(payload)?, PingAnswer::Answered { .. });
            }
            if passes {
                path_mtu = Some(mtu);
                break;
            }
        }
    }
    let (cause, cure) = match rtts.is_empty() {
        true => explain(failure, remote),
        false => Default::default(),
    };
    let answered = rtts.len() as u64;
    Ok(Outcome {
        local: way.local,
        interface: way.interface.clone(),
        remote,
        asked: arguments.count,
        answered: u32::try_from(answered).unwrap_or(u32::MAX),
        peer: (answered > 0).then_some(if polypath { "polypath" } else { "roce" }),
        rtt_us_min: rtts.iter().min().copied(),
        rtt_us_avg: rtts.iter().sum::<u64>().checked_div(answered),
        rtt_us_max: rtts.iter().max().copied(),
        path_mtu,
        device_mtu,
        cause,
        cure,
    })
}

/// Why nothing answered, and what to do.
fn explain(failure: PingAnswer, remote: IpAddr) -> (String, String) {
    let (cause, cure) = match failure {
        PingAnswer::Refused => (
            "the host is there, but nothing has UDP port 4791: no RoCE stack runs, or a firewall rejects \
             the port"
                .to_owned(),
            "start a program with `polypath run` there, or keep its broker: polypath broker \
             --idle-timeout 0; if one runs, open UDP port 4791 in its firewall"
                .to_owned(),
        ),
        PingAnswer::TooLong => (
            "packets of 300 bytes are too long for the way to the host".to_owned(),
            format!("see `ip route get {remote}` and the MTUs on the way"),
        ),
        PingAnswer::Unreachable { errno } => (
            std::io::Error::from_raw_os_error(errno).to_string(),
            format!("see whether `ping {remote}` and `ip route get {remote}` work"),
        ),
        PingAnswer::Silent | PingAnswer::Answered { .. } => (
            "no answer: a firewall drops UDP port 4791, the host is down, or its RoCE stack has no \
             connection manager"
                .to_owned(),
            format!(
                "if `ping {remote}` works, open UDP port 4791 on both hosts, for packets from any source \
                 port (docs/troubleshooting.md has the commands)"
            ),
        ),
    };
    (cause, cure)
}

impl Outcome {
    fn text(&self) -> String {
        let Self { local, interface, remote, asked, answered, device_mtu, .. } = self;
        let head = format!("{local} ({interface}) > {remote}: ");
        let (Some(min), Some(avg), Some(max)) = (self.rtt_us_min, self.rtt_us_avg, self.rtt_us_max)
        else {
            return format!("{head}{}\n  -> {}\n", self.cause, self.cure);
        };
        let peer = match self.peer {
            Some("polypath") => "Polypath",
            _ => "a RoCEv2 stack other than Polypath",
        };
        let mut text = format!(
            "{head}{peer}; {answered} of {} answered, RTT {} (min {}, max {})",
            count(u64::from(*asked), "question"),
            duration(avg),
            duration(min),
            duration(max)
        );
        match self.path_mtu {
            Some(mtu) if mtu < *device_mtu => {
                text += &format!(
                    ", path MTU {mtu}\n  -> packets of the device's path MTU, {device_mtu}, do not pass: \
                     set the MTU of {interface} to what the way carries, on both hosts: ip link set \
                     {interface} mtu MTU\n"
                );
            }
            Some(mtu) => text += &format!(", path MTU {mtu}\n"),
            None if self.peer == Some("polypath") => {
                text += ", no path MTU passes\n  -> see the MTUs on the way\n";
            }
            None => text += "; path MTU not checked (only Polypath answers long packets)\n",
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::example;

    #[test]
    fn the_kernels_way_comes_first_and_neighbours_after_it() {
        let mut table = example().broker.table;
        let mut second = table.ports[0].clone();
        (second.ifindex, second.name) = (3, "eth1".to_owned());
        second.addresses[0].ip = "10.0.0.9".parse().unwrap();
        let mut apart = table.ports[0].clone();
        (apart.ifindex, apart.name) = (4, "eth2".to_owned());
        apart.addresses[0].ip = "10.9.0.1".parse().unwrap();
        table.ports.extend([second, apart]);
        let names = |remote: &str, chosen: Option<&str>| {
            let chosen = chosen.map(|ip| ip.parse().unwrap());
            let ways = ways_of(&table, remote.parse().unwrap(), chosen);
            ways.into_iter().map(|way| way.interface).collect::<Vec<_>>()
        };
        assert_eq!(names("10.0.0.2", Some("10.0.0.9")), ["eth1", "eth0"]);
        assert_eq!(names("192.0.2.1", Some("10.9.0.1")), ["eth2"]);
        assert_eq!(names("10.0.0.1", Some("10.0.0.1")), ["eth0"], "this host");
        assert!(names("192.0.2.1", None).is_empty());
    }

    #[test]
    fn a_zone_names_the_interface() {
        let (ip, zone) = resolve("fe80::1%lo").unwrap();
        assert_eq!((ip, zone), ("fe80::1".parse().unwrap(), 1));
        assert_eq!(resolve("10.0.0.1").unwrap().1, 0);
    }

    #[test]
    fn each_failure_has_its_cause_and_cure() {
        let remote = "10.0.0.2".parse().unwrap();
        assert!(explain(PingAnswer::Silent, remote).0.contains("firewall"));
        assert!(explain(PingAnswer::Refused, remote).1.contains("polypath run"));
        let unreachable = PingAnswer::Unreachable { errno: 113 };
        assert!(explain(unreachable, remote).0.contains("No route to host"));
    }
}
