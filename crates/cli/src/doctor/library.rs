//! Polypath's library and the system's.

use super::Finding;
use crate::preload::{find_library, preload_value};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's package for each system library that programs need.
const SYSTEM: [(&str, &str); 2] =
    [("libibverbs.so.1", "libibverbs1"), ("librdmacm.so.1", "librdmacm1")];

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![own_library()];
    findings.extend(SYSTEM.map(|(name, package)| match (find(name), loads(name)) {
        (Some(path), _) => {
            Finding::ok(format!("system library: {}{}", path.display(), version(&path)))
        }
        (None, true) => {
            Finding::ok(format!("system library: {name}, where only the loader finds it"))
        }
        (None, false) => Finding::error(
            format!("{name} is not installed: programs that use it can't start"),
            format!("apt-get install {package}"),
        ),
    }));
    findings
}

/// Whether the loader finds a library, in whatever directory it is. This command is the trial, because it is
/// linked dynamically, which not every `true` is.
fn loads(name: &str) -> bool {
    let trial = std::env::current_exe()
        .and_then(|own| Command::new(own).arg("--version").env("LD_PRELOAD", name).output());
    // The loader says on standard error what it does not find, and continues without it.
    trial.is_ok_and(|output| output.status.success() && output.stderr.is_empty())
}

/// Whether Polypath's library can be found and loaded.
fn own_library() -> Finding {
    let found = std::env::current_exe()
        .map_err(|error| error.to_string())
        .and_then(|own| find_library(&own))
        .and_then(|library| Ok((preload_value(&library, None)?, library)));
    let (preload, library) = match found {
        Ok(found) => found,
        Err(problem) => return Finding::error(problem, "make install"),
    };
    // The loader reports on standard error what it can't preload, and continues without it.
    let trial = Command::new("true").env("LD_PRELOAD", preload).output();
    match trial {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            Finding::ok(format!("library: {}", library.display()))
        }
        Ok(output) => Finding::error(
            format!(
                "{} can't be loaded: {}",
                library.display(),
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            "build it for this machine: make build",
        ),
        Err(error) => Finding::error(format!("can't run `true`: {error}"), "check PATH"),
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let multiarch = concat!("/usr/lib/", env!("POLYPATH_MULTIARCH"));
    // Where /lib is no link to /usr/lib.
    let former = concat!("/lib/", env!("POLYPATH_MULTIARCH"));
    ["/usr/local/lib", multiarch, former, "/usr/lib64", "/lib64", "/usr/lib", "/lib"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
}

/// The version in the name of the file that the link points to: `libibverbs.so.1.14.44.0`.
fn version(path: &Path) -> String {
    let Ok(real) = path.canonicalize() else { return String::new() };
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    name.split_once(".so.").map_or_else(String::new, |(_, version)| format!(", version {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_where_the_loader_finds_it() {
        assert!(find("libc.so.6").is_some(), "in one of the directories");
        assert_eq!(find("libpolypath-none.so.1"), None);
    }
}
