//! Checks docs/extend/verb.md.

use std::fs;
use std::path::Path;

/// The text without its line breaks and indentation.
fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The last file of the repository (`crates/…`) that a text names.
fn file_named_in(text: &str) -> &str {
    let in_quotes = text.split('`').skip(1).step_by(2);
    let is_file = |name: &&str| {
        let kind = Path::new(name).extension();
        name.starts_with("crates/") && kind.is_some_and(|kind| kind == "rs" || kind == "c")
    };
    in_quotes.filter(is_file).last().expect("a file is named before each block")
}

#[test]
fn the_page_quotes_each_file_as_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/extend/verb.md")).unwrap();
    let mut text = String::new();
    let mut blocks = 0;
    // Text and code alternate.
    for (number, piece) in page.split("```").enumerate() {
        if number % 2 == 0 {
            text.push_str(piece);
            continue;
        }
        let file = file_named_in(&text);
        let code = fs::read_to_string(root.join(file)).unwrap();
        let (_language, block) = piece.split_once('\n').unwrap();
        assert!(squeeze(&code).contains(&squeeze(block)), "{file} has no such code:\n{block}");
        blocks += 1;
    }
    assert!(blocks >= 6, "a page with {blocks} blocks does not go from the trait to a program");
}
