//! Programs with connected queue pairs are checkpointed on one host and restored on another one.
//!
//! A guest with Debian's kernel has three hosts, which are network namespaces: the first and the last reach
//! each other through the one in between. An unmodified program runs between two of them. One end leaves its
//! host (`polypath move`), CRIU takes a checkpoint of it and ends it, and restores it on another host, in
//! another subnet. The program, which checks its data, must go on and end well.
//!
//! If the machine has no emulator or can't get a kernel, the program prints `SKIPPED` and the reason, and
//! exits with status 0.

use polypath_e2e::guest::{self, Guest, Image, Kernel, Machine, Problem, installed};
use polypath_e2e::{Lab, Options, pass};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The longest time that something which comes by itself may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest time that a program may take.
const PROGRAM: Duration = Duration::from_secs(600);
/// The time between two looks, each of which costs the guest a program or two.
const LOOK: Duration = Duration::from_millis(200);
/// What a program has sent when it certainly works.
const PROGRESS: u64 = 1 << 20;
/// What the guest does first.
const INIT: &str = include_str!("init.sh");
const MODULES: [&str; 11] = [
    "virtio_pci",
    "virtio_console",
    "veth",
    // CRIU asks the kernel about sockets, and tries what it can do.
    "unix_diag",
    "tcp_diag",
    "udp_diag",
    "raw_diag",
    "netlink_diag",
    "af_packet_diag",
    "nf_tables",
    "tun",
];
const FILES: [&str; 9] = [
    "/bin/dash",
    "/bin/ip",
    "/usr/sbin/criu",
    "/usr/bin/ibv_devices",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/rping",
    // What programs load at run time.
    "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/x86_64-linux-gnu/libnftables.so.1",
];

/// A host of the guest.
#[derive(Clone, Copy, Debug)]
struct Host {
    name: &'static str,
    address: &'static str,
    /// Its interfaces, as a pattern of grep.
    interface: &'static str,
}

const A: Host = Host { name: "a", address: "10.1.0.1", interface: "ab" };
const B: Host = Host { name: "b", address: "10.1.0.2", interface: "b[ac]" };
const C: Host = Host { name: "c", address: "10.2.0.1", interface: "cb" };

/// A program between two hosts, and where its ends go.
struct Case {
    what: &'static str,
    /// Where the server starts, and the client. The program allows no router in between when it connects.
    from: [Host; 2],
    /// Each time the end (0: the server) and the host that it goes to.
    moves: &'static [(usize, Host)],
    program: Program,
    /// How many messages it sends.
    count: u32,
}

