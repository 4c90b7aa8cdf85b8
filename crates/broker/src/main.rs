//! The broker as a program of its own, for containers that need no more, and for tests. It is
//! called as `polypath broker` is: `polypath-broker broker [--idle-timeout SECONDS] [--ready-fd
//! FD]`.

use std::process::ExitCode;

use polypath_broker::Options;

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).skip_while(|argument| argument == "broker");
    let options = match Options::from_args(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("polypath-broker: {error}");
            return ExitCode::from(2);
        }
    };
    match polypath_broker::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
