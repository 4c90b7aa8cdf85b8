//! What this machine must have for guests.

use super::kernel::output;
use super::machine::EMULATOR;
use super::problem::Problem;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fails with [`Problem::Skip`] unless the machine has what guests need, and `more` programs.
/// `packages` is the word for `tools/packages` that installs them.
///
/// # Errors
/// As said.
pub fn can_run(more: &[&str], packages: &str) -> Result<(), Problem> {
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let found = |name: &str| directories.clone().any(|d| Path::new(d).join(name).exists());
    let needed = [EMULATOR, "busybox", "modprobe", "apt-get", "dpkg-deb", "ib_send_bw"];
    match needed.iter().chain(more).find(|name| !found(name)) {
        None => Ok(()),
        Some(program) => Err(Problem::Skip(format!(
            "{program} is not installed (as root: tools/packages {packages})"
        ))),
    }
}

/// The directory `name` beside the one of the running program's profile, which is made if necessary.
///
/// # Errors
/// If it can't be made.
pub fn directory(name: &str) -> Result<PathBuf, Problem> {
    let program = std::env::current_exe().map_err(|e| Problem::os("finding myself", e))?;
    let target = program.ancestors().nth(2).unwrap_or_else(|| Path::new("."));
    let directory = target.join(name);
    fs::create_dir_all(&directory)
        .map_err(|e| Problem::os(format!("making {}", directory.display()), e))?;
    Ok(directory)
}

/// The name and version of an installed package.
pub fn installed(package: &str) -> String {
    // Of rdma-core, programs use the library.
    let name = if package == "rdma-core" { "libibverbs1" } else { package };
    let version = output(Command::new("dpkg-query").args(["-W", "-f", "${Version}", name]));
    format!("{package} {}", version.unwrap_or_else(|_| "of unknown version".to_owned()))
}
