//! Policies by which the data of an unmodified program uses all paths.

use polypath_e2e::{
    Direction, Error, Finished, Host, Lab, PATIENT, Running, Scratch, compile_c, share, until,
};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Fewer bytes than this by a path are probes and answers, not the program's data.
const DATA_LEAST: u64 = 16 << 20;
/// Fewer bytes than this are probes and answers within some seconds.
const QUIET: u64 = 1 << 20;

/// The bytes that the processes of a host have sent by each of their active paths.
fn sent_bytes(host: &Host) -> Result<Vec<u64>, Error> {
    let paths = host.paths()?;
    let active = paths.iter().filter(|path| path["state"] == "active");
    Ok(active.filter_map(|path| path["sent_bytes"].as_u64()).collect())
}

/// The bytes that the processes of a host have sent by each of their paths.
fn all_sent_bytes(host: &Host) -> Result<Vec<u64>, Error> {
    Ok(host.paths()?.iter().filter_map(|path| path["sent_bytes"].as_u64()).collect())
}

/// The number of the only queue pair of a host's processes.
fn queue_pair(host: &Host) -> Result<String, Error> {
    let status = host.status()?;
    let all = status["processes"].as_array().into_iter().flatten();
    let mut numbers = all.filter_map(|process| process["qps"][0]["qpn"].as_u64());
    numbers
        .next()
        .map(|qpn| format!("{qpn:#08x}"))
        .ok_or_else(|| Error::Missing(format!("a queue pair in {status}")))
}

fn all_paths_carry_data(settings: &str, queue_pairs: &str) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    // Only the data of a WRITE that has begun may be stored before its turn. A WRITE of 64 KiB, which is
    // perftest's own size, is one burst and goes by one path; 1 MiB goes by both.
    let words = ["ib_write_bw", "-s", "1048576", "-q", queue_pairs, "--run_infinitely"];
    let server = lab.host(0).verbs(words).env("POLYPATH_MP", settings).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()]));
    let client = client.env("POLYPATH_MP", settings).spawn()?;
    until("data by both paths", LIMIT, || {
        client.expect_alive()?;
        server.expect_alive()?;
        let sent = sent_bytes(lab.host(1))?;
        Ok((sent.len() == 2 && sent.iter().all(|bytes| *bytes > DATA_LEAST)).then_some(()))
    })?;
    if settings != "policy=balance" {
        return Ok(());
    }
    // perftest registers memory with IBV_ACCESS_RELAXED_ORDERING. By the slower path, packets arrive later.
    let slower = "qdisc add dev eth1 root tbf rate 500mbit burst 256k latency 20ms\n";
    lab.host(1).tool("tc", &["-batch", "-"], slower)?;
    until("data that is in memory before its turn", LIMIT, || {
        client.expect_alive()?;
        let early = |qp: &serde_json::Value| qp["counters"]["placed_early"].as_u64() > Some(0);
        Ok(lab.host(0).queue_pairs()?.iter().any(early).then_some(()))
    })
}

#[test]
fn one_queue_pair_uses_all_paths() -> Result<(), Error> {
    all_paths_carry_data("policy=balance", "1")
}

#[test]
fn everything_goes_by_two_paths() -> Result<(), Error> {
    all_paths_carry_data("policy=redundant", "1")
}

/// The dear path carries no data while the other one suffices, and then it does.
#[test]
fn a_dear_path_is_used_only_if_the_other_does_not_suffice() -> Result<(), Error> {
    let _share = share(PATIENT);
    let settings = "policy=efficient,cost=eth0:10";
    for (size, depth, suffices) in [("64", "1", true), ("1048576", "16", false)] {
        let lab = Lab::new()?;
        if !suffices {
            // As fast as memory, it may suffice on a machine whose processors are the bottleneck.
            let slow = ["tc", "qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "200mbit"];
            let slow = slow.into_iter().chain(["burst", "100kb", "latency", "20ms"]);
            lab.host(1).program(slow).run(LIMIT)?.expect_success()?;
        }
        let words = ["ib_write_bw", "-s", size, "-t", depth, "--run_infinitely"];
        let server = lab.host(0).verbs(words).env("POLYPATH_MP", settings).spawn()?;
        server.wait_tcp_listen(18515, LIMIT)?;
        let meet = lab.host(0).ipv4(0);
        let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()]));
        let client = client.env("POLYPATH_MP", settings).spawn()?;
        let sent = until("data by the paths", LIMIT, || {
            client.expect_alive()?;
            server.expect_alive()?;
            let sent = all_sent_bytes(lab.host(1))?;
            let (least, most) = (sent.iter().min().copied(), sent.iter().max().copied());
            let much = if suffices { most } else { least };
            Ok((sent.len() == 2 && much > Some(DATA_LEAST)).then_some(sent))
        })?;
        // The queue pairs were connected by the dear path, and send by it until the peers have agreed.
        let quiet = sent.iter().filter(|bytes| **bytes < QUIET).count();
        assert_eq!(quiet, usize::from(suffices), "{sent:?}");
    }
    Ok(())
}

