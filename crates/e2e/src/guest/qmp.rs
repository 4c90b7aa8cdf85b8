//! The emulator's monitor (QEMU Machine Protocol): one JSON text per line in each direction.

use super::problem::Problem;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest time that the emulator may take to answer.
const LIMIT: Duration = Duration::from_secs(120);

/// A connection to the monitor.
#[derive(Debug)]
pub(super) struct Monitor(BufReader<UnixStream>);

impl Monitor {
    pub(super) fn new(stream: UnixStream) -> Result<Self, Problem> {
        let broken = |e| Problem::os("listening to the emulator", e);
        stream.set_read_timeout(Some(LIMIT)).map_err(broken)?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.answer(|greeting| greeting.get("QMP").map(|_| Ok(())))?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Runs a command that must succeed.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<(), Problem> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        let tell = |e| Problem::os("telling the emulator", e);
        self.0.get_mut().write_all(line.as_bytes()).map_err(tell)?;
        self.answer(|message| outcome(command, message))
    }

    /// Reads messages until `of_interest` takes one.
    fn answer(
        &mut self,
        of_interest: impl Fn(&Value) -> Option<Result<(), Problem>>,
    ) -> Result<(), Problem> {
        loop {
            let mut line = String::new();
            let listen = |e| Problem::os("listening to the emulator", e);
            if self.0.read_line(&mut line).map_err(listen)? == 0 {
                return Err(Problem::Failed("the emulator has ended".to_owned()));
            }
            let message = serde_json::from_str(&line)
                .map_err(|e| Problem::Failed(format!("the emulator wrote no JSON: {e}: {line}")))?;
            if let Some(result) = of_interest(&message) {
                return result;
            }
        }
    }
}

/// The result of a command, if the message is its answer and not an event.
fn outcome(command: &str, message: &Value) -> Option<Result<(), Problem>> {
    let error = message.get("error").map(|error| {
        Err(Problem::Failed(format!("the emulator refuses {command}: {}", error["desc"])))
    });
    error.or_else(|| message.get("return").map(|_| Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_no_answer() {
        assert!(outcome("stop", &json!({ "event": "STOP" })).is_none());
        assert!(matches!(outcome("stop", &json!({ "return": {} })), Some(Ok(()))));
        let refused = json!({ "error": { "class": "GenericError", "desc": "no such device" } });
        let Some(Err(problem)) = outcome("set_link", &refused) else { panic!("taken for success") };
        assert!(problem.to_string().contains("no such device"), "{problem}");
    }
}
