//! Another file uses each `pub` item of a crate. The compiler says nothing about those that nobody uses:
//! somebody outside of the workspace might.

use std::collections::HashMap;

use crate::Finding;
use crate::source::{Source, words};

const KINDS: [&str; 9] =
    ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod"];
/// What may stand between `pub` and the kind of item.
const QUALIFIERS: [&str; 4] = ["unsafe", "async", "extern", "const"];
/// Attributes that show an item to other programs.
const EXPORTED: [&str; 2] = ["no_mangle", "export_name"];

/// `pub` items whose name is in no other file. Types that a `pub` function or field of their own file shows
/// have to be `pub`, and may stand.
pub fn unused(sources: &[Source]) -> Vec<Finding> {
    let mut files: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, source) in sources.iter().enumerate() {
        for (_, word) in words(&source.code) {
            let files = files.entry(word).or_default();
            if files.last() != Some(&at) {
                files.push(at);
            }
        }
    }
    let mut findings = Vec::new();
    for source in
        sources.iter().filter(|s| s.path.starts_with("crates/") && s.path.contains("/src/"))
    {
        for (at, kind, name) in items(&source.production()) {
            if files.get(name.as_str()).is_some_and(|files| files.len() > 1)
                || shown(&source.code, kind, &name)
            {
                continue;
            }
            findings.push(Finding {
                file: source.path.clone(),
                line: source.line_at(at),
                rule: "dead-pub",
                what: format!("no other file uses `{kind} {name}`; take it out, or its `pub`"),
            });
        }
    }
    findings
}

/// The place, kind and name of each item that is `pub` without a restriction, and not exported to C.
fn items(code: &str) -> Vec<(usize, &'static str, String)> {
    let mut items = Vec::new();
    let all: Vec<_> = words(code).collect();
    for (i, &(at, word)) in all.iter().enumerate() {
        if word != "pub" || code[at + word.len()..].starts_with('(') {
            continue;
        }
        let before = &code[code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1)..at];
        if EXPORTED.iter().any(|name| before.contains(name)) {
            continue;
        }
        let mut rest = all[i + 1..].iter().map(|&(_, word)| word).peekable();
        let mut kind = None;
        while let Some(word) = rest.next() {
            let next = rest.peek().copied().unwrap_or_default();
            if QUALIFIERS.contains(&word) && (QUALIFIERS.contains(&next) || KINDS.contains(&next)) {
                continue;
            }
            kind = KINDS.into_iter().find(|&kind| kind == word);
            break;
        }
        let name = rest.find(|&word| word != "mut").unwrap_or_default();
        if let Some(kind) = kind.filter(|_| !name.is_empty() && name != "_") {
            items.push((at, kind, name.to_owned()));
        }
    }
    items
}

/// Whether a type is in the signature of something `pub` of its own file, or implemented for by a trait's
/// associated type.
fn shown(code: &str, kind: &str, name: &str) -> bool {
    if !["struct", "enum", "union", "trait", "type"].contains(&kind) {
        return false;
    }
    words(code).filter(|&(_, word)| word == name).any(|(at, _)| {
        let begin = code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
        let statement = &code[begin..at];
        let first = words(statement)
            .map(|(_, word)| word)
            .find(|&word| word != "derive" && word != "non_exhaustive");
        let declares = words(statement).last().is_some_and(|(_, word)| KINDS.contains(&word));
        let of_trait = first == Some("type");
        let public = words(statement).any(|(_, word)| word == "pub");
        !declares && (public || of_trait)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, other: &str) -> Vec<(usize, String)> {
        let files =
            [Source::new("crates/a/src/b.rs", text), Source::new("crates/c/tests/d.rs", other)];
        unused(&files)
            .into_iter()
            .map(|f| (f.line, f.what.split('`').nth(1).unwrap_or_default().to_owned()))
            .collect()
    }

    #[test]
    fn a_pub_item_whose_name_is_nowhere_else_is_found() {
        for item in [
            "fn lone",
            "const fn lone",
            "unsafe extern \"C\" fn lone",
            "struct lone",
            "const lone",
            "static mut lone",
        ] {
            let kind = item.split(' ').rev().find(|word| KINDS.contains(word)).unwrap();
            let text = format!("fn a() {{}}\n\n#[inline]\npub {item}() {{ lone() }}\n");
            assert_eq!(found(&text, "// lone\nlet a = \"lone\";"), [(4, format!("{kind} lone"))]);
        }
    }

    #[test]
    fn a_pub_item_that_another_file_names_is_not() {
        assert_eq!(found("pub fn lone() {}\n", "a::lone()"), []);
    }

    #[test]
    fn what_is_not_pub_is_the_compilers() {
        assert_eq!(
            found(
                "fn lone() {}\npub(crate) struct lone;\nstruct A { pub lone: u8 }\npub use lone;",
                ""
            ),
            []
        );
    }

    #[test]
    fn exported_symbols_are_used_from_outside() {
        assert_eq!(found("#[unsafe(no_mangle)]\npub extern \"C\" fn ibv_lone() {}\n", ""), []);
    }

    #[test]
    fn a_type_that_something_pub_shows_has_to_be_pub() {
        let other = "f; Other;";
        assert_eq!(found("pub struct Lone;\npub fn f() -> Lone { Lone }", other), []);
        assert_eq!(found("pub struct Lone;\nimpl A for Other { type Item = Lone; }", other), []);
        assert_eq!(
            found("pub struct Lone;\nimpl Lone { fn f() -> Lone { Lone } }", other),
            [(1, "struct Lone".into())]
        );
    }
}
