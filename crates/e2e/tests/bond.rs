//! Bond devices of each mode, under unmodified programs, while members fail; and LACP between two hosts.

use polypath_e2e::{
    Artifacts, Direction, End, Error, Finished, Host, Lab, Options, PATIENT, Ring, Running,
    Scratch, Wiring, compile_c, share, until,
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Fewer bytes than this by a path are probes and answers, not the program's data.
const DATA_LEAST: u64 = 16 << 20;
/// The largest number of labs at a time that are not patient.
const BUSY: usize = 2;

/// A bond device over both links with these options.
fn bond(options: &str) -> String {
    format!("bond:eth0+eth1,{options}")
}

/// The bytes that the processes of a host have sent by each of their paths.
fn sent_bytes(host: &Host) -> Result<Vec<u64>, Error> {
    Ok(host.paths()?.iter().filter_map(|path| path["sent_bytes"].as_u64()).collect())
}

/// What ibv_devinfo says of the device on host 0.
fn devinfo(lab: &Lab, device: &str) -> Result<String, Error> {
    let program = lab.host(0).verbs(["ibv_devinfo", "-v"]).device(Some(device));
    Ok(program.run(LIMIT)?.expect_success()?.text())
}

/// Waits until ibv_devinfo shows all of these.
fn wait_devinfo(lab: &Lab, device: &str, texts: &[&str]) -> Result<(), Error> {
    let mut last = String::new();
    until(&format!("{texts:?} of {device}"), LIMIT, || {
        last = devinfo(lab, device)?;
        let words: Vec<&str> = last.split_whitespace().collect();
        let said = words.join(" ");
        Ok(texts.iter().all(|text| said.contains(text)).then_some(()))
    })
    .map_err(|error| Error::Missing(format!("{error}: {last}")))
}

/// veth reports 10 Gbit/s.
#[test]
fn the_port_shows_what_its_members_are_together() -> Result<(), Error> {
    let _share = share(BUSY);
    let lab = Lab::new()?;
    let both = "active_width: 4X (2) active_speed: 5.0 Gbps (2)";
    let one = "active_width: 1X (1) active_speed: 10.0 Gbps (4)";
    let (spread, backup) = (bond("mode=802.3ad,min_links=1"), bond("mode=active-backup"));
    let two = bond("mode=balance-xor,min_links=2");
    wait_devinfo(&lab, &spread, &["hca_id: bond0", "PORT_ACTIVE", both])?;
    wait_devinfo(&lab, &backup, &["hca_id: bond0", "PORT_ACTIVE", one])?;
    wait_devinfo(&lab, &two, &["PORT_ACTIVE", both])?;
    lab.link_down(1, End::Both)?;
    wait_devinfo(&lab, &spread, &["PORT_ACTIVE", one])?;
    wait_devinfo(&lab, &two, &["PORT_DOWN"])?;
    lab.link_down(0, End::Both)?;
    wait_devinfo(&lab, &spread, &["PORT_DOWN"])?;
    lab.link_up(0)?;
    wait_devinfo(&lab, &backup, &["PORT_ACTIVE", one])
}

/// Data by all members, or by one alone.
#[test]
fn each_mode_uses_its_members_as_it_is_known_to() -> Result<(), Error> {
    let _share = share(PATIENT);
    for (options, queue_pairs, paths) in [
        ("mode=balance-rr", "1", 2),
        ("mode=active-backup,primary=eth1", "1", 1),
        // All of so many use one member about once in 30000 times.
        ("mode=balance-xor,xmit_hash_policy=layer3+4", "16", 2),
        ("mode=broadcast", "1", 2),
        ("mode=802.3ad,affinity=round-robin", "2", 2),
    ] {
        let lab = Lab::new()?;
        let device = bond(options);
        let words = ["ib_write_bw", "-q", queue_pairs, "--run_infinitely"];
        let server = lab.host(0).verbs(words).device(Some(&device)).spawn()?;
        server.wait_tcp_listen(18515, LIMIT)?;
        let meet = lab.host(0).ipv4(0);
        let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()]));
        let client = client.device(Some(&device)).spawn()?;
        until(&format!("data by {paths} paths under {options}"), LIMIT, || {
            client.expect_alive()?;
            server.expect_alive()?;
            let sent = sent_bytes(lab.host(1))?;
            let carrying = sent.iter().filter(|bytes| **bytes > DATA_LEAST).count();
            // The first bytes go by the path of the connection, whatever the mode.
            Ok((carrying == paths).then_some(()))
        })?;
        if paths == 1 {
            // The primary, once the peers have agreed.
            let before = lab.received_bytes_of(0)?[0];
            lab.wait_traffic(&[&client, &server], 256 << 20, LIMIT)?;
            let late = lab.received_bytes_of(0)?[0] - before;
            assert!(late < DATA_LEAST, "{late} bytes by the backup");
        }
    }
    Ok(())
}

