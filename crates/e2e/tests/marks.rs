//! Marks of congestion (ECN), which a host's firewall puts on packets in the place of a switch.

use std::time::Duration;

use polypath_e2e::{Error, Host, Lab, PATIENT, Running, share, until};

const LIMIT: Duration = Duration::from_secs(60);

/// Marks what may be marked, of IPv4 if it is more than 10 MB a second.
fn mark(host: &Host) -> Result<(), Error> {
    let rules = "table inet marks {\n chain c {\n  type filter hook prerouting priority 0\n  \
                 ip ecn ect0 limit rate over 10 mbytes/second ip ecn set ce\n  \
                 ip6 ecn ect0 ip6 ecn set ce\n }\n}\n";
    host.tool("nft", &["-f", "-"], rules)
}

/// A counter of all paths of a host's processes.
fn count(host: &Host, counter: &str) -> Result<u64, Error> {
    Ok(host.paths()?.iter().filter_map(|path| path["counters"][counter].as_u64()).sum())
}

fn sent(host: &Host) -> Result<u64, Error> {
    count(host, "acked_bytes")
}

/// Programs that send over a marked network until they are killed: server and client.
fn busy(lab: &Lab, program: &str, meet: &str, settings: &str) -> Result<[Running; 2], Error> {
    let words = [program, "-s", "65536", "--run_infinitely"];
    let server = lab.host(0).verbs(words).env("POLYPATH_MP", settings).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let client = lab.host(1).verbs(words.into_iter().chain([meet]));
    let client = client.env("POLYPATH_MP", settings).spawn()?;
    Ok([server, client])
}

/// Waits until the client has sent much while both programs lived.
fn wait_sent(lab: &Lab, programs: &[Running; 2]) -> Result<(), Error> {
    until("64 MiB sent", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        Ok((sent(lab.host(1))? > 64 << 20).then_some(()))
    })
}

#[test]
fn who_sends_is_told_of_marks_on_what_it_sent_and_asked_for() -> Result<(), Error> {
    let _share = share(PATIENT);
    for (program, marked) in [("ib_write_bw", 0), ("ib_read_bw", 1)] {
        let lab = Lab::new()?;
        // Requests are marked where they arrive, and so are answers to READs.
        mark(lab.host(marked))?;
        let programs = busy(&lab, program, &lab.host(0).ipv4(0), "active-backup")?;
        wait_sent(&lab, &programs)?;
        until("marks at the client", LIMIT, || {
            programs.iter().try_for_each(Running::expect_alive)?;
            Ok((count(lab.host(1), "marks")? > 10).then_some(()))
        })?;
        let received = count(lab.host(0), "marked_received")?;
        assert_eq!(received > 10, marked == 0, "{program}: {received}");
    }
    Ok(())
}

#[test]
fn ipv6_packets_are_marked_too() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    mark(lab.host(0))?;
    let meet = lab.host(0).ipv6(0);
    let server = lab.host(0).verbs(["rping", "-s", "-a", meet.as_str(), "-S", "60000"]).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let client = lab.host(1).verbs(["rping", "-c", "-a", meet.as_str(), "-S", "60000"]);
    let client = client.spawn()?;
    until("marks at the client", LIMIT, || {
        client.expect_alive()?;
        server.expect_alive()?;
        Ok((count(lab.host(1), "marks")? > 10).then_some(()))
    })
}

#[test]
fn without_ecn_nothing_is_marked_and_it_can_be_changed_under_traffic() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    mark(lab.host(0))?;
    let programs = busy(&lab, "ib_write_bw", &lab.host(0).ipv4(0), "ecn=off")?;
    wait_sent(&lab, &programs)?;
    assert_eq!(count(lab.host(1), "marks")?, 0);
    assert_eq!(count(lab.host(0), "marked_received")?, 0);
    lab.host(1).polypath(&["mp", "policy", "ecn=on"])?.expect_success()?;
    until("marks at the client", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        Ok((count(lab.host(1), "marks")? > 10).then_some(()))
    })
}

#[test]
fn a_plain_peer_is_notified_of_marks_and_slows_down_if_it_asked_for_them() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    mark(lab.host(0))?;
    let words = ["ib_write_bw", "-s", "65536", "--tclass", "2", "--run_infinitely"];
    let device = Some("roce:eth0");
    let server = lab.host(0).verbs(words).device(device).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()])).device(device);
    let client = client.spawn()?;
    until("marks at the client", LIMIT, || {
        client.expect_alive()?;
        server.expect_alive()?;
        Ok((count(lab.host(1), "marks")? > 10).then_some(()))
    })
}
