//! `polypath move`: takes a program off this host.

use std::process::ExitCode;
use std::time::Duration;

use polypath_ipc::{Client, Hello, IpcError, port, socket};

use crate::args::Move;
use crate::error::CliError;
use crate::path::not_here;

/// Asks the broker for it, and returns when the program has left.
pub(crate) fn run(arguments: &Move) -> Result<ExitCode, CliError> {
    let Move { process, within, force } = *arguments;
    let mut broker = match Client::connect(&Hello::of_this_process("")) {
        Err(IpcError::NoBroker) => {
            let (me, users) = (socket::user_id(), port::broker_users());
            let said = not_here(me, &users, "takes its programs off a host", "polypath move …");
            return Err(said.map_or(CliError::Broker(IpcError::NoBroker), CliError::Refused));
        }
        broker => broker?,
    };
    broker.take_off(process, Duration::from_secs(within.into()), force)?;
    Ok(ExitCode::SUCCESS)
}
