//! Measures how long traffic stands still when the path it uses fails: twenty times in each of two
//! ways.
//!
//! The measurement is made from outside, by the bytes that the kernel counts at the receiving host's
//! interfaces, while an unmodified ib_write_bw runs with default settings. Its precision is the
//! interval of the counting, half a millisecond. Unless root measures, delays of the machine's
//! scheduler are added. Both make our result worse, never better.

use crate::report::Report;
use polypath_e2e::{Direction, End, Error, Finished, Flow, Lab, longest_gap, pass, twice, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CUTS: usize = 20;
/// How long a link stays away.
const AWAY: Duration = Duration::from_millis(600);
/// The time until the next cut. The mended path must have been found good by then, so it is longer than
/// the sum of updelay and the interval at which a dead path is probed.
const RECOVERY: Duration = Duration::from_millis(1500);
const LIMIT: Duration = Duration::from_secs(45);
/// The bound in milliseconds above which fail-over is broken. Without a fail-over, traffic stands still
/// for as long as the link is away. A fail-over takes less than half of that, even if the hypervisor
/// takes the processors away for a quarter of the time.
const BROKEN_MS: f64 = 300.0;

/// Measures both kinds of failure.
pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    for (name, silent, floor_ms) in [("link down", false, 5.0), ("silent cut", true, 50.0)] {
        let name = format!("mp: blackout at {name}");
        report.add_blackouts(&name, twice(|| cuts(silent))?, floor_ms, BROKEN_MS);
    }
    Ok(())
}

fn cuts(silent: bool) -> Result<Vec<f64>, Error> {
    let lab = Arc::new(Lab::new()?);
    let once = AWAY + RECOVERY;
    // The program runs half as long again, because cuts take longer than planned on a busy machine, and
    // all must hit traffic.
    let seconds = (once * u32::try_from(CUTS).unwrap_or(u32::MAX)).as_secs() * 3 / 2;
    let words = ["ib_write_bw", "-D", &seconds.to_string()];
    let server = lab.host(0).verbs(words).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let meet = lab.host(0).ipv4(0);
    let client = lab.host(1).verbs(words.into_iter().chain([meet.as_str()])).spawn()?;
    until("traffic", LIMIT, || {
        client.expect_alive()?;
        Ok((lab.received_bytes()?[0].iter().sum::<u64>() > 10 << 20).then_some(()))
    })?;
    let mut blackouts_ms = Vec::with_capacity(CUTS);
    for _ in 0..CUTS {
        pass(RECOVERY);
        client.expect_alive()?;
        let link = busy_link(&lab)?;
        let flow = Flow::watch(&lab, 0);
        // The samples must begin before the failure.
        pass(Duration::from_millis(10));
        let failure = Instant::now();
        if silent {
            lab.cut(link, Direction::Both)?;
        } else {
            lab.link_down(link, End::Both)?;
        }
        pass(AWAY);
        let samples = flow.finish()?;
        lab.heal(link)?;
        // The last packets may have been counted just before the command returned.
        let from = failure - Duration::from_millis(2);
        blackouts_ms.push(longest_gap(&samples, from, failure + AWAY).as_secs_f64() * 1e3);
    }
    let client = client.finish(LIMIT).and_then(Finished::expect_success);
    client.map_err(|error| error.with_server(&server.doing()))?;
    server.finish(LIMIT)?.expect_success()?;
    Ok(blackouts_ms)
}

/// The link that carries the traffic at the moment.
fn busy_link(lab: &Lab) -> Result<usize, Error> {
    let before = lab.received_bytes()?[0].clone();
    until("traffic on some link", LIMIT, || {
        let now = lab.received_bytes()?[0].clone();
        Ok((0..now.len()).find(|&link| now[link] - before[link] > 1 << 20))
    })
}
