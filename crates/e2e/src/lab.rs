//! The topology: two hosts, links between them, and faults of links.

use crate::ns::{FIRST_INHERITED, Namespace};
use crate::{Artifacts, Error, Finished, Program, Running, until};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest time that `polypath status` may take. It waits for processes that do not answer.
const STATUS_LIMIT: Duration = Duration::from_secs(10);

/// The most links of a lab.
pub const LINKS_MAX: usize = 9;

/// The way in which the hosts are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Through a bridge for each link, in a namespace of its own, as through a switch. Packets can
    /// vanish in it without an event at either host, and the cable of one host can be pulled.
    Switched,
    /// By one veth pair for each link, with nothing between, for measuring speed. [`Lab::cut`] is not
    /// possible.
    Direct,
}

/// The properties of a lab.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of links, 1 to 9.
    pub links: usize,
    /// The MTU of every interface in bytes.
    pub mtu: u32,
    /// The connection between the hosts.
    pub wiring: Wiring,
}

impl Default for Options {
    fn default() -> Self {
        Self { links: 2, mtu: 9000, wiring: Wiring::Switched }
    }
}

/// The packets of a link that vanish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets in both directions.
    Both,
    /// The packets that the host with this number sends.
    From(usize),
}

/// The ends of a link that lose the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both ends, as when a cable without a switch is pulled.
    Both,
    /// The host with this number only. The other host sees only silence.
    Of(usize),
}

impl End {
    fn hosts(self) -> impl Iterator<Item = usize> {
        (0..2).filter(move |&host| self == Self::Both || self == Self::Of(host))
    }
}

/// Two hosts joined by links. Interfaces are named `eth0`, `eth1` …; host `h` has the addresses
/// `10.l.0.(h+1)/24` and `fd00:l::(h+1)/64` on link `l`.
#[derive(Debug)]
pub struct Lab {
    hosts: [Host; 2],
    switch: Namespace,
    options: Options,
}

impl Lab {
    /// Builds two hosts with two links, MTU 9000, and switches between them.
    ///
    /// # Errors
    /// The errors of [`Lab::with`].
    pub fn new() -> Result<Self, Error> {
        Self::with(Options::default())
    }

    /// Builds a lab with these properties.
    ///
    /// # Errors
    /// If the system does not allow namespaces, or `ip` or `bridge` fail.
    pub fn with(options: Options) -> Result<Self, Error> {
        assert!((1..=LINKS_MAX).contains(&options.links), "1 to {LINKS_MAX} links");
        let switch = Namespace::new(None)?;
        let host = |number| {
            let namespace = Namespace::new(Some(&switch))?;
            Ok(Host { namespace, number })
        };
        let hosts = [host(0)?, host(1)?];
        let lab = Self { hosts, switch, options };
        lab.build()?;
        Ok(lab)
    }

    fn build(&self) -> Result<(), Error> {
        for host in &self.hosts {
            // Nobody else has these IPv6 addresses, so duplicate address detection, which takes a
            // second, is not needed. If /proc/sys is read-only, the lab works as well, a second later.
            let quiet =
                "for d in default all; do echo 0 > /proc/sys/net/ipv6/conf/$d/accept_dad; done";
            let _ = host.tool("sh", &["-c", quiet], "");
        }
        let Options { links, mtu, wiring } = self.options;
        let mut wires = String::new();
        let names = [FIRST_INHERITED, FIRST_INHERITED + 1].map(|fd| format!("/proc/self/fd/{fd}"));
        for link in 0..links {
            match wiring {
                Wiring::Direct => {
                    let (a, b) = (&names[0], &names[1]);
                    let end = format!("eth{link} mtu {mtu} netns");
                    writeln!(wires, "link add {end} {a} type veth peer name {end} {b}").ok();
                }
                Wiring::Switched => {
                    writeln!(wires, "link add sw{link} mtu {mtu} type bridge mcast_snooping 0")
                        .ok();
                    for (host, name) in names.iter().enumerate() {
                        let port = port(link, host);
                        let end = format!("eth{link} mtu {mtu} netns {name}");
                        writeln!(wires, "link add {port} mtu {mtu} type veth peer name {end}").ok();
                        // A switch that learns no addresses floods everything, so that the flood flags
                        // of a port are its wire. They must be set before the port is up.
                        writeln!(wires, "link set {port} master sw{link}").ok();
                        writeln!(wires, "link set {port} type bridge_slave learning off").ok();
                        writeln!(wires, "link set {port} up").ok();
                    }
                    writeln!(wires, "link set sw{link} mtu {mtu} up").ok();
                }
            }
        }
        tool(
            &self.switch,
            &[&self.hosts[0].namespace, &self.hosts[1].namespace],
            "ip",
            &["-batch", "-"],
            &wires,
        )?;
        for host in &self.hosts {
            let mut setup = "link set lo up\n".to_owned();
            for link in 0..links {
                setup += &host.address_commands("add", link);
                writeln!(setup, "link set eth{link} up").ok();
            }
            host.tool("ip", &["-batch", "-"], &setup)?;
        }
        Ok(())
    }

