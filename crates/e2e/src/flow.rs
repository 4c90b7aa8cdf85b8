//! Measures traffic from outside, by the kernel's counters at a host's interfaces and not by anything
//! of Polypath.

use crate::{Error, Lab};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time between two readings of the counters. It is also the precision of the measurement.
const INTERVAL: Duration = Duration::from_micros(500);
/// Fewer bytes than this between two readings are probes and acknowledgements, not traffic.
const TRAFFIC_LEAST: u64 = 8 << 10;

/// A thread that reads the counters of received bytes until it is stopped.
#[derive(Debug)]
pub struct Flow {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<Vec<Sample>, Error>>,
}

/// The bytes received over all links until a moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The moment.
    pub at: Instant,
    /// The bytes.
    pub bytes: u64,
}

impl Flow {
    /// Starts to read the counters of `host`.
    pub fn watch(lab: &Arc<Lab>, host: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, lab) = (Arc::clone(&stop), Arc::clone(lab));
        let thread = std::thread::spawn(move || {
            go_first();
            let mut samples = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                let bytes = lab.received_bytes_of(host)?.iter().sum();
                samples.push(Sample { at: Instant::now(), bytes });
                std::thread::park_timeout(INTERVAL);
            }
            Ok(samples)
        });
        Self { stop, thread }
    }

    /// Stops, and returns the samples.
    ///
    /// # Errors
    /// If the counters could not be read.
    pub fn finish(self) -> Result<Vec<Sample>, Error> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(samples) => samples,
            Err(_) => Err(Error::Missing("the thread that counts bytes ended early".to_owned())),
        }
    }
}

/// Gives the calling thread real-time priority, if the user is allowed to (root is). A thread that
/// waits for a processor among polling programs would see gaps where there are none.
fn go_first() {
    let least = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters live. A refusal leaves all as it was, and the measurement coarser.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const least) };
}

/// The longest time without traffic that began between `from` and `to`.
pub fn longest_gap(samples: &[Sample], from: Instant, to: Instant) -> Duration {
    let mut longest = Duration::ZERO;
    let Some(first) = samples.first() else { return longest };
    let mut last = *first;
    for sample in samples {
        if sample.bytes.saturating_sub(last.bytes) >= TRAFFIC_LEAST {
            if last.at >= from && last.at <= to {
                longest = longest.max(sample.at.duration_since(last.at));
            }
            last = *sample;
        }
    }
    // If traffic has not come back, that is a gap as well.
    match samples.last() {
        Some(end) if last.at >= from && last.at <= to => {
            longest.max(end.at.duration_since(last.at))
        }
        _ => longest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_between_samples_with_traffic() {
        let start = Instant::now();
        let at = |ms: u64, bytes: u64| Sample { at: start + Duration::from_millis(ms), bytes };
        let traffic = TRAFFIC_LEAST;
        // Traffic, then 40 ms with only a few bytes of probes, then traffic again.
        let samples = [
            at(0, 0),
            at(1, traffic),
            at(2, 2 * traffic),
            at(20, 2 * traffic + 100),
            at(42, 4 * traffic),
        ];
        let gap = longest_gap(&samples, start, start + Duration::from_millis(10));
        assert_eq!(gap, Duration::from_millis(40));
        let later = start + Duration::from_millis(30);
        assert_eq!(longest_gap(&samples, later, later), Duration::ZERO, "it began before");
        let gap = longest_gap(&samples[..4], start, start + Duration::from_millis(10));
        assert_eq!(gap, Duration::from_millis(18), "traffic has not come back");
    }
}
