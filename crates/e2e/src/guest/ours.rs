//! What a guest gets of what is built here.

use super::problem::Problem;
use crate::Artifacts;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes copies of the command and the library, without what debuggers read, into a directory.
///
/// # Errors
/// If `strip` fails.
pub fn stripped(directory: &Path) -> Result<[PathBuf; 2], Problem> {
    let command = &Artifacts::get()?.command;
    let strip = |name: &str| {
        let result = directory.join(name);
        let output = Command::new("strip")
            .arg("-o")
            .arg(&result)
            .arg(command.with_file_name(name))
            .output()
            .map_err(|e| Problem::os("starting strip", e))?;
        match output.status.success() {
            true => Ok(result),
            false => Err(Problem::Failed(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    };
    Ok([strip("polypath")?, strip("libpolypath.so")?])
}
