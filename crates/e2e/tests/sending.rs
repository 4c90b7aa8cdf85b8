//! Packets that the kernel does not send as they are: packets larger than an interface that has become
//! smaller, and packets without a route. Transfers continue where there is a way. Where there is none,
//! the user learns why.

use polypath_e2e::{Error, Lab, Options, Ring, Running, until};
use std::time::Duration;

/// Eight time-outs of two seconds, as a queue pair of rping has them, and much time beside other work.
const LIMIT: Duration = Duration::from_secs(120);

/// The sum of a field over all entries of a list of all processes of a host.
fn sum(lab: &Lab, host: usize, list: &str, field: &str) -> Result<u64, Error> {
    let status = lab.host(host).status()?;
    let processes = status["processes"].as_array().into_iter().flatten();
    let entries = processes.filter_map(|process| process[list].as_array()).flatten();
    Ok(entries.filter_map(|entry| entry[field].as_u64()).sum())
}

/// Lowers the MTU of all interfaces of both hosts below the path MTU of a queue pair in use, and raises
/// it again.
fn a_smaller_mtu_ends_nothing(device: Option<&str>, v6: bool) -> Result<(), Error> {
    let lab = Lab::with(Options { links: 2, ..Options::default() })?;
    let address = if v6 { lab.host(0).ipv6(0) } else { lab.host(0).ipv4(0) };
    let transfer = Ring::start(&lab, device, &address, Some("1"))?;
    let set = |mtu: u32| {
        let commands: String =
            (0..2).map(|link| format!("link set eth{link} mtu {mtu}\n")).collect();
        (0..2).try_for_each(|host| lab.host(host).tool("ip", &["-batch", "-"], &commands))
    };
    set(1500)?;
    transfer.goes_on()?;
    for host in 0..2 {
        assert!(sum(&lab, host, "lanes", "fragmented_packets")? > 0, "of host {host}");
    }
    transfer.client.wait_line("no longer fit the MTU", LIMIT)?;
    set(9000)?;
    // The programs know the MTU when no more fragments leave.
    let mut before = 0;
    until("whole packets", LIMIT, || {
        transfer.goes_on()?;
        let now = sum(&lab, 1, "lanes", "fragmented_packets")?;
        Ok((std::mem::replace(&mut before, now) == now).then_some(()))
    })
}

#[test]
fn a_smaller_mtu_ends_nothing_on_a_plain_device() -> Result<(), Error> {
    a_smaller_mtu_ends_nothing(Some("roce:eth0"), false)
}

#[test]
fn a_smaller_mtu_ends_nothing_on_the_multi_path_device() -> Result<(), Error> {
    a_smaller_mtu_ends_nothing(None, false)
}

#[test]
fn a_smaller_mtu_ends_nothing_over_ipv6() -> Result<(), Error> {
    a_smaller_mtu_ends_nothing(Some("roce:eth0"), true)
}

/// Makes the kernel refuse packets to this address from now on, as a firewall does.
fn forbid(lab: &Lab, host: usize, address: &str) -> Result<(), Error> {
    let to = format!("{address}/32");
    let policy = ["xfrm", "policy", "add", "dir", "out", "src", "0.0.0.0/0", "dst", &to];
    lab.host(host).tool("ip", &[&policy[..], &["action", "block"]].concat(), "")
}

#[test]
fn a_refused_send_is_the_cause_that_the_error_names() -> Result<(), Error> {
    let lab = Lab::with(Options { links: 1, ..Options::default() })?;
    let address = lab.host(0).ipv4(0);
    let transfer = Ring::start(&lab, Some("roce:eth0"), &address, Some("1"))?;
    // Both ends are forbidden to send. Otherwise the other one would end the connection first.
    forbid(&lab, 1, &address)?;
    forbid(&lab, 0, &lab.host(1).ipv4(0))?;
    // Only the program that had something to send reports it.
    let named = |program: &Running| {
        let text = program.text();
        text.lines().find(|line| line.contains("could not send packets there")).map(str::to_owned)
    };
    let line = until("the cause", LIMIT, || {
        Ok([&transfer.server, &transfer.client].into_iter().find_map(named))
    })
    .map_err(|error| {
        let said = [&transfer.server, &transfer.client].map(Running::text);
        let last = said.map(|text| text.lines().rev().take(9).collect::<Vec<_>>().join("\n"));
        let context = format!(". The last lines, backwards:\n{}\n{}", last[0], last[1]);
        Error::Timeout { what: error.to_string(), limit: LIMIT, context }
    })?;
    for part in ["no acknowledgement of PSN", "Operation not permitted", "firewall"] {
        assert!(line.contains(part), "{line}");
    }
    Ok(())
}

#[test]
fn a_refused_send_moves_traffic_to_another_path() -> Result<(), Error> {
    let lab = Lab::with(Options { links: 2, ..Options::default() })?;
    let transfer = Ring::start(&lab, None, &lab.host(0).ipv4(0), Some("1"))?;
    forbid(&lab, 1, &lab.host(0).ipv4(0))?;
    transfer.goes_on()?;
    // Data may go by the other path anyway, but probes go by each.
    until("a send to be refused", LIMIT, || {
        let status = lab.host(1).status()?;
        let paths = status["processes"].as_array().into_iter().flatten();
        let mut paths = paths.filter_map(|process| process["paths"].as_array()).flatten();
        let refused = paths.any(|path| path["send_errors"]["EPERM"].as_u64() > Some(0));
        Ok(refused.then_some(()))
    })?;
    transfer.goes_on()
}

/// The last acknowledgement of a client is among what a fault delays when it ends.
#[test]
fn what_is_delayed_on_purpose_arrives_after_the_program_has_ended() -> Result<(), Error> {
    let lab = Lab::new()?;
    let words = ["ibv_rc_pingpong", "-g", "1", "-n", "20", "-s", "64"];
    let server = lab.host(0).verbs(words).device(Some("roce")).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([address.as_str()]));
    let client = client.device(Some("roce")).env("POLYPATH_FAULT", "delay=20ms").spawn()?;
    client.finish(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(())
}
