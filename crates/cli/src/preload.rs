//! Finds the library, and makes a program load it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The environment variable that names the library, for unusual installations.
pub(crate) const LIBRARY_VARIABLE: &str = "POLYPATH_LIBRARY";

/// The library's file name.
const LIBRARY: &str = "libpolypath.so";

/// Where to look for the library, relative to the directory of the command: in a build directory,
/// in an installation under a prefix, in an installation for several architectures.
const PLACES: [&str; 4] =
    ["", "../lib", "../lib/polypath", concat!("../lib/", env!("POLYPATH_MULTIARCH"))];

/// Finds the library for the command at `command`.
pub(crate) fn find_library(command: &Path) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        let path = PathBuf::from(path);
        return match path.is_absolute() && path.is_file() {
            true => Ok(path),
            false => Err(format!(
                "{LIBRARY_VARIABLE}={} is not the absolute path of a file",
                path.display()
            )),
        };
    }
    let directory = command.parent().unwrap_or_else(|| Path::new("/"));
    PLACES
        .iter()
        .filter_map(|place| directory.join(place).join(LIBRARY).canonicalize().ok())
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!(
                "{LIBRARY} is neither beside {} nor in ../lib; install it with `make install`, or set \
                 {LIBRARY_VARIABLE} to its path",
                command.display()
            )
        })
}

/// The value of `LD_PRELOAD` that loads `library` before what is in `existing`.
///
/// # Errors
/// The library's path has a character that `LD_PRELOAD` can't hold.
pub(crate) fn preload_value(library: &Path, existing: Option<&OsStr>) -> Result<OsString, String> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b':')) {
        return Err(format!(
            "{}: the dynamic loader can't preload a path with blanks or colons; move it",
            library.display()
        ));
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|text| !text.is_empty()) {
        let known = existing.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
        if known.into_iter().any(|entry| entry == bytes) {
            return Ok(existing.to_owned());
        }
        value.push(":");
        value.push(existing);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(existing: Option<&str>) -> String {
        let value = preload_value(Path::new("/lib/a.so"), existing.map(OsStr::new)).unwrap();
        value.into_string().unwrap()
    }

    #[test]
    fn what_was_preloaded_before_stays() {
        assert_eq!(value(None), "/lib/a.so");
        assert_eq!(value(Some("")), "/lib/a.so");
        assert_eq!(value(Some("/x.so:/y.so")), "/lib/a.so:/x.so:/y.so");
    }

    #[test]
    fn running_within_run_loads_the_library_once() {
        assert_eq!(value(Some("/x.so:/lib/a.so")), "/x.so:/lib/a.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        for path in ["/my lib/a.so", "/a:b/a.so"] {
            assert!(preload_value(Path::new(path), None).is_err());
        }
    }
}
