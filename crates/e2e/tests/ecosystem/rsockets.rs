//! Sockets over RDMA: librdmacm's own programs, and TCP programs with its librspreload.
//!
//! udpong is missing, because rsockets' datagrams use LIDs, which no RoCE device has.

use super::LIMIT;
use polypath_e2e::{Case, Error, Lab, PATIENT, Ready, Scratch, share};

const STREAM: Ready = Ready::Cm(7471);
/// The file's place in the package librdmacm1.
const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

programs! {
    #[ignore = "long: make ecosystem runs it"]
    rstream_large: Case::two(
        "rstream -b {server} -S 1048576 -C 10 -I 2 -T v", STREAM,
        "rstream -s {server} -S 1048576 -C 10 -I 2 -T v", &["1m"],
    ).within(LIMIT);
    #[ignore = "long: make ecosystem runs it"]
    rstream_does_not_block: Case::two(
        "rstream -b {server} -S 65536 -C 50 -I 1 -T v -T n", STREAM,
        "rstream -s {server} -S 65536 -C 50 -I 1 -T v -T n", &["64k"],
    ).within(LIMIT);
    riostream: Case::two(
        "riostream -b {server} -S 65536 -C 50 -I 1 -T v", STREAM,
        "riostream -s {server} -S 65536 -C 50 -I 1 -T v", &["64k"],
    ).within(LIMIT);
}

/// Makes a directory with a file of three megabytes, `from`.
fn files(name: &str) -> Result<Scratch, Error> {
    let files = Scratch::new(name)?;
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    files.write("from", &data)?;
    Ok(files)
}

fn expect_copied(files: &Scratch) -> Result<(), Error> {
    assert!(files.read("from")? == files.read("to")?, "the copy differs");
    Ok(())
}

fn rcopy(device: Option<&str>) -> Result<(), Error> {
    let _share = share(PATIENT);
    let files = files(&format!("rcopy-{}", device.unwrap_or("mp")))?;
    let lab = Lab::new()?;
    let server = lab.host(0).verbs(["rcopy"]).device(device).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7427, LIMIT)?;
    let to = format!("{}:{}", lab.host(0).ipv4(0), files.path("to").display());
    let from = files.path("from").to_string_lossy().into_owned();
    let client = lab.host(1).verbs(["rcopy", &from, &to]).device(device);
    client.run(LIMIT)?.expect_success()?;
    expect_copied(&files)
}

#[test]
fn rcopy_copies_on_roce() -> Result<(), Error> {
    rcopy(Some("roce"))
}

#[test]
#[ignore = "long: make ecosystem runs it"]
fn rcopy_copies_on_mp() -> Result<(), Error> {
    rcopy(None)
}

/// librspreload intercepts `close` and `dup2`. When such a program starts the broker, librspreload must
/// not take the program's descriptors for closed.
fn netcat(device: Option<&str>) -> Result<(), Error> {
    let _share = share(PATIENT);
    let files = files(&format!("nc-{}", device.unwrap_or("mp")))?;
    let lab = Lab::new()?;
    let under = |rest: &str| {
        let line = format!("LD_PRELOAD=\"$LD_PRELOAD:{PRELOAD}\"; export LD_PRELOAD; exec {rest}");
        ["sh".to_owned(), "-c".to_owned(), line]
    };
    let server = under(&format!("nc.traditional -l -p 5000 > {}", files.path("to").display()));
    let server = lab.host(0).verbs(server).device(device).spawn()?;
    lab.host(0).wait_cm_listen(&server, 5000, LIMIT)?;
    let address = lab.host(0).ipv4(0);
    let client =
        under(&format!("nc.traditional -q 0 {address} 5000 < {}", files.path("from").display()));
    lab.host(1).verbs(client).device(device).run(LIMIT)?.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    expect_copied(&files)
}

#[test]
#[ignore = "needs a package of its own: make ecosystem runs it"]
fn a_tcp_program_under_librspreload_on_roce() -> Result<(), Error> {
    netcat(Some("roce"))
}

#[test]
#[ignore = "needs a package of its own: make ecosystem runs it"]
fn a_tcp_program_under_librspreload_on_mp() -> Result<(), Error> {
    netcat(None)
}
