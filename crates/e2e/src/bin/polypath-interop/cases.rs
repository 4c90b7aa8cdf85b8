//! The programs that are run between Polypath and rxe.

/// How a pair of programs gets its path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// By an option: queue pairs are connected by hand, over TCP.
    ByHand,
    /// From the interface: queue pairs are connected by the connection manager.
    Manager,
}

/// How a server shows that it is ready for clients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It listens on this port of the connection manager.
    Manager(u16),
    /// It writes a line with this text.
    Line(&'static str),
}

/// A server and a client. `{server}` and `{client}` stand for their addresses, `{host}` for the
/// server's IPv4 address, `{gid}` for the index of the GID, `{mtu}` for the path MTU, `{group}` for a
/// multicast group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    pub(crate) ready: Ready,
    pub(crate) meeting: Meeting,
    /// The text that the client must write.
    pub(crate) expect: &'static str,
    /// Whether it is also run with losses.
    pub(crate) faults: bool,
    /// Whether Linux or the program does not support it over IPv6.
    pub(crate) ipv4_only: bool,
}

const PERFTEST: u16 = 18515;
const CMATOSE: u16 = 7471;
const RPING: u16 = 7174;

const fn pair(
    name: &'static str,
    server: &'static str,
    client: &'static str,
    ready: Ready,
    meeting: Meeting,
    expect: &'static str,
) -> Pair {
    Pair { name, server, client, ready, meeting, expect, faults: false, ipv4_only: false }
}

impl Pair {
    /// Whether its service sends lost packets again.
    pub(crate) fn is_reliable(&self) -> bool {
        let unreliable = ["UC", "UD", "_uc_", "_ud_", "udaddy", "mckey"];
        !unreliable.iter().any(|word| self.name.contains(word))
    }

    const fn ipv4_only(mut self) -> Self {
        self.ipv4_only = true;
        self
    }

    const fn with_faults(mut self) -> Self {
        self.faults = true;
        self
    }
}

const fn manager(
    name: &'static str,
    server: &'static str,
    client: &'static str,
    port: u16,
    expect: &'static str,
) -> Pair {
    pair(name, server, client, Ready::Manager(port), Meeting::Manager, expect)
}

macro_rules! pingpong {
    ($name:literal) => {
        pingpong!($name, concat!("ibv_", $name, " -g {gid} -c -m {mtu} -s 4097 -n 50"))
    };
    ($name:literal, $command:expr) => {
        pair(
            concat!("ibv_", $name),
            $command,
            concat!($command, " {host}"),
            Ready::Tcp(PERFTEST),
            Meeting::ByHand,
            "iters in",
        )
    };
}

/// A program of perftest. It sends few messages, so that the guest has room for them if it does not
/// take them for a while, and has a timeout of 0.27 s (`-u 16`). Its queue pairs are connected by hand
/// or by the connection manager.
macro_rules! perftest {
    ($command:literal) => {
        pair(
            $command,
            concat!($command, " -F -u 16 -x {gid} -m {mtu} -n 40"),
            concat!($command, " -F -u 16 -x {gid} -m {mtu} -n 40 {host}"),
            Ready::Tcp(PERFTEST),
            Meeting::ByHand,
            PERFTEST_TABLE,
        )
    };
    ($command:literal, cm) => {
        manager(
            concat!($command, " -R"),
            concat!($command, " -F -u 16 -R -n 40"),
            concat!($command, " -F -u 16 -R -n 40 {server}"),
            PERFTEST,
            PERFTEST_TABLE,
        )
        // perftest 4.5 takes no IPv6 address: "Address family for hostname not supported".
        .ipv4_only()
    };
}

const PERFTEST_TABLE: &str = "#bytes";

/// All pairs. Operations that perftest does not allow are missing: READ and atomics on services other
/// than RC, and WRITE on UD.
pub(crate) const PAIRS: &[Pair] = &[
    manager(
        "rping",
        "rping -s -a {server} -v -V -C 20 -S 5000",
        "rping -c -a {server} -v -V -C 20 -S 5000",
        RPING,
        "rdma-ping-19",
    )
    .with_faults(),
    manager(
        "ucmatose",
        "ucmatose -b {server} -c 2 -C 20 -S 5000",
        "ucmatose -s {server} -c 2 -C 20 -S 5000",
        CMATOSE,
        "return status 0",
    )
    .with_faults(),
    manager(
        "udaddy",
        "udaddy -b {server} -c 2 -C 20",
        "udaddy -s {server} -c 2 -C 20",
        RPING,
        "return status 0",
    ),
    pair(
        "mckey",
        "mckey -m {group} -b {server} -C 5",
        "mckey -m {group} -b {client} -s -C 5",
        Ready::Line("receiving data transfers"),
        Meeting::Manager,
        "return status 0",
    )
    // Linux joins no IPv6 groups for RoCEv2: it answers ENOTSUPP.
    .ipv4_only(),
    pingpong!("rc_pingpong").with_faults(),
    pingpong!("uc_pingpong"),
    pingpong!("srq_pingpong").with_faults(),
    pingpong!("ud_pingpong", "ibv_ud_pingpong -g {gid} -c -s {mtu} -n 50"),
    perftest!("ib_send_bw -s 20000").with_faults(),
    perftest!("ib_send_lat -s 5000").with_faults(),
    perftest!("ib_send_bw -c UC -s 5000"),
    perftest!("ib_send_lat -c UC -s 5000"),
    perftest!("ib_send_bw -c UD -s 256"),
    perftest!("ib_send_lat -c UD -s 256"),
    perftest!("ib_write_bw -s 20000").with_faults(),
    perftest!("ib_write_lat -s 5000").with_faults(),
    perftest!("ib_write_bw -c UC -s 5000"),
    perftest!("ib_write_lat -c UC -s 5000"),
    perftest!("ib_read_bw -s 20000").with_faults(),
    perftest!("ib_read_lat -s 5000").with_faults(),
    perftest!("ib_atomic_bw -A FETCH_AND_ADD").with_faults(),
    perftest!("ib_atomic_lat -A CMP_AND_SWAP").with_faults(),
    perftest!("ib_send_bw -s 20000", cm),
    perftest!("ib_send_lat -s 5000", cm),
    perftest!("ib_send_bw -c UD -s 256", cm),
    perftest!("ib_send_lat -c UD -s 256", cm),
    perftest!("ib_write_bw -s 20000", cm),
    perftest!("ib_write_lat -s 5000", cm),
    perftest!("ib_read_bw -s 20000", cm),
    perftest!("ib_read_lat -s 5000", cm),
    perftest!("ib_atomic_bw -A FETCH_AND_ADD", cm),
    perftest!("ib_atomic_lat -A CMP_AND_SWAP", cm),
];

#[cfg(test)]
mod tests {
    use super::PAIRS;

    #[test]
    fn names_tell_pairs_apart() {
        for (index, pair) in PAIRS.iter().enumerate() {
            assert!(PAIRS[..index].iter().all(|other| other.name != pair.name), "{}", pair.name);
        }
    }
}
