//! Unmodified programs migrate between plain RoCE paths (automatic path migration), because the connection
//! managers of both ends agree on an alternate path, load it, and renew it after each migration.

use std::time::Duration;

use polypath_e2e::{Direction, End, Error, Host, Lab, PATIENT, Running, share, until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// More packets than it takes to connect.
const WORK: u64 = 2000;

/// The queue pairs of a program that are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All that are connected.
    All,
    /// The one that carries the most: others may be idle, and who sends nothing does not notice silence.
    Busiest,
}

/// The packets that a queue pair has sent and received.
fn carried(qp: &Value) -> u64 {
    let count = |counter: &str| qp["counters"][counter].as_u64().unwrap_or(0);
    count("sent_packets") + count("received_packets")
}

/// Waits until both hosts have a queue pair at work: perftest's first one only compares notes, and its
/// second one is connected later.
fn wait_work(lab: &Lab, programs: &[Running; 2]) -> Result<(), Error> {
    until("work", LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        for host in 0..2 {
            let busiest = queue_pairs(lab.host(host), Which::Busiest)?;
            if busiest.first().map_or(0, carried) < WORK {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// The connected queue pairs of a host.
fn queue_pairs(host: &Host, which: Which) -> Result<Vec<Value>, Error> {
    // A status that does not come in time says nothing: whoever asks asks again.
    let mut qps = host.queue_pairs().unwrap_or_default();
    qps.retain(|qp| qp["state"] == "RTS");
    if which == Which::Busiest {
        qps.sort_by_key(|qp| std::cmp::Reverse(carried(qp)));
        qps.truncate(1);
    }
    Ok(qps)
}

/// Unmodified programs that connect by rdma_cm.
const RPING: &[&str] = &["rping", "-V", "-S", "3000"];
const WRITE: &[&str] = &["ib_write_bw", "-R", "--run_infinitely"];
const READ: &[&str] = &["ib_read_bw", "-R", "--run_infinitely"];
const ATOMIC: &[&str] = &["ib_atomic_bw", "-R", "--run_infinitely"];

/// Starts a program on both hosts. Their connection is over link 0, with an alternate path over link 1.
fn start(lab: &Lab, device: &str, words: &[&str]) -> Result<[Running; 2], Error> {
    let run = |host: usize, words: Vec<&str>| {
        lab.host(host).verbs(words).device(Some(device)).env("POLYPATH_APM", "on").spawn()
    };
    let meet = lab.host(0).ipv4(0);
    let is_rping = words[0] == "rping";
    let roles: [&[&str]; 2] =
        if is_rping { [&["-s", "-a", &meet], &["-c", "-a", &meet]] } else { [&[], &[&meet]] };
    let server = run(0, [words, roles[0]].concat())?;
    lab.host(0).wait_cm_listen(&server, if is_rping { 7174 } else { 18515 }, LIMIT)?;
    Ok([server, run(1, [words, roles[1]].concat())?])
}

/// Waits until all queue pairs of both hosts use link `link`, and are ready to migrate to the other one.
fn wait_armed(lab: &Lab, programs: &[Running; 2], which: Which, link: usize) -> Result<(), Error> {
    let other = format!("@eth{}", 1 - link);
    wait_all(lab, programs, which, link, |qp| {
        let migration = &qp["migration"];
        migration["state"] == "ARMED"
            && migration["alternate"].as_str().is_some_and(|path| path.ends_with(&other))
    })
}

/// Waits until all queue pairs of both hosts use link `link`, and are as they are wanted.
fn wait_all(
    lab: &Lab,
    programs: &[Running; 2],
    which: Which,
    link: usize,
    wanted: impl Fn(&Value) -> bool,
) -> Result<(), Error> {
    let by = format!("@eth{link}");
    let fits = |qp: &Value| {
        qp["active_path"].as_str().is_some_and(|path| path.ends_with(&by)) && wanted(qp)
    };
    until(&format!("queue pairs on link {link}"), LIMIT, || {
        programs.iter().try_for_each(Running::expect_alive)?;
        for host in 0..2 {
            let qps = queue_pairs(lab.host(host), which)?;
            if qps.is_empty() || !qps.iter().all(fits) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// Hits the path in use again and again, and mends it after both ends have left it.
fn survive(
    words: &[&str],
    device: &str,
    which: Which,
    rounds: usize,
    hit: impl Fn(&Lab, usize, usize) -> Result<(), Error>,
    mend: impl Fn(&Lab, usize, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let lab = Lab::new()?;
    let programs = start(&lab, device, words)?;
    wait_work(&lab, &programs)?;
    for round in 0..rounds {
        let one_round = || {
            wait_armed(&lab, &programs, which, round % 2)?;
            lab.wait_traffic(&[&programs[1], &programs[0]], 10_000, LIMIT)?;
            hit(&lab, round, round % 2)?;
            wait_all(&lab, &programs, which, 1 - round % 2, |_| true)?;
            mend(&lab, round, round % 2)
        };
        one_round().inspect_err(|_| {
            for host in 0..2 {
                let status = lab.host(host).polypath(&["status"]).map(|status| status.text());
                println!("{words:?}, round {round}, host {host}: {}", status.unwrap_or_default());
            }
        })?;
    }
    lab.wait_traffic(&[&programs[1], &programs[0]], 10_000, LIMIT)?;
    for program in programs {
        assert!(!program.text().contains("mismatch"), "{}", program.text());
        program.signal(libc::SIGINT);
        program.finish(LIMIT)?;
    }
    Ok(())
}

#[test]
fn programs_go_on_when_the_link_in_use_goes_down() -> Result<(), Error> {
    let _share = share(PATIENT);
    for (words, device) in
        [(RPING, "roce"), (RPING, "roce2"), (WRITE, "roce2"), (READ, "roce"), (ATOMIC, "roce2")]
    {
        let end = |round| if round < 2 { End::Both } else { End::Of(round % 2) };
        let hit = |lab: &Lab, round, link| lab.link_down(link, end(round));
        survive(words, device, Which::All, 4, hit, |lab, _, link| lab.link_up(link))?;
    }
    Ok(())
}

#[test]
fn programs_go_on_when_the_path_in_use_is_silent() -> Result<(), Error> {
    let _share = share(PATIENT);
    for words in [RPING, WRITE, READ, ATOMIC] {
        let hit = |lab: &Lab, _, link| lab.cut(link, Direction::Both);
        survive(words, "roce2", Which::Busiest, 2, hit, |lab, _, link| lab.heal(link))?;
    }
    Ok(())
}

#[test]
fn programs_go_on_when_an_address_is_removed() -> Result<(), Error> {
    let _share = share(PATIENT);
    for words in [RPING, WRITE, READ, ATOMIC] {
        let hit = |lab: &Lab, round: usize, link| lab.host(round / 2).remove_addresses(link);
        let mend = |lab: &Lab, round: usize, link| lab.host(round / 2).add_addresses(link);
        survive(words, "roce2", Which::All, 4, hit, mend)?;
    }
    Ok(())
}
