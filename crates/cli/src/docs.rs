//! Completions and man pages, made from the command line's own description.

use crate::args::Arguments;
use crate::error::CliError;
use clap::CommandFactory as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Writes a completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "polypath", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `polypath.1`, `polypath-run.1` … into a directory.
pub(crate) fn man(directory: &Path) -> Result<ExitCode, CliError> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Arguments::command().disable_help_subcommand(true), directory)?;
    Ok(ExitCode::SUCCESS)
}
