//! What the tree does not keep yet. The lists may only shrink: an exception that is not needed any more is a
//! breach of its own.

use std::collections::BTreeMap;

use crate::Finding;
use crate::circles::Circle;

/// The list of exceptions: `RULE FILE COUNT` in each line.
pub const LIST: &str = "crates/tidy/allow.txt";
/// The list of circles: in each line the files of one, from the root of the tree.
pub const CIRCLES: &str = "crates/tidy/circles.txt";

/// How often each rule may be broken in each file.
pub type Exceptions = BTreeMap<(String, String), usize>;

/// Reads the list of exceptions.
///
/// # Errors
/// A line is no exception.
pub fn exceptions(list: &str) -> Result<Exceptions, String> {
    let mut exceptions = Exceptions::new();
    for line in list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let exception = match line.split(' ').collect::<Vec<_>>()[..] {
            [rule, file, count] => {
                count.parse().ok().map(|count| ((rule.to_owned(), file.to_owned()), count))
            }
            _ => None,
        };
        let (key, count) =
            exception.ok_or_else(|| format!("{LIST}: {line:?} is not RULE FILE COUNT"))?;
        exceptions.insert(key, count);
    }
    Ok(exceptions)
}

/// What `findings` break beyond the exceptions, and which exceptions are not needed.
pub fn breaches(findings: &[Finding], exceptions: &Exceptions) -> Vec<String> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for finding in findings {
        found.entry((finding.rule.to_owned(), finding.file.clone())).or_default().push(finding);
    }
    let mut breaches = Vec::new();
    for (key, findings) in &found {
        let allowed = exceptions.get(key).copied().unwrap_or(0);
        if findings.len() > allowed {
            breaches.extend(findings.iter().map(ToString::to_string));
            if allowed > 0 {
                breaches.push(format!(
                    "{LIST}: {allowed} of these {} may stand, no more",
                    findings.len()
                ));
            }
        }
    }
    for ((rule, file), &allowed) in exceptions {
        let findings = found.get(&(rule.clone(), file.clone())).map_or(0, Vec::len);
        if findings < allowed {
            breaches.push(format!(
                "{LIST}: `{rule} {file} {allowed}` is too much, {findings} is enough; {SHRINK}"
            ));
        }
    }
    breaches
}

/// The list of exceptions without what is not needed.
pub fn shrunk(list: &str, findings: &[Finding]) -> String {
    let needed = |rule: &str, file: &str| {
        findings.iter().filter(|f| f.rule == rule && f.file == file).count()
    };
    let mut shrunk = String::new();
    for line in list.lines() {
        let line = match line.split(' ').collect::<Vec<_>>()[..] {
            [rule, file, count] if rule != "#" => {
                let count = needed(rule, file).min(count.parse().unwrap_or(0));
                if count == 0 {
                    continue;
                }
                format!("{rule} {file} {count}")
            }
            _ => line.to_owned(),
        };
        shrunk.push_str(&line);
        shrunk.push('\n');
    }
    shrunk
}

/// Reads the list of circles.
pub fn circles(list: &str) -> Vec<Circle> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// Circles that are larger than those of the list, and circles of the list that are smaller now.
pub fn circle_breaches(found: &[Circle], allowed: &[Circle]) -> Vec<String> {
    let show = |circle: &Circle| circle.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let beyond =
        found.iter().filter(|circle| !allowed.iter().any(|allowed| circle.is_subset(allowed)));
    let mut breaches: Vec<_> = beyond
        .map(|circle| {
            let more: Circle = match allowed.iter().find(|allowed| !allowed.is_disjoint(circle)) {
                Some(allowed) => circle - allowed,
                None => circle.clone(),
            };
            format!(
                "{}: in a circle of files that use each other [circle]: {}; move what both ends need to a \
                 file of its own",
                show(&more),
                show(circle)
            )
        })
        .collect();
    let smaller = allowed.iter().filter(|allowed| !found.contains(allowed));
    breaches.extend(
        smaller.map(|circle| format!("{CIRCLES}: no circle any more: {}; {SHRINK}", show(circle))),
    );
    breaches
}

/// The list of circles, each as small as it is now.
pub fn shrunk_circles(list: &str, found: &[Circle]) -> String {
    let mut shrunk: String =
        list.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let allowed = circles(list);
    for circle in
        found.iter().filter(|circle| allowed.iter().any(|allowed| circle.is_subset(allowed)))
    {
        shrunk += &circle.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        shrunk.push('\n');
    }
    shrunk
}

const SHRINK: &str = "`TIDY_SHRINK=1 cargo test -p polypath-tidy` takes it out";

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(file: &str, line: usize) -> Finding {
        Finding { file: file.to_owned(), line, rule: "long-line", what: "too long".to_owned() }
    }

    fn circle(files: &str) -> Circle {
        files.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_is_on_the_list_may_stand_and_no_more() {
        let list = exceptions("# Why.\nlong-line a.rs 1\n").unwrap();
        assert_eq!(breaches(&[finding("a.rs", 3)], &list), [""; 0]);
        let more = breaches(&[finding("a.rs", 3), finding("a.rs", 9), finding("b.rs", 1)], &list);
        let begins = ["a.rs:3: ", "a.rs:9: ", "crates/tidy/allow.txt: 1 of these 2", "b.rs:1: "];
        assert!(
            more.len() == 4 && more.iter().zip(begins).all(|(a, b)| a.starts_with(b)),
            "{more:?}"
        );
    }

    #[test]
    fn an_exception_that_is_not_needed_is_a_breach_and_is_taken_out() {
        let list = "# Why.\nlong-line a.rs 2\nlong-line b.rs 1\n";
        let findings = [finding("a.rs", 3)];
        assert_eq!(breaches(&findings, &exceptions(list).unwrap()).len(), 2);
        assert_eq!(shrunk(list, &findings), "# Why.\nlong-line a.rs 1\n");
        assert!(breaches(&findings, &exceptions(&shrunk(list, &findings)).unwrap()).is_empty());
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        assert!(exceptions("long-line a.rs").is_err());
        assert!(exceptions("long-line a.rs many").is_err());
    }

    #[test]
    fn a_circle_may_become_smaller_but_not_larger() {
        let list = "# Why.\na.rs b.rs c.rs\n";
        let allowed = circles(list);
        assert_eq!(circle_breaches(&[circle("a.rs b.rs c.rs")], &allowed), [""; 0]);
        let larger = circle_breaches(&[circle("a.rs b.rs c.rs d.rs")], &allowed);
        assert!(larger[0].starts_with("d.rs: "), "{larger:?}");
        let other = circle_breaches(&[circle("a.rs b.rs c.rs"), circle("e.rs f.rs")], &allowed);
        assert!(other.len() == 1 && other[0].starts_with("e.rs f.rs: "), "{other:?}");
        let smaller = [circle("a.rs b.rs")];
        assert_eq!(circle_breaches(&smaller, &allowed).len(), 1);
        assert_eq!(shrunk_circles(list, &smaller), "# Why.\na.rs b.rs\n");
    }
}
