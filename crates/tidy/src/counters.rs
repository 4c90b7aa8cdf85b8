//! Each counter is counted up somewhere: one that stays at zero tells people that nothing happened.
//!
//! Counters are the integers of a structure whose name ends with `Counters`, and atomic integers anywhere.
//! The crate that declares one has to change it, outside of its tests; any crate may if it is `pub`.

use crate::Finding;
use crate::source::{Source, block_end, is_word, words};
use crate::tree::crate_of;

const INTEGERS: [&str; 5] = ["u8", "u16", "u32", "u64", "usize"];
/// What may follow the name of a counter where it changes.
const CHANGES: [&str; 8] =
    ["+=", ".fetch_", ".store(", ".swap(", ".compare_exchange", ".update(", ".get_mut(", "["];

/// A counter: its name, the file that declares it, and where.
struct Counter<'a> {
    source: &'a Source,
    at: usize,
    name: &'a str,
    /// Other crates may change it.
    public: bool,
}

/// Counters that nothing changes.
pub fn unchanged(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let codes: Vec<_> =
        sources.iter().filter(|s| s.path.contains("/src/")).map(|s| (s, s.production())).collect();
    for (source, code) in &codes {
        for counter in declared(source, code) {
            let mut at_hand = codes
                .iter()
                .filter(|(s, _)| counter.public || crate_of(&s.path) == crate_of(&source.path));
            if at_hand.any(|(_, code)| changes(code, counter.name)) {
                continue;
            }
            findings.push(Finding {
                file: counter.source.path.clone(),
                line: counter.source.line_at(counter.at),
                rule: "counter",
                what: format!(
                    "nothing ever counts `{}` up; count where it happens, or take it out",
                    counter.name
                ),
            });
        }
    }
    findings
}

fn declared<'a>(source: &'a Source, code: &'a str) -> Vec<Counter<'a>> {
    let mut counters = Vec::new();
    let mut rest = words(code);
    while let Some((_, word)) = rest.next() {
        if word != "struct" {
            continue;
        }
        let Some((at, structure)) = rest.next() else { break };
        let Some(open) = code[at..].find(['{', ';', '(']).map(|open| at + open) else { break };
        if code.as_bytes()[open] != b'{' {
            continue;
        }
        let all = structure.ends_with("Counters");
        for (begin, field) in fields(&code[..block_end(code, open) - 1], open + 1) {
            let Some((name, of)) = field.split_once(':') else { continue };
            let of = of.trim();
            let counts = all && INTEGERS.contains(&of)
                || of.starts_with("AtomicU")
                || of.starts_with("AtomicI");
            let name_at = name.trim_end().rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
            let public =
                words(name).any(|(at, word)| word == "pub" && !name[at + 3..].starts_with('('));
            if counts {
                counters.push(Counter {
                    source,
                    at: begin + name_at,
                    name: name[name_at..].trim(),
                    public,
                });
            }
        }
    }
    counters
}

/// The text of each field from `at` on, without attributes, and its place.
fn fields(code: &str, mut at: usize) -> Vec<(usize, &str)> {
    let mut fields = Vec::new();
    let mut depth = 0_i32;
    let begin_of = |at: usize| at + code[at..].len() - code[at..].trim_start().len();
    let mut begin = at;
    while at < code.len() {
        match code.as_bytes()[at] {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' | b'>' => depth -= 1,
            b',' if depth == 0 => {
                fields.push((begin_of(begin), code[begin..at].trim()));
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    fields.push((begin_of(begin), code[begin..].trim()));
    fields
}

/// Whether `code` changes a field of the name `field`, or hands it out to be changed.
fn changes(code: &str, field: &str) -> bool {
    code.match_indices(field).any(|(at, _)| {
        let rest = &code[at + field.len()..];
        if !code[..at].trim_end().ends_with('.') || rest.starts_with(is_word) {
            return false;
        }
        let rest = rest.trim_start();
        let assigned = rest.starts_with('=') && !rest.starts_with("==") && !rest.starts_with("=>");
        let owner = code[..at].trim_end_matches(|c: char| is_word(c) || ".()[]".contains(c));
        assigned
            || CHANGES.iter().any(|change| rest.starts_with(change))
            || owner.ends_with("&mut ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(declaration: &str, code: &str) -> usize {
        let file = |name: &str, text: &str| Source::new(&format!("crates/{name}"), text);
        let declaration =
            format!("/// All.\npub struct Counters {{\n    pub other: u64,\n    {declaration}\n}}");
        let files = [
            file("a/src/counters.rs", &declaration),
            file("a/src/lib.rs", &format!("fn f(c: &mut Counters) {{ c.other += 1; {code} }}")),
            file("b/src/lib.rs", "fn f(c: &mut Counters) { c.lost += 1; }"),
        ];
        let findings = unchanged(&files);
        assert!(findings.iter().all(|f| f.line == 4 && f.what.contains("lost")), "{findings:?}");
        findings.len()
    }

    #[test]
    fn a_counter_that_is_only_read_is_found() {
        assert_eq!(found("pub(crate) lost: u64,", "show(c.lost)"), 1);
        assert_eq!(found("pub lost: u64,", "show(c.lost)"), 0, "another crate changes it");
        assert_eq!(found("pub(crate) lost: AtomicU64", "c.lost.load(Relaxed) == 1"), 1);
        assert_eq!(found("lost: u64", "if c.lost == 1 { }"), 1);
        assert_eq!(found("lost: u64", "} #[cfg(test)] mod tests { c.lost += 1;"), 1);
    }

    #[test]
    fn a_counter_that_changes_is_not() {
        for change in [
            "c.lost += 1;",
            "c.lost.fetch_add(1, Relaxed);",
            "c.lost = 7;",
            "count(&mut c.lost)",
            "c\n.lost\n+= n;",
        ] {
            assert_eq!(found("lost: u64,", change), 0, "{change}");
        }
    }

    #[test]
    fn what_is_no_number_is_no_counter() {
        assert_eq!(found("lost: Vec<u64>,", ""), 0);
    }

    #[test]
    fn atomic_integers_count_wherever_they_are() {
        let file = Source::new(
            "crates/a/src/lib.rs",
            "struct Port { #[a(b, c)] refused: AtomicU32, name: String }",
        );
        assert_eq!(unchanged(&[file]).len(), 1);
    }
}
