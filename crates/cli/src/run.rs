//! `polypath run`: replaces itself with the program, with the library preloaded.

use crate::args::Run;
use crate::error::CliError;
use crate::preload::{find_library, preload_value};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Replaces this process with the program. Returns only the reason if that was not possible.
pub(crate) fn run(arguments: Run) -> Result<ExitCode, CliError> {
    let Some((program, rest)) = arguments.program.split_first() else {
        return Err(CliError::Usage("no program given".to_owned()));
    };
    let own = std::env::current_exe().map_err(|error| {
        CliError::Refused(format!("cannot tell where this program is ({error}); mount /proc"))
    })?;
    let library = find_library(&own).map_err(CliError::Usage)?;
    let before = std::env::var_os("LD_PRELOAD");
    let preload = preload_value(&library, before.as_deref()).map_err(CliError::Usage)?;
    if let Some(path) = find_program(Path::new(program)) {
        let path_shown = path.display();
        if let Some(mark) = privileged(&path) {
            eprintln!(
                "polypath: {path_shown} is {mark}: the dynamic loader preloads nothing into it, so it \
                 does not see the devices; run a copy without the mark"
            );
        } else if let Some(Elf { what, cure }) = read_start(&path).as_deref().and_then(unreachable)
        {
            eprintln!(
                "polypath: {path_shown} is {what}: nothing is preloaded into it, so it does not see \
                 the devices; {cure}"
            );
        }
    }
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload);
    if std::env::var_os("POLYPATH_BROKER_BIN").is_none() {
        command.env("POLYPATH_BROKER_BIN", &own);
    }
    if let Some(device) = arguments.device.filter(|device| !device.is_empty()) {
        command.env("POLYPATH_DEVICE", device);
    }
    if let Some(faults) = arguments.fault.filter(|faults| !faults.is_empty()) {
        command.env("POLYPATH_FAULT", faults);
    }
    if let Some(file) = arguments.pcap.filter(|file| !file.as_os_str().is_empty()) {
        // The path must be absolute, because the program may change its directory.
        command.env("POLYPATH_PCAP", std::path::absolute(file)?);
    }
    if let Some(bytes) = arguments.snaplen.filter(|bytes| !bytes.is_empty()) {
        command.env("POLYPATH_SNAPLEN", bytes);
    }
    let source = command.exec();
    Err(CliError::Exec { program: program.to_string_lossy().into_owned(), source })
}

/// The file that would be executed.
fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The reason why the loader would run the program in secure mode; `None` if it would not.
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

/// The reason why nothing can be preloaded into a program, and what to do.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    what: &'static str,
    cure: &'static str,
}

/// The start of a file, long enough for an ELF file's headers.
fn read_start(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(4096).read_to_end(&mut start).ok()?;
    Some(start)
}

/// The reason why our library cannot be preloaded into an ELF file: the dynamic loader has no part
/// in it, or is of another kind. `None` for all others and for files that are not ELF, such as
/// scripts.
fn unreachable(start: &[u8]) -> Option<Elf> {
    const PT_INTERP: u32 = 3;
    const CLASS_64: u8 = 2;
    const PROGRAM_HEADER: usize = 56;
    let u16_at = |at: usize| Some(u16::from_le_bytes(*start.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*start.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(*start.get(at..)?.first_chunk()?));
    if !start.starts_with(b"\x7fELF") {
        return None;
    }
    if start.get(4) != Some(&CLASS_64) {
        return Some(Elf { what: "a 32-bit program", cure: "run its 64-bit build" });
    }
    let headers = usize::try_from(u64_at(32)?).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    if size != PROGRAM_HEADER || headers.checked_add(size * count)? > start.len() {
        return None;
    }
    let mut kinds = (0..count).map(|number| u32_at(headers + number * size));
    let is_dynamic = kinds.any(|kind| kind == Some(PT_INTERP));
    (!is_dynamic).then_some(Elf {
        what: "statically linked",
        cure: "link it with the system's libibverbs and C library",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_the_loader_starts_are_reachable() {
        let own = read_start(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(unreachable(&own), None);
        assert_eq!(unreachable(b"#!/bin/sh\n"), None);
        assert_eq!(unreachable(b""), None);
        for length in 0..own.len().min(128) {
            // It must not panic. A file that ends too early is no program.
            let _ = unreachable(&own[..length]);
        }
    }

    #[test]
    fn programs_without_an_interpreter_or_with_another_are_not() {
        let mut own = read_start(&std::env::current_exe().unwrap()).unwrap();
        let headers = u64::from_le_bytes(own[32..40].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes(own[56..58].try_into().unwrap()));
        for number in 0..count {
            let at = headers + number * 56;
            if own[at..at + 4] == 3_u32.to_le_bytes() {
                own[at..at + 4].copy_from_slice(&0_u32.to_le_bytes());
            }
        }
        assert_eq!(unreachable(&own).unwrap().what, "statically linked");
        own[4] = 1;
        assert_eq!(unreachable(&own).unwrap().what, "a 32-bit program");
    }
}
