//! The lists follow the code.

use std::fs;
use std::path::Path;

use polypath_mutations::{AROUND, CRATES};

#[test]
fn every_mutation_applies_to_the_code_as_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = polypath_mutations::lists(&root).unwrap();
    assert!(all.len() >= 20, "only {} mutations", all.len());
    let wrong: Vec<_> = all.iter().filter_map(|m| m.check(&root).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.iter().map(|e| format!("{e}\n")).collect::<String>());
    for m in &all {
        let same = all.iter().filter(|other| other.title == m.title).count();
        assert_eq!(same, 1, "\"{}\" is there twice", m.title);
    }
}

#[test]
fn the_copies_have_all_that_their_crates_depend_on() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cores: Vec<&str> = CRATES.to_vec();
    let all: Vec<&str> = CRATES.iter().chain(AROUND).copied().collect();
    for copy in [cores, all] {
        for name in &copy {
            let manifest = fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
            let needed = manifest.lines().filter_map(|line| line.strip_prefix("polypath-"));
            for needed in needed.filter_map(|line| line.split(['.', ' ']).next()) {
                assert!(copy.contains(&needed), "{name} depends on {needed}, which is not copied");
            }
        }
    }
}
