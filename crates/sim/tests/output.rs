//! What the command does when nobody reads its output.

use std::io::{Read as _, pipe};
use std::process::{Command, Stdio};

/// As `polypath-sim --plan --count 100 | head`: it ends, and says nothing of it.
#[test]
fn output_that_nobody_reads_ends_the_command_quietly() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut sim = Command::new(env!("CARGO_BIN_EXE_polypath-sim"))
        .args(["--plan", "--count", "1000"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    sim.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((sim.wait().unwrap().code(), said.as_str()), (Some(141), ""));
}
