//! Two guests joined by cables, each with a bond of its kernel's over its ends of them.

use polypath_e2e::guest::{self, Answer, Guest, Image, Kernel, Machine, Problem};
use polypath_e2e::{Lab, Options, Scratch, compile_c, pass};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The number of cables. A bond has all of them, or the first two.
pub(crate) const CABLES: usize = 4;
/// The address of each guest's bond.
pub(crate) const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
/// The longest time that something which comes by itself may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The time between two looks, each of which costs the guest a program or two.
const LOOK: Duration = Duration::from_millis(100);
/// What the guests do first.
const INIT: &str = include_str!("init.sh");

const MODULES: [&str; 9] = [
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "bonding",
    "8021q",
    "sch_netem",
    // rxe computes its checksums with the implementation that exists when a device is made.
    "crc32_generic",
    "rdma_ucm",
    "ib_uverbs",
];
/// rxe, which takes the port that Polypath needs, so that it is loaded when its turn comes.
const LATER: [&str; 1] = ["rdma_rxe"];
const FILES: [&str; 16] = [
    "/bin/dash",
    "/bin/ip",
    "/sbin/tc",
    "/bin/rdma",
    "/usr/bin/stdbuf",
    "/usr/bin/iperf3",
    "/usr/bin/rping",
    "/usr/bin/ibv_devices",
    "/usr/bin/ib_send_bw",
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_atomic_bw",
    // What programs load at run time.
    "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/libexec/coreutils/libstdbuf.so",
    "/etc/libibverbs.d/rxe.driver",
];

/// A mode of Linux bonding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    ActiveBackup,
    BalanceXor,
    Lacp,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::ActiveBackup, Self::BalanceXor, Self::Lacp];

    /// The options, as `ip link add type bond` takes them.
    fn options(self) -> &'static str {
        match self {
            Self::ActiveBackup => "mode active-backup",
            Self::BalanceXor => "mode balance-xor xmit_hash_policy layer3+4",
            Self::Lacp => "mode 802.3ad lacp_rate fast xmit_hash_policy layer3+4",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ActiveBackup => "active-backup",
            Self::BalanceXor => "balance-xor",
            Self::Lacp => "802.3ad",
        })
    }
}

/// The guests, and what their bonds are like.
#[derive(Debug)]
pub(crate) struct Stage {
    guests: [Guest; 2],
    bond: Option<(Mode, usize)>,
    /// The emulators end with it.
    _lab: Lab,
    _cables: Scratch,
}

impl Stage {
    /// Boots both guests.
    pub(crate) fn boot(kernel: &Kernel, directory: &Path) -> Result<Self, Problem> {
        let initramfs = directory.join("initramfs");
        let ours = guest::stripped(directory)?;
        let flows = PathBuf::from(compile_c("flows.c")?);
        let extra = [ours[0].as_path(), ours[1].as_path(), flows.as_path()];
        Image { init: INIT, modules: &MODULES, later: &LATER, files: &FILES, extra: &extra }
            .build(&initramfs, kernel)?;
        let lab = Lab::with(Options { links: 1, ..Options::default() })?;
        let cables = Scratch::new("cables")?;
        let mut first = Guest::start(&lab, &machine(kernel, &initramfs, &cables, 0))?;
        let mut second = Guest::start(&lab, &machine(kernel, &initramfs, &cables, 1))?;
        first.wait()?;
        second.wait()?;
        Ok(Self { guests: [first, second], bond: None, _lab: lab, _cables: cables })
    }

    pub(crate) fn guest(&mut self, number: usize) -> &mut Guest {
        &mut self.guests[number]
    }

    pub(crate) fn consoles(&self) -> String {
        self.guests.iter().map(Guest::console).collect::<Vec<_>>().join("\nof the other guest:\n")
    }

    /// Ends both guests.
    pub(crate) fn stop(self) -> Result<(), Problem> {
        self.guests.into_iter().try_for_each(Guest::stop)
    }

    /// Runs a command in a guest that must succeed, and returns its output. What takes a moment on an idle
    /// machine may take long on a busy one.
    pub(crate) fn run(&mut self, guest: usize, command: &str) -> Result<String, Problem> {
        self.guests[guest].client.run(command, LIMIT)?.success(command)
    }

    /// Whether the program of a guest has ended.
    pub(crate) fn has_ended(&mut self, guest: usize) -> Result<bool, Problem> {
        Ok(self.guests[guest].client.run("has_ended", LIMIT)?.status == 0)
    }

    /// Runs a short command in both guests, which must succeed.
    pub(crate) fn both(&mut self, command: &str) -> Result<(), Problem> {
        // At once, because what one guest waits for may be the other one.
        for guest in &mut self.guests {
            guest.client.start(command)?;
        }
        for guest in &mut self.guests {
            guest.client.finish(LIMIT).and_then(|answer| answer.success(command))?;
        }
        Ok(())
    }

    /// Repeats a command in a guest until it succeeds.
    fn wait_for(&mut self, guest: usize, command: &str) -> Result<(), Problem> {
        let start = Instant::now();
        loop {
            let Answer { status, text } = self.guests[guest].client.run(command, LIMIT)?;
            if status == 0 {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                let bond =
                    self.run(guest, "cat /proc/net/bonding/bond0 /tmp/lacp; ip -s link; :")?;
                let problem =
                    format!("waited in vain in guest {guest} for: {command}\n{text}{bond}");
                return Err(Problem::Failed(problem));
            }
            pass(LOOK);
        }
    }

