//! What the commands that show something take: `status`, `top`, `watch`.

use clap::Args;

/// Show queue pairs, paths, fail-overs and errors
///
/// Shows the programs of one user in this network namespace. Root can look at every user's. Times of
/// day are in UTC.
#[derive(Debug, Default, Args)]
#[command(after_long_help = "\
Examples:
  polypath status                       once
  polypath status --watch               every second until interrupted
  polypath status --watch=200           every 200 milliseconds
  polypath status --json | jq '.processes[].failovers'
  polypath status --all                 of all users (as root)
  polypath status --prometheus          for the textfile collector of node_exporter

Counters are explained in docs/counters.md, the JSON in docs/status-json.md.

Exit status: 0, also when nothing runs.")]
pub(crate) struct Status {
    /// Write JSON: one object, with --watch one per line, with --all one per user
    #[arg(long)]
    pub(crate) json: bool,
    /// Write counters in the text format that Prometheus scrapes
    #[arg(long, conflicts_with_all = ["json", "verbose", "watch", "all"])]
    pub(crate) prometheus: bool,
    /// Refresh every MS milliseconds (1000 if MS is not given)
    #[arg(long, value_name = "MS", num_args = 0..=1, require_equals = true, default_missing_value = "1000",
        value_parser = clap::value_parser!(u64).range(10..=86_400_000))]
    pub(crate) watch: Option<u64>,
    /// Show all counters too
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) verbose: bool,
    /// Show the programs of this user, given by name or number
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Show the programs of all users
    #[arg(long, conflicts_with = "user")]
    pub(crate) all: bool,
    /// Show this process only
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Show what each path carries, live
///
/// Shows for each path of your programs in this network namespace: its share of what the program sends and
/// receives, rates, round trip, what had to be sent again, marks of congestion, what is in flight and what
/// may be.
#[derive(Debug, Default, Args)]
#[command(after_long_help = "\
Examples:
  polypath top                          every second until interrupted
  polypath top --interval 200           every 200 milliseconds
  polypath top --count 1                once, of one second

What the columns count is explained in docs/counters.md, section Paths.

Exit status: 0, also when nothing runs.")]
pub(crate) struct Top {
    /// Show it every MS milliseconds
    #[arg(long, value_name = "MS", default_value = "1000",
        value_parser = clap::value_parser!(u64).range(10..=86_400_000))]
    pub(crate) interval: u64,
    /// Stop after so many times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Show what happens, as it happens
///
/// Writes a line when a path is given up or comes back, traffic moves, a queue pair fails, a program
/// comes or goes, or an interface changes; of all programs of one user in this network namespace. Times
/// are in UTC. Waits for a broker if none runs.
#[derive(Debug, Default, Args)]
#[command(after_long_help = "\
Examples:
  polypath watch
  polypath watch --past                 begin with what happened lately
  polypath watch --json | jq 'select(.kind == \"failover\") | .fields'

Events and the JSON are explained in docs/events.md.

Exit status: that of a program that was interrupted; 0 if nobody reads its output any more.")]
pub(crate) struct Watch {
    /// Write JSON: one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Begin with the past events that the broker still remembers
    #[arg(long)]
    pub(crate) past: bool,
    /// Watch the programs of this user, given by name or number
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Show the events of this process only
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}