    /// One of the two hosts.
    ///
    /// # Panics
    /// If `number` is neither 0 nor 1.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// Adds a port to a link's switch: a tap interface of this name, whose other end a process holds,
    /// such as a virtual machine run by [`Lab::in_switch`]. It may use any address of the link except
    /// those of the two hosts.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn add_tap(&self, link: usize, name: &str) -> Result<(), Error> {
        let mtu = self.options.mtu;
        let commands = format!(
            "tuntap add dev {name} mode tap\n\
             link set {name} mtu {mtu} master sw{link}\n\
             link set {name} type bridge_slave learning off\n\
             link set {name} up\n"
        );
        tool(&self.switch, &[], "ip", &["-batch", "-"], &commands)
    }

    /// A program of the system that runs in the namespace of the switches.
    pub fn in_switch<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Program {
        Program::new(self.switch.clone(), arguments, false)
    }

    /// Connects all links of a host to the switch of link 0, which learns hardware addresses from now on.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn join_links(&self, host: usize) -> Result<(), Error> {
        assert_eq!(self.options.wiring, Wiring::Switched, "direct wires have no switch");
        let mut commands = String::new();
        for (link, host) in (0..self.options.links).map(|link| (link, host)).chain([(0, 1 - host)])
        {
            let port = port(link, host);
            writeln!(commands, "link set {port} master sw0").ok();
            writeln!(commands, "link set {port} type bridge_slave learning on").ok();
        }
        tool(&self.switch, &[], "ip", &["-batch", "-"], &commands)
    }

    /// Lets packets of a link vanish, without an event at either host. The other direction stays as it
    /// is.
    ///
    /// # Errors
    /// When `bridge` fails.
    pub fn cut(&self, link: usize, direction: Direction) -> Result<(), Error> {
        self.set_wire(link, direction, "off")
    }

    /// Lets a link's packets pass again in both directions, and gives both ends their carrier.
    ///
    /// # Errors
    /// When `bridge` or `ip` fail.
    pub fn heal(&self, link: usize) -> Result<(), Error> {
        if self.options.wiring == Wiring::Switched {
            self.set_wire(link, Direction::Both, "on")?;
        }
        self.link_up(link)
    }

    fn set_wire(&self, link: usize, direction: Direction, state: &str) -> Result<(), Error> {
        assert_eq!(self.options.wiring, Wiring::Switched, "a direct wire can't be cut silently");
        let mut commands = String::new();
        for receiver in 0..2 {
            if direction == Direction::Both || direction == Direction::From(1 - receiver) {
                let port = port(link, receiver);
                writeln!(
                    commands,
                    "link set dev {port} flood {state} mcast_flood {state} bcast_flood {state}"
                )
                .ok();
            }
        }
        self.bridge(&commands)
    }

    /// Takes the carrier of a link away, as a pulled cable does.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn link_down(&self, link: usize, end: End) -> Result<(), Error> {
        self.set_carrier(link, end, "down")
    }

    /// Gives both ends of a link their carrier.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn link_up(&self, link: usize) -> Result<(), Error> {
        self.set_carrier(link, End::Both, "up")
    }

    fn set_carrier(&self, link: usize, end: End, state: &str) -> Result<(), Error> {
        if self.options.wiring == Wiring::Direct {
            // If one end is administratively down, the other loses its carrier.
            let host = end.hosts().next().unwrap_or(0);
            let command = format!("link set eth{link} {state}\n");
            return self.hosts[host].tool("ip", &["-batch", "-"], &command);
        }
        let commands = end
            .hosts()
            .fold(String::new(), |c, host| c + &format!("link set {} {state}\n", port(link, host)));
        tool(&self.switch, &[], "ip", &["-batch", "-"], &commands)
    }

    fn bridge(&self, commands: &str) -> Result<(), Error> {
        tool(&self.switch, &[], "bridge", &["-batch", "-"], commands)
    }

    /// The number of bytes that each host has received over each link so far, counted at the hosts:
    /// `received[host][link]`.
    ///
    /// # Errors
    /// When the counters can't be read.
    pub fn received_bytes(&self) -> Result<[Vec<u64>; 2], Error> {
        Ok([self.received_bytes_of(0)?, self.received_bytes_of(1)?])
    }

    /// The number of bytes that one host has received over each link so far.
    ///
    /// # Errors
    /// When the counters can't be read.
    pub fn received_bytes_of(&self, host: usize) -> Result<Vec<u64>, Error> {
        let table = self.hosts[host].namespace.proc_net("dev")?;
        let links = 0..self.options.links;
        Ok(links.map(|link| received(&table, &format!("eth{link}"))).collect())
    }

    /// The number of bytes that one host has sent over each link so far.
    ///
    /// # Errors
    /// When the counters can't be read.
    pub fn sent_bytes_of(&self, host: usize) -> Result<Vec<u64>, Error> {
        let table = self.hosts[host].namespace.proc_net("dev")?;
        let links = 0..self.options.links;
        Ok(links.map(|link| counter(&table, &format!("eth{link}"), SENT)).collect())
    }

    /// Waits until both hosts together have received more than `bytes` bytes.
    ///
    /// # Errors
    /// If they have not within `limit`, or one of the programs ends before.
    pub fn wait_traffic(
        &self,
        programs: &[&Running],
        bytes: u64,
        limit: Duration,
    ) -> Result<(), Error> {
        until("traffic", limit, || {
            programs.iter().try_for_each(|program| program.expect_alive())?;
            let received: u64 = self.received_bytes()?.iter().flatten().sum();
            Ok((received > bytes).then_some(()))
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &self.hosts {
            host.namespace.kill_all();
        }
        self.switch.kill_all();
    }
}

/// The name of the switch's port towards a host.
fn port(link: usize, host: usize) -> String {
    format!("p{link}h{host}")
}

/// The place of the sent bytes in a line of `/proc/net/dev`, behind those of what was received.
const SENT: usize = 8;

/// The received bytes of an interface in a `/proc/net/dev` table; 0 if it is missing.
pub(crate) fn received(table: &str, interface: &str) -> u64 {
    counter(table, interface, 0)
}

fn counter(table: &str, interface: &str, place: usize) -> u64 {
    table
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))
        .find_map(|fields| fields.split_whitespace().nth(place)?.parse().ok())
        .unwrap_or(0)
}

