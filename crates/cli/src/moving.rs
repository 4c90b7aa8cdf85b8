//! `polypath move`: takes a program off this host.

use std::process::ExitCode;
use std::time::Duration;

use crate::args::Move;
use crate::error::CliError;
use crate::path::own_broker;

/// Asks the broker for it, and returns when the program has left.
pub(crate) fn run(arguments: &Move) -> Result<ExitCode, CliError> {
    let Move { process, within, force } = *arguments;
    let mut broker = own_broker("takes its programs off a host", "polypath move …")?;
    broker.take_off(process, Duration::from_secs(within.into()), force)?;
    Ok(ExitCode::SUCCESS)
}
