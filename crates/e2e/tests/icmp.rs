//! An attacker that is on none of the paths sends ICMP errors about a host's packets: fragmentation
//! needed, port unreachable, time exceeded, redirect and all others. ICMP errors are not authenticated,
//! so none may change anything.

use polypath_e2e::{Error, Lab, Options, Ring};
use std::collections::BTreeSet;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The script that sends all of them.
const FORGER: &str = include_str!("../c/icmp.pl");

/// The UDP ports that sockets of a host are bound to.
fn udp_ports(lab: &Lab, host: usize) -> Result<BTreeSet<u16>, Error> {
    let table = lab.host(host).program(["cat", "/proc/net/udp", "/proc/net/udp6"]);
    let table = table.run(LIMIT)?.expect_success()?.text();
    let port = |line: &str| {
        let local = line.split_whitespace().nth(1)?;
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    Ok(table.lines().filter_map(port).collect())
}

/// Sends all ICMP errors to both hosts about all their sockets, during a transfer, from an address of
/// neither. Then makes a new connection.
fn errors_change_nothing(device: Option<&str>, v6: bool) -> Result<(), Error> {
    let lab = Lab::with(Options { links: 2, ..Options::default() })?;
    let address = |host: usize, link: usize| {
        if v6 { lab.host(host).ipv6(link) } else { lab.host(host).ipv4(link) }
    };
    for link in 0..2 {
        let own = if v6 { format!("fd00:{link}::77/64") } else { format!("10.{link}.0.77/24") };
        let bridge = format!("sw{link}");
        let mut words = vec!["ip", "addr", "add", own.as_str(), "dev", bridge.as_str()];
        words.extend(v6.then_some("nodad"));
        lab.in_switch(words).run(LIMIT)?.expect_success()?;
    }
    let transfer = Ring::start(&lab, device, &address(0, 0), None)?;
    for victim in 0..2 {
        let ports: Vec<String> = udp_ports(&lab, victim)?.iter().map(u16::to_string).collect();
        assert!(ports.len() > 2, "port 4791 and sockets to send from: {ports:?}");
        for link in 0..2 {
            let addresses = [address(victim, link), address(1 - victim, link)];
            let words = ["perl", "-e", FORGER].map(str::to_owned).into_iter();
            let words = words.chain(addresses).chain(ports.iter().cloned());
            lab.in_switch(words).run(LIMIT)?.expect_success()?.expect_line("sent")?;
        }
        transfer.goes_on()?;
    }
    drop(transfer);
    let another = Ring::start(&lab, device, &address(0, 0), None)?;
    another.goes_on()
}

#[test]
fn icmp_errors_change_nothing_on_a_plain_device() -> Result<(), Error> {
    errors_change_nothing(Some("roce:eth0"), false)
}

#[test]
fn icmp_errors_change_nothing_on_the_multi_path_device() -> Result<(), Error> {
    errors_change_nothing(None, false)
}

#[test]
fn icmpv6_errors_change_nothing_on_a_plain_device() -> Result<(), Error> {
    errors_change_nothing(Some("roce:eth0"), true)
}

#[test]
fn icmpv6_errors_change_nothing_on_the_multi_path_device() -> Result<(), Error> {
    errors_change_nothing(None, true)
}
