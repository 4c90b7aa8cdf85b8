//! Shared parts of the tests of the built library.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The environment variable that names a directory with a library to test without building it.
const DIRECTORY_VARIABLE: &str = "POLYPATH_E2E_DIRECTORY";

/// The library in that directory, or one that is built with the profile of this test.
pub(crate) fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(given) = std::env::var_os(DIRECTORY_VARIABLE) {
            let path = Path::new(&given).join("libpolypath.so");
            assert!(path.exists(), "{} is missing", path.display());
            return path;
        }
        // target/<profile>/deps/<test>: a cdylib is not built for tests, so build it.
        let test = std::env::current_exe().unwrap();
        let profile_dir = test.parent().and_then(Path::parent).unwrap();
        let profile = profile_dir.file_name().unwrap().to_str().unwrap();
        let profile = if profile == "debug" { "dev" } else { profile };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "polypath-abi", "--profile", profile])
            .arg("--target-dir")
            .arg(profile_dir.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "the library does not build");
        profile_dir.join("libpolypath.so")
    })
}

/// Whether a program is installed.
pub(crate) fn installed(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Output of a command, which must succeed.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{complaints}");
    text
}

/// The symbols that a library or program defines or needs, as `name@VERSION`.
pub(crate) fn symbols(file: &Path, defined: bool) -> Vec<String> {
    let which = if defined { "--defined-only" } else { "--undefined-only" };
    let text = output(Command::new("nm").args(["-D", "--with-symbol-versions", which]).arg(file));
    let of_line = |line: &str| {
        let symbol = line.split_whitespace().last()?;
        let (name, version) = symbol.split_once('@')?;
        let version = version.trim_start_matches('@');
        // The version nodes are listed too, as absolute symbols.
        (name != version).then(|| format!("{name}@{version}"))
    };
    text.lines().filter_map(of_line).collect()
}
