//! Lines have at most [`COLUMNS`] characters, files at most [`LINES`] lines.
//!
//! rustfmt keeps code to 100 columns, but leaves comments and long strings alone.

use crate::Finding;
use crate::source::Source;

/// The most characters of a line, of comments and strings as well.
const COLUMNS: usize = 110;
/// The most lines of a file.
const LINES: usize = 620;

/// Lines that are too long.
pub fn long_lines(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS {
            let what = format!("{columns} characters; break the line after at most {COLUMNS}");
            findings.push(Finding {
                file: source.path.clone(),
                line: at + 1,
                rule: "long-line",
                what,
            });
        }
    }
    findings
}

/// The file, if it is too long.
pub fn long_file(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let what = format!(
        "{lines} lines, where {LINES} are the limit; move one of its ideas to a file of its own"
    );
    (lines > LINES).then(|| Finding {
        file: source.path.clone(),
        line: LINES + 1,
        rule: "long-file",
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_over_the_limit_is_found_whatever_is_in_it() {
        for begin in ["// ", "let a = \"", "fn f(a: usize) "] {
            let fits = format!("{begin:ü<COLUMNS$}");
            let source = Source::new("a.rs", &format!("{fits}\n{fits}x\n"));
            let lines: Vec<_> = long_lines(&source).iter().map(|f| f.line).collect();
            assert_eq!(lines, [2], "{begin}");
        }
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        assert_eq!(long_file(&Source::new("a.rs", &"\n".repeat(LINES))), None);
        assert!(long_file(&Source::new("a.rs", &"\n".repeat(LINES + 1))).is_some());
    }
}
