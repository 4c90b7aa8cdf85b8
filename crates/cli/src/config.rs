//! `polypath config`: checks the configuration file, and lets the broker read it again.

use crate::args::ConfigAction;
use crate::error::CliError;
use crate::text::count;
use polypath_config::{Location, load};
use polypath_ipc::{Client, Hello};
use polypath_topology::Rule;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Runs the subcommand.
pub(crate) fn run(action: ConfigAction) -> Result<ExitCode, CliError> {
    let text = match action {
        ConfigAction::Check { file } => {
            let location = file.map_or_else(Location::find, Location::named);
            let rules = load(&location).map_err(|error| CliError::Refused(error.to_string()))?;
            checked(&location, &rules, location.path.exists())
        }
        ConfigAction::Reload => {
            let mut broker = Client::connect(&Hello::of_this_process(""))?;
            broker.reload_config()?;
            let broker = broker.status()?.broker;
            let rules = broker.table.rules.iter().filter(|rule| is_of_file(rule)).count();
            reloaded(&broker.config.path, rules as u64)
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a rule is of the configuration file.
pub(crate) fn is_of_file(rule: &Rule) -> bool {
    matches!(rule.source, polypath_topology::RuleSource::File { .. })
}

/// What the broker has read.
fn reloaded(path: &str, rules: u64) -> String {
    // What can't be told from here is left to the broker.
    if rules == 0 && matches!(Path::new(path).try_exists(), Ok(false)) {
        return absent(path);
    }
    format!("{path}: {} in force\n", count(rules, "rule"))
}

fn absent(path: &str) -> String {
    format!("{path} does not exist, so there are no rules\n")
}

/// What a file without a mistake says.
fn checked(location: &Location, rules: &[Rule], exists: bool) -> String {
    let path = location.path.display();
    if !exists {
        return absent(&path.to_string());
    }
    let mut text = format!("{path}: {}, no mistakes\n", count(rules.len() as u64, "rule"));
    for rule in rules {
        text += &format!("  {}: {}\n", rule.scope, rule.settings);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_a_file_are_shown_in_words() {
        let location = Location::named("/x.toml".into());
        let rules = polypath_config::parse("[mp]\npolicy = \"balance\"").unwrap();
        let text = checked(&location, &rules, true);
        assert_eq!(text, "/x.toml: 1 rule, no mistakes\n  everything: balance\n");
        assert!(checked(&location, &[], false).contains("does not exist"));
        assert_eq!(reloaded("/", 0), "/: 0 rules in force\n");
        assert_eq!(reloaded("/x.toml", 0), "/x.toml does not exist, so there are no rules\n");
    }
}
