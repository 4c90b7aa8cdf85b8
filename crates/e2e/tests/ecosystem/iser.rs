//! A disk over iSER: tgt's target on one host, QEMU's block driver, which is libiscsi's, on the other.

use polypath_e2e::{Error, Lab, PATIENT, Scratch, share};

use super::{LIMIT, cut_silently};

const TARGET: &str = "iqn.2026-01.test:disk";
/// tgt takes an initiator whose name it was told.
const INITIATOR: &str = "iqn.2008-11.org.linux-kvm";
/// The size of the disk in bytes.
const SIZE: usize = 48 << 20;
/// The bytes of a transfer, of which libiscsi takes 256 KiB at most.
const BLOCK: usize = 128 << 10;

/// The contents of the disk: no two sectors alike.
fn contents() -> Vec<u8> {
    (0..SIZE as u64 / 8)
        .flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

/// Reads a disk whole over iSER, once at least, and writes parts of it. `during` is called while it is read.
fn disk(
    name: &str,
    device: Option<&str>,
    during: impl FnOnce(&Lab) -> Result<(), Error>,
) -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let scratch = Scratch::new(name)?;
    let mut data = contents();
    let file = scratch.write("disk", &data)?;
    let (server, client) = (lab.host(0), lab.host(1));
    let address = server.ipv4(0);
    let portal = format!("portal={address}:3260");
    let socket = scratch.path("tgtd");
    let target = server
        .verbs(["tgtd", "-f", "--iscsi", &portal, "--iser", "pool_sz_mb=64"])
        .env("TGT_IPC_SOCKET", &socket)
        .device(device)
        .spawn()?;
    server.wait_cm_listen(&target, 3260, LIMIT)?;
    let admin = format!(
        "export TGT_IPC_SOCKET={}; admin() {{ tgtadm --lld iser --tid 1 --mode \"$@\"; }}
         until [ -S $TGT_IPC_SOCKET.0 ]; do :; done
         admin target --op new --targetname {TARGET} &&
         admin logicalunit --op new --lun 1 --backing-store {} &&
         admin target --op bind --initiator-address ALL &&
         admin target --op bind --initiator-name {INITIATOR}",
        socket.display(),
        file.display()
    );
    server.tool("timeout", &["30", "sh", "-c", &admin], "")?;

    let disk = format!("iser://{address}/{TARGET}/1");
    let (copy, enough) = (scratch.path("copy"), scratch.path("enough"));
    // Once might be over before anything is done to it.
    let again_and_again = format!(
        "while qemu-img dd -f raw -O raw bs={BLOCK} if={disk} of={} && [ ! -e {} ]; do :; done; [ -e {1} ]",
        copy.display(),
        enough.display()
    );
    let reader = client.verbs(["sh", "-c", &again_and_again]).device(device).spawn()?;
    lab.wait_traffic(&[&target, &reader], 4 << 20, LIMIT)?;
    during(&lab)?;
    scratch.write("enough", &[])?;
    reader.finish(LIMIT)?.expect_success()?;
    if scratch.read("copy")? != data {
        return Err(Error::Missing("what was read is not what the disk has".to_owned()));
    }

    let mut words = vec!["qemu-io".to_owned(), "-f".to_owned(), "raw".to_owned()];
    for (pattern, at, length) in
        [(0x5a, BLOCK / 2, BLOCK), (0x77, SIZE - 512, 512), (0x33, 0, 4096)]
    {
        for verb in ["write", "read"] {
            words.extend(["-c".to_owned(), format!("{verb} -P {pattern} {at} {length}")]);
        }
        data[at..at + length].fill(pattern);
    }
    words.push(disk);
    let words = words.iter().map(String::as_str);
    client.verbs(words).device(device).run(LIMIT)?.expect_success()?.expect_no_line("failed")?;
    target.expect_alive()?;
    if scratch.read("disk")? == data {
        Ok(())
    } else {
        Err(Error::Missing("what was written is not what the disk has".to_owned()))
    }
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_disk_on_roce() -> Result<(), Error> {
    disk("iser-roce", Some("roce"), |_| Ok(()))
}

#[test]
#[ignore = "needs packages of its own: make ecosystem runs it"]
fn a_silent_cut_under_a_disk_on_mp() -> Result<(), Error> {
    disk("iser-mp", None, cut_silently)
}
