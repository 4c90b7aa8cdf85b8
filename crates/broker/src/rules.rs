//! Changes of the rules of how mp devices use their paths ([`polypath_topology::rules`]).

use polypath_ipc::message::rules_fit;
use polypath_topology::rules::RULES_MAX;
use polypath_topology::{Bonding, Rule, RuleError, RuleScope, RuleSource};

/// A rule that is not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedRule {
    /// It cannot be followed.
    #[error(transparent)]
    Wrong(#[from] RuleError),
    /// There is no room.
    #[error(
        "commands may set at most {RULES_MAX} rules: take some back, as `polypath mp policy` shows them"
    )]
    TooMany,
    /// All rules together are too long for a message.
    #[error(
        "all rules together are too long: name fewer interfaces in their costs, or take some rules back"
    )]
    TooLong,
}

fn is_command(rule: &Rule) -> bool {
    rule.source == RuleSource::Command
}

/// Sets a rule by a command. Its settings go before those that a command has set for the same scope; `None`
/// takes these back. Commands come before the configuration file.
///
/// # Errors
/// The rule cannot be followed, or there is no room for it. The rules stay as they were.
pub(crate) fn set(
    rules: &mut Vec<Rule>,
    scope: RuleScope,
    settings: Option<&Bonding>,
) -> Result<(), RefusedRule> {
    let at = rules.iter().position(|rule| is_command(rule) && rule.scope == scope);
    let Some(settings) = settings else {
        at.map(|at| rules.remove(at));
        return Ok(());
    };
    let source = RuleSource::Command;
    let new = Rule { scope, settings: settings.clone(), source };
    new.check()?;
    let commands = rules.iter().filter(|rule| is_command(rule)).count();
    let mut with = rules.clone();
    match at.and_then(|at| with.get_mut(at)) {
        Some(rule) => rule.settings.prefer(settings),
        None if commands >= RULES_MAX => return Err(RefusedRule::TooMany),
        None => with.insert(commands, new),
    }
    if !rules_fit(&with) {
        return Err(RefusedRule::TooLong);
    }
    *rules = with;
    Ok(())
}

/// Replaces the rules of the configuration file.
///
/// # Errors
/// All rules together are too long. The rules stay as they were.
pub(crate) fn replace_file(rules: &mut Vec<Rule>, of_file: Vec<Rule>) -> Result<(), RefusedRule> {
    let commands = rules.iter().filter(|rule| is_command(rule));
    let with: Vec<Rule> = commands.cloned().chain(of_file).collect();
    if !rules_fit(&with) {
        return Err(RefusedRule::TooLong);
    }
    *rules = with;
    Ok(())
}

/// Removes the rules of a process that is gone, because another one may get its number.
pub(crate) fn forget_process(rules: &mut Vec<Rule>, pid: u32) {
    rules.retain(|rule| rule.scope.process != Some(pid));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_process(pid: u32) -> RuleScope {
        RuleScope { process: Some(pid), ..RuleScope::default() }
    }

    fn bonding(text: &str) -> Bonding {
        Bonding::parse(text).unwrap()
    }

    fn text(rules: &[Rule]) -> Vec<String> {
        rules.iter().map(|rule| format!("{}: {}", rule.scope, rule.settings)).collect()
    }

    #[test]
    fn settings_of_one_scope_are_one_rule() {
        let file = Rule {
            scope: of_process(1),
            settings: bonding("affinity"),
            source: RuleSource::File { line: 1 },
        };
        let mut rules = vec![file];
        for settings in ["balance", "updelay=1", "active-backup"] {
            set(&mut rules, of_process(1), Some(&bonding(settings))).unwrap();
        }
        assert_eq!(text(&rules), ["process 1: active-backup,updelay=1", "process 1: affinity"]);
        set(&mut rules, of_process(2), None).unwrap();
        let of_file = rules.split_off(1);
        replace_file(&mut rules, of_file).unwrap();
        assert_eq!(rules.len(), 2, "the command's stays");
        set(&mut rules, of_process(1), None).unwrap();
        assert_eq!(text(&rules), ["process 1: affinity"], "the file's stays");
        replace_file(&mut rules, Vec::new()).unwrap();
        assert_eq!(rules, []);
    }

    #[test]
    fn rules_that_are_too_long_together_are_refused() {
        let costs: Vec<String> = (0..60).map(|n| format!("cost=interface-{n}:9")).collect();
        let long = bonding(&costs.join(","));
        let mut rules = Vec::new();
        let refused = (0..).find_map(|pid| set(&mut rules, of_process(pid), Some(&long)).err());
        assert_eq!(refused, Some(RefusedRule::TooLong));
        let before = rules.clone();
        let file = Rule { source: RuleSource::File { line: 1 }, ..before[0].clone() };
        assert_eq!(replace_file(&mut rules, vec![file]), Err(RefusedRule::TooLong));
        assert_eq!(rules, before);
    }

    #[test]
    fn what_cannot_be_followed_changes_nothing() {
        let mut rules = Vec::new();
        for pid in 0..RULES_MAX as u32 {
            set(&mut rules, of_process(pid), Some(&bonding("balance"))).unwrap();
        }
        let before = rules.clone();
        let one_more = set(&mut rules, of_process(999), Some(&bonding("balance")));
        assert_eq!(one_more, Err(RefusedRule::TooMany));
        let empty = set(&mut rules, of_process(1), Some(&Bonding::default()));
        assert_eq!(empty, Err(RefusedRule::Wrong(RuleError::Empty)));
        assert_eq!(rules, before);
        set(&mut rules, of_process(1), Some(&bonding("affinity"))).unwrap();
        forget_process(&mut rules, 7);
        assert_eq!(rules.len(), RULES_MAX - 1);
    }
}
