//! A configuration file: parsing never panics, a mistake is in a line that exists and is said in one line,
//! and the rules of a file without a mistake can all be followed, and are shown as a command takes them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polypath_config::parse;
use polypath_topology::rules::{Process, RULES_MAX};
use polypath_topology::{Bonding, InForce};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let rules = match parse(text) {
        Ok(rules) => rules,
        Err(mistake) => {
            assert!((1..=text.split('\n').count()).contains(&(mistake.line as usize)), "{mistake}");
            assert!(!mistake.what.is_empty() && !mistake.what.contains('\n'), "{mistake}");
            return;
        }
    };
    assert!(rules.len() <= RULES_MAX);
    for rule in &rules {
        rule.check().expect("the parser has checked it");
        // What is shown can be given to a command.
        assert_eq!(Bonding::parse(&rule.settings.to_string()).as_ref(), Ok(&rule.settings));
    }
    let none = &Bonding::default();
    let devices = &["mp0".to_owned()];
    let process = Process { pid: 7, program: "rping", devices, selected: none, below: none };
    let _ = InForce::of(&rules, none, &process);
});
