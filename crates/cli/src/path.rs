//! `polypath path`: takes paths down and up by hand.

use crate::args::PathAction;
use crate::error::CliError;
use polypath_ipc::{Client, Hello};
use std::process::ExitCode;

/// Tells the broker, which tells every process and remembers it for those to come.
pub(crate) fn run(action: PathAction) -> Result<ExitCode, CliError> {
    let (selector, up) = match action {
        PathAction::Down { path } => (path, false),
        PathAction::Up { path } => (path, true),
    };
    let mut broker = Client::connect(&Hello::of_this_process(""))?;
    broker.set_path(selector, up)?;
    Ok(ExitCode::SUCCESS)
}
