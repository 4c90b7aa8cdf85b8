//! An attacker on the network sends forged, guessed, replayed and broken packets to hosts during a
//! verified transfer. Only counters change. docs/security.md says against what a plain queue pair can't
//! be defended.

use polypath_e2e::{Error, Lab, Options, Running, compile_c, until};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// The number of packets of each kind.
const MANY: &str = "300";

/// A script that sends packets of one kind to UDP port 4791, from an address of this host or, through a
/// raw socket, from any address. Perl is on every Debian machine.
const LIAR: &str = include_str!("../c/liar.pl");

/// An address of the link that no host has.
const STRANGER: &str = "10.0.0.77";

/// Runs the attacker with a kind, a source address, a destination address and a queue pair number. It
/// knows no key.
fn lie(lab: &Lab, host: usize, words: [&str; 4]) -> Result<(), Error> {
    lie_knowing(lab, host, words, [""; 0])
}

/// The same, but the attacker knows keys.
fn lie_knowing<'a>(
    lab: &Lab,
    host: usize,
    words: [&'a str; 4],
    keys: impl IntoIterator<Item = &'a str>,
) -> Result<(), Error> {
    let program = ["perl", "-e", LIAR].into_iter().chain(words).chain([MANY]).chain(keys);
    lab.host(host).program(program).run(LIMIT)?.expect_success()?.expect_line("sent").map(drop)
}

/// Transfers with verified data that continue until they are told to end.
struct Verified {
    server: Running,
    client: Running,
}

impl Verified {
    fn start(lab: &Lab, device: Option<&str>) -> Result<Self, Error> {
        let address = lab.host(0).ipv4(0);
        let words = ["-a", &address, "-V", "-v", "-S", "200"];
        let server = ["rping", "-s"].into_iter().chain(words);
        let server = lab.host(0).verbs(server).device(device).spawn()?;
        lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
        let client = ["rping", "-c"].into_iter().chain(words);
        let client = lab.host(1).verbs(client).device(device).spawn()?;
        client.wait_line("rdma-ping-9", LIMIT)?;
        Ok(Self { server, client })
    }

    /// Waits for another hundred rounds, in which no error may be reported.
    fn goes_on(&self) -> Result<(), Error> {
        let seen = self.client.lines_from(0).len();
        until("rping to go on", LIMIT, || {
            self.client.expect_alive()?;
            self.server.expect_alive()?;
            Ok((self.client.lines_from(seen).len() > 100).then_some(()))
        })?;
        for program in [&self.client, &self.server] {
            let text = program.text();
            assert!(
                !text.contains("mismatch") && !text.contains("failed") && !text.contains("error"),
                "{text}"
            );
        }
        Ok(())
    }
}

/// The sum of all counters of a host whose names begin with one of `names`, which are joined by `+`:
/// the broker's counters and the drops of processes.
fn counted(lab: &Lab, host: usize, names: &str) -> Result<u64, Error> {
    let status = lab.host(host).status()?;
    let mut lists = vec![status["broker"]["counters"].clone()];
    for process in status["processes"].as_array().into_iter().flatten() {
        lists.push(process["drops"].clone());
        lists
            .extend(process["qps"].as_array().into_iter().flatten().map(|q| q["counters"].clone()));
    }
    let all = lists.iter().filter_map(|list| list.as_object()).flatten();
    let named = all.filter(|(n, _)| names.split('+').any(|name| n.starts_with(name)));
    Ok(named.filter_map(|(_, value)| value.as_u64()).sum())
}

/// Waits until the counters of host 0 have counted all packets of a kind since `before`.
fn wait_counted(lab: &Lab, counter: &str, before: u64, lie: &str) -> Result<(), Error> {
    let many: u64 = MANY.parse().unwrap_or_default();
    until(&format!("{counter} to count {lie}"), LIMIT, || {
        Ok((counted(lab, 0, counter)? >= before + many).then_some(()))
    })
    .map_err(|error| {
        let status = lab.host(0).status().unwrap_or_default();
        Error::Missing(format!("{error}\n{status:#}"))
    })
}

/// The number of the queue pair with which rping's server serves its client.
fn served_qpn(lab: &Lab) -> Result<String, Error> {
    connected_qpn(lab, 0)
}

/// The number of a host's connected queue pair.
fn connected_qpn(lab: &Lab, host: usize) -> Result<String, Error> {
    let status = lab.host(host).status()?;
    let qps = status["processes"][0]["qps"].as_array().cloned().unwrap_or_default();
    let connected = qps.iter().find(|qp| qp["dest_qpn"].as_u64() > Some(0));
    connected
        .and_then(|qp| qp["qpn"].as_u64())
        .map(|n| n.to_string())
        .ok_or_else(|| Error::Missing(format!("no connected queue pair: {status}")))
}

