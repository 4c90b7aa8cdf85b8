//! The broker as a separate program, for this crate's tests. It has the arguments of `polypath
//! broker`: `polypath-broker broker [--idle-timeout SECONDS] [--ready-fd FD]`.

use std::process::ExitCode;

use clap::Parser;
use polypath_broker::{Arguments, Options};

#[derive(Debug, Parser)]
enum Command {
    /// Run the broker
    Broker(Arguments),
}

fn main() -> ExitCode {
    let Command::Broker(arguments) = Command::parse();
    let ended = Options::new(&arguments)
        .map_err(|error| error.to_string())
        .and_then(|options| polypath_broker::run(options).map_err(|error| error.to_string()));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polypath-broker: {error}");
            ExitCode::FAILURE
        }
    }
}