/// One of the two hosts.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    number: usize,
}

impl Host {
    /// A host whose interfaces somebody else makes.
    pub(crate) fn bare(namespace: Namespace, number: usize) -> Self {
        Self { namespace, number }
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its IPv4 address on a link.
    pub fn ipv4(&self, link: usize) -> String {
        format!("10.{link}.0.{}", self.number + 1)
    }

    /// Its IPv6 address on a link.
    pub fn ipv6(&self, link: usize) -> String {
        format!("fd00:{link}::{}", self.number + 1)
    }

    /// The file in `/proc` with which `nsenter --net=` enters this host.
    pub fn namespace_path(&self) -> String {
        self.namespace.path()
    }

    /// A program of the system.
    pub fn program<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Program {
        Program::new(self.namespace.clone(), arguments, false)
    }

    /// An RDMA program, which is run through `polypath run --`.
    pub fn verbs<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Program {
        Program::new(self.namespace.clone(), arguments, true)
    }

    /// The output of `polypath status --json` on this host.
    ///
    /// # Errors
    /// When the command fails or writes no JSON.
    pub fn status(&self) -> Result<serde_json::Value, Error> {
        let command = Artifacts::get()?.command.clone();
        let arguments = [command.as_os_str(), "status".as_ref(), "--json".as_ref()];
        let program = self.program(arguments).writes_much();
        let finished = program.run(STATUS_LIMIT)?.expect_success()?;
        let text = finished.text();
        serde_json::from_str(&text)
            .map_err(|error| Error::Missing(format!("status is no JSON: {error}\n{text}")))
    }

    /// What `polypath status --json` says of the paths of all its processes.
    ///
    /// # Errors
    /// Those of [`Host::status`].
    pub fn paths(&self) -> Result<Vec<serde_json::Value>, Error> {
        self.of_processes("paths")
    }

    /// What `polypath status --json` says of the queue pairs of all its processes.
    ///
    /// # Errors
    /// Those of [`Host::status`].
    pub fn queue_pairs(&self) -> Result<Vec<serde_json::Value>, Error> {
        self.of_processes("qps")
    }

    /// The number of paths of all its processes that live.
    pub fn live_paths(&self) -> usize {
        // A status that does not come in time says nothing: whoever asks asks again.
        let live =
            |path: &&serde_json::Value| path["state"] == "active" || path["state"] == "standby";
        self.paths().unwrap_or_default().iter().filter(live).count()
    }

    /// Whether every connected queue pair of its processes has an alternate path that it can migrate to, and
    /// there is one.
    pub fn is_armed(&self) -> bool {
        let mut qps = self.queue_pairs().unwrap_or_default();
        qps.retain(|qp| qp["state"] == "RTS");
        !qps.is_empty() && qps.iter().all(|qp| qp["migration"]["state"] == "ARMED")
    }

    fn of_processes(&self, list: &str) -> Result<Vec<serde_json::Value>, Error> {
        let status = self.status()?;
        let processes = status["processes"].as_array().into_iter().flatten();
        Ok(processes.filter_map(|process| process[list].as_array()).flatten().cloned().collect())
    }

    /// Runs a subcommand of `polypath` on this host, which must succeed.
    ///
    /// # Errors
    /// When it fails.
    pub fn polypath(&self, arguments: &[&str]) -> Result<Finished, Error> {
        self.command(arguments)?.run(STATUS_LIMIT)?.expect_success()
    }

    /// A subcommand of `polypath`, to be run on this host.
    ///
    /// # Errors
    /// When the command is not built.
    pub fn command(&self, arguments: &[&str]) -> Result<Program, Error> {
        let command = Artifacts::get()?.command.to_string_lossy().into_owned();
        Ok(self.program([&[command.as_str()], arguments].concat()))
    }

    /// Starts `polypath watch --json` on this host.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn watch(&self, arguments: &[&str]) -> Result<Running, Error> {
        self.command(&[&["watch", "--json"], arguments].concat())?.spawn()
    }

