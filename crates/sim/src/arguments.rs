//! The command line of `polypath sim` and `polypath-sim`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{Hunt, Subject};

/// Run the protocols over simulated, faulty networks and check what verbs and RDMA CM promise
///
/// Runs the real protocol code on simulated hosts. Links drop, duplicate, corrupt and reorder packets
/// and fail and recover; addresses change; processes die. Each run is determined by a seed and can be
/// repeated exactly. A failing seed is reduced to a minimal case and printed with its last packets. For
/// developers of Polypath.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  polypath sim                                a thousand networks
  polypath sim --count 1000000                a million: some hours
  polypath sim --seed 4711 --plan --events    one again, with its meaning, faults and path events
  polypath sim --seed 4711 --packets          one again, with every packet
  polypath sim --seed 4711 --trace 4711.pcapng; wireshark 4711.pcapng
  polypath sim cm --count 10000               connection managers
  polypath sim migration --count 10000        queue pairs that migrate
  polypath sim apm --count 10000              connections that migrate

Exit status: 1 if any promise was broken (the seeds are printed), 2 if the trace can't be written.")]
pub struct Arguments {
    /// What is simulated
    #[arg(value_enum, default_value_t)]
    subject: Subject,
    /// The first seed; without --count, the only one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of seeds [default: 1 with --seed, else 1000]
    #[arg(long, value_name = "M")]
    count: Option<u64>,
    /// Print what the seeds mean: hosts, links, work requests, faults
    #[arg(long)]
    plan: bool,
    /// Print faults and path events, or commands and events of applications
    #[arg(long)]
    events: bool,
    /// Print every packet
    #[arg(long)]
    packets: bool,
    /// Write the packets of the last seed to this file, as pcapng
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Leave failing seeds as they are, do not reduce them
    #[arg(long)]
    whole: bool,
}

impl Arguments {
    /// Does what the command line asks for, and returns the exit status.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let Self { subject, seed, count, plan, events, packets, trace, whole } = self;
        let hunt = Hunt::of(seed, count);
        Hunt { subject, plan, events, packets, trace, whole, ..hunt }.run()
    }
}
