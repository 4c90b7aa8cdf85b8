//! The other side: Linux with rxe in a virtual machine, on the lab's first link.

use crate::Problem;
use polypath_e2e::Lab;
use polypath_e2e::guest::{Guest, Image, Kernel, Machine};
use std::path::Path;

/// What the guest does first.
const INIT: &str = include_str!("init.sh");

/// Modules that are loaded when the guest starts. The modules that they depend on are added.
const MODULES: [&str; 12] = [
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    // rxe computes its checksums with the implementation that exists when a device is made.
    "crc32_generic",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
    "sch_netem",
    "sch_ingress",
    "cls_matchall",
    "act_mirred",
    "ifb",
];

/// Programs of the guest, in addition to those of busybox.
const FILES: [&str; 19] = [
    "/bin/dash",
    "/bin/ip",
    "/sbin/tc",
    "/bin/rdma",
    "/usr/bin/stdbuf",
    "/usr/bin/rping",
    "/usr/bin/ucmatose",
    "/usr/bin/udaddy",
    "/usr/bin/mckey",
    "/usr/bin/rdma_*",
    "/usr/bin/ibv_*",
    "/usr/bin/ib_send_*",
    "/usr/bin/ib_write_*",
    "/usr/bin/ib_read_*",
    "/usr/bin/ib_atomic_*",
    // What programs load at run time.
    // The C library loads it when a thread is cancelled.
    "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so",
    "/usr/libexec/coreutils/libstdbuf.so",
    "/etc/libibverbs.d/rxe.driver",
];

/// The guest's addresses on the lab's first link, beside those of its hosts.
pub(crate) const IPV4: &str = "10.0.0.3";
pub(crate) const IPV6: &str = "fd00::3";

/// Boots the guest, whose `/usr/bin` has `program`. `initramfs` is written.
pub(crate) fn boot(
    lab: &Lab,
    kernel: &Kernel,
    initramfs: &Path,
    program: &Path,
) -> Result<Guest, Problem> {
    const TAP: &str = "guest";
    let (extra, later) = ([program], []);
    Image { init: INIT, modules: &MODULES, later: &later, files: &FILES, extra: &extra }
        .build(initramfs, kernel)?;
    lab.add_tap(0, TAP)?;
    let machine = Machine {
        kernel: &kernel.image,
        initramfs,
        memory: 768,
        // Without offloads, the guest sends packets as a wire would carry them.
        devices: format!(
            "-netdev tap,id=net,ifname={TAP},script=no,downscript=no \
             -device virtio-net-pci,netdev=net,mac=52:54:00:00:00:03,host_mtu=9000,romfile=,\
             csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off"
        ),
        words: format!("polypath.IPV4={IPV4} polypath.IPV6={IPV6}"),
    };
    let mut guest = Guest::start(lab, &machine)?;
    guest.wait()?;
    Ok(guest)
}
