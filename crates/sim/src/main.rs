//! `polypath-sim`: does what `polypath sim` does, and needs only this crate to be built.

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
