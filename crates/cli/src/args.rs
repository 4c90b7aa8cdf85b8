//! The command line. Help, completions and man pages are generated from these types.

mod look;

use clap::{Args, Parser, Subcommand};
pub(crate) use look::{Status, Top, Watch};
use polypath_ipc::faults::Faults;
use polypath_topology::{
    Bonding, PathSelector, Policy, Rule, RuleScope, RuleSource, Selection, Subnet,
};
use std::ffi::OsString;
use std::path::PathBuf;

/// Software RDMA devices for unmodified programs, without RDMA hardware, kernel module or privilege
///
/// Programs started with `polypath run` see RDMA devices that speak RoCEv2. If the peer also runs
/// Polypath, connections survive the loss of a network path.
#[derive(Debug, Parser)]
#[command(name = "polypath", version, after_long_help = TOP_EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const TOP_EXAMPLES: &str = "\
Examples:
  polypath run -- ibv_devinfo             which devices does a program see?
  polypath run -- ib_write_bw             a server on this host
  polypath run -- ib_write_bw 10.0.0.1    its client on another host
  polypath ping 10.0.0.1                  can the other host be reached?
  polypath status --watch                 what is going on, every second
  polypath top                            what each path carries, live
  polypath watch                          what happens, as it happens
  polypath doctor                         why does it not work?";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Devices(Devices),
    Status(Status),
    Top(Top),
    Watch(Watch),
    Path(Path),
    Mp(Mp),
    Qp(Qp),
    Config(Config),
    Ping(Ping),
    Move(Move),
    Doctor(Doctor),
    Broker(Broker),
    Lacp(Lacp),
    Sim(polypath_sim::Arguments),
    /// Write a completion script for a shell to standard output
    #[command(after_long_help = "\
Examples:
  polypath completions bash > ~/.local/share/bash-completion/completions/polypath")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(after_long_help = "\