fn lab() -> Result<Lab, Error> {
    Lab::with(Options { links: 2, ..Options::default() })
}

/// Sends packets of each kind, and checks the counter that must have counted all of them at the
/// attacked host.
fn lies(device: Option<&str>) -> Result<(), Error> {
    let lab = lab()?;
    let transfer = Verified::start(&lab, device)?;
    let qpn = served_qpn(&lab)?;
    let (victim, liar) = (lab.host(0).ipv4(0), lab.host(1).ipv4(0));
    let stranger = STRANGER;
    for (kind, from, counter) in [
        // Data packets with the right queue pair number and a wrong source.
        ("write", stranger, "wrong_source"),
        ("send", stranger, "wrong_source"),
        ("ack", stranger, "wrong_source"),
        // Packets from the peer's own address that no host would send.
        ("bad-icrc", liar.as_str(), "icrc_wrong"),
        ("truncated", liar.as_str(), "malformed"),
        ("no-such-qp", liar.as_str(), "unknown_qp"),
        ("other-service", liar.as_str(), "dropped_service"),
        // PSNs that are not expected: behind, or ahead. They are sent to both devices, because a
        // multi-path queue pair accepts plain packets, too.
        ("far-psn", liar.as_str(), "duplicate_requests+out_of_order"),
        ("write", liar.as_str(), "duplicate_requests+out_of_order"),
        ("read", liar.as_str(), "dropped_no_original+out_of_order"),
        ("read-wide", liar.as_str(), "dropped_no_original+out_of_order"),
        ("atomic", liar.as_str(), "dropped_no_original+out_of_order"),
        // Answers to requests that were answered long ago, or never sent.
        ("ack", liar.as_str(), "duplicate_responses+dropped_malformed"),
        ("nak", liar.as_str(), "duplicate_responses+dropped_malformed"),
        ("read-response", liar.as_str(), "duplicate_responses+dropped_malformed"),
        ("read", stranger, "wrong_source"),
        ("atomic", stranger, "wrong_source"),
        ("read-response", stranger, "wrong_source"),
        // A datagram with a wrong Q_Key.
        ("qkey", liar.as_str(), "qp1_dropped_qkey_wrong"),
        // Multi-path: data without an association, a HELLO for queue pairs that are not connected to
        // each other, and CONTROL and joins without the key.
        ("mp-data", liar.as_str(), "wrong_source"),
        ("hello", liar.as_str(), "control_"),
        ("control", liar.as_str(), "control_"),
        ("control", stranger, "control_"),
        // Connection management: requests for no service, and ends of connections that do not exist.
        ("rej", liar.as_str(), "cm_mads_unmatched"),
        ("rej-timeout", liar.as_str(), "cm_mads_unmatched"),
        ("rep", liar.as_str(), "cm_mads_unmatched"),
        ("mra", liar.as_str(), "cm_mads_unmatched"),
        ("drep", liar.as_str(), "cm_mads_unmatched"),
        ("sidr-rep", liar.as_str(), "cm_mads_unmatched"),
        ("sidr-req", liar.as_str(), "cm_mads_received"),
        ("dreq", liar.as_str(), "cm_mads_unmatched"),
        ("rtu", liar.as_str(), "cm_mads_unmatched"),
        ("req", liar.as_str(), "cm_mads_received"),
        ("garbage-mad", liar.as_str(), "cm_mads_malformed"),
        ("oversized", liar.as_str(), "icrc_wrong"),
    ] {
        let before = counted(&lab, 0, counter)?;
        lie(&lab, 1, [kind, from, &victim, &qpn])?;
        wait_counted(&lab, counter, before, &format!("{kind} from {from}"))?;
        transfer.goes_on()?;
    }
    Ok(())
}

#[test]
fn lies_change_nothing_on_a_plain_device() -> Result<(), Error> {
    lies(Some("roce:eth0"))
}

#[test]
fn lies_change_nothing_on_the_multi_path_device() -> Result<(), Error> {
    lies(None)
}