/// Members fail with and without their carrier, and come back, while data is checked.
#[test]
fn nothing_is_lost_while_members_fail_under_each_mode() -> Result<(), Error> {
    let _share = share(PATIENT);
    for mode in ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad"] {
        let lab = Lab::new()?;
        let device = bond(&format!("mode={mode}"));
        let ring = Ring::start(&lab, Some(&device), &lab.host(0).ipv4(0), None)?;
        for link in [0, 1] {
            lab.link_down(link, End::Both)?;
            ring.goes_on()?;
            lab.link_up(link)?;
            wait_paths(lab.host(1), 2)?;
            lab.cut(link, Direction::Both)?;
            ring.goes_on()?;
            lab.heal(link)?;
            wait_paths(lab.host(1), 2)?;
            ring.goes_on()?;
        }
        for text in [ring.client.text(), ring.server.text()] {
            assert!(!text.contains("mismatch") && !text.contains("error"), "{mode}: {text}");
        }
    }
    Ok(())
}

/// Waits until so many paths of a host can carry data.
fn wait_paths(host: &Host, count: usize) -> Result<(), Error> {
    until(&format!("{count} paths"), LIMIT, || {
        let live =
            |path: &&serde_json::Value| path["state"] == "active" || path["state"] == "standby";
        Ok((host.paths()?.iter().filter(live).count() >= count).then_some(()))
    })
}

/// Towards a peer that knows no paths, a queue pair is plain RoCE, from the address it was connected by.
#[test]
fn a_plain_peer_is_served() -> Result<(), Error> {
    let _share = share(BUSY);
    let lab = Lab::new()?;
    let words = |role| ["rping", role, "-a", "10.1.0.1", "-V", "-C", "200", "-S", "4000"];
    assert_eq!(lab.host(0).ipv4(1), "10.1.0.1");
    let server = lab.host(0).verbs(words("-s")).device(Some("roce:eth1")).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let client = lab.host(1).verbs(words("-c")).device(Some(&bond("mode=802.3ad"))).spawn()?;
    client.finish(LIMIT).and_then(Finished::expect_success)?;
    server.finish(LIMIT).and_then(Finished::expect_success)?;
    Ok(())
}

/// Gives eth1 of a host the hardware address of eth0, as Linux bonding does, and lets it take packets from
/// the network of eth0's address. Without an address of its own, it does not if rp_filter is on.
const ONE_LINK: &str = "set -e
    ip link set eth1 address $(ip -o link show eth0 | sed 's/.*ether //; s/ .*//')
    for name in all eth1; do
        filter=/proc/sys/net/ipv4/conf/$name/rp_filter
        [ $(cat $filter) = 0 ] || echo 0 > $filter
    done";

