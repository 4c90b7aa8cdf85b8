//! A source file with its comments and strings told apart from its code.

use std::mem;

/// A run of comments of one kind on lines that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// The first line, from 1 on.
    pub line: usize,
    /// Whether it documents an item or a module.
    pub doc: bool,
    /// The text of each line, without the slashes and the space behind them.
    pub lines: Vec<String>,
}

/// A source file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it lies, from the root of the tree.
    pub path: String,
    /// As it is.
    pub text: String,
    /// The text with comments and the contents of literals replaced by spaces, in as many lines.
    pub code: String,
    /// The comments that begin with `//`.
    pub comments: Vec<Comment>,
}

impl Source {
    /// Reads `text`.
    pub fn new(path: &str, text: &str) -> Self {
        let mut reader = Reader::default();
        reader.read(text);
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: reader.code,
            comments: reader.comments,
        }
    }

    /// The line in which byte `at` of the code lies.
    pub fn line_at(&self, at: usize) -> usize {
        1 + self.code.bytes().take(at).filter(|&byte| byte == b'\n').count()
    }

    /// The code without the modules that are compiled for tests only.
    pub fn production(&self) -> String {
        const TESTS: &str = "#[cfg(test)]";
        let mut code = self.code.clone();
        let mut from = 0;
        while let Some(at) = code[from..].find(TESTS).map(|at| from + at) {
            from = at + TESTS.len();
            let Some(open) = code[from..].find(['{', ';']).map(|open| from + open) else { break };
            if !words(&code[from..open]).any(|(_, word)| word == "mod") {
                continue;
            }
            let end = if code.as_bytes()[open] == b'{' { block_end(&code, open) } else { open + 1 };
            let blank = blanked(&code[at..end]);
            code.replace_range(at..end, &blank);
            from = end;
        }
        code
    }
}

/// The byte behind the brace that closes the one at `open`.
pub fn block_end(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// The identifiers, keywords and numbers of `code`, each with its place.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + code[at..].find(is_word)?;
        let len = code[begin..].find(|c| !is_word(c)).unwrap_or(code.len() - begin);
        at = begin + len;
        Some((begin, &code[begin..at]))
    })
}

/// Whether an identifier may hold `c`.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// As many bytes, of which only the ends of lines are left.
fn blanked(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

#[derive(Default)]
struct Reader {
    code: String,
    comments: Vec<Comment>,
    line: usize,
    /// The last comment's last line, while only a comment may follow that continues it.
    comment_ends: usize,
}

impl Reader {
    fn read(&mut self, mut rest: &str) {
        self.line = 1;
        while let Some(first) = rest.chars().next() {
            let len = if rest.starts_with("//") {
                let len = rest.find('\n').unwrap_or(rest.len());
                self.comment(&rest[..len]);
                self.blank(&rest[..len])
            } else if rest.starts_with("/*") {
                self.blank(&rest[..block_comment(rest)])
            } else if let Some(len) = string(rest) {
                self.blank(&rest[..len])
            } else if is_word(first) {
                let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                self.code.push_str(&rest[..len]);
                len
            } else {
                self.line += usize::from(first == '\n');
                self.code.push(first);
                first.len_utf8()
            };
            rest = &rest[len..];
        }
    }

    fn blank(&mut self, text: &str) -> usize {
        self.code.push_str(&blanked(text));
        self.line += text.matches('\n').count();
        text.len()
    }

    fn comment(&mut self, text: &str) {
        let doc = text.starts_with("//!") || text.starts_with("///") && !text.starts_with("////");
        let begin = if doc { 3 } else { 2 };
        let line = text[begin..].strip_prefix(' ').unwrap_or_else(|| &text[begin..]).to_owned();
        let alone = self.code.rsplit('\n').next().is_none_or(|code| code.trim().is_empty());
        let ends = mem::replace(&mut self.comment_ends, if alone { self.line } else { 0 });
        match self.comments.last_mut() {
            Some(last) if alone && last.doc == doc && ends + 1 == self.line => {
                last.lines.push(line);
            }
            _ => self.comments.push(Comment { line: self.line, doc, lines: vec![line] }),
        }
    }
}

/// The length of the comment between `/*` and `*/`; comments may be in it.
fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if text[at..].starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string or character that `text` begins with, its prefix included.
fn string(text: &str) -> Option<usize> {
    let prefix = text.find(|c| !matches!(c, 'b' | 'c' | 'r')).filter(|&len| len <= 2)?;
    let rest = &text[prefix..];
    if text[..prefix].ends_with('r') {
        let hashes = rest.find(|c| c != '#')?;
        let body = rest[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let len = body.find(&end).map_or(body.len(), |at| at + end.len());
        return Some(prefix + hashes + 1 + len);
    }
    let quote = rest.chars().next().filter(|&c| c == '"' || c == '\'')?;
    if quote == '\'' && !is_character(rest) {
        return None;
    }
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(prefix + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// Whether an apostrophe begins a character, not a lifetime.
fn is_character(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    chars.next().is_some_and(|c| c == '\\' || chars.next() == Some('\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new("a.rs", text).code
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        assert_eq!(code("a; // b\n/* c /* d */ */e"), "a;     \n               e");
        assert_eq!(code(r#"f("g\"h", 'i', '\'')"#), "f(      ,    ,     )");
        assert_eq!(code("r#\"j\"k\"# b\"l\" l"), "              l");
    }

    #[test]
    fn a_lifetime_is_code() {
        assert_eq!(code("fn f<'a>(x: &'a str, y: char) { y == 'a' }").matches("'a").count(), 2);
    }

    #[test]
    fn an_identifier_that_ends_like_a_prefix_of_strings_is_code() {
        assert_eq!(code("macro_b!(abc\"x\")"), "macro_b!(abc   )");
        assert_eq!(code("b + r + c"), "b + r + c");
    }

    #[test]
    fn comments_of_one_kind_on_lines_that_follow_are_one() {
        let source =
            Source::new("a.rs", "/// One\n/// two.\nfn f() {} // Three.\n// Four.\n\n// Five.\n");
        let of = |line, doc, lines: &[&str]| Comment {
            line,
            doc,
            lines: lines.iter().map(ToString::to_string).collect(),
        };
        let wanted = [
            of(1, true, &["One", "two."]),
            of(3, false, &["Three."]),
            of(4, false, &["Four."]),
            of(6, false, &["Five."]),
        ];
        assert_eq!(source.comments, wanted);
    }

    #[test]
    fn modules_of_tests_are_not_of_production() {
        let text =
            "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { } }\n#[cfg(test)]\nmod more;\nfn c() {}";
        let production = Source::new("a.rs", text).production();
        assert_eq!(
            words(&production).filter(|w| ["a", "b", "more", "c"].contains(&w.1)).count(),
            2
        );
        assert_eq!(production.lines().count(), 6);
    }

    #[test]
    fn a_place_has_its_line() {
        let source = Source::new("a.rs", "a\nb\nc");
        assert_eq!((source.line_at(0), source.line_at(2), source.line_at(4)), (1, 2, 3));
    }
}
