//! The `polypath` command: runs programs with the devices, and shows and controls what they do.
//!
//! Each subcommand is a module with one `run` function. [`args`] holds the whole command line, from
//! which help, shell completions and man pages are generated.

mod args;
mod cm_ids;
mod config;
mod devices;
mod docs;
mod doctor;
mod error;
mod history;
mod interfaces;
mod json;
mod lacp;
mod moving;
mod path;
mod paths_table;
mod ping;
mod policy;
mod preload;
mod prometheus;
mod run;
mod status;
mod text;
mod top;
mod watch;

use args::{Arguments, Command};
use clap::Parser as _;
use error::CliError;
use std::process::ExitCode;

fn main() -> ExitCode {
    match dispatch(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            if !error.is_broken_pipe() {
                eprintln!("polypath: {error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(arguments: Arguments) -> Result<ExitCode, CliError> {
    match arguments.command {
        Command::Run(run) => run::run(run),
        Command::Devices(devices) => devices::run(&devices),
        Command::Status(status) => status::run(&status),
        Command::Top(top) => top::run(&top),
        Command::Watch(watch) => watch::run(&watch),
        Command::Path(path) => path::run(path.action),
        Command::Mp(args::Mp { action: args::MpAction::Policy(policy) }) => policy::mp(&policy),
        Command::Qp(args::Qp { action: args::QpAction::Policy(policy) }) => policy::qp(&policy),
        Command::Config(config) => config::run(config.action),
        Command::Ping(ping) => ping::run(&ping),
        Command::Move(arguments) => moving::run(&arguments),
        Command::Broker(arguments) => broker(&arguments),
        Command::Lacp(lacp) => speak_lacp(&lacp.arguments),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Sim(sim) => Ok(sim.run()),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man { out } => docs::man(&out),
    }
}

fn speak_lacp(arguments: &polypath_broker::LacpArguments) -> Result<ExitCode, CliError> {
    polypath_broker::speak_lacp(arguments).map_err(|error| CliError::Refused(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

fn broker(arguments: &args::Broker) -> Result<ExitCode, CliError> {
    if arguments.shutdown {
        let hello = polypath_ipc::Hello::of_this_process("");
        match polypath_ipc::Client::connect(&hello) {
            Ok(mut client) => client.shutdown(arguments.force)?,
            // No broker runs, so there is nothing to shut down.
            Err(polypath_ipc::IpcError::NoBroker) => {}
            Err(error) => return Err(error.into()),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let options = polypath_broker::Options::new(&arguments.options)
        .map_err(|error| CliError::Usage(error.to_string()))?;
    polypath_broker::run(options).map_err(|error| CliError::BrokerEnded(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}