/// Both members of a bond send from one address to a switch that takes them for one link, with a plain
/// peer behind it. Either member loses its carrier, and no queue pair fails.
#[test]
fn members_share_an_address_towards_a_plain_peer() -> Result<(), Error> {
    let _share = share(PATIENT);
    for own in [false, true] {
        let lab = Lab::new()?;
        lab.join_links(1)?;
        let (peer, host) = (lab.host(0), lab.host(1));
        host.remove_addresses(1)?;
        host.tool("sh", &["-c", ONE_LINK], "")?;
        if own {
            let address = format!("{}/24", host.ipv4(0));
            host.tool("ip", &["addr", "add", &address, "dev", "eth1"], "")?;
        }
        let words = ["ib_write_bw", "-q", "4", "--run_infinitely"];
        let server = peer.verbs(words).device(Some("roce:eth0")).spawn()?;
        server.wait_tcp_listen(18515, LIMIT)?;
        let meet = peer.ipv4(0);
        let client = host.verbs(words.into_iter().chain([meet.as_str()]));
        let client = client.device(Some(&bond("mode=802.3ad"))).spawn()?;
        let sends_by = |wanted: &[&str]| {
            until(&format!("queue pairs that send by {wanted:?}"), LIMIT, || {
                client.expect_alive()?;
                server.expect_alive()?;
                let paths = host.paths()?;
                let names = paths.iter().filter_map(|path| path["interface"].as_str());
                let mut names: Vec<&str> = names.collect();
                names.sort_unstable();
                Ok((names == wanted).then_some(()))
            })?;
            let before = lab.sent_bytes_of(1)?;
            until(&format!("data by {wanted:?}"), LIMIT, || {
                client.expect_alive()?;
                let sent = lab.sent_bytes_of(1)?;
                let carries = |link: usize| sent[link] - before[link] > DATA_LEAST;
                let all =
                    (0..2).all(|link| !wanted.contains(&["eth0", "eth1"][link]) || carries(link));
                Ok(all.then_some(()))
            })
        };
        let (both, left) = (["eth0", "eth0", "eth1", "eth1"], ["eth0"; 4]);
        sends_by(&both)?;
        lab.link_down(1, End::Of(1))?;
        sends_by(&left)?;
        lab.link_up(1)?;
        sends_by(&both)?;
        // The member that has the address.
        lab.link_down(0, End::Of(1))?;
        sends_by(&["eth1"; 4])?;
        // Connections are made without it, too.
        let words = |role| ["rping", role, "-a", meet.as_str(), "-V", "-C", "20"];
        let listens = peer.verbs(words("-s")).device(Some("roce:eth0")).spawn()?;
        peer.wait_cm_listen(&listens, 7174, LIMIT)?;
        let connects = host.verbs(words("-c")).device(Some(&bond("mode=802.3ad"))).spawn()?;
        connects.finish(LIMIT).and_then(Finished::expect_success)?;
        listens.finish(LIMIT).and_then(Finished::expect_success)?;
        lab.link_up(0)?;
        sends_by(&both)?;
    }
    Ok(())
}

#[test]
fn a_wrong_option_ends_the_program_with_what_to_write() -> Result<(), Error> {
    let _share = share(BUSY);
    let lab = Lab::new()?;
    for (options, says) in
        [("mode=balance-alb", "mode=balance-xor"), ("mode=802.3ad,miimon=100", "leave it out")]
    {
        let program = lab.host(0).verbs(["ibv_devices"]).device(Some(&bond(options)));
        let finished = program.run(LIMIT)?;
        let text = finished.text();
        assert!(finished.expect_success().is_err() && text.contains(says), "{text}");
    }
    Ok(())
}

