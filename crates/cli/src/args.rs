//! The command line. Help, completions and man pages are made from these types.

use clap::{Args, Parser, Subcommand, ValueEnum};
use polypath_ipc::{PathSelector, Selection};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// Software RDMA devices for unmodified programs, without hardware, kernel module or privilege.
///
/// Programs started with `polypath run` see RDMA devices that speak RoCEv2 and, with a peer that
/// does too, go on over another path when one fails.
#[derive(Debug, Parser)]
#[command(name = "polypath", version, after_long_help = TOP_EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const TOP_EXAMPLES: &str = "\
Examples:
  polypath run -- ibv_devinfo             which devices does a program see?
  polypath run -- ib_write_bw             a server on this host …
  polypath run -- ib_write_bw 10.0.0.1    … and its client on another
  polypath status --watch                 what is going on, every second
  polypath doctor                         why does it not work?";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Devices(Devices),
    Status(Status),
    Path(Path),
    Broker(Broker),
    Doctor(Doctor),
    Sim(Sim),
    /// Write a completion script for a shell to standard output
    #[command(after_long_help = "\
Example:
  polypath completions bash > ~/.local/share/bash-completion/completions/polypath")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(after_long_help = "\
Example:
  polypath man --out ~/.local/share/man/man1")]
    Man {
        /// The directory, made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// Run a program that sees the devices
///
/// The program needs no change: anything that uses libibverbs or librdmacm works, also through
/// Python or a plug-in. Real RDMA devices stay visible beside ours. Without --device it sees one
/// device: mp0 over all usable interfaces, or roce0 where there is only one. Programs that it starts
/// inherit the devices.
#[derive(Debug, Args)]
#[command(after_long_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// Which devices: mp, mp:eth0+eth1, roce, roce:eth0
    #[arg(long, short, value_name = "DEVICE", env = "POLYPATH_DEVICE", value_parser = selection)]
    pub(crate) device: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, num_args = 1.., value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  polypath run -- rping -s -v                          a server …
  polypath run -- rping -c -v -a 10.0.0.1 -C 100       … and its client on another host
  polypath run --device roce -- ibv_devices            plain RoCE devices, one per interface
  polypath run --device roce:eth0 -- ib_send_lat       only the one on eth0
  polypath run --device mp:eth1+eth0 -- ib_write_bw    multi-path, eth1 being the primary
  polypath run -- bash                                 a shell whose programs all see the devices

Exit status: the program's; 126 if it can't be run, 127 if there is no such program.";

/// What `polypath sim` simulates.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Subject {
    /// Queue pairs
    #[default]
    Verbs,
    /// Connection managers
    Cm,
}

impl From<Subject> for polypath_sim::Subject {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Verbs => Self::Verbs,
            Subject::Cm => Self::Cm,
        }
    }
}

/// Run the protocols over simulated, faulty networks and check what verbs and RDMA CM promise
///
/// Transport and path manager, or connection managers, as in real use, on simulated hosts: links lose,
/// double, corrupt and reorder packets, are cut and come back, addresses change, processes die; what the
/// applications do and what befalls them follows from a seed, so that every run can be repeated exactly.
/// A seed that fails is cut down to the smallest case that still does, which is printed with its last packets. For
/// those who change Polypath, or want to see what it does when a path fails.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath sim                                a thousand networks
  polypath sim --count 1000000                a million: some hours
  polypath sim --seed 4711 --plan --events    one again, with what it means, faults and path events
  polypath sim --seed 4711 --packets          … and every packet
  polypath sim --seed 4711 --trace 4711.pcapng; wireshark 4711.pcapng
  polypath sim cm --count 10000               connection managers

Exit status: 1 if any promise was broken; the seeds are printed.")]
pub(crate) struct Sim {
    /// What is simulated
    #[arg(value_enum, default_value_t)]
    pub(crate) subject: Subject,
    /// The first seed; alone: only this one
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How many seeds [default: 1 with --seed, else 1000]
    #[arg(long, value_name = "M")]
    pub(crate) count: Option<u64>,
    /// Print what the seeds mean: hosts, links, work requests, faults
    #[arg(long)]
    pub(crate) plan: bool,
    /// Print faults and path events, or commands and events of applications
    #[arg(long)]
    pub(crate) events: bool,
    /// Print every packet
    #[arg(long)]
    pub(crate) packets: bool,
    /// Write the packets of the last seed to this file, as pcapng
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Leave failing seeds as they are, do not cut them down
    #[arg(long)]
    pub(crate) whole: bool,
}

