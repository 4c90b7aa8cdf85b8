//! Compares the statuses that rxe and Polypath give, and knows which differences are expected.

use crate::statuses::{COUPLES, Seen};

/// A name that stands for every case that ends in these statuses at both ends. Asynchronous events are
/// compared under this name, separately from statuses.
fn any(seen: &Seen) -> String {
    let own = |text: &str| {
        let words = split(text).0.split([' ', ';']).map(str::to_owned);
        let good = ["SUCCESS", "WR_FLUSH_ERR", "nothing"];
        words.take_while(|word| word != "QP").find(|w| !w.is_empty() && !good.contains(&w.as_str()))
    };
    let requester = own(&seen.requester).unwrap_or_else(|| "no error".to_owned());
    match own(&seen.responder) {
        None => format!("any, {requester}"),
        Some(responder) => format!("any, {requester}, the receive {responder}"),
    }
}

/// The text before each event in a line.
const EVENT: &str = ", event ";
/// The heading of the table of known differences.
const HEADING: &str = "## Known differences";

/// A case in which one couple sees something else than rxe sees with rxe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) case: String,
    /// `requester` or `responder`.
    pub(crate) end: String,
    pub(crate) couple: String,
    /// What rxe sees with rxe.
    pub(crate) reference: String,
    pub(crate) seen: String,
}

/// Splits a text into statuses with state, and events.
fn split(text: &str) -> (&str, &str) {
    match text.find(EVENT) {
        Some(at) => (&text[..at], &text[at + 2..]),
        None => (text, "no event"),
    }
}

/// All differences between what the couples saw. A difference in events is listed once.
pub(crate) fn differences(results: &[Vec<Seen>]) -> Vec<Difference> {
    let mut found: Vec<Difference> = Vec::new();
    let Some((reference, others)) = results.split_first() else { return found };
    for (index, expected) in reference.iter().enumerate() {
        for (couple, other) in COUPLES[1..].iter().zip(others) {
            let Some(seen) = other.get(index) else { continue };
            let any = any(seen);
            for (end, reference, seen) in [
                ("requester", &expected.requester, &seen.requester),
                ("responder", &expected.responder, &seen.responder),
            ] {
                let (reference, seen) = (split(reference), split(seen));
                let pairs = [
                    (expected.case.as_str(), reference.0, seen.0),
                    (any.as_str(), reference.1, seen.1),
                ];
                for (case, reference, seen) in pairs {
                    let difference = Difference {
                        case: case.to_owned(),
                        end: end.to_owned(),
                        couple: couple.to_string(),
                        reference: reference.to_owned(),
                        seen: seen.to_owned(),
                    };
                    if reference != seen && !found.contains(&difference) {
                        found.push(difference);
                    }
                }
            }
        }
    }
    found
}

/// Reads the table of known differences, with the columns case, end, couples joined by commas, what rxe
/// sees, what is seen, and reason.
pub(crate) fn known(page: &str) -> Vec<Difference> {
    let Some((_, section)) = page.split_once(HEADING) else { return Vec::new() };
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut known = Vec::new();
    for line in section.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [case, end, couples, reference, seen, reason] = cells[..] else { continue };
        // Skips the heading, the line below it, and rows without a reason.
        if reason.is_empty() || case == "case" || case.starts_with("---") {
            continue;
        }
        for couple in couples.split(',') {
            known.push(Difference {
                case: case.to_owned(),
                end: end.to_owned(),
                couple: couple.trim().to_owned(),
                reference: reference.to_owned(),
                seen: seen.to_owned(),
            });
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(requester: &str, responder: &str) -> Vec<Seen> {
        let (requester, responder) = (requester.to_owned(), responder.to_owned());
        vec![Seen { case: "SEND".to_owned(), requester, responder }]
    }

    const PAGE: &str = "## Known differences\n\n| case | end | couples | rxe | seen | why |\n\
        |---|---|---|---|---|---|\n| SEND | responder | rxe to Polypath, Polypath to Polypath | A; QP ERR | \
        B; QP ERR | a reason |\n\
        | any, REM_X_ERR | responder | rxe to Polypath | no event | event E | a reason |\n\
        | X | responder | rxe to Polypath | A | B | |\n\n## Other\n| no | no | no | no | no | no |\n";

    #[test]
    fn a_difference_is_known_by_all_its_columns_and_has_a_reason() {
        let known = known(PAGE);
        let results = [
            seen("S; QP RTS", "A; QP ERR"),
            seen("S; QP RTS", "B; QP ERR"),
            seen("S; QP RTS", "A; QP ERR"),
            seen("T; QP RTS", "B; QP ERR"),
        ];
        let found = differences(&results);
        assert_eq!(found.len(), 3);
        let unknown: Vec<_> = found.iter().filter(|d| !known.contains(d)).collect();
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].end, "requester");
        assert!(!known.iter().any(|d| d.case == "X" || d.case == "no"));
    }

    #[test]
    fn an_event_is_known_only_where_both_ends_see_what_goes_with_it() {
        let known = known(PAGE);
        let quiet = || seen("S; QP RTS", "A; QP ERR");
        let unknown = |requester: &str, responder: &str| {
            let results = [quiet(), seen(requester, responder), quiet(), quiet()];
            let events: Vec<_> = differences(&results)
                .into_iter()
                .filter(|d| d.seen == "event E" && !known.contains(d))
                .collect();
            events.len()
        };
        let flushed = "WR_FLUSH_ERR WR_FLUSH_ERR; QP ERR, event E";
        assert_eq!(unknown("REM_X_ERR WR_FLUSH_ERR; QP ERR", flushed), 0);
        assert_eq!(unknown("SUCCESS REM_X_ERR WR_FLUSH_ERR; QP ERR", flushed), 0);
        assert_eq!(unknown("SUCCESS SUCCESS; QP RTS", "nothing; QP RTS, event E"), 1, "no error");
        assert_eq!(unknown("REM_Y_ERR WR_FLUSH_ERR; QP ERR", flushed), 1, "another error");
        let told = "LOC_LEN_ERR WR_FLUSH_ERR; QP ERR, event E";
        assert_eq!(unknown("REM_X_ERR WR_FLUSH_ERR; QP ERR", told), 1, "the receive tells");
    }
}
