//! `polypath run`: becomes the program, with the library preloaded.

use crate::args::Run;
use crate::error::CliError;
use crate::preload::{find_library, preload_value};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Replaces this process by the program; comes back only to say why that was not possible.
pub(crate) fn run(arguments: Run) -> Result<ExitCode, CliError> {
    let Some((program, rest)) = arguments.program.split_first() else {
        return Err(CliError::Usage("no program given".to_owned()));
    };
    let own = std::env::current_exe()?;
    let library = find_library(&own).map_err(CliError::Usage)?;
    let before = std::env::var_os("LD_PRELOAD");
    let preload = preload_value(&library, before.as_deref()).map_err(CliError::Usage)?;
    if let Some(path) = find_program(Path::new(program))
        && let Some(mark) = privileged(&path)
    {
        eprintln!(
            "polypath: {} is {mark}: the dynamic loader preloads nothing into it, so it sees no \
             devices of ours; run a copy without the mark",
            path.display()
        );
    }
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload);
    if std::env::var_os("POLYPATH_BROKER_BIN").is_none() {
        command.env("POLYPATH_BROKER_BIN", &own);
    }
    if let Some(device) = arguments.device.filter(|device| !device.is_empty()) {
        command.env("POLYPATH_DEVICE", device);
    }
    let source = command.exec();
    Err(CliError::Exec { program: program.to_string_lossy().into_owned(), source })
}

/// The file that would be run.
fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Whether the loader runs the program in secure mode, and why.
fn privileged(path: &Path) -> Option<&'static str> {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    match (mode & SET_UID != 0, mode & SET_GID != 0) {
        (true, _) => Some("set-user-id"),
        (_, true) => Some("set-group-id"),
        _ => None,
    }
}