/// As docs/security.md says, this can't be defended against: the right number with a wrong key ends the
/// queue pair, and does no more.
#[test]
fn the_right_number_with_a_wrong_key_ends_the_queue_pair() -> Result<(), Error> {
    let lab = lab()?;
    let transfer = Verified::start(&lab, Some("roce:eth0"))?;
    let qpn = served_qpn(&lab)?;
    let (victim, liar) = (lab.host(0).ipv4(0), lab.host(1).ipv4(0));
    // The attack is repeated until it succeeds, because it depends on chance whether a guess comes
    // before the peer's own packet.
    let words = ["perl", "-e", LIAR, "wrong-key", &liar, &victim, &qpn, "1000000000"];
    let _guesses = lab.host(1).program(words).spawn()?;
    let server = &transfer.server;
    // If rping has only receives outstanding, it says nothing and waits for ever.
    until("the queue pair to end", LIMIT, || {
        let status = lab.host(0).status()?;
        let qps = status["processes"][0]["qps"].as_array().cloned().unwrap_or_default();
        let refused = |qp: &Value| {
            qp["state"] == "ERR"
                && qp["last_error"]
                    .as_str()
                    .is_some_and(|e| e.contains("no region has this remote key"))
        };
        let noticed = server.expect_alive().is_err() || server.text().contains("failed");
        Ok((noticed || qps.iter().any(refused)).then_some(()))
    })?;
    assert!(!server.text().contains("mismatch"), "{}", server.text());
    Ok(())
}

/// The node GUID of a host's first device, as a number for Perl.
fn node_guid(lab: &Lab, host: usize, device: Option<&str>) -> Result<String, Error> {
    let info = lab.host(host).verbs(["ibv_devinfo"]).device(device).run(LIMIT)?.expect_success()?;
    let digits = info.text().lines().find_map(|line| {
        line.trim().strip_prefix("node_guid:").map(|guid| guid.trim().replace(':', ""))
    });
    let guid = digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok());
    guid.map(|guid| guid.to_string())
        .ok_or_else(|| Error::Missing(format!("no GUID: {}", info.text())))
}

/// A REQ with the queue pair of a connection says that its owner has forgotten the connection. Both the
/// GUID and the number must be right, and the address must be the peer's.
fn stale_requests(device: Option<&str>) -> Result<(), Error> {
    let lab = lab()?;
    let transfer = Verified::start(&lab, device)?;
    let (victim, peer) = (lab.host(0).ipv4(0), lab.host(1).ipv4(0));
    let (qpn, guid) = (connected_qpn(&lab, 1)?, node_guid(&lab, 1, device)?);
    for (kind, from, counter) in [
        ("req-stale", STRANGER, "cm_requests_stale"),
        ("req-wrong-qpn", &peer, "cm_requests_unserved"),
        ("req-wrong-guid", &peer, "cm_requests_unserved"),
        ("req-wrong-qpn", STRANGER, "cm_requests_unserved"),
    ] {
        let before = counted(&lab, 0, counter)?;
        lie_knowing(&lab, 1, [kind, from, &victim, &qpn], [&*guid])?;
        wait_counted(&lab, counter, before, &format!("{kind} from {from}"))?;
        transfer.goes_on()?;
    }
    // This REQ can't be distinguished from that of a peer that has restarted.
    lie_knowing(&lab, 1, ["req-stale", &peer, &victim, &qpn], [&*guid])?;
    until("the connection to end", LIMIT, || {
        let ended = |program: &Running| {
            program.expect_alive().is_err() || program.text().contains("DISCONNECT")
        };
        Ok((ended(&transfer.server) || ended(&transfer.client)).then_some(()))
    })?;
    assert!(!transfer.server.text().contains("mismatch"), "{}", transfer.server.text());
    Ok(())
}

#[test]
fn a_request_ends_the_connection_of_its_queue_pair_only_from_the_peer_on_a_plain_device()
-> Result<(), Error> {
    stale_requests(Some("roce:eth0"))
}

#[test]
fn a_request_ends_the_connection_of_its_queue_pair_only_from_the_peer_on_the_multi_path_device()
-> Result<(), Error> {
    stale_requests(None)
}

/// A program on host 0 with one queue pair that reports each message it gets.
struct Target {
    program: Running,
    qpn: String,
    qkey: String,
    rkey: String,
    address: String,
}

impl Target {
    fn start(lab: &Lab, device: Option<&str>, words: &[&str]) -> Result<Self, Error> {
        let program = compile_c("target.c")?;
        let words = [&*program].into_iter().chain(words.iter().copied());
        let program = lab.host(0).verbs(words).device(device).spawn()?;
        let line = program.wait_line("queue pair", LIMIT)?.text;
        let numbers: Vec<String> = line
            .split(|c: char| !c.is_ascii_digit())
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        let [qpn, qkey, rkey, address] =
            numbers.try_into().map_err(|_| Error::Missing(format!("four numbers: {line}")))?;
        Ok(Self { program, qpn, qkey, rkey, address })
    }

    /// The messages it has reported.
    fn messages(&self) -> Vec<String> {
        let lines = self.program.lines_from(0).into_iter().map(|line| line.text);
        lines.filter(|line| line.starts_with("message")).collect()
    }