    /// Makes the bonds like this, unless they are.
    pub(crate) fn bond(&mut self, mode: Mode, slaves: usize) -> Result<(), Problem> {
        if self.bond == Some((mode, slaves)) {
            return self.wait_whole();
        }
        if self.bond.take().is_some() {
            self.both("bond_down")?;
        }
        self.both(&format!("bond_up {slaves} {}", mode.options()))?;
        self.bond = Some((mode, slaves));
        self.wait_whole()
    }

    /// A bond of its kernel's in the first guest, and in the second one as many interfaces that share an
    /// address.
    pub(crate) fn own_up(&mut self, mode: Mode, slaves: usize) -> Result<(), Problem> {
        if self.bond.take().is_some() {
            self.both("bond_down")?;
        }
        self.run(0, &format!("bond_up {slaves} {}", mode.options()))?;
        // Without LACP, it speaks only if it is spoken to.
        let lacp = if mode == Mode::Lacp { "--lacp_rate fast" } else { "--lacp_active off" };
        self.run(1, &format!("own_up {slaves} {lacp}"))?;
        self.wait_for(1, &format!("own_shares {slaves}"))?;
        self.own_whole(mode, slaves)
    }

    /// Waits until all interfaces of both guests carry.
    pub(crate) fn own_whole(&mut self, mode: Mode, slaves: usize) -> Result<(), Problem> {
        self.wait_for(0, &format!("bond_whole {slaves}"))?;
        match mode {
            Mode::Lacp => self.wait_for(1, &format!("own_whole {slaves}")),
            _ => Ok(()),
        }
    }

    /// Undoes [`Stage::own_up`].
    pub(crate) fn own_down(&mut self, slaves: usize) -> Result<(), Problem> {
        self.run(1, &format!("own_down {slaves}"))?;
        self.run(0, "bond_down").map(drop)
    }

    /// Enslaves further cables at both ends, or releases the last ones, until each bond has so many.
    pub(crate) fn resize(&mut self, slaves: usize) -> Result<(), Problem> {
        let Some((mode, before)) = self.bond else {
            return Err(Problem::Failed("there is no bond".to_owned()));
        };
        (before..slaves).try_for_each(|cable| self.both(&format!("enslave eth{cable}")))?;
        (slaves..before).rev().try_for_each(|cable| self.both(&format!("release eth{cable}")))?;
        self.bond = Some((mode, slaves));
        self.wait_whole()
    }

    /// Waits until all slaves of both bonds carry.
    pub(crate) fn wait_whole(&mut self) -> Result<(), Problem> {
        let (_, slaves) =
            self.bond.ok_or_else(|| Problem::Failed("there is no bond".to_owned()))?;
        (0..2).try_for_each(|guest| self.wait_for(guest, &format!("bond_whole {slaves}")))
    }

    /// Waits until a guest's program listens on a port of the connection manager.
    pub(crate) fn wait_cm(&mut self, guest: usize, port: u16) -> Result<(), Problem> {
        self.wait_for(guest, &format!("listens_cm {port}"))
    }

    /// Waits until a guest's program listens on a TCP port.
    pub(crate) fn wait_tcp(&mut self, guest: usize, port: u16) -> Result<(), Problem> {
        self.wait_for(guest, &format!("listens_tcp {port}"))
    }

    /// The cable that carries, if the mode has one at a time, else the first.
    pub(crate) fn busiest(&mut self) -> Result<usize, Problem> {
        if self.bond.is_none_or(|(mode, _)| mode != Mode::ActiveBackup) {
            return Ok(0);
        }
        let name = self.run(0, "active")?;
        let number = name.trim().strip_prefix("eth").and_then(|number| number.parse().ok());
        number.ok_or_else(|| Problem::Failed(format!("{name:?} is no slave that carries")))
    }

    /// Plugs in a cable, or pulls it out, at both ends.
    pub(crate) fn cable(&mut self, cable: usize, up: bool) -> Result<(), Problem> {
        self.guests.iter_mut().try_for_each(|guest| guest.set_link(&format!("cable{cable}"), up))
    }

    /// The bytes that the first guest has received by each cable.
    pub(crate) fn received(&mut self) -> Result<Vec<u64>, Problem> {
        let text = self.run(0, "received")?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }
}

/// A guest, whose cables are pairs of sockets.
fn machine<'a>(
    kernel: &'a Kernel,
    initramfs: &'a Path,
    cables: &Scratch,
    number: usize,
) -> Machine<'a> {
    let devices: Vec<String> = (0..CABLES)
        .map(|cable| {
            let path = |end: usize| cables.path(format!("cable{cable}.{end}"));
            // Without offloads, the guest sends packets as a wire would carry them. LACP wants to know a
            // speed.
            format!(
                "-netdev dgram,id=cable{cable},local.type=unix,local.path={},\
                 remote.type=unix,remote.path={} \
                 -device virtio-net-pci,netdev=cable{cable},mac=52:54:00:00:{cable:02x}:{:02x},\
                 host_mtu=9000,romfile=,speed=10000,duplex=full,\
                 csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off",
                path(number).display(),
                path(1 - number).display(),
                number + 1
            )
        })
        .collect();
    let words = format!("polypath.IPV4={}", ADDRESSES[number]);
    Machine { kernel: &kernel.image, initramfs, memory: 640, devices: devices.join(" "), words }
}
