//! One run: a carrier plays a scene.

use crate::carrier::Carrier;
use crate::scene::Scene;
use polypath_e2e::{Error, Flow, LINKS_MAX, Lab, Options, Sample, pass};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time in which windows grow, before anything is measured.
const SETTLE: Duration = Duration::from_secs(3);
/// How long the link works at first, is away, and works again.
pub(crate) const BEFORE: Duration = Duration::from_secs(2);
pub(crate) const AWAY: Duration = Duration::from_secs(2);
pub(crate) const AFTER: Duration = Duration::from_secs(4);
/// For which time the bytes of links are compared to find the busiest.
const LOOK: Duration = Duration::from_millis(200);

/// What was seen of a run.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) samples: Vec<Sample>,
    /// When the measurement began, the link failed, was mended, and the measurement ended.
    pub(crate) begun: Instant,
    pub(crate) failed: Instant,
    pub(crate) mended: Instant,
    pub(crate) ended: Instant,
    /// The link that failed.
    pub(crate) victim: usize,
}

/// Runs it.
pub(crate) fn run(scene: Scene, carrier: Carrier) -> Result<Seen, Error> {
    let links = scene.rates().len();
    let lab = Arc::new(Lab::with(Options { links, ..Options::default() })?);
    for (link, rate) in scene.rates().iter().enumerate() {
        let limit =
            format!("qdisc add dev eth{link} root tbf rate {rate}mbit burst 256k latency 20ms\n");
        lab.host(1).tool("tc", &["-batch", "-"], &limit)?;
    }
    let transfer = carrier.start(&lab, links)?;
    pass(SETTLE);
    let victim = scene.victim(busiest(&lab)?);
    let flow = Flow::watch(&lab, 0);
    let begun = Instant::now();
    pass(BEFORE);
    let failed = Instant::now();
    scene.fail(&lab, victim)?;
    pass(AWAY);
    let mended = Instant::now();
    lab.heal(victim)?;
    pass(AFTER);
    let ended = Instant::now();
    let samples = flow.finish()?;
    transfer.expect_alive()?;
    Ok(Seen { samples, begun, failed, mended, ended, victim })
}

/// The link by which host 0 receives the most.
fn busiest(lab: &Lab) -> Result<usize, Error> {
    let before = lab.received_bytes_of(0)?;
    pass(LOOK);
    let after = lab.received_bytes_of(0)?;
    let grown = after.iter().zip(&before).map(|(after, before)| after - before);
    Ok(grown.enumerate().max_by_key(|(_, bytes)| *bytes).map_or(0, |(link, _)| link))
}

impl Seen {
    /// The bytes by link that were received between two moments.
    pub(crate) fn bytes(&self, from: Instant, to: Instant) -> [u64; LINKS_MAX] {
        let until = |at: Instant| {
            let last = self.samples.iter().take_while(|sample| sample.at <= at).last();
            last.or_else(|| self.samples.first()).map_or([0; LINKS_MAX], |sample| sample.by_link)
        };
        let (before, after) = (until(from), until(to));
        std::array::from_fn(|link| after[link].saturating_sub(before[link]))
    }
}
