//! The configuration file: it must have no mistake, and the broker must have read it as it is now.

use super::Finding;
use crate::config::is_of_file;
use polypath_config::{LoadError, Location, load};
use polypath_ipc::status::BrokerStatus;
use polypath_topology::Rule;

/// Checks the file that the environment leads to.
pub(super) fn check() -> Vec<Finding> {
    let location = Location::find();
    let exists = location.path.exists();
    judge(&location, load(&location), exists).into_iter().collect()
}

fn judge(
    location: &Location,
    loaded: Result<Vec<Rule>, LoadError>,
    exists: bool,
) -> Option<Finding> {
    let path = location.path.display();
    if location.path.is_relative() {
        let what = format!("POLYPATH_CONFIG is `{path}`: the broker runs in another directory");
        return Some(Finding::error(what, "write an absolute path"));
    }
    match loaded {
        Err(error) => {
            let cure = "correct the file, then `polypath config reload`";
            Some(Finding::error(format!("configuration file: {error}"), cure))
        }
        Ok(_) if !exists => None,
        Ok(rules) => {
            Some(Finding::ok(format!("configuration file: {path}, rules: {}", rules.len())))
        }
    }
}

/// Checks that the broker follows the file.
pub(super) fn followed(broker: &BrokerStatus) -> Option<Finding> {
    let location = Location::find();
    judge_followed(broker, &location, &load(&location).ok()?)
}

fn judge_followed(broker: &BrokerStatus, location: &Location, rules: &[Rule]) -> Option<Finding> {
    let own = location.path.display().to_string();
    if broker.config.path != own {
        let what = format!("the broker follows {}, not {own}", broker.config.path);
        let cure =
            "the program that starts the broker decides: end it by `polypath broker --shutdown`";
        return Some(Finding::warning(what, cure));
    }
    let followed = broker.table.rules.iter().filter(|rule| is_of_file(rule));
    (!followed.eq(rules)).then(|| {
        let what = format!("{own} has changed since the broker read it");
        Finding::warning(what, "polypath config reload")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use polypath_config::parse;

    #[test]
    fn a_mistake_is_an_error_and_a_missing_file_is_nothing() {
        let level = |path: &str, loaded, exists| {
            judge(&Location::named(path.into()), loaded, exists).map(|finding| finding.level)
        };
        assert_eq!(level("/x", Ok(Vec::new()), false), None);
        assert_eq!(level("/x", Ok(Vec::new()), true), Some(Level::Ok));
        assert_eq!(level("x", Ok(Vec::new()), true), Some(Level::Error));
        let mistake = parse("x = 1").unwrap_err();
        let wrong = LoadError::Wrong { path: "/x".into(), mistake };
        assert_eq!(level("/x", Err(wrong), true), Some(Level::Error));
    }

    #[test]
    fn a_file_that_the_broker_has_not_read_is_a_warning() {
        let location = Location::named("/x".into());
        let rules = parse("[mp]\npolicy = \"balance\"").unwrap();
        let mut broker = BrokerStatus::default();
        broker.config.path = "/x".to_owned();
        broker.table.rules.clone_from(&rules);
        assert_eq!(judge_followed(&broker, &location, &rules), None);
        let cure = |broker: &BrokerStatus, rules: &[Rule]| {
            judge_followed(broker, &location, rules).map(|finding| finding.cure)
        };
        assert_eq!(cure(&broker, &[]).as_deref(), Some("polypath config reload"));
        broker.config.path = "/y".to_owned();
        assert!(cure(&broker, &rules).unwrap().contains("--shutdown"));
    }
}
