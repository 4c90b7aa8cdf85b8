//! A host moves to another network while unmodified programs send: nothing that its queue
//! pairs were connected with is left.

use std::time::Duration;

use polypath_e2e::{Artifacts, Error, Host, Lab, Options, PATIENT, Running, share, until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// The most that is on its way and in receive buffers when a host moves, by far.
const UNDER_WAY: u64 = 64 << 20;
/// The waiting time of queue pairs without a path: longer than a test.
const SETTINGS: &str = "hold=600";
/// The device, which a host with a single interface does not get by itself.
const MP: Option<&str> = Some("mp");

/// Two hosts with a single link. Each knows the way to the networks that the other may move to.
fn lab() -> Result<Lab, Error> {
    let lab = Lab::with(Options { links: 1, ..Options::default() })?;
    for host in 0..2 {
        ip(lab.host(host), "route add 10.77.0.0/16 dev eth0\n")?;
    }
    Ok(lab)
}

fn ip(host: &Host, commands: &str) -> Result<(), Error> {
    host.tool("ip", &["-batch", "-"], commands)
}

/// The address of a host in the network of that number.
fn elsewhere(host: usize, network: u8) -> String {
    format!("10.77.{network}.{}", host + 1)
}

/// The host loses its addresses, and gets another one.
fn renumber(lab: &Lab, host: usize, network: u8) -> Result<(), Error> {
    let address = elsewhere(host, network);
    ip(
        lab.host(host),
        &format!(
            "addr flush dev eth0\naddr add {address}/24 dev eth0\n\
             route replace 10.77.0.0/16 dev eth0\nroute replace 10.0.0.0/24 dev eth0\n"
        ),
    )
}

/// The payload that a host's queue pairs have sent and received.
fn moved_bytes(host: &Host) -> Result<u64, Error> {
    let count = |qp: &Value, counter: &str| qp["counters"][counter].as_u64().unwrap_or_default();
    Ok(host
        .queue_pairs()?
        .iter()
        .map(|qp| count(qp, "sent_bytes") + count(qp, "received_bytes"))
        .sum())
}

/// Waits until the client has moved more than can have been under way before.
fn wait_progress(lab: &Lab, programs: &[Running; 2]) -> Result<(), Error> {
    let before = moved_bytes(lab.host(1))?;
    until("progress", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        Ok((moved_bytes(lab.host(1))? > before + UNDER_WAY).then_some(()))
    })
}

/// Waits until no path of the host's processes carries data.
fn wait_no_path(host: &Host) -> Result<(), Error> {
    until("the only path to be gone", LIMIT, || {
        Ok(host.paths()?.iter().all(|path| path["state"] != "active").then_some(()))
    })
}

fn start(lab: &Lab, program: &str) -> Result<[Running; 2], Error> {
    start_with(lab, program, SETTINGS)
}

fn start_with(lab: &Lab, program: &str, settings: &str) -> Result<[Running; 2], Error> {
    let run = |host: usize, words: &[&str]| {
        lab.host(host).verbs(words).device(MP).env("POLYPATH_MP", settings).spawn()
    };
    let meet = lab.host(0).ipv4(0);
    if program == "rping" {
        let common = ["-V", "-S", "30000", "-a", &meet];
        let server = run(0, &[&["rping", "-s"], &common[..]].concat())?;
        lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
        return Ok([server, run(1, &[&["rping", "-c"], &common[..]].concat())?]);
    }
    let server = run(0, &[program, "--run_infinitely"])?;
    server.wait_tcp_listen(18515, LIMIT)?;
    Ok([server, run(1, &[program, "--run_infinitely", &meet])?])
}

/// Each end in turn moves to another subnet, all of its addresses at once.
fn moves_between_subnets(program: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = lab()?;
    let programs = start(&lab, program)?;
    wait_progress(&lab, &programs)?;
    for (host, network) in [(1, 1), (0, 2), (1, 3)] {
        renumber(&lab, host, network)?;
        wait_progress(&lab, &programs)?;
    }
    Ok(())
}

#[test]
fn a_write_goes_on_between_other_subnets() -> Result<(), Error> {
    moves_between_subnets("ib_write_bw")
}

#[test]
fn a_read_goes_on_between_other_subnets() -> Result<(), Error> {
    moves_between_subnets("ib_read_bw")
}

#[test]
fn verified_data_go_on_between_other_subnets() -> Result<(), Error> {
    moves_between_subnets("rping")
}

/// The only interface leaves the host's namespace, and comes back in another subnet.
fn the_only_link_leaves(program: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = lab()?;
    let programs = start(&lab, program)?;
    wait_progress(&lab, &programs)?;
    let [here, there] = [1, 0].map(|host| lab.host(host).namespace_path());
    for network in [1, 2] {
        ip(lab.host(1), &format!("link set eth0 netns {there} name away\n"))?;
        wait_no_path(lab.host(1))?;
        ip(lab.host(0), &format!("link set away netns {here} name eth0\n"))?;
        ip(lab.host(1), "link set eth0 up\n")?;
        renumber(&lab, 1, network)?;
        wait_progress(&lab, &programs)?;
    }
    Ok(())
}

#[test]
fn a_write_goes_on_when_the_only_link_was_away_and_is_in_another_subnet() -> Result<(), Error> {
    the_only_link_leaves("ib_write_bw")
}

#[test]
fn verified_data_go_on_when_the_only_link_was_away_and_is_in_another_subnet() -> Result<(), Error> {
    the_only_link_leaves("rping")
}

/// Both hosts move at the same time, to subnets that the other has never heard of. A third one, which both
/// reach from everywhere, passes on what each wants the other to know.
fn both_move_at_once(program: &str) -> Result<(), Error> {
    const ADDRESS: &str = "10.77.250.250";
    let _share = share(PATIENT);
    let lab = lab()?;
    lab.in_switch(["ip", "addr", "add", &format!("{ADDRESS}/16"), "dev", "sw0"])
        .run(LIMIT)?
        .expect_success()?;
    let command = Artifacts::get()?.command.to_string_lossy().into_owned();
    let rendezvous = lab.in_switch([&*command, "broker", "--rendezvous"]).spawn()?;
    rendezvous.wait_line("ready", LIMIT)?;
    let programs = start_with(&lab, program, &format!("{SETTINGS},rendezvous={ADDRESS}"))?;
    wait_progress(&lab, &programs)?;
    for networks in [[1, 2], [3, 4]] {
        for host in 0..2 {
            ip(lab.host(host), "link set eth0 down\naddr flush dev eth0\n")?;
        }
        for host in 0..2 {
            wait_no_path(lab.host(host))?;
        }
        for (host, network) in networks.into_iter().enumerate() {
            ip(lab.host(host), "link set eth0 up\n")?;
            renumber(&lab, host, network)?;
        }
        wait_progress(&lab, &programs)?;
    }
    rendezvous.expect_alive()
}

#[test]
fn a_write_goes_on_when_both_ends_have_moved_at_once() -> Result<(), Error> {
    both_move_at_once("ib_write_bw")
}

#[test]
fn verified_data_go_on_when_both_ends_have_moved_at_once() -> Result<(), Error> {
    both_move_at_once("rping")
}
