//! What a run says in numbers.

use crate::run::Seen;
use crate::scene::Scene;
use polypath_e2e::{longest_gap, steps};
use std::time::{Duration, Instant};

/// The step of plots, and the time in which throughput is looked at for recovery: the mean of some steps.
pub(crate) const STEP: Duration = Duration::from_millis(20);
const MEAN: usize = 5;
/// The part of the throughput from before at which it counts as recovered.
const RECOVERED: f64 = 0.9;
/// What a link was still sending when it failed, and had queued.
const SLACK: Duration = Duration::from_millis(2);

/// The figures of one run. Throughputs are parts of the sum of all links' rates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Throughput before the failure, while the link is away, and in the last second.
    pub(crate) before: f64,
    pub(crate) away: f64,
    pub(crate) last: f64,
    /// The longest time without traffic that began while the link was away; `None` if traffic did not come
    /// back in that time.
    pub(crate) gap: Option<Duration>,
    /// The time from when the link is mended until throughput is nearly as before; `None` if it is not at the
    /// end.
    pub(crate) back: Option<Duration>,
    /// The share of each link in what was carried before the failure.
    pub(crate) shares: Vec<f64>,
}

impl Figures {
    pub(crate) fn of(scene: Scene, seen: &Seen) -> Self {
        let all: u64 = scene.rates().iter().sum();
        let links = scene.rates().len();
        let rate = |from: Instant, to: Instant| {
            let bytes: u64 = seen.bytes(from, to).iter().sum();
            bytes as f64 * 8.0 / (to - from).as_secs_f64() / (all as f64 * 1e6)
        };
        let before = rate(seen.begun, seen.failed);
        let carried = seen.bytes(seen.begun, seen.failed);
        let sum = carried.iter().sum::<u64>().max(1);
        let gap = longest_gap(&seen.samples, seen.failed - SLACK, seen.mended);
        Self {
            before,
            away: rate(seen.failed, seen.mended),
            last: rate(seen.ended - Duration::from_secs(1), seen.ended),
            gap: (gap < seen.mended - seen.failed).then_some(gap),
            back: back(seen, before * all as f64 * 1e6 / 8.0),
            shares: carried[..links].iter().map(|bytes| *bytes as f64 / sum as f64).collect(),
        }
    }
}

/// When throughput reaches what it was before, in bytes a second, counted from when the link was mended.
fn back(seen: &Seen, before: f64) -> Option<Duration> {
    let values = steps(&seen.samples, seen.mended, STEP, |sample| sample.bytes);
    let least = before * RECOVERED * (STEP * MEAN as u32).as_secs_f64();
    // The last step is not whole, and the first one has what came before.
    let whole = values.get(1..values.len().saturating_sub(1))?;
    let at = whole.windows(MEAN).position(|mean| mean.iter().sum::<u64>() as f64 >= least)?;
    Some(STEP * at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_e2e::{LINKS_MAX, Sample};

    /// A run over two links of 400 Mbit/s, 50 bytes a microsecond. The first one fails after 2 s, for 2 s.
    /// The other one carries nothing for `gap` ms then, and all that it can afterwards.
    fn seen(gap: u64, comes_back: bool) -> Seen {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut by_link = [0; LINKS_MAX];
        let mut samples = Vec::new();
        for ms in 0..=8000 {
            samples.push(Sample { at: at(ms), bytes: by_link.iter().sum(), by_link });
            let up = ms < 2000 || (ms >= 4000 && comes_back);
            by_link[0] += if up { 50_000 } else { 0 };
            by_link[1] += if (2000..2000 + gap).contains(&ms) { 0 } else { 50_000 };
        }
        let [failed, mended, ended] = [2000, 4000, 8000].map(at);
        Seen { samples, begun, failed, mended, ended, victim: 0 }
    }

    #[test]
    fn figures_are_parts_of_what_the_links_can_carry() {
        let figures = Figures::of(Scene::Cut, &seen(500, true));
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.01;
        assert!(near(figures.before, 1.0) && near(figures.last, 1.0), "{figures:?}");
        assert!(near(figures.away, 0.375), "half of it for three quarters: {figures:?}");
        assert_eq!(figures.shares, [0.5, 0.5]);
        let gap = figures.gap.unwrap();
        assert!(gap.as_millis().abs_diff(500) <= 2, "{gap:?}");
        assert!(figures.back.unwrap() < STEP, "{figures:?}");
    }

    #[test]
    fn what_does_not_come_back_is_not_said_to() {
        let figures = Figures::of(Scene::Cut, &seen(2500, false));
        assert_eq!((figures.gap, figures.back), (None, None));
        assert!(figures.away < 0.01 && (figures.last - 0.5).abs() < 0.01, "{figures:?}");
    }
}
