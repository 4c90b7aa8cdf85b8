//! QEMU migrates a guest from one host to the other over RDMA (`migrate rdma:…`).

use std::time::Duration;

use polypath_e2e::{Error, Lab, PATIENT, Scratch, share};

use super::{LIMIT, cut_silently};

/// The offset and the length in bytes of the part of the guest's memory that is filled.
const FILLED_AT: usize = 32 << 20;
const FILLED: usize = 96 << 20;
/// A time limit that is longer than the migration takes at the rate that the cut test sets.
const SLOW: Duration = Duration::from_secs(120);

/// The contents of the guest's memory: the same in each run, and no two pages alike, so that QEMU sends
/// them all.
fn contents() -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..FILLED / 8).flat_map(|_| next()).collect()
}

/// Migrates a stopped guest with these `settings` of the monitor, and compares its memory. `during` is
/// called when the first part has been moved.
fn migrate(
    name: &str,
    device: Option<&str>,
    settings: &str,
    during: impl FnOnce(&Lab) -> Result<(), Error>,
) -> Result<(), Error> {
    const MACHINE: &str =
        "qemu-system-x86_64 -machine pc,accel=tcg -m 160 -display none -nodefaults -S";
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let scratch = Scratch::new(name)?;
    let data = contents();
    let file = scratch.write("filled", &data)?;
    let [source, target] = [lab.host(1), lab.host(0)];
    let address = target.ipv4(0);
    let line = format!(
        "{MACHINE} -monitor tcp:127.0.0.1:5555,server=on,wait=off -incoming rdma:{address}:4444"
    );
    let arrival = target.verbs(line.split(' ')).device(device).spawn()?;
    target.wait_cm_listen(&arrival, 4444, LIMIT)?;
    let script = format!(
        "printf '%s\\n' {settings} 'migrate rdma:{address}:4444' 'info migrate' quit | \
         exec {MACHINE} -monitor stdio -device loader,file={},addr={FILLED_AT},force-raw=on",
        file.display()
    );
    let departure = source.verbs(["sh", "-c", &script]).device(device).spawn()?;
    lab.wait_traffic(&[&arrival, &departure], 8 << 20, LIMIT)?;
    during(&lab)?;
    departure.finish(SLOW)?.expect_success()?.expect_line("Migration status: completed")?;
    let saved = scratch.path("saved");
    let save = format!(
        "exec 3<>/dev/tcp/127.0.0.1/5555; \
         printf '%s\\n' 'pmemsave {FILLED_AT} {FILLED} \"{}\"' quit >&3; cat <&3 >/dev/null",
        saved.display()
    );
    target.tool("bash", &["-c", &save], "")?;
    arrival.finish(LIMIT)?.expect_success()?;
    if scratch.read("saved")? == data {
        Ok(())
    } else {
        Err(Error::Missing("the guest's memory is not what it was".to_owned()))
    }
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_guest_moves_on_roce() -> Result<(), Error> {
    migrate("qemu-roce", Some("roce"), "", |_| Ok(()))
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_guest_moves_on_mp() -> Result<(), Error> {
    migrate("qemu-mp", None, "", |_| Ok(()))
}

/// All of the guest's memory is registered at once, and QEMU does not check pages before it sends them.
#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_guest_whose_memory_is_pinned_moves() -> Result<(), Error> {
    migrate("qemu-pin", None, "'migrate_set_capability rdma-pin-all on'", |_| Ok(()))
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_silent_cut_under_a_guest_that_moves() -> Result<(), Error> {
    migrate("qemu-cut", None, "'migrate_set_parameter max-bandwidth 16M'", cut_silently)
}
