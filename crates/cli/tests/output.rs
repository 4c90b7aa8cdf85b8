//! What the command does when nobody reads its output.

use std::io::Read as _;
use std::process::{Command, Stdio};

/// As `polypath completions bash | head -1`: it ends as by `SIGPIPE`, and says nothing of it.
#[test]
fn output_that_nobody_reads_ends_the_command_quietly() {
    for arguments in [["completions", "bash"].as_slice(), &["sim", "--plan", "--count", "1000"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polypath"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(command.stdout.take());
        let mut said = String::new();
        command.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((command.wait().unwrap().code(), said.as_str()), (Some(141), ""));
    }
}