#[test]
fn queue_pairs_that_take_turns_use_all_paths() -> Result<(), Error> {
    all_paths_carry_data("policy=affinity,affinity=round-robin", "2")
}

#[test]
fn queue_pairs_that_are_hashed_use_all_paths() -> Result<(), Error> {
    // All of so many use one path about once in 30000 times.
    all_paths_carry_data("policy=affinity", "16")
}

/// A program that sends until it is killed.
const FOR_EVER: [&str; 2] = ["ib_write_bw", "--run_infinitely"];

/// Its server, on host 0.
fn serve(lab: &Lab) -> Result<Running, Error> {
    let server = lab.host(0).verbs(FOR_EVER).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    Ok(server)
}

/// Waits until so many paths of the first host carry data, and no other does.
fn wait_carriers(host: &Host, client: &Running, carriers: usize) -> Result<(), Error> {
    let mut before: Vec<u64> = Vec::new();
    until(&format!("data by {carriers} paths only"), LIMIT, || {
        client.expect_alive()?;
        let now = all_sent_bytes(host)?;
        let grown = now.iter().zip(&before).map(|(now, before)| now - before);
        let carrying = grown.filter(|bytes| *bytes > DATA_LEAST).count();
        let steady = now.len() == before.len();
        let idle = now.iter().zip(&before).filter(|(now, before)| *now - *before < QUIET).count();
        if steady && carrying == carriers && carrying + idle == now.len() {
            return Ok(Some(()));
        }
        // What a path has sent before the change took effect does not count.
        if !steady || carriers < 2 && carrying + idle < now.len() || carrying > carriers {
            before = now;
        }
        Ok(None)
    })
}

/// Policies change while a program sends, by rules for everything, for its peer, and for its queue pair.
#[test]
fn the_policy_of_a_running_program_can_be_changed() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let _server = serve(&lab)?;
    let meet = lab.host(0).ipv4(0);
    let host = lab.host(1);
    let client = host.verbs(FOR_EVER.into_iter().chain([meet.as_str()])).spawn()?;
    // All paths carry data unless something else is said.
    wait_carriers(host, &client, 2)?;
    let policy = |arguments: &[&str]| host.polypath(&[&["mp", "policy"], arguments].concat());
    let set = policy(&["active-backup"])?;
    set.expect_line("in force for 1 peer: active-backup (command)")?;
    wait_carriers(host, &client, 1)?;
    // A rule for the peer is narrower.
    policy(&["balance", "--peer", &meet])?;
    wait_carriers(host, &client, 2)?;
    // A rule for the queue pair is narrower still.
    let qpn = queue_pair(host)?;
    let own = host.polypath(&["qp", "policy", &qpn, "active-backup"])?;
    own.expect_line("active-backup (command), its own")?;
    wait_carriers(host, &client, 1)?;
    host.polypath(&["qp", "policy", &qpn, "default"])?.expect_line("that of its peer")?;
    wait_carriers(host, &client, 2)?;
    policy(&["default", "--peer", &meet])?;
    wait_carriers(host, &client, 1)?;
    policy(&["default"])?.expect_line("balance (default)")?;
    wait_carriers(host, &client, 2)?;
    policy(&[])?.expect_line("balance (default)")?.expect_no_line("rule").map(drop)
}

/// A program that starts later follows the rules as well.
#[test]
fn a_rule_goes_before_the_environment_of_a_program_that_starts_later() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let _server = serve(&lab)?;
    let meet = lab.host(0).ipv4(0);
    let host = lab.host(1);
    // A program that does nothing, so that there is a broker.
    let keeps = host.verbs(["rping", "-s", "-P"]).spawn()?;
    host.wait_cm_listen(&keeps, 7174, LIMIT)?;
    host.polypath(&["mp", "policy", "balance"])?.expect_line("later ones follow it")?;
    let client = host.verbs(FOR_EVER.into_iter().chain([meet.as_str()]));
    let client = client.env("POLYPATH_MP", "policy=active-backup").spawn()?;
    wait_carriers(host, &client, 2)?;
    host.polypath(&["mp", "policy", "default"])?.expect_line("active-backup (POLYPATH_MP)")?;
    wait_carriers(host, &client, 1)
}

