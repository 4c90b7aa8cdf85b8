//! What comments may not look like.

use crate::Finding;
use crate::source::{Source, is_word};

const QUESTIONS: [&str; 9] =
    ["who", "whom", "whose", "which", "what", "why", "when", "where", "how"];

/// Documentation that is one question word, alone or behind another word ("Why.", "By whom."). It says
/// nothing that the name does not.
pub fn question_words(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for comment in source.comments.iter().filter(|comment| comment.doc) {
        let [line] = &comment.lines[..] else { continue };
        let mut words = line.trim_end_matches(['.', '?']).split_whitespace();
        let last = match (words.next(), words.next(), words.next()) {
            (Some(word), None, None) | (Some(_), Some(word), None) => word.to_lowercase(),
            _ => continue,
        };
        if QUESTIONS.contains(&last.as_str()) {
            let what = format!(
                "\"{}\" explains nothing; say what it is, with its unit and range",
                line.trim()
            );
            findings.push(finding(source, comment.line, "question-word", what));
        }
    }
    findings
}

/// Citations of the IBTA's specification and of RFCs that are not in the one form by which they are found:
/// `IBTA 9.7.5.1`, `IBTA A17.4`, `IBTA annex A17`, `IBTA chapter 12` (or table, figure), `RFC 8200`,
/// `RFC 8200, section 5`, `RFC 4291, appendix A`.
pub fn citations(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for comment in &source.comments {
        let text = comment.lines.join("\n");
        for (name, check) in [("IBTA", ibta as fn(&str) -> bool), ("RFC", rfc)] {
            for (at, _) in text.match_indices(name) {
                if text[..at].ends_with(is_word)
                    || check(&text[at + name.len()..].replace('\n', " "))
                {
                    continue;
                }
                let line = comment.line + text[..at].matches('\n').count();
                let cited: String = text[at..].chars().take(24).collect();
                let what = format!(
                    "citation {:?}...; write \"IBTA 9.7.5.1\", \"IBTA A17.4\", \"IBTA annex A17\", \
                     \"IBTA chapter 12\" (or table, figure), \"RFC 8200, section 5\"",
                    cited.replace('\n', " ")
                );
                findings.push(finding(source, line, "citation", what));
            }
        }
    }
    findings.sort();
    findings
}

/// Whether what follows "IBTA" is a well-formed citation, or no citation at all.
fn ibta(rest: &str) -> bool {
    // "IBTA's", or the end of a sentence.
    let Some(rest) = rest.strip_prefix(' ') else {
        return !rest.starts_with(|c| is_word(c) || c == '-');
    };
    let (word, rest) = split_word(rest);
    let number = split_word(rest.trim_start()).0;
    match word {
        "chapter" | "table" | "figure" => number.parse::<u32>().is_ok(),
        "annex" => number.strip_prefix('A').is_some_and(|n| n.parse::<u32>().is_ok()),
        "Annex" | "Chapter" | "Table" | "Figure" | "section" | "Section" => false,
        _ if word.starts_with('§') => false,
        _ => match word.strip_prefix('A').unwrap_or(word) {
            numbers if numbers.starts_with(|c: char| c.is_ascii_digit()) => {
                numbers.contains('.') && numbers.split('.').all(|n| n.parse::<u32>().is_ok())
            }
            _ => true,
        },
    }
}

/// Whether what follows "RFC" is a well-formed citation, or no citation at all.
fn rfc(rest: &str) -> bool {
    if rest.starts_with('s') {
        return true;
    }
    let Some(rest) = rest.strip_prefix(' ') else {
        return !rest.starts_with(|c| is_word(c) || c == '-');
    };
    let (number, rest) = split_word(rest);
    if number.parse::<u32>().is_err() {
        return !number.starts_with(|c: char| c.is_ascii_digit());
    }
    let Some(section) = rest.strip_prefix(", ") else {
        return !["section", "appendix", "§"]
            .iter()
            .any(|word| rest.trim_start().starts_with(word));
    };
    // A number alone may be a section or anything.
    !section.starts_with(|c: char| c.is_ascii_digit() || c == '§')
}

/// The first word, with its dots, but not the one at its end, and what follows.
fn split_word(text: &str) -> (&str, &str) {
    let len = text.find(|c: char| c.is_whitespace() || ",;:)`".contains(c)).unwrap_or(text.len());
    let word = &text[..len];
    (word.strip_suffix('.').unwrap_or(word), &text[len..])
}

fn finding(source: &Source, line: usize, rule: &'static str, what: String) -> Finding {
    Finding { file: source.path.clone(), line, rule, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Finding>, text: &str) -> Vec<usize> {
        rule(&Source::new("a.rs", text)).iter().map(|f| f.line).collect()
    }

    #[test]
    fn documentation_of_one_question_word_is_found() {
        let text = "/// Why.\na: u8,\n/// By whom.\nb: u8,\n/// Which of them.\nc: u8,\n";
        assert_eq!(lines(question_words, text), [1, 3]);
        assert_eq!(lines(question_words, "/// Why\n/// not.\na: u8,\n// Why?\n"), []);
    }

    #[test]
    fn a_citation_without_its_section_is_found() {
        for wrong in [
            "IBTA 9.4.?",
            "IBTA 9",
            "IBTA Annex A17",
            "IBTA annex 17",
            "IBTA annex A17.4",
            "IBTA section 9.4",
            "IBTA9.4",
            "IBTA-9.4",
            "IBTA §9.4",
            "IBTA A17",
            "IBTA chapter",
            "RFC4291",
            "RFC-4291",
            "RFC 4291, 2.5",
            "RFC 42x",
            "RFC 4291 appendix A",
            "RFC 4291 section 2",
            "IBTA\n/// Annex A17",
        ] {
            assert_eq!(lines(citations, &format!("\n/// As ({wrong}) says.\n")), [2], "{wrong}");
        }
    }

    #[test]
    fn a_citation_with_its_section_may_stand() {
        for right in [
            "IBTA 9.7.5.1.1",
            "IBTA 9.4.",
            "IBTA A17.4.1",
            "IBTA annex A17",
            "IBTA chapter 12",
            "IBTA table 45:",
            "the IBTA's rule",
            "IBTA allows it",
            "RFC 8200",
            "RFC 8200, section 5",
            "RFC 5681, sections 3.1 and 3.2",
            "RFC 4291, appendix A",
            "RFC 5681: three",
            "RFC 5737, RFC 3849",
            "RFC 3339 writes it",
            "IBTA\n/// 9.4",
        ] {
            assert_eq!(lines(citations, &format!("/// As ({right}) says.\n")), [], "{right}");
        }
    }
}