    /// Waits until it has reported `count` messages in total, and returns them.
    fn wait_messages(&self, count: usize) -> Result<Vec<String>, Error> {
        until(&format!("{count} messages"), LIMIT, || {
            self.program.expect_alive()?;
            let messages = self.messages();
            Ok((messages.len() >= count).then_some(messages))
        })
    }
}

/// UD has no connected peer, so the Q_Key alone decides.
fn guessed_qkeys(device: Option<&str>) -> Result<(), Error> {
    let lab = lab()?;
    let target = Target::start(&lab, device, &["ud"])?;
    let (victim, other) = (lab.host(0).ipv4(0), lab.host(1).ipv4(0));
    let many: usize = MANY.parse().unwrap_or_default();
    for from in [&*other, STRANGER] {
        let before = counted(&lab, 0, "dropped_qkey")?;
        lie_knowing(&lab, 1, ["ud-wrong-qkey", from, &victim, &target.qpn], [&*target.qkey])?;
        wait_counted(&lab, "dropped_qkey", before, "wrong Q_Keys")?;
    }
    assert_eq!(target.messages(), [""; 0], "none had the right Q_Key");
    lie_knowing(&lab, 1, ["ud-right-qkey", STRANGER, &victim, &target.qpn], [&*target.qkey])?;
    let messages = target.wait_messages(many)?;
    assert!(messages.iter().all(|m| m.contains("8 bytes: guessed!")), "{messages:?}");
    Ok(())
}

#[test]
fn a_datagram_needs_the_q_key_of_the_programs_queue_pair_on_a_plain_device() -> Result<(), Error> {
    guessed_qkeys(Some("roce:eth0"))
}

#[test]
fn a_datagram_needs_the_q_key_of_the_programs_queue_pair_on_the_multi_path_device()
-> Result<(), Error> {
    guessed_qkeys(None)
}

/// UC has no PSN to guess: the peer's address and the queue pair number suffice for a SEND; a WRITE
/// needs its key as well. A wrong guess never ends the queue pair.
fn guesses_at_uc(device: Option<&str>) -> Result<(), Error> {
    let lab = lab()?;
    let (victim, peer) = (lab.host(0).ipv4(0), lab.host(1).ipv4(0));
    let target = Target::start(&lab, device, &["uc", &peer, "0x20001"])?;
    let keys = [&*target.rkey, &*target.address];
    let many: usize = MANY.parse().unwrap_or_default();
    for (kind, from, counter) in [
        ("uc-send", STRANGER, "wrong_source"),
        ("uc-right-key", STRANGER, "wrong_source"),
        ("uc-between", STRANGER, "wrong_source"),
        // RC's opcodes belong to another service.
        ("send", &peer, "dropped_service"),
        ("no-such-qp", &peer, "unknown_qp"),
        ("uc-middle", &peer, "dropped_malformed"),
        ("uc-last", &peer, "dropped_malformed"),
        ("uc-wrong-key", &peer, "dropped_malformed"),
        ("uc-wrong-range", &peer, "dropped_malformed"),
    ] {
        let before = counted(&lab, 0, counter)?;
        lie_knowing(&lab, 1, [kind, from, &victim, &target.qpn], keys)?;
        wait_counted(&lab, counter, before, &format!("{kind} from {from}"))?;
        target.program.expect_alive()?;
    }
    assert_eq!(target.messages(), [""; 0], "no guess was right");
    // The message into which a guess comes is not reported.
    lie_knowing(&lab, 1, ["uc-between", &peer, &victim, &target.qpn], keys)?;
    let messages = target.wait_messages(many)?;
    assert!(
        messages.iter().all(|m| m.contains("8 bytes: between! memory:") && !m.contains("forged")),
        "{messages:?}"
    );
    // A WRITE reports nothing, but the SENDs after it show what it has left in the memory.
    lie_knowing(&lab, 1, ["uc-right-key", &peer, &victim, &target.qpn], keys)?;
    lie_knowing(&lab, 1, ["uc-send", &peer, &victim, &target.qpn], keys)?;
    let messages = target.wait_messages(2 * many)?;
    let right = |m: &String| m.contains("8 bytes: guessed! memory: guessed!");
    assert!(messages[many..].iter().all(right), "{messages:?}");
    assert_eq!(messages.len(), 2 * many);
    Ok(())
}

#[test]
fn a_uc_message_needs_the_peers_address_and_a_write_its_key_on_a_plain_device() -> Result<(), Error>
{
    guesses_at_uc(Some("roce:eth0"))
}

#[test]
fn a_uc_message_needs_the_peers_address_and_a_write_its_key_on_the_multi_path_device()
-> Result<(), Error> {
    guesses_at_uc(None)
}