/// A program keeps its queue pair to one member after another, as mlx5dv's functions would.
#[test]
fn a_program_chooses_the_member_of_its_queue_pair() -> Result<(), Error> {
    let _share = share(PATIENT);
    let program = compile_c("lag_port.c")?;
    let lab = Lab::new()?;
    let device = bond("mode=balance-rr");
    let server = [program.as_str(), "-s", "7000"];
    let server = lab.host(0).verbs(server).device(Some(&device)).spawn()?;
    server.wait_tcp_listen(7000, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = [program.as_str(), "-c", &meet, "7000", "121"];
    let client = lab.host(1).verbs(client).device(Some(&device)).spawn()?;
    client.wait_line("modify: Invalid argument", LIMIT)?;
    client.wait_line("before: Success, set 0", LIMIT)?;
    for line in ["round 0: kept to 1", "round 1: kept to 2", "round 2: kept to 1"] {
        client.wait_line(line, LIMIT)?;
    }
    // While that member is gone, the other one serves.
    lab.link_down(0, End::Both)?;
    client.wait_line("now by 2, set 1", LIMIT)?;
    lab.link_up(0)?;
    client.wait_line("now by 1, set 1", LIMIT)?;
    server.expect_alive()?;
    client.expect_alive()?;
    // Devices that are no bond have no members.
    let lone = lab.host(0).verbs([program.as_str(), "-s", "7001"]).device(Some("mp")).spawn()?;
    lone.wait_line("modify: Operation not supported", LIMIT)?;
    Ok(())
}

/// `polypath lacp` on a host.
fn lacp(host: &Host, arguments: &[&str]) -> Result<Running, Error> {
    let command = Artifacts::get()?.command.to_string_lossy().into_owned();
    host.program([&[command.as_str(), "lacp"], arguments].concat()).spawn()
}

/// Whether LACP lets each interface of a host carry traffic, as its broker knows it.
fn distributing(host: &Host) -> Result<Vec<Option<bool>>, Error> {
    let finished = host.polypath(&["devices", "--all", "--json"])?;
    let json: serde_json::Value = serde_json::from_str(&finished.text())
        .map_err(|error| Error::Missing(format!("no JSON: {error}")))?;
    let interfaces = json["interfaces"].as_array().into_iter().flatten();
    let eth =
        interfaces.filter(|it| it["name"].as_str().is_some_and(|name| name.starts_with("eth")));
    Ok(eth.map(|it| it["lacp"].as_bool()).collect())
}

/// Two actors aggregate. Then one interface of host 1 falls silent, and comes back.
#[test]
fn two_hosts_aggregate_their_links_and_leave_a_silent_one() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::with(Options { wiring: Wiring::Direct, ..Options::default() })?;
    let scratch = Scratch::new("lacp")?;
    let state = scratch.path("bond").to_string_lossy().into_owned();
    let fast = ["--lacp_rate", "fast"];
    let whole = lacp(lab.host(0), &[&["eth0+eth1", "--state", &state], &fast[..]].concat())?;
    // One system, whose interfaces have a process each, so that one of them can fall silent.
    let system = ["--ad_actor_system", "02:00:00:00:00:0b"];
    let one = |name| lacp(lab.host(1), &[&[name], &fast[..], &system].concat());
    let (stays, leaves) = (one("eth0")?, one("eth1")?);
    let file = || {
        whole.expect_alive()?;
        let text = scratch.read("bond").unwrap_or_default();
        Ok::<_, Error>(String::from_utf8_lossy(&text).into_owned())
    };
    let wait_ports = |count: usize| {
        until(&format!("{count} ports in the aggregator"), LIMIT, || {
            stays.expect_alive()?;
            let text = file()?;
            let ports = text.contains(&format!("\tNumber of ports: {count}\n"));
            // Collecting and distributing, at both ends.
            let healthy = text.matches("    port state: 63\n").count();
            let partner = text.contains("\tPartner Mac Address: 02:00:00:00:00:0b\n");
            Ok((ports && partner && healthy == 2 * count).then_some(()))
        })
        .map_err(|error| Error::Missing(format!("{error}: {}", file().unwrap_or_default())))
    };
    wait_ports(2)?;
    whole.wait_line("carrier: up", LIMIT)?;
    // A program with a bond of this mode starts a broker, which is told.
    let device = bond("mode=802.3ad");
    wait_devinfo(&lab, &device, &["PORT_ACTIVE", "4X (2)"])?;
    leaves.signal(libc::SIGKILL);
    leaves.finish(LIMIT)?;
    until("the silent link to leave the aggregate", LIMIT, || {
        whole.expect_alive()?;
        Ok((distributing(lab.host(0))? == [Some(true), Some(false)]).then_some(()))
    })?;
    whole.wait_line("eth1: neither collecting nor distributing", LIMIT)?;
    until("the states of LACP in the status", LIMIT, || {
        // A broker runs meanwhile, and is told within a second.
        devinfo(&lab, &device)?;
        let status = lab.host(0).status()?;
        let of = |port: usize, key: &str| status["broker"]["lacp"][port][key].clone();
        let (mux, partner) = (of(0, "mux"), of(0, "partner")["system"].clone());
        let whole = mux == "collecting distributing" && partner == "02:00:00:00:00:0b";
        let left = of(1, "interface") == "eth1" && of(1, "distributing") == false;
        Ok((whole && left && of(1, "receive") != "current").then_some(()))
    })?;
    wait_devinfo(&lab, &device, &["PORT_ACTIVE", "1X (1)"])?;
    // Others do not mind.
    wait_devinfo(&lab, &bond("mode=balance-xor"), &["PORT_ACTIVE", "4X (2)"])?;
    let _again = one("eth1")?;
    wait_ports(2)?;
    wait_devinfo(&lab, &device, &["PORT_ACTIVE", "4X (2)"])?;
    // It says good-bye: the partner leaves at once, and no member is kept out any more.
    whole.signal(libc::SIGTERM);
    whole.finish(LIMIT).and_then(Finished::expect_success)?;
    stays.wait_line("eth0: neither collecting nor distributing", LIMIT)?;
    until("nothing said of LACP", LIMIT, || {
        Ok((distributing(lab.host(0))? == [None, None]).then_some(()))
    })
}