/// Show the devices that a program would see
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath devices                  what a program sees without further words
  polypath devices --device roce    … with `polypath run --device roce`
  polypath devices --json")]
pub(crate) struct Devices {
    /// Which devices, as for `polypath run`
    #[arg(long, short, value_name = "DEVICE", env = "POLYPATH_DEVICE", value_parser = selection)]
    pub(crate) device: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show queue pairs, paths, fail-overs, counters and errors
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath status                       once, for people
  polypath status --watch               every second until interrupted
  polypath status --watch=200           every 200 milliseconds
  polypath status --json | jq '.processes[].failovers'

Exit status: 0, also when nothing runs.")]
pub(crate) struct Status {
    /// As JSON (one object; with --watch one per line)
    #[arg(long)]
    pub(crate) json: bool,
    /// Again and again, every so many milliseconds
    #[arg(long, value_name = "MS", num_args = 0..=1, require_equals = true, default_missing_value = "1000")]
    pub(crate) watch: Option<u64>,
}

/// Take paths down or up by hand
#[derive(Debug, Args)]
#[command(after_long_help = "\
A path is named by its interface, by one of its addresses, or by both its addresses. It stays down
until it is taken up again or the broker ends.

Examples:
  polypath path down eth0                 every path over eth0
  polypath path down 10.0.0.2             every path from or to this address
  polypath path down 10.0.0.1-10.0.0.2    the one path between these two, local first
  polypath path up eth0")]
pub(crate) struct Path {
    #[command(subcommand)]
    pub(crate) action: PathAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PathAction {
    /// Use these paths no longer
    Down {
        /// Interface, address, or LOCAL-REMOTE
        path: PathSelector,
    },
    /// Use these paths again
    Up {
        /// Interface, address, or LOCAL-REMOTE
        path: PathSelector,
    },
}

/// Run the broker in the foreground
///
/// The broker plays the kernel's part for the programs of one user in one network namespace: it owns
/// UDP port 4791, the connection manager and the table of interfaces. It is started by itself with
/// the first program and ends when it has been idle for a while, so there is seldom a reason to call
/// this.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath broker               in the foreground, to see what it says
  polypath broker --shutdown    end the running one, unless programs use it")]
pub(crate) struct Broker {
    /// Write `ready`, or why not, to this descriptor
    #[arg(long, value_name = "FD", hide = true)]
    pub(crate) ready_fd: Option<RawFd>,
    /// End after this many seconds without a program; 0: never [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_timeout: Option<f64>,
    /// End the running broker instead
    #[arg(long)]
    pub(crate) shutdown: bool,
    /// With --shutdown: although programs use it
    #[arg(long, requires = "shutdown")]
    pub(crate) force: bool,
}

/// Find out why something does not work, and what to do about it
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath doctor
  polypath doctor --device roce:eth0
  polypath doctor --json

Exit status: 0 if nothing is wrong, 1 if something will not work. Warnings alone give 0.")]
pub(crate) struct Doctor {
    /// Which devices, as for `polypath run`
    #[arg(long, short, value_name = "DEVICE", env = "POLYPATH_DEVICE", value_parser = selection)]
    pub(crate) device: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks the form of a device selection; whether its interfaces exist is seen later.
fn selection(text: &str) -> Result<String, String> {
    Selection::parse(text).map(|s| s.to_string()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_programs_own_flags_are_left_to_it() {
        for line in ["polypath run -- rping -s -v", "polypath run rping -s -v"] {
            let Command::Run(run) = parse(line).unwrap().command else { panic!("{line}") };
            assert_eq!(run.program, ["rping", "-s", "-v"], "{line}");
        }
    }

    #[test]
    fn a_wrong_device_is_refused_with_advice() {
        let error = parse("polypath run --device eth0 -- true").unwrap_err();
        assert!(error.to_string().contains("roce:eth0"), "{error}");
    }

    #[test]
    fn watch_takes_an_interval_or_none() {
        for (line, expected) in
            [("status", None), ("status --watch", Some(1000)), ("status --watch=50", Some(50))]
        {
            let Command::Status(status) = parse(&format!("polypath {line}")).unwrap().command
            else {
                panic!()
            };
            assert_eq!(status.watch, expected);
        }
    }

    #[test]
    fn paths_are_named_by_interface_or_address() {
        assert!(parse("polypath path down eth0").is_ok());
        assert!(parse("polypath path up 10.0.0.1-10.0.0.2").is_ok());
        assert!(parse("polypath path down a/b").is_err());
    }
}
