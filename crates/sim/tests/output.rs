//! What the command does if nobody reads its output.

use std::io::{Read as _, pipe};
use std::process::{Command, Stdio};

/// It is run as in `polypath-sim --plan --count 100 | head`. It ends without a message.
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
