//! Shows the demonstration: throughput per link while it runs, events, and the summary.

use crate::outcome::Outcome;
use polypath_e2e::{Error, Failover, Lab, failovers};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines of throughput.
const INTERVAL: Duration = Duration::from_millis(500);
/// The width in characters of a throughput bar at [`BAR_FULL_GBPS`].
const BAR: usize = 24;
const BAR_FULL_GBPS: f64 = 24.0;

/// Shows an act while it runs.
pub(crate) struct View {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<Result<(), Error>>,
}

struct Shared {
    start: Instant,
    stop: AtomicBool,
    failovers: Mutex<Vec<Failover>>,
}

impl Shared {
    fn failovers(&self) -> Vec<Failover> {
        self.failovers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl View {
    /// Begins to show an act.
    pub(crate) fn start(lab: &Arc<Lab>, title: &str) -> Self {
        polypath_e2e::say!("\n=== {title}");
        let shared = Arc::new(Shared {
            start: Instant::now(),
            stop: AtomicBool::new(false),
            failovers: Mutex::default(),
        });
        let (lab, seen) = (Arc::clone(lab), Arc::clone(&shared));
        let thread = std::thread::spawn(move || watch(&lab, &seen));
        Self { shared, thread }
    }

    /// Shows an event.
    pub(crate) fn event(&self, text: &str) {
        say(&self.shared, &format!(">>> {text}"));
    }

    /// The fail-overs of this act so far.
    pub(crate) fn failovers(&self) -> Vec<Failover> {
        self.shared.failovers()
    }

    /// Stops showing the act.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        match self.thread.join() {
            Ok(result) => result,
            Err(_) => Err(Error::Missing("the display ended early".to_owned())),
        }
    }
}

fn say(shared: &Shared, text: &str) {
    polypath_e2e::say!("{:6.1} s  {text}", shared.start.elapsed().as_secs_f64());
}

fn watch(lab: &Lab, shared: &Shared) -> Result<(), Error> {
    let before = known(lab)?;
    let mut last = (Instant::now(), lab.received_bytes()?);
    while !shared.stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(INTERVAL);
        let now = (Instant::now(), lab.received_bytes()?);
        let seconds = now.0.duration_since(last.0).as_secs_f64();
        let mut line = String::new();
        for link in 0..2 {
            let bytes = |counts: &[Vec<u64>; 2]| counts.iter().map(|host| host[link]).sum::<u64>();
            let gbps = bytes(&now.1).saturating_sub(bytes(&last.1)) as f64 * 8e-9 / seconds;
            write!(line, "eth{link} {gbps:6.2} Gbit/s {:BAR$}  ", bar(gbps)).ok();
        }
        say(shared, line.trim_end());
        last = now;
        for failover in known(lab)? {
            let mut seen = shared.failovers.lock().unwrap_or_else(PoisonError::into_inner);
            if !before.contains(&failover) && !seen.contains(&failover) {
                say(shared, &format!("    fail-over {}", describe(&failover)));
                seen.push(failover);
            }
        }
    }
    Ok(())
}

/// The fail-overs that move traffic away from a path, as both hosts report them.
fn known(lab: &Lab) -> Result<Vec<Failover>, Error> {
    let mut all = failovers(lab.host(0))?;
    all.extend(failovers(lab.host(1))?);
    Ok(all)
}

fn bar(gbps: f64) -> String {
    let full = (gbps / BAR_FULL_GBPS * BAR as f64).round().clamp(0.0, BAR as f64);
    "#".repeat(full as usize)
}

fn describe(failover: &Failover) -> String {
    let to = if failover.to.is_empty() { "no path" } else { &failover.to };
    let blackout_ms = failover.blackout_us as f64 / 1e3;
    format!("{} -> {to}: {}, blackout {blackout_ms:.1} ms", failover.from, failover.reason)
}

/// Prints the summary of all acts.
pub(crate) fn summary(outcomes: &[Outcome]) {
    polypath_e2e::say!("\n=== Summary");
    for outcome in outcomes {
        polypath_e2e::say!("{}", outcome.title);
        polypath_e2e::say!("  moved     {:.2} GB", outcome.moved_bytes as f64 / 1e9);
        polypath_e2e::say!("  result    {}", outcome.result);
        for blackout in &outcome.blackouts {
            let ms = blackout.duration.as_secs_f64() * 1e3;
            polypath_e2e::say!("  {:<9} traffic stood still for {ms:.1} ms", blackout.fault);
        }
        for failover in &outcome.failovers {
            polypath_e2e::say!("  fail-over {}", describe(failover));
        }
    }
    let moved: u64 = outcomes.iter().map(|outcome| outcome.moved_bytes).sum();
    let verified: u64 = outcomes.iter().map(|outcome| outcome.verified).sum();
    let failovers: usize = outcomes.iter().map(|outcome| outcome.failovers.len()).sum();
    polypath_e2e::say!(
        "In all {:.2} GB moved, {verified} operations verified, {failovers} fail-overs; \
         nothing lost, doubled, reordered or corrupt.",
        moved as f64 / 1e9
    );
}
