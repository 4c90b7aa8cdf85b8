//! Measures traffic from outside, by the kernel's counters at a host's interfaces and not by anything
//! of Polypath.

use crate::lab::LINKS_MAX;
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
    /// The bytes of each link; 0 where the lab has none.
    pub by_link: [u64; LINKS_MAX],
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
                let mut by_link = [0; LINKS_MAX];
                by_link.iter_mut().zip(lab.received_bytes_of(host)?).for_each(|(to, n)| *to = n);
                let bytes = by_link.iter().sum();
                samples.push(Sample { at: Instant::now(), bytes, by_link });
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

/// The bytes of each `step` from `start` on, of which `bytes` returns the sum until a sample.
pub fn steps(
    samples: &[Sample],
    start: Instant,
    step: Duration,
    bytes: impl Fn(&Sample) -> u64,
) -> Vec<u64> {
    let mut values = Vec::new();
    let mut before = samples.first().map_or(0, &bytes);
    for sample in samples {
        let since = sample.at.saturating_duration_since(start);
        let number = (since.as_micros() / step.as_micros()) as usize;
        if values.len() <= number {
            values.resize(number + 1, 0);
        }
        values[number] += bytes(sample).saturating_sub(before);
        before = bytes(sample);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was received until so many milliseconds, all of it over the second link.
    fn sample(start: Instant, ms: u64, bytes: u64) -> Sample {
        let mut by_link = [0; LINKS_MAX];
        by_link[1] = bytes;
        Sample { at: start + Duration::from_millis(ms), bytes, by_link }
    }

    #[test]
    fn bytes_are_counted_in_the_step_in_which_they_came() {
        let (start, step) = (Instant::now(), Duration::from_millis(20));
        let at = |ms, bytes| sample(start, ms, bytes);
        let samples = [at(0, 100), at(10, 130), at(19, 150), at(45, 155)];
        assert_eq!(steps(&samples, start, step, |sample| sample.bytes), [50, 0, 5]);
        assert_eq!(steps(&samples, start, step, |sample| sample.by_link[1]), [50, 0, 5]);
        assert_eq!(steps(&samples, start, step, |sample| sample.by_link[0]), [0, 0, 0]);
    }

    #[test]
    fn the_longest_gap_is_between_samples_with_traffic() {
        let start = Instant::now();
        let at = |ms, bytes| sample(start, ms, bytes);
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