#[derive(Clone, Copy, Debug)]
enum Program {
    /// `ibv_rc_pingpong`, with more words.
    Pingpong(&'static str),
    /// `rping`, which has ids of `rdma_cm`. The server waits until the client ends the connection.
    Rping,
}

const CASES: [Case; 6] = [
    Case {
        what: "to another host and subnet, and back",
        from: [A, B],
        moves: &[(0, C), (0, A)],
        program: Program::Pingpong(""),
        count: 4000,
    },
    Case {
        what: "from shared memory to another host, and back",
        from: [A, A],
        moves: &[(0, C), (0, A)],
        program: Program::Pingpong(""),
        count: 8000,
    },
    Case {
        what: "to the host of the other end",
        from: [A, B],
        moves: &[(1, A)],
        program: Program::Pingpong(""),
        count: 6000,
    },
    Case {
        what: "one end after the other, both with events",
        from: [A, B],
        moves: &[(0, C), (1, A)],
        program: Program::Pingpong("-e"),
        count: 4000,
    },
    Case {
        what: "one end after the other, with ids of rdma_cm",
        from: [A, B],
        moves: &[(0, C), (1, A)],
        program: Program::Rping,
        count: 6000,
    },
    Case {
        what: "restored where it was, with shared memory",
        from: [C, C],
        moves: &[(1, C)],
        program: Program::Pingpong(""),
        count: 8000,
    },
];

fn main() -> ExitCode {
    Problem::conclude(run(), "programs were not moved between hosts")
}

fn run() -> Result<bool, Problem> {
    let start = Instant::now();
    guest::can_run(&["criu", "strip", "ibv_rc_pingpong", "rping"], "moving")?;
    let kernel = Kernel::get(&guest::directory("interop")?.join("kernels"))?;
    let directory = guest::directory("moving")?;
    let initramfs = directory.join("initramfs");
    let ours = guest::stripped(&directory)?;
    let extra = [ours[0].as_path(), ours[1].as_path()];
    Image { init: INIT, modules: &MODULES, later: &[], files: &FILES, extra: &extra }
        .build(&initramfs, &kernel)?;
    let lab = Lab::with(Options { links: 1, ..Options::default() })?;
    let (devices, words) = (String::from("-nic none"), String::new());
    let machine =
        Machine { kernel: &kernel.image, initramfs: &initramfs, memory: 1024, devices, words };
    let mut guest = Guest::start(&lab, &machine)?;
    guest.wait()?;
    polypath_e2e::say!(
        "a guest with Linux {} and {} is up after {} s",
        kernel.release,
        installed("criu"),
        start.elapsed().as_secs()
    );
    let played = play(&mut guest);
    if played.is_err() {
        polypath_e2e::say!("the guest's console:\n{}", guest.console());
    }
    guest.stop()?;
    polypath_e2e::say!("all took {} s", start.elapsed().as_secs());
    played.map(|()| true)
}

fn play(guest: &mut Guest) -> Result<(), Problem> {
    let only = std::env::args().nth(1).unwrap_or_default();
    for case in CASES.iter().filter(|case| case.what.contains(&only)) {
        let began = Instant::now();
        let played = run_case(guest, case);
        played.map_err(|problem| {
            let outputs = guest.client.run("tail -n 30 /tmp/server /tmp/client", LIMIT);
            let outputs = outputs.map(|answer| answer.text).unwrap_or_default();
            Problem::Failed(format!("{}: {problem}\n{outputs}", case.what))
        })?;
        polypath_e2e::say!("{}: ok, {} s", case.what, began.elapsed().as_secs());
    }
    Ok(())
}

/// The names of the two ends' files.
const ENDS: [&str; 2] = ["server", "client"];

fn run_case(guest: &mut Guest, case: &Case) -> Result<(), Problem> {
    let count = case.count;
    let (server, ready, client) = match case.program {
        Program::Pingpong(words) => {
            let program = format!("ibv_rc_pingpong -c -g 1 -s 8192 -n {count} {words}");
            (program.clone(), "wait_tcp_in", program)
        }
        Program::Rping => {
            let client = format!("rping -c -V -S 2048 -C {count} -p 18515 -a");
            (String::from("rping -s -S 2048 -p 18515"), "wait_id_in", client)
        }
    };
    let mut at = case.from;
    let [server_at, client_at] = at;
    run_in(guest, &format!("start {0} server {server}; {ready} {0} 18515", server_at.name))?;
    run_in(guest, &format!("start {} client {client} {}", client_at.name, server_at.address))?;
    for &(end, to) in case.moves {
        expect_progress(guest, at[end])?;
        for file in ENDS {
            if guest.client.run(&format!("has_ended {file}"), LIMIT)?.status == 0 {
                return Err(Problem::Failed(format!("the {file} has ended too early")));
            }
        }
        run_in(guest, &format!("take_off {} {}", at[end].name, ENDS[end]))?;
        run_in(guest, &format!("put_on {} {}", to.name, ENDS[end]))?;
        at[end] = to;
        let way = if at[0].name == at[1].name { "local" } else { to.interface };
        wait_for(guest, &format!("over {} {way}", to.name), LIMIT)?;
    }
    for file in ENDS {
        wait_for(guest, &format!("has_ended {file}"), PROGRAM)?;
        let (has, has_not) = match case.program {
            Program::Pingpong(_) => (format!("{count} iters"), "invalid"),
            Program::Rping => (String::from("DISCONNECT EVENT"), "mismatch"),
        };
        run_in(guest, &format!("grep -q '{has}' /tmp/{file} && ! grep -q {has_not} /tmp/{file}"))?;
    }
    Ok(())
}

/// Waits until the program of a host has sent something more.
fn expect_progress(guest: &mut Guest, host: Host) -> Result<(), Problem> {
    let mut sent = || -> Result<u64, Problem> {
        let text = run_in(guest, &format!("data {}", host.name))?;
        Ok(text.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum())
    };
    let (began, before) = (Instant::now(), sent()?);
    while sent()? < before + PROGRESS {
        if began.elapsed() > LIMIT {
            return Err(Problem::Failed(format!("nothing is sent on host {}", host.name)));
        }
        pass(LOOK);
    }
    Ok(())
}

/// Runs a command that must succeed.
fn run_in(guest: &mut Guest, command: &str) -> Result<String, Problem> {
    guest.client.run(command, LIMIT)?.success(command)
}

/// Repeats a command until it succeeds.
fn wait_for(guest: &mut Guest, command: &str, limit: Duration) -> Result<(), Problem> {
    let began = Instant::now();
    loop {
        if guest.client.run(command, LIMIT)?.status == 0 {
            return Ok(());
        }
        if began.elapsed() > limit {
            return Err(Problem::Failed(format!("waited in vain for: {command}")));
        }
        pass(LOOK);
    }
}
