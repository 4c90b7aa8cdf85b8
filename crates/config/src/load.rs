//! Finds and reads the configuration file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use polypath_topology::Rule;

use crate::mistake::Mistake;
use crate::parse::parse;

/// The largest size of a configuration file in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// The environment variable that names the file.
const VARIABLE: &str = "POLYPATH_CONFIG";
/// The file in a directory of configurations.
const NAME: &str = "polypath/config.toml";
/// The file of the host.
const OF_HOST: &str = "/etc/polypath/config.toml";

/// The place of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub path: PathBuf,
    /// Whether somebody named it. If not, it need not exist.
    pub named: bool,
}

impl Location {
    /// Finds the file by the environment: `$POLYPATH_CONFIG`; or else, if it exists,
    /// `$XDG_CONFIG_HOME/polypath/config.toml` (without that variable, in `~/.config`); or else
    /// `/etc/polypath/config.toml`.
    #[must_use]
    pub fn find() -> Self {
        Self::find_by(|name| std::env::var_os(name), Path::exists)
    }

    fn find_by(
        variable: impl Fn(&str) -> Option<OsString>,
        exists: impl Fn(&Path) -> bool,
    ) -> Self {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(VARIABLE) {
            return Self { path: path.into(), named: true };
        }
        let directory = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        // The XDG specification says that relative paths are to be ignored.
        let directory = directory.filter(|path| path.is_absolute());
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".config"));
        let of_user = directory.or_else(home).map(|directory| directory.join(NAME));
        let path = of_user.filter(|path| exists(path)).unwrap_or_else(|| OF_HOST.into());
        Self { path, named: false }
    }

    /// A file that somebody named.
    #[must_use]
    pub fn named(path: PathBuf) -> Self {
        Self { path, named: true }
    }
}

/// The reason why a configuration file is not followed. The text names the file and the cure.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("{}: {source}; correct the path or the permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is something else than a file with text.
    #[error("{}: {what}", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// It has a mistake.
    #[error("{}, {mistake}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The mistake.
        mistake: Mistake,
    },
}

/// Reads a configuration file. One that nobody named and that does not exist has no rules.
///
/// # Errors
/// [`LoadError`].
pub fn load(location: &Location) -> Result<Vec<Rule>, LoadError> {
    let path = || location.path.clone();
    let read = |source| LoadError::Read { path: path(), source };
    let no_text = |what| LoadError::NoText { path: path(), what };
    let kind = match std::fs::metadata(&location.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !location.named => {
            return Ok(Vec::new());
        }
        other => other.map_err(read)?.file_type(),
    };
    // Reading a pipe or a terminal would wait for ever.
    if !kind.is_file() && location.path != Path::new("/dev/null") {
        return Err(no_text("this is no regular file; name one"));
    }
    let mut bytes = Vec::new();
    let file = File::open(&location.path).map_err(read)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(no_text("more than 64 KiB; name a configuration file"));
    }
    let text = String::from_utf8(bytes).map_err(|_| no_text("not in UTF-8; convert it"))?;
    parse(&text).map_err(|mistake| LoadError::Wrong { path: path(), mistake })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)], there: &str) -> (String, bool) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let found = Location::find_by(variable, |path| path == Path::new(there));
        (found.path.to_string_lossy().into_owned(), found.named)
    }

    #[test]
    fn the_variable_goes_before_the_users_file_and_that_before_the_hosts() {
        let all = [("POLYPATH_CONFIG", "/x"), ("XDG_CONFIG_HOME", "/c"), ("HOME", "/h")];
        let users = "/c/polypath/config.toml";
        assert_eq!(find(&all, users), ("/x".into(), true));
        assert_eq!(find(&all[1..], users), (users.into(), false));
        assert_eq!(find(&all[1..], ""), (OF_HOST.into(), false));
        let home = "/h/.config/polypath/config.toml";
        assert_eq!(find(&all[2..], home), (home.into(), false));
        let relative = [("POLYPATH_CONFIG", ""), ("XDG_CONFIG_HOME", "c"), ("HOME", "/h")];
        assert_eq!(find(&relative, home), (home.into(), false));
        assert_eq!(find(&[], ""), (OF_HOST.into(), false));
    }

    #[test]
    fn only_a_file_that_nobody_named_may_be_missing() {
        let path = PathBuf::from("/nowhere/config.toml");
        assert_eq!(load(&Location { path: path.clone(), named: false }).unwrap(), []);
        let error = load(&Location::named(path)).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/config.toml: "), "{error}");
        assert_eq!(load(&Location::named("/dev/null".into())).unwrap(), []);
        for odd in ["/dev/zero", "/"] {
            let error = load(&Location::named(odd.into())).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_file_and_line() {
        let name = format!("polypath-config-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "[mp]\npolicy = \"x\"\n").unwrap();
        let error = load(&Location::named(path.clone())).unwrap_err().to_string();
        std::fs::write(&path, [0xff; 8]).unwrap();
        let binary = load(&Location::named(path.clone())).unwrap_err().to_string();
        std::fs::write(&path, vec![b'#'; 65 << 10]).unwrap();
        let long = load(&Location::named(path.clone())).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains(".toml, line 2: policy is `x`: write active-backup"), "{error}");
        assert!(binary.contains("UTF-8") && long.contains("64 KiB"), "{binary}, {long}");
    }
}
