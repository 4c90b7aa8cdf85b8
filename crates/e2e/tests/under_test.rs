//! `polypath run --fault` and `--pcap`: unmodified programs on a network with faults, and the packets
//! that it carried.

use polypath_e2e::{Artifacts, Error, Lab, PATIENT, Scratch, share};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Makes the command line of a program under test.
fn run(options: &[&str], program: &[&str]) -> Result<Vec<String>, Error> {
    let command = Artifacts::get()?.command.to_string_lossy().into_owned();
    let words = [command.as_str(), "run"].into_iter().chain(options.iter().copied());
    Ok(words.chain(["--"]).chain(program.iter().copied()).map(str::to_owned).collect())
}

/// Whatever happens to its packets, a program gets what was sent, and `polypath status` says what
/// happened.
#[test]
fn faults_befall_packets_and_not_data() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let address = lab.host(0).ipv4(0);
    let options =
        ["--device", "roce", "--fault", "loss=1%,dup=1%,reorder=2%,corrupt=0.5%,delay=1ms~500us"];
    // The server loses packets too, and stays so that the client can ask again.
    let server = run(&options, &["rping", "-s", "-P", "-a", &address, "-S", "30000"])?;
    let server = lab.host(0).program(server).spawn()?;
    lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
    let client = ["rping", "-c", "-a", &address, "-v", "-V", "-C", "200", "-S", "30000"];
    let client = lab.host(1).program(run(&options, &client)?).run(LIMIT)?;
    client.expect_success()?.expect_line("rdma-ping-199")?;
    let status = lab.host(0).status()?;
    for fault in ["lost", "duplicated", "reordered", "corrupted", "delayed"] {
        let name = format!("fault_{fault}");
        let counted = status["processes"][0]["drops"][&name].as_u64().unwrap_or_default();
        assert!(counted > 0, "{name}: {status:#}");
    }
    server.expect_alive()
}

/// An error in the settings says which part is wrong. An error of the file lets the program run.
#[test]
fn what_is_wrong_with_the_options_is_said() -> Result<(), Error> {
    let _share = share(PATIENT);
    let lab = Lab::new()?;
    let said = lab.host(0).program(run(&["--fault", "loss=1%,dup=2"], &["true"])?).run(LIMIT)?;
    assert!(!said.status.success());
    said.expect_line("`dup=2` is not understood; write dup=0.1%")?;
    let pingpong = "ibv_rc_pingpong -g 1 -n 10";
    let options = ["--device", "roce", "--pcap", "/nowhere/x.pcapng"];
    let server = lab.host(0).program(run(&options, &words(pingpong))?).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let client = format!("{pingpong} {}", lab.host(0).ipv4(0));
    lab.host(1).verbs(words(&client)).device(Some("roce")).run(LIMIT)?.expect_success()?;
    let server = server.finish(LIMIT)?.expect_success()?;
    server.expect_line("cannot be written to /nowhere/x.pcapng")?;
    Ok(())
}

/// The capture of each end contains the packets of both ends, in whole blocks. No file is overwritten.
#[test]
fn packets_are_written_to_a_file() -> Result<(), Error> {
    let _share = share(PATIENT);
    let scratch = Scratch::new("pcap")?;
    let lab = Lab::new()?;
    let file = scratch.path("a.pcapng").to_string_lossy().into_owned();
    let options = ["--device", "roce", "--pcap", &file];
    let pingpong = "ibv_rc_pingpong -g 1 -c -n 100";
    let server = lab.host(0).program(run(&options, &words(pingpong))?).spawn()?;
    server.wait_tcp_listen(18515, LIMIT)?;
    let client = format!("{pingpong} {}", lab.host(0).ipv4(0));
    let client = lab.host(1).program(run(&options, &words(&client))?).run(LIMIT)?;
    client.expect_success()?;
    server.finish(LIMIT)?.expect_success()?;
    let files = std::fs::read_dir(scratch.path("")).expect("the directory is there");
    let files: Vec<_> = files.map(|entry| entry.expect("it stays").path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in &files {
        let messages = sends(file);
        // 100 messages of 4096 bytes each way, in packets of 1024.
        assert!(messages >= 2 * 100 * 4, "{messages} packets in {}", file.display());
    }
    Ok(())
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The number of RC SEND packets in a capture.
fn sends(file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("a file of this user");
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (mut at, mut sends) = (0, 0);
    while at < bytes.len() {
        if word(at) == 6 {
            let packet = &bytes[at + 28..][..word(at + 20) as usize];
            assert_eq!((packet[0], packet[9]), (0x45, 17), "IPv4, UDP");
            assert_eq!(u16::from_be_bytes([packet[22], packet[23]]), 4791);
            // The opcodes of SEND: first, middle, last, last with immediate, only, only with immediate.
            sends += usize::from(packet[28] <= 5);
        }
        at += word(at + 4) as usize;
    }
    assert_eq!(at, bytes.len(), "whole blocks");
    sends
}