/// The configuration file is followed from the start, and again on command.
#[test]
fn a_running_program_follows_the_configuration_file() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let _server = serve(&lab)?;
    let (meet, host) = (lab.host(0).ipv4(0), lab.host(1));
    let scratch = Scratch::new("config")?;
    let write = |text: &str| scratch.write("config.toml", text.as_bytes()).map(drop);
    let path = scratch.path("config.toml");
    let rule =
        |policy: &str| format!("[[rule]]\nprogram = \"ib_write_bw\"\npolicy = \"{policy}\"\n");
    write(&rule("balance"))?;
    let client = host.verbs(FOR_EVER.into_iter().chain([meet.as_str()]));
    let client = client.env("POLYPATH_CONFIG", &path).spawn()?;
    wait_carriers(host, &client, 2)?;
    host.polypath(&["mp", "policy"])?.expect_line("balance (configuration file, line 1)")?;
    write(&rule("active-backup"))?;
    host.polypath(&["config", "reload"])?.expect_line("1 rule in force")?;
    wait_carriers(host, &client, 1)?;
    // A mistake changes nothing.
    write(&rule("balanced"))?;
    let refused = host.polypath(&["config", "reload"]).unwrap_err().to_string();
    assert!(refused.contains("config.toml, line 3: policy is `balanced`"), "{refused}");
    let status = host.status()?;
    let policy = &status["processes"][0]["peers"][0]["policy"];
    assert_eq!(policy["name"], "active-backup", "{status}");
    Ok(())
}

/// Numbers that look random (xorshift64*), from a seed that a failure names.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % most
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Changes something about how the paths of a host's program are used.
fn change_something(dice: &mut Dice, host: &Host, peer: &str, pid: &str) -> Result<(), Error> {
    let policies = [
        "active-backup",
        "balance",
        "affinity",
        "affinity,affinity=round-robin",
        "redundant",
        "default",
    ];
    let policy = dice.of(&policies);
    let qpn = queue_pair(host)?;
    let arguments: &[&str] = match dice.below(6) {
        0 | 1 => &["mp", "policy", policy],
        2 => &["mp", "policy", policy, "--process", pid],
        3 => &["mp", "policy", policy, "--peer", peer],
        4 => &["qp", "policy", &qpn, policy],
        _ => &[
            "mp",
            "policy",
            dice.of(&["primary=eth0", "primary=eth1", "primary_reselect=failure"]),
        ],
    };
    host.polypath(arguments).map(drop)
}

/// Runs our own program, which checks that each of its additions, messages, writes and reads is executed
/// once and in order, while policies change at random and one link after the other is cut.
#[test]
fn nothing_is_lost_or_doubled_under_random_changes() -> Result<(), Error> {
    const WORK: Duration = Duration::from_secs(12);
    let _share = share(PATIENT);
    let program = compile_c("exact.c")?;
    let lab = Lab::new()?;
    let server = lab.host(0).verbs([&*program, "-s", "7000"]).spawn()?;
    server.wait_tcp_listen(7000, LIMIT)?;
    let words = [&*program, "-c", &lab.host(0).ipv4(1), "7000", "600"];
    let client = lab.host(1).verbs(words).spawn()?;
    client.wait_line("connected", LIMIT)?;
    lab.wait_traffic(&[&client, &server], 100_000, LIMIT)?;
    let seed = u64::from(std::process::id()) << 20 | 0x5eed;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let pids = [&server, &client].map(|running| running.id().to_string());
    let end = Instant::now() + WORK;
    let (mut changes, mut cut) = (0, None);
    while Instant::now() < end {
        let host = dice.below(2);
        let peer = lab.host(1 - host).ipv4(1);
        change_something(&mut dice, lab.host(host), &peer, &pids[host])?;
        changes += 1;
        if dice.below(8) == 0 {
            match cut.take() {
                Some(link) => lab.heal(link)?,
                None => {
                    let link = dice.below(2);
                    lab.cut(link, Direction::Both)?;
                    cut = Some(link);
                }
            }
        }
    }
    cut.map_or(Ok(()), |link| lab.heal(link))?;
    println!("{changes} changes");
    client.signal(libc::SIGINT);
    let client = client.finish(LIMIT)?.expect_success()?;
    let server = server.finish(LIMIT)?.expect_success()?;
    let last = |finished: &Finished| finished.lines.last().map(|line| line.text.clone());
    assert_eq!(last(&client), last(&server), "both count the same rounds");
    assert!(changes > 10, "only {changes} changes");
    Ok(())
}
