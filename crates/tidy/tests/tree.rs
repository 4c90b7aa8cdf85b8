//! The tree keeps the rules, but for what the lists of exceptions name.

use std::path::{Path, PathBuf};
use std::{env, fs};

use polypath_tidy::{allow, circles, counters, dead, length, prose, tree};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The list at `path`; with `TIDY_SHRINK` set, after `shrink` took out what is not needed.
fn list(path: &str, shrink: impl Fn(&str) -> String) -> String {
    let file = root().join(path);
    let list = fs::read_to_string(&file).unwrap();
    if env::var_os("TIDY_SHRINK").is_none() {
        return list;
    }
    let shrunk = shrink(&list);
    fs::write(&file, &shrunk).unwrap();
    shrunk
}

fn report(breaches: &[String]) {
    let all: String = breaches.iter().map(|breach| format!("{breach}\n")).collect();
    assert!(breaches.is_empty(), "CONTRIBUTING.md, \"Tidy\", says what to do.\n{all}");
}

#[test]
fn lines_files_items_counters_and_comments_keep_the_rules() {
    let sources = tree::sources(&root()).unwrap();
    assert!(sources.len() > 300, "only {} files", sources.len());
    let mut findings = dead::unused(&sources);
    findings.extend(counters::unchanged(&sources));
    for source in &sources {
        findings.extend(length::long_lines(source));
        findings.extend(length::long_file(source));
        findings.extend(prose::question_words(source));
        findings.extend(prose::citations(source));
    }
    findings.sort();
    let list = list(allow::LIST, |list| allow::shrunk(list, &findings));
    report(&allow::breaches(&findings, &allow::exceptions(&list).unwrap()));
}

#[test]
fn no_more_files_use_each_other_in_a_circle() {
    let found = circles::circles(&tree::sources(&root()).unwrap());
    let list = list(allow::CIRCLES, |list| allow::shrunk_circles(list, &found));
    report(&allow::circle_breaches(&found, &allow::circles(&list)));
}

/// Who looks for a page or a decision starts there.
#[test]
fn the_index_of_the_documentation_names_every_page() {
    let docs = root().join("docs");
    let index = fs::read_to_string(docs.join("README.md")).unwrap();
    let mut missing = Vec::new();
    for folder in ["", "decisions/", "extend/"] {
        for entry in fs::read_dir(docs.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let link = format!("({folder}{name})");
            if name.ends_with(".md") && name != "README.md" && !index.contains(&link) {
                missing.push(format!("docs/README.md does not name {folder}{name}"));
            }
        }
    }
    missing.sort();
    report(&missing);
}
