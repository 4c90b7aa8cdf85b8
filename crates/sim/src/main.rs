//! `polypath-sim`: what `polypath sim` does, without all the rest of the command to build.

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "polypath-sim")]
struct Line {
    #[command(flatten)]
    arguments: polypath_sim::Arguments,
}

fn main() -> ExitCode {
    Line::parse().arguments.run()
}