    /// Waits until a program listens on a port of the connection manager.
    ///
    /// # Errors
    /// When none does within `limit`, or `server` ends before.
    pub fn wait_cm_listen(
        &self,
        server: &Running,
        port: u16,
        limit: Duration,
    ) -> Result<(), Error> {
        let suffix = format!(":{port}");
        until(&format!("a listener on port {port} of the connection manager"), limit, || {
            server.expect_alive()?;
            let status = self.status()?;
            let ids = status["broker"]["cm_ids"].as_array().cloned().unwrap_or_default();
            let listening = ids.iter().any(|id| {
                let text = |name: &str| id[name].as_str().unwrap_or_default().to_lowercase();
                text("state").contains("listen") && text("local").ends_with(&suffix)
            });
            Ok(listening.then_some(()))
        })
    }

    /// Removes this host's addresses on a link.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn remove_addresses(&self, link: usize) -> Result<(), Error> {
        self.tool("ip", &["-batch", "-"], &self.address_commands("del", link))
    }

    /// Gives this host its addresses on a link back.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn add_addresses(&self, link: usize) -> Result<(), Error> {
        self.tool("ip", &["-batch", "-"], &self.address_commands("add", link))
    }

    fn address_commands(&self, verb: &str, link: usize) -> String {
        let (v4, v6) = (self.ipv4(link), self.ipv6(link));
        let nodad = if verb == "add" { " nodad" } else { "" };
        format!("addr {verb} {v4}/24 dev eth{link}\naddr {verb} {v6}/64 dev eth{link}{nodad}\n")
    }

    /// Runs a tool of the system until it ends.
    ///
    /// # Errors
    /// [`Error::Tool`] when it fails.
    pub fn tool(&self, name: &str, arguments: &[&str], input: &str) -> Result<(), Error> {
        tool(&self.namespace, &[], name, arguments, input)
    }
}

pub(crate) fn tool(
    namespace: &Namespace,
    inherit: &[&Namespace],
    name: &str,
    arguments: &[&str],
    input: &str,
) -> Result<(), Error> {
    let mut command = Command::new(name);
    command.args(arguments);
    // The PATH of an ordinary user on Debian lacks sbin.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    namespace.enter(&mut command, inherit);
    let spoken = || format!("{name} {}", arguments.join(" "));
    let mut child = command.spawn().map_err(|e| Error::os(format!("starting {}", spoken()), e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that ends before it has read everything says why on standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output =
        child.wait_with_output().map_err(|e| Error::os(format!("waiting for {}", spoken()), e))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Error::Tool { tool: spoken(), output: format!("{words}\ninput was:\n{input}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_are_read_from_the_right_interface() {
        let table = "Inter-|   Receive\n face |bytes\n  eth1:     77 1 0\n eth11: 5 0\n";
        assert_eq!(received(table, "eth1"), 77);
        assert_eq!(received(table, "eth11"), 5);
        assert_eq!(received(table, "eth2"), 0);
    }
}
