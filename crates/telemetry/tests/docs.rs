//! `docs/counters.md` and `docs/events.md` explain the counters and events that are declared, in the
//! words of the declarations.

use polypath_telemetry::{
    BrokerCounters, CmCounters, ControlDrops, Counters, Event, FaultCounters, LaneCounters,
    LaneDrops, PathCounters, QpCounters,
};

const PAGE: &str = include_str!("../../../docs/counters.md");

/// The lines of the page's table for some counters.
fn lines<C: Counters>() -> Vec<String> {
    let line = |d: &polypath_telemetry::Descriptor| {
        let mut words = d.help.trim_end_matches('.').to_owned();
        // An abbreviation keeps its capitals.
        if words.chars().nth(1).is_some_and(char::is_lowercase) {
            words[..1].make_ascii_lowercase();
        }
        format!("| `{}` | {} | {words} |", d.name, d.unit)
    };
    C::DESCRIPTORS.iter().map(line).collect()
}

fn check(heading: &str, expected: &[Vec<String>]) {
    let (_, rest) = PAGE.split_once(&format!("\n## {heading}\n")).expect("a heading");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let is: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let expected = expected.concat();
    assert!(
        is == expected,
        "the lines of docs/counters.md, section {heading}, are to be these:\n{}",
        expected.join("\n")
    );
}

#[test]
fn the_page_explains_the_brokers_counters() {
    check("Broker", &[lines::<BrokerCounters>(), lines::<CmCounters>()]);
}

#[test]
fn the_page_explains_the_counters_of_lanes() {
    check("Lanes", &[lines::<LaneCounters>()]);
}

#[test]
fn the_page_explains_why_packets_are_dropped() {
    check("Programs", &[lines::<LaneDrops>(), lines::<FaultCounters>(), lines::<ControlDrops>()]);
}

#[test]
fn the_page_explains_the_counters_of_paths() {
    check("Paths", &[lines::<PathCounters>()]);
}

#[test]
fn the_page_explains_the_counters_of_queue_pairs() {
    check("Queue pairs", &[lines::<QpCounters>()]);
}

#[test]
fn a_name_is_given_once_among_those_of_a_subject() {
    let mut names: Vec<(&str, &str)> = Vec::new();
    fn add<C: Counters>(names: &mut Vec<(&str, &str)>) {
        names.extend(C::DESCRIPTORS.iter().map(|d| (C::SUBJECT, d.name)));
    }
    add::<BrokerCounters>(&mut names);
    add::<CmCounters>(&mut names);
    add::<LaneCounters>(&mut names);
    add::<LaneDrops>(&mut names);
    add::<FaultCounters>(&mut names);
    add::<ControlDrops>(&mut names);
    add::<PathCounters>(&mut names);
    add::<QpCounters>(&mut names);
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn the_page_explains_every_kind_of_event() {
    const PAGE: &str = include_str!("../../../docs/events.md");
    let lines = Event::KINDS.iter().map(|kind| {
        let fields: Vec<String> = kind.fields.iter().map(|field| format!("`{field}`")).collect();
        format!("| `{}` | {} | {} | {} |", kind.name, kind.level, fields.join(", "), kind.help)
    });
    let expected: Vec<String> = lines.collect();
    let (_, rest) = PAGE.split_once("\n## Kinds\n").expect("a heading");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let is: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(
        is == expected,
        "the lines of docs/events.md, section Kinds, are to be these:\n{}",
        expected.join("\n")
    );
}