Examples:
  polypath man --out ~/.local/share/man/man1")]
    Man {
        /// The directory, made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// Run a program with Polypath's RDMA devices
///
/// The program needs no change: anything that uses libibverbs or librdmacm works, also through
/// Python or a plug-in. Real RDMA devices stay visible beside Polypath's. Without --device the program
/// sees one device: that of a bond of the kernel's if there is one, else mp0 over all usable
/// interfaces, or roce0 where there is only one. Programs that it starts inherit the devices.
#[derive(Debug, Args)]
#[command(after_long_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// Which devices: mp, mp:eth0+eth1, roce, roce:eth0, roce2:eth0+eth1, bond0,
    /// bond:eth0+eth1,mode=active-backup
    #[arg(long, short, value_name = "DEVICE", env = "POLYPATH_DEVICE", value_parser = selection)]
    pub(crate) device: Option<String>,
    /// Faults to inject into packets: loss=1%,dup=0.1%,reorder=2%,corrupt=0.1%,delay=5ms~1ms,cut=eth0@10s+5s
    ///
    /// For programs under test. Shares and delays apply to packets that are sent and, again, to packets
    /// that arrive; on=eth0 restricts them to one interface. cut=eth0@10s loses all packets of eth0 from
    /// 10 s on, with +5s for 5 s. seed=7 makes each run draw the same faults. See
    /// docs/testing-your-program.md.
    #[arg(long, value_name = "FAULTS", env = "POLYPATH_FAULT", value_parser = faults)]
    pub(crate) fault: Option<String>,
    /// Write the packets of the program to this file, for Wireshark
    ///
    /// The format is pcapng. A file of that name is not overwritten: the process id is put before the
    /// extension, as it is for the second and later processes of a run.
    #[arg(long, value_name = "FILE", env = "POLYPATH_PCAP")]
    pub(crate) pcap: Option<PathBuf>,
    /// Bytes of each packet to keep in the file, from the IP header on: 128 to 65535 (all)
    #[arg(long, value_name = "BYTES", env = "POLYPATH_SNAPLEN", value_parser = snap_len)]
    pub(crate) snaplen: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(required = true, num_args = 1.., value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  polypath run -- rping -s -v                          a server
  polypath run -- rping -c -v -a 10.0.0.1 -C 100       its client on another host
  polypath run --device roce -- ibv_devices            plain RoCE devices, one per interface
  polypath run --device roce:eth0 -- ib_send_lat       only the one on eth0
  polypath run --device mp:eth0+eth1 -- ib_write_bw    multi-path over eth0 and eth1 only
  polypath run --device bond:eth0+eth1,mode=balance-xor -- ib_write_bw    a bond (docs/bonding.md)
  polypath run -- bash                                 a shell whose programs all see the devices
  polypath run --fault loss=1%,delay=5ms -- ib_send_lat    over a network that loses and delays
  polypath run --pcap lat.pcapng -- ib_send_lat        its packets in a file for Wireshark

Which interface is preferred is set by POLYPATH_MP=primary=eth1, not by the order in --device.

Exit status: the program's; 126 if it can't be run, 127 if there is no such program.";

/// Show the devices that a program would see
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath devices                  what a program sees by default
  polypath devices --device roce    what it sees with `polypath run --device roce`
  polypath devices --all            and all interfaces, with ports of bonds and what LACP says
  polypath devices --json")]
pub(crate) struct Devices {
    /// Which devices, as for `polypath run`
    #[arg(long, short, value_name = "DEVICE", env = "POLYPATH_DEVICE", value_parser = selection)]
    pub(crate) device: Option<String>,
    /// List all interfaces as well, also those that no device stands on, and say why
    #[arg(long)]
    pub(crate) all: bool,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take paths out of service, or return them to service
#[derive(Debug, Args)]
#[command(after_long_help = "\
A path is named by its interface, by one of its addresses, by both its addresses, or by its kind if that
is local or tcp. It stays down until it is taken up again or the broker ends.

Examples:
  polypath path down eth0                 every path over eth0
  polypath path down 10.0.0.2             every path from or to this address
  polypath path down 10.0.0.1-10.0.0.2    the one path between these two, local address first
  polypath path down local                every path through memory shared on this host
  polypath path down tcp                  every path over TCP
  polypath path up eth0

Exit status: 1 if the interface or the local address does not exist, or no broker runs.")]
pub(crate) struct Path {
    #[command(subcommand)]
    pub(crate) action: PathAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PathAction {
    /// Stop using matching paths
    Down {
        /// Interface, address, or LOCAL-REMOTE
        path: PathSelector,
        /// Keep the rule even if no such interface or local address exists
        #[arg(long)]
        force: bool,
    },
    /// Use matching paths again
    Up {
        /// Interface, address, or LOCAL-REMOTE
        path: PathSelector,
    },
}

/// Show or set how mp devices use their paths
#[derive(Debug, Args)]
pub(crate) struct Mp {
    #[command(subcommand)]
    pub(crate) action: MpAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MpAction {
    Policy(MpPolicy),
}

/// Show or set the policy of mp devices, while programs run
///
/// Queue pairs go on by the new policy at once. Nothing in flight is lost or sent twice because of it.
/// Programs that start later follow it, too. It goes before POLYPATH_MP, and lasts until it is taken back
/// by `default`, its process has closed its last device, or the broker ends. Without a policy, shows what is
/// in force and why.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Policies: active-backup (one path carries the data), balance (all do), affinity (each queue pair keeps to
one; affinity=hash|round-robin|cpu|numa), redundant (everything goes by two), efficient (the fewest and
cheapest that suffice). Other settings, for all peers of a device: cost=eth0:10, numa_node=eth0:1,
primary=eth0, primary_reselect=always|better|failure, updelay=MS, downdelay=MS, hold=SECONDS,
rendezvous=ADDRESS, ecn=on|off, ports=1 to 8, local=on|off, tcp=on|off|PORT. What is not named stays as it
is.

A rule for a peer goes before one for a process, that before one for a device. The longer prefix of two
subnets counts. A peer's address is the one that its queue pairs were connected to.

Examples:
  polypath mp policy                                     what is in force, and why
  polypath mp policy balance                             all programs use all paths
  polypath mp policy affinity,affinity=round-robin --peer 10.0.1.0/24
  polypath mp policy active-backup,primary=eth1 --process 4711
  polypath mp policy default                             take the first one back

Exit status: 1 if there is no such process, or no broker runs.")]
pub(crate) struct MpPolicy {
    /// POLICY[,KEY=VALUE…], or `default` to take back what commands have set for this scope
    #[arg(value_name = "POLICY", value_parser = policy_change)]
    pub(crate) change: Option<PolicyChange>,
    /// Only for this process
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
    /// Only for the device of this name (mp0, bond0) or selection (mp:eth0+eth1)
    #[arg(long, short, value_name = "NAME", value_parser = mp_device)]
    pub(crate) device: Option<String>,
    /// Only for peers with an address in this subnet: 10.0.1.0/24, fd00::/64, 10.0.1.7
    #[arg(long, value_name = "SUBNET")]
    pub(crate) peer: Option<Subnet>,
}

/// Show or set how a single queue pair uses its paths
#[derive(Debug, Args)]
pub(crate) struct Qp {
    #[command(subcommand)]
    pub(crate) action: QpAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QpAction {
    Policy(QpPolicy),
}

/// Show or set the policy of a single queue pair, whatever its peer's is
///
/// It is kept by the queue pair's number, until it is taken back by `default`, or the process has closed its
/// last device.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath qp policy 0x010011                  its policy, and why
  polypath qp policy 0x010011 active-backup    it uses the main path only
  polypath qp policy 0x010011 default          it uses paths as the others do

Exit status: 1 if there is no such queue pair, or it has only one path.")]
pub(crate) struct QpPolicy {
    /// Its number, as `polypath status` shows it
    #[arg(value_name = "QPN", value_parser = queue_pair_number)]
    pub(crate) qpn: u32,
    /// POLICY[,affinity=hash|round-robin|cpu|numa], or `default`
    #[arg(value_name = "POLICY", value_parser = policy_change)]
    pub(crate) change: Option<PolicyChange>,
    /// The process that it is of, to be sure
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
}

/// Speak LACP (IEEE 802.1AX, 802.3ad) on interfaces, as half of a link aggregation
///
/// The other half is a switch, or another host. Bond devices of mode 802.3ad leave out those of their
/// members that LACP does not let distribute. It needs the right to send frames: run it as root of the
/// network namespace. It ends with SIGTERM or SIGINT, and tells the partner.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each interface keeps its own addresses. A switch that aggregates the interfaces sends what is for one of
their addresses by any of them, so LACP serves direct links between hosts, and switches that only want to hear
it. docs/bonding.md says more.

Examples:
  polypath lacp eth0+eth1                                      with the defaults of Linux bonding
  polypath lacp eth0+eth1 --lacp_rate fast --state /run/lacp   states in a file, as in /proc/net/bonding
  polypath run --device bond:eth0+eth1,mode=802.3ad -- rping -s

Exit status: 1 if an interface does not exist or may not be used, or without the right to send frames.")]
pub(crate) struct Lacp {
    #[command(flatten)]
    pub(crate) arguments: polypath_broker::LacpArguments,
}

/// Check the configuration file, or let the broker read it again
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file is $POLYPATH_CONFIG (an absolute path); or else, if it exists, $XDG_CONFIG_HOME/polypath/config.toml,
which is in ~/.config without that variable; or else /etc/polypath/config.toml. The broker reads it when it
starts, with the environment of the program that starts it. Of a file with a mistake nothing is followed.

A command (`polypath mp policy`) goes before POLYPATH_MP, and that before the file.

Examples:
  polypath config check              the file that would be read
  polypath config check new.toml     another one
  polypath config reload             after a change

  [mp]                               # settings for everything
  policy = \"balance\"

  [[rule]]                           # for peers in this subnet
  peer = \"10.0.1.0/24\"
  policy = \"affinity\"
  affinity = \"round-robin\"

  [[rule]]                           # for a program, and a device
  program = \"ib_write_bw\"
  device = \"mp0\"
  policy = \"active-backup\"
  primary = \"eth1\"

Exit status: 1 if the file has a mistake, or no broker runs.")]
pub(crate) struct Config {
    #[command(subcommand)]
    pub(crate) action: ConfigAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Read the file, and say what it means, or what is wrong in which line
    Check {
        /// The file, if not the one that the broker would read
        file: Option<PathBuf>,
    },
    /// Let the broker read the file again; if it has a mistake, what was in force stays
    Reload,
}

/// A change of how paths are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyChange {
    /// What commands have set is taken back.
    Default,
    /// These are set.
    To(Bonding),
}

/// Find out whether another host can be reached by RoCEv2, and by which paths
///
/// Asks the connection manager of the other host for a service that nobody offers: any RoCEv2 host that
/// runs RDMA CM answers. Says whether UDP port 4791 gets through, what answers there, the round-trip
/// time and the path MTU, for each local interface that has a route to the host.
#[derive(Debug, Args)]
#[command(after_long_help = PING_EXAMPLES)]
pub(crate) struct Ping {
    /// Name or address of the other host
    pub(crate) host: String,
    /// Questions per path
    #[arg(long, short, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) count: u32,
    /// Milliseconds to wait for each answer
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) timeout: u64,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const PING_EXAMPLES: &str = "\
Examples:
  polypath ping 10.0.0.2
  polypath ping --count 100 node7
  polypath ping --json 10.0.0.2

Exit status: 0 if the host answers on at least one path, 1 if it does not, 2 for a wrong command line.";

/// Take a program off this host, so that it can be restored on another one
///
/// The program gives back what it has of this host: sockets, shared memory, its connection to the broker.
/// Its queue pairs wait. Then a checkpoint of it can be taken (criu dump) and restored on another host or in
/// another network namespace, where a broker runs or can be started. There it gets its queue pair numbers
/// back, and peers find it by its new addresses. A program that is not restored in time goes on where it
/// is. Connections of mp devices survive this; see docs/moving.md.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath move 4711 && criu dump --tree 4711 --images-dir /shared/4711
  criu restore --images-dir /shared/4711 --restore-detached      on the other host
  polypath move 4711 --within 0        leave and come back at once

Exit status: 1 if there is no such program, if ids of rdma_cm that it has can't move now, or no
broker runs.")]
pub(crate) struct Move {
    /// The program, as `polypath status` shows it
    #[arg(value_name = "PID")]
    pub(crate) process: u32,
    /// How many seconds the program waits for its checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub(crate) within: u32,
    /// Do it although ids of rdma_cm that can't move now are lost, and their peers are told that the
    /// connections are over
    #[arg(long)]
    pub(crate) force: bool,
}

/// Run the broker in the foreground
///
/// The broker does what the kernel does for RDMA hardware: it owns UDP port 4791, runs the connection
/// manager and tracks interfaces. It serves the programs of one user in one network namespace. It
/// starts automatically and exits when idle, so you rarely need this command.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath broker               in the foreground, to see its log
  polypath broker --shutdown    end the running one, unless programs use it

Exit status: 1 if a broker of this user runs already, or the port is taken.")]
pub(crate) struct Broker {
    #[command(flatten)]
    pub(crate) options: polypath_broker::Arguments,
    /// Shut down the running broker instead
    #[arg(long, conflicts_with_all = ["idle_timeout", "ready_fd", "rendezvous"])]
    pub(crate) shutdown: bool,
    /// Shut down even if programs are using it; their connections break
    #[arg(long, requires = "shutdown")]
    pub(crate) force: bool,
}

/// Find out why something does not work, and what to do about it
///
/// Checks the installation, the environment variables, the system's limits, the broker, the interfaces
/// and their addresses. To check another host, use `polypath ping HOST`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  polypath doctor
  polypath doctor --device roce:eth0
  polypath doctor --json

Exit status: 0 if nothing is wrong, 1 if something will not work. Warnings alone give 0.")]
pub(crate) struct Doctor {
    /// Which devices, as for `polypath run`
    // The doctor checks the value itself, because it can say more than an error of the command
    // line.
    #[arg(long, short, value_name = "DEVICE", env = "POLYPATH_DEVICE")]
    pub(crate) device: Option<String>,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a policy with its settings, or `default`.
fn policy_change(text: &str) -> Result<PolicyChange, String> {
    if text == "default" {
        return Ok(PolicyChange::Default);
    }
    let settings = Bonding::parse(text).map_err(|error| error.to_string())?;
    if settings.is_empty() {
        return Err("write a policy, or `default`".to_owned());
    }
    Ok(PolicyChange::To(settings))
}

/// Checks that a rule may name this device.
fn mp_device(text: &str) -> Result<String, String> {
    let rule = Rule {
        scope: RuleScope { device: Some(text.to_owned()), ..RuleScope::default() },
        settings: Bonding { policy: Some(Policy::Balance), ..Bonding::default() },
        source: RuleSource::Command,
    };
    rule.check().map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// Parses the number of a queue pair, decimal or as status shows it.
fn queue_pair_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let in_range = number.filter(|number| (0x01_0000..0x100_0000).contains(number));
    in_range.ok_or_else(|| format!("write a number such as 0x010011, not `{text}`"))
}

/// Checks the faults. Their interfaces may be absent for now.
fn faults(text: &str) -> Result<String, String> {
    Faults::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Checks the number of bytes to keep of each packet.
fn snap_len(text: &str) -> Result<String, String> {
    polypath_ipc::settings::snap_len(text)
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// Checks the form of a device selection. Whether its interfaces exist is checked later.
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
        for line in ["status --watch=0", "status --watch=9", "status --watch=x"] {
            assert!(parse(&format!("polypath {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused() {
        for line in [
            "broker --shutdown --idle-timeout 3",
            "broker --force",
            "status --all --user root",
            "status --json --verbose",
            "status --json --prometheus",
        ] {
            assert!(parse(&format!("polypath {line}")).is_err(), "{line}");
        }
        assert!(parse("polypath broker --shutdown --force").is_ok());
    }

    #[test]
    fn policies_are_set_for_what_is_named_correctly() {
        for line in [
            "mp policy",
            "mp policy default",
            "mp policy affinity,affinity=hash --peer fd00::/64",
            "mp policy primary=eth1 --device mp0 --process 7",
            "qp policy 0x010011",
            "qp policy 65553 balance --process 7",
        ] {
            assert!(parse(&format!("polypath {line}")).is_ok(), "{line}");
        }
        for (line, says) in [
            ("mp policy balanced", "policy=active-backup|balance|affinity|redundant|efficient"),
            ("mp policy balance,affinity=hash", "only with policy=affinity"),
            ("mp policy balance --peer 10.0.1.7/24", "write 10.0.1.0/24"),
            ("mp policy balance --device roce0", "use one path only"),
            ("mp policy ,", "write a policy"),
            ("qp policy 17 balance", "0x010011"),
        ] {
            let error = parse(&format!("polypath {line}")).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn paths_are_named_by_interface_or_address() {
        assert!(parse("polypath path down eth0").is_ok());
        assert!(parse("polypath path up 10.0.0.1-10.0.0.2").is_ok());
        assert!(parse("polypath path down a/b").is_err());
    }
}