/// The hardware addresses of eth0 and eth1 of a host.
fn hardware_addresses(host: &Host) -> Result<Vec<String>, Error> {
    let links = host.program(["ip", "-o", "link"]).run(LIMIT)?.expect_success()?.text();
    let ours = links.lines().filter(|line| line.contains(": eth"));
    let address =
        |line: &str| line.split("link/ether ").nth(1)?.split(' ').next().map(str::to_owned);
    Ok(ours.filter_map(address).collect())
}

/// Interfaces that share an address have one hardware address meanwhile, and know each other's neighbours.
#[test]
fn interfaces_that_share_an_address_hear_for_each_other() -> Result<(), Error> {
    let _share = share(BUSY);
    let lab = Lab::with(Options { wiring: Wiring::Direct, ..Options::default() })?;
    let (host, peer) = (lab.host(1), lab.host(0).ipv4(0));
    let before = hardware_addresses(host)?;
    let shares = lacp(host, &["eth0+eth1", "--share-address"])?;
    until("one hardware address", LIMIT, || {
        shares.expect_alive()?;
        let now = hardware_addresses(host)?;
        Ok((now == [before[0].as_str(); 2]).then_some(()))
    })?;
    let command = Artifacts::get()?.command.to_string_lossy().into_owned();
    // The peer answers by link 0 alone, that nothing has the port.
    until("a neighbour that eth1 has not asked for", LIMIT, || {
        shares.expect_alive()?;
        host.tool("ip", &["neigh", "flush", "all"], "")?;
        host.program([command.as_str(), "ping", "--count", "1", &peer]).run(LIMIT)?;
        let known = host.program(["ip", "neigh", "show", "dev", "eth1"]).run(LIMIT)?.text();
        Ok(known.contains(&format!("{peer} lladdr")).then_some(()))
    })?;
    shares.signal(libc::SIGTERM);
    shares.finish(LIMIT).and_then(Finished::expect_success)?;
    assert_eq!(hardware_addresses(host)?, before);
    Ok(())
}

/// Data keeps to the members that LACP lets distribute.
#[test]
fn data_leaves_a_member_that_lacp_keeps_out() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::with(Options { wiring: Wiring::Direct, ..Options::default() })?;
    let fast = ["--lacp_rate", "fast"];
    let _whole = lacp(lab.host(0), &[&["eth0+eth1"], &fast[..]].concat())?;
    let system = ["--ad_actor_system", "02:00:00:00:00:0b"];
    let one = |name| lacp(lab.host(1), &[&[name], &fast[..], &system].concat());
    let (_stays, leaves) = (one("eth1")?, one("eth0")?);
    let ring = Ring::start(&lab, Some(&bond("mode=802.3ad")), &lab.host(0).ipv4(0), None)?;
    wait_paths(lab.host(0), 2)?;
    until("both to distribute", LIMIT, || {
        Ok((distributing(lab.host(0))? == [Some(true); 2]).then_some(()))
    })?;
    leaves.signal(libc::SIGKILL);
    leaves.finish(LIMIT)?;
    // Before that, the path may still be on its way up.
    until("the silent link to leave the aggregate", LIMIT, || {
        Ok((distributing(lab.host(0))? == [Some(false), Some(true)]).then_some(()))
    })?;
    until("the path to be left", LIMIT, || {
        ring.client.expect_alive()?;
        let paths = lab.host(0).paths()?;
        let carries =
            |path: &&serde_json::Value| path["state"] == "active" || path["state"] == "standby";
        let over: Vec<_> = paths.iter().filter(carries).map(|path| &path["interface"]).collect();
        Ok((over == ["eth1"]).then_some(()))
    })?;
    ring.goes_on()?;
    let before = lab.received_bytes_of(1)?;
    ring.goes_on()?;
    let after = lab.received_bytes_of(1)?;
    assert!(after[1] - before[1] > 100 * 4096, "{before:?} {after:?}");
    Ok(())
}

/// Who may not send frames is told so.
#[test]
fn an_interface_that_is_not_there_is_named() -> Result<(), Error> {
    let _share = share(BUSY);
    let lab = Lab::new()?;
    let finished = lacp(lab.host(0), &["eth7"])?.finish(LIMIT)?;
    let text = finished.text();
    assert!(finished.expect_success().is_err() && text.contains("`eth7` does not exist"), "{text}");
    Ok(())
}
