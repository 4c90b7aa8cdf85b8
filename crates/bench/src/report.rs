//! Results, as a table for people and as JSON for programs.

use polypath_e2e::Error;
use serde::Serialize;
use std::path::Path;

/// The value that a result must reach.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Floor {
    /// At least this much.
    AtLeast(f64),
    /// At most this much.
    AtMost(f64),
    /// No value: the result is only shown.
    None,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// What was measured, with its unit: `write 1 MiB, Gbit/s`.
    pub(crate) name: String,
    /// The median of our values.
    pub(crate) ours: f64,
    /// All our values.
    pub(crate) ours_all: Vec<f64>,
    /// The name of what we are compared with, and its median.
    pub(crate) other: Option<(String, f64)>,
    /// All values of the other.
    pub(crate) other_all: Vec<f64>,
    /// The value that the ratio, or our value if there is no other, is to reach on an idle machine.
    pub(crate) floor: Floor,
    /// The value that it reaches on any machine unless something is broken.
    pub(crate) bound: Floor,
}

impl Measurement {
    /// Our value divided by the other's: the median of the ratios of the turns, because a disturbance
    /// of the machine affects neighbouring turns alike. Without another, it is our median.
    pub(crate) fn judged(&self) -> f64 {
        if self.other.is_none() {
            return self.ours;
        }
        let pairs = self.ours_all.iter().zip(&self.other_all);
        median(&pairs.map(|(ours, other)| ours / other).collect::<Vec<_>>())
    }

    fn met(&self) -> bool {
        self.floor.is_met(self.judged())
    }

    fn within(&self) -> bool {
        self.bound.is_met(self.judged())
    }
}

impl Floor {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
            Self::None => true,
        }
    }
}

/// All measurements of one run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    measurements: Vec<Measurement>,
}

impl Report {
    /// Adds a measurement and prints it at once.
    pub(crate) fn add(&mut self, measurement: Measurement) {
        polypath_e2e::say!("{}", line(&measurement));
        self.measurements.push(measurement);
    }

    /// Adds the times for which traffic stood still, in milliseconds, and prints the longest as well. Above
    /// `floor_ms` a median is worse than on an idle machine, above `broken_ms` something is broken.
    pub(crate) fn add_blackouts(
        &mut self,
        name: &str,
        blackouts_ms: Vec<f64>,
        floor_ms: f64,
        broken_ms: f64,
    ) {
        let longest = blackouts_ms.iter().copied().fold(0.0, f64::max);
        self.add(Measurement {
            name: format!("{name}, ms"),
            ours: median(&blackouts_ms),
            ours_all: blackouts_ms,
            other: None,
            other_all: Vec::new(),
            floor: Floor::AtMost(floor_ms),
            bound: Floor::AtMost(broken_ms),
        });
        polypath_e2e::say!("  longest {longest:.1} ms");
    }

    pub(crate) fn floors_met(&self) -> bool {
        self.measurements.iter().all(Measurement::met)
    }

    /// The measurements that show that something is broken, whatever the machine.
    pub(crate) fn broken(&self) -> impl Iterator<Item = String> + '_ {
        self.measurements.iter().filter(|m| !m.within()).map(|m| {
            let bound = match m.bound {
                Floor::AtLeast(least) => format!("at least {least}"),
                Floor::AtMost(most) => format!("at most {most}"),
                Floor::None => String::new(),
            };
            format!("{}: {:.2}, on any machine {bound}", m.name, m.judged())
        })
    }

    pub(crate) fn table(&self) -> String {
        let head = format!(
            "\n{:<44} {:>10} {:>10} {:>8}  {}\n",
            "MEASURED (median)", "OURS", "OTHER", "RATIO", "FLOOR"
        );
        self.measurements.iter().fold(head, |table, m| table + &line(m) + "\n")
    }

    /// The table as Markdown, for the README, with the machine that it was measured on.
    pub(crate) fn markdown(&self, machine: &str) -> String {
        let head = format!(
            "Measured by `make bench` on {machine}. Medians; *ratio* is Polypath over the other.\n\n\
             | measured | Polypath | other | ratio |\n|---|--:|--:|--:|\n"
        );
        self.measurements.iter().fold(head, |table, m| {
            let (other, ratio) = match &m.other {
                Some((name, value)) => {
                    (format!("{value:.2} ({name})"), format!("{:.2}", m.judged()))
                }
                None => (String::new(), String::new()),
            };
            table + &format!("| {} | {:.2} | {other} | {ratio} |\n", m.name, m.ours)
        })
    }

    pub(crate) fn write_json(&self, path: &Path) -> Result<(), Error> {
        // Writing can't fail; values that are not finite become null.
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        std::fs::write(path, text)
            .map_err(|source| Error::Os { what: format!("writing {}", path.display()), source })
    }
}

/// The processor, the number of processors and the kernel of this machine.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model =
        cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    let model = model.unwrap_or("an unknown processor").trim();
    format!("{model}, {processors} processors, Linux {}", kernel.trim())
}

fn line(m: &Measurement) -> String {
    let (other, ratio) = match &m.other {
        Some((name, value)) => (format!("{value:.2}"), format!("{:.2} of {name}", m.judged())),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let verdict = if m.met() { "met" } else { "MISSED" };
    let floor = match m.floor {
        Floor::AtLeast(least) => format!("at least {least}: {verdict}"),
        Floor::AtMost(most) => format!("at most {most}: {verdict}"),
        Floor::None => String::new(),
    };
    format!("{:<44} {:>10.2} {other:>10} {ratio:>8}  {floor}", m.name, m.ours)
}

/// The median: the middle value, or the mean of the two middle values of an even number; 0 if there are
/// none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn the_markdown_names_the_machine_and_has_a_row_for_each_measurement() {
        let mut report = Report::default();
        report.measurements.push(Measurement {
            name: "write 1 MiB, Gbit/s".to_owned(),
            ours: 30.0,
            ours_all: vec![30.0],
            other: Some(("TCP".to_owned(), 20.0)),
            other_all: vec![20.0],
            floor: Floor::None,
            bound: Floor::None,
        });
        let text = report.markdown("a machine");
        assert!(text.starts_with("Measured by `make bench` on a machine."), "{text}");
        assert!(text.ends_with("| write 1 MiB, Gbit/s | 30.00 | 20.00 (TCP) | 1.50 |\n"), "{text}");
    }

    #[test]
    fn a_ratio_is_judged_where_there_is_another() {
        let mut measurement = Measurement {
            name: "x".to_owned(),
            ours: 3.0,
            ours_all: vec![3.0],
            other: Some(("y".to_owned(), 2.0)),
            other_all: vec![2.0],
            floor: Floor::AtMost(1.5),
            bound: Floor::AtMost(2.0),
        };
        assert!(measurement.met());
        measurement.ours_all = vec![3.0, 30.0, 3.3];
        measurement.other_all = vec![2.0, 20.0, 2.0];
        assert!(measurement.met(), "a bad moment meets both");
        measurement.other = None;
        assert!(!measurement.met());
        assert!(!measurement.within());
        let report = Report { measurements: vec![measurement] };
        assert_eq!(report.broken().count(), 1);
    }

    #[test]
    fn what_is_worse_than_its_floor_but_within_its_bound_is_not_broken() {
        let measurement = Measurement {
            name: "x".to_owned(),
            ours: 0.7,
            ours_all: vec![0.7],
            other: None,
            other_all: Vec::new(),
            floor: Floor::AtLeast(1.0),
            bound: Floor::AtLeast(0.5),
        };
        assert!(!measurement.met());
        assert!(measurement.within());
    }
}
