//! `polypath status --prometheus`: counters in the text format that Prometheus scrapes. Their names
//! and meanings are those of the declarations.

use polypath_ipc::Status;
use polypath_telemetry::{Counters, QpCounters};
use std::collections::BTreeMap;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    Counter,
    Gauge,
}

/// A metric with its samples by their labels.
#[derive(Debug)]
struct Family {
    help: String,
    kind: MetricKind,
    samples: BTreeMap<String, u64>,
}

/// All metrics, by their names.
#[derive(Debug, Default)]
struct Metrics(BTreeMap<String, Family>);

impl Metrics {
    /// Adds to a sample. Samples with the same labels are one sample.
    fn add(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        labels: &[(&str, &str)],
        value: u64,
    ) {
        let family = self.0.entry(name.to_owned()).or_insert_with(|| Family {
            help: help.to_owned(),
            kind,
            samples: BTreeMap::new(),
        });
        let sample = family.samples.entry(written(labels)).or_default();
        *sample = sample.saturating_add(value);
    }

    /// Adds all counters of a structure.
    fn count<C: Counters>(&mut self, labels: &[(&str, &str)], counters: &C) {
        for (counter, value) in counters.iter() {
            let name = format!("polypath_{}_{}_total", C::SUBJECT, counter.name);
            self.add(&name, MetricKind::Counter, counter.help, labels, value);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.0 {
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let kind = match family.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for (labels, value) in &family.samples {
                text += &format!("{name}{labels} {value}\n");
            }
        }
        text
    }
}

/// The labels, as they are written behind a name.
fn written(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

/// The metrics of a user's broker and programs. Counters of queue pairs are summed over each
/// process, because there may be thousands of queue pairs.
pub(crate) fn render(status: Option<&Status>) -> String {
    let mut metrics = Metrics::default();
    let runs = "Whether a broker runs.";
    metrics.add("polypath_broker_up", MetricKind::Gauge, runs, &[], status.is_some().into());
    let Some(status) = status else { return metrics.text() };
    metrics.count(&[], &status.broker.counters);
    metrics.count(&[], &status.broker.cm_counters);
    for slot in &status.broker.slots {
        let (slot_number, pid) = (slot.slot.to_string(), slot.pid.to_string());
        let labels = [("pid", pid.as_str()), ("slot", slot_number.as_str())];
        let help = "Packets that the kernel dropped because a lane's receive buffer was full.";
        metrics.add(
            "polypath_slot_overflows_total",
            MetricKind::Counter,
            help,
            &labels,
            slot.overflows,
        );
    }
    for process in &status.processes {
        let pid = process.pid.to_string();
        let own = [("pid", pid.as_str()), ("program", process.program.as_str())];
        for lane in &process.lanes {
            let slot = lane.slot.to_string();
            let labels = [own[0], own[1], ("slot", slot.as_str())];
            metrics.count(&labels, &lane.counters);
            metrics.count(&labels, &lane.drops);
            metrics.count(&labels, &lane.control_drops);
            metrics.count(&labels, &lane.faults);
        }
        // Include queue pairs that are gone, because a sum that decreases would look like a
        // restart.
        let mut sum = QpCounters::default();
        process.lanes.iter().for_each(|lane| sum.add(&lane.ended_qps));
        for qp in &process.qps {
            sum.add(&qp.counters);
            let labels = [own[0], own[1], ("kind", &qp.kind), ("state", &qp.state)];
            metrics.add("polypath_queue_pairs", MetricKind::Gauge, "Queue pairs.", &labels, 1);
        }
        metrics.count(&own, &sum);
        let policies = process.peers.iter().map(|peer| ("polypath_peers", peer.policy));
        let own_policies = process.qps.iter().filter_map(|qp| qp.policy.filter(|p| p.own));
        let own_policies = own_policies.map(|policy| ("polypath_queue_pair_policies", policy));
        for (metric, policy) in policies.chain(own_policies) {
            let help = match policy.own {
                false => "Peers of mp devices, by their policies.",
                true => "Queue pairs with a policy of their own.",
            };
            let (choice, source) = (policy.choice.to_string(), policy.origin.to_string());
            let labels = [own[0], own[1], ("policy", &choice), ("source", &source)];
            metrics.add(metric, MetricKind::Gauge, help, &labels, 1);
        }
        for path in &process.paths {
            let (local, remote) = (path.local.to_string(), path.remote.to_string());
            let labels = [
                own[0],
                own[1],
                ("local", local.as_str()),
                ("remote", remote.as_str()),
                ("interface", path.interface.as_str()),
            ];
            metrics.count(&labels, &path.counters);
            for (errno, packets) in &path.send_errors {
                let errno = errno.name_or_number();
                let labels = [&labels[..], &[("errno", errno.as_str())]].concat();
                let help = "Packets that the kernel refused to send.";
                let name = "polypath_path_send_errors_total";
                metrics.add(name, MetricKind::Counter, help, &labels, *packets);
            }
            let labels = [&labels[..], &[("state", path.state.as_str())]].concat();
            let help = "Paths by their state, one for each lane that uses it.";
            metrics.add("polypath_path_state", MetricKind::Gauge, help, &labels, 1);
        }
    }
    let help = "Programs that did not answer in time.";
    metrics.add(
        "polypath_silent_programs",
        MetricKind::Gauge,
        help,
        &[],
        status.silent.len() as u64,
    );
    metrics.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::example;
    use std::collections::BTreeSet;

    /// Parses the text according to the format's description: the names, labels and value of each
    /// sample.
    fn parse(text: &str) -> BTreeMap<String, u64> {
        let name = |name: &str| {
            let mut chars = name.chars();
            chars.next().is_some_and(|c| c.is_ascii_alphabetic() || "_:".contains(c))
                && chars.all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
        };
        assert!(text.ends_with('\n'));
        let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
        let mut current: Option<(String, bool)> = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (family, help) = rest.split_once(' ').expect("a name and words");
                assert!(name(family) && !help.is_empty(), "{line}");
                assert!(families.insert(family.to_owned()), "{family} comes twice");
                current = Some((family.to_owned(), false));
                continue;
            }
            let (family, typed) = current.as_mut().expect("HELP comes first");
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (of, kind) = rest.split_once(' ').expect("a name and a type");
                assert_eq!(of, family);
                assert_eq!(kind == "counter", of.ends_with("_total"), "{line}");
                assert!(["counter", "gauge"].contains(&kind) && !*typed, "{line}");
                *typed = true;
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
            let (of, labels) = sample.split_once('{').map_or((sample, None), |(of, rest)| {
                (of, Some(rest.strip_suffix('}').expect("a closing brace")))
            });
            assert!(of == family && *typed, "{line}");
            let mut rest = labels.unwrap_or_default();
            while !rest.is_empty() {
                let (label, after) = rest.split_once("=\"").expect("a label");
                assert!(name(label), "{line}");
                let mut escaped = false;
                let end = after.find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                rest = &after[end.expect("a closing quote") + 1..];
                rest = rest.strip_prefix(',').unwrap_or(rest);
            }
            let value = value.parse().expect("a number");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample} comes twice");
        }
        samples
    }

    #[test]
    fn the_text_is_as_prometheus_reads_it() {
        let mut status = example();
        status.processes[0].program = "a \"b\\c\n".to_owned();
        // Two lanes may use the same path.
        let path = status.processes[0].paths[0].clone();
        status.processes[0].paths.push(path);
        let samples = parse(&render(Some(&status)));
        let sample = |name: &str| {
            let found = samples.iter().find(|(sample, _)| sample.starts_with(name));
            *found.unwrap_or_else(|| panic!("{name} in {samples:?}")).1
        };
        assert_eq!(sample("polypath_broker_clients_accepted_total"), 4);
        assert_eq!(sample("polypath_broker_cm_mads_sent_total"), 5);
        assert_eq!(sample("polypath_lane_icrc_wrong_total{pid=\"8\""), 2);
        assert_eq!(sample("polypath_qp_retransmitted_packets_total"), 13);
        assert_eq!(sample("polypath_path_sent_bytes_total"), 4096);
        assert_eq!(sample("polypath_queue_pairs"), 1);
    }

    #[test]
    fn without_a_broker_it_says_so() {
        assert_eq!(parse(&render(None)), BTreeMap::from([("polypath_broker_up".to_owned(), 0)]));
    }
}
