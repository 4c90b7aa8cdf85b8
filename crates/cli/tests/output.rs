//! The behaviour of the command when nobody reads its output.

use std::io::{Read as _, pipe};
use std::process::{Command, Stdio};

/// As in `polypath completions bash
///  head -1`: it ends as if by `SIGPIPE`, without a message.
#[test]
fn output_that_nobody_reads_ends_the_command_quietly() {
    for arguments in [["completions", "bash"].as_slice(), &["sim", "--plan", "--count", "1000"]] {
        // Nobody reads from the beginning, because a short output would fit into the pipe.
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_polypath"))
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        command.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((command.wait().unwrap().code(), said.as_str()), (Some(141), ""));
    }
}
