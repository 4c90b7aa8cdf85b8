//! The lists follow the code.

use std::path::Path;

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
