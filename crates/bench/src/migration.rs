//! Measures how long traffic stands still when a queue pair of plain RoCE migrates (automatic path
//! migration): twenty times in each of three ways.
//!
//! The measurement is made from outside, as that of [`crate::blackout`] is, while an unmodified ib_write_bw
//! runs that knows nothing of migration. Each failure waits until both ends are ARMED.

use crate::report::Report;
use polypath_e2e::{Direction, End, Error, Flow, Lab, Running, longest_gap, pass, twice, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CUTS: usize = 20;
/// How long a path stays away.
const AWAY: Duration = Duration::from_millis(600);
/// The limit for programs to start and for queue pairs to be ARMED again.
const LIMIT: Duration = Duration::from_secs(45);
/// The bound in milliseconds above which migration is broken: the retries alone take seconds.
const BROKEN_MS: f64 = 400.0;

/// What happens to the path in use.
#[derive(Clone, Copy, Debug)]
enum Failure {
    LinkDown,
    Silence,
    AddressRemoved,
}

impl Failure {
    fn hit(self, lab: &Lab, link: usize) -> Result<(), Error> {
        match self {
            Self::LinkDown => lab.link_down(link, End::Both),
            Self::Silence => lab.cut(link, Direction::Both),
            Self::AddressRemoved => lab.host(1).remove_addresses(link),
        }
    }

    fn mend(self, lab: &Lab, link: usize) -> Result<(), Error> {
        match self {
            Self::LinkDown => lab.link_up(link),
            Self::Silence => lab.heal(link),
            Self::AddressRemoved => lab.host(1).add_addresses(link),
        }
    }
}

/// Measures all kinds of failure.
pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let kinds = [
        ("link down", Failure::LinkDown, 5.0),
        ("silent cut", Failure::Silence, 50.0),
        ("address removed", Failure::AddressRemoved, 20.0),
    ];
    for (name, failure, floor_ms) in kinds {
        let name = format!("apm: blackout at {name}");
        report.add_blackouts(&name, twice(|| cuts(failure))?, floor_ms, BROKEN_MS);
    }
    Ok(())
}

fn cuts(failure: Failure) -> Result<Vec<f64>, Error> {
    let lab = Arc::new(Lab::new()?);
    let start = |host: usize, words: &[&str]| {
        let program = lab.host(host).verbs(words.iter().copied());
        program.device(Some("roce2")).env("POLYPATH_APM", "on").spawn()
    };
    let words = ["ib_write_bw", "-R", "--run_infinitely"];
    let server = start(0, &words)?;
    lab.host(0).wait_cm_listen(&server, 18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = start(1, &[&words[..], &[&meet]].concat())?;
    let mut blackouts_ms = Vec::with_capacity(CUTS);
    for _ in 0..CUTS {
        let link = armed_link(&lab, &[&server, &client])?;
        let flow = Flow::watch(&lab, 0);
        // The samples must begin before the failure.
        pass(Duration::from_millis(10));
        let begin = Instant::now();
        failure.hit(&lab, link)?;
        pass(AWAY);
        let samples = flow.finish()?;
        failure.mend(&lab, link)?;
        // The last packets may have been counted just before the command returned.
        let from = begin - Duration::from_millis(2);
        blackouts_ms.push(longest_gap(&samples, from, begin + AWAY).as_secs_f64() * 1e3);
    }
    for program in [server, client] {
        program.signal(libc::SIGTERM);
        program.finish(LIMIT)?;
    }
    Ok(blackouts_ms)
}

/// Waits until the queue pairs that carry the traffic are ARMED at both hosts. Returns the link that they
/// use.
fn armed_link(lab: &Lab, programs: &[&Running]) -> Result<usize, Error> {
    until("queue pairs that are ARMED", LIMIT, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        let links = [armed_link_of(lab, 0), armed_link_of(lab, 1)];
        Ok(links[0].filter(|_| links[0] == links[1]))
    })
}

fn armed_link_of(lab: &Lab, host: usize) -> Option<usize> {
    let qps = lab.host(host).queue_pairs().ok()?;
    let packets = |qp: &serde_json::Value| {
        let count = |counter: &str| qp["counters"][counter].as_u64().unwrap_or(0);
        count("sent_packets") + count("received_packets")
    };
    let qp = qps.into_iter().filter(|qp| packets(qp) > 10_000).max_by_key(packets)?;
    let path = qp["active_path"].as_str()?;
    let link = (0..2).find(|link| path.ends_with(&format!("@eth{link}")))?;
    let migration = &qp["migration"];
    let alternate = migration["alternate"].as_str()?;
    let is_armed =
        migration["state"] == "ARMED" && alternate.ends_with(&format!("@eth{}", 1 - link));
    is_armed.then_some(link)
}
