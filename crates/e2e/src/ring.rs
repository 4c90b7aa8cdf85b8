//! A transfer that continues until it is told to end, with data that is checked.

use crate::{Error, Lab, Running, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// rping between both hosts, with verified data in packets of the largest path MTU. It runs until it is
/// told to end.
#[derive(Debug)]
pub struct Ring {
    /// rping of host 0.
    pub server: Running,
    /// rping of host 1.
    pub client: Running,
}

impl Ring {
    /// Starts it at an address of host 0, and returns when it transfers. `log` is `POLYPATH_LOG` of
    /// both ends, if given.
    ///
    /// # Errors
    /// A program can't be started, or does not transfer within two minutes.
    pub fn start(
        lab: &Lab,
        device: Option<&str>,
        address: &str,
        log: Option<&str>,
    ) -> Result<Self, Error> {
        let rping = |host: usize, role: &str| {
            let words = ["rping", role, "-a", address, "-V", "-v", "-S", "9000"];
            let program = lab.host(host).verbs(words).device(device);
            match log {
                Some(value) => program.env("POLYPATH_LOG", value),
                None => program,
            }
        };
        let server = rping(0, "-s").spawn()?;
        lab.host(0).wait_cm_listen(&server, 7174, LIMIT)?;
        let client = rping(1, "-c").spawn()?;
        client.wait_line("rdma-ping-9", LIMIT)?;
        Ok(Self { server, client })
    }

    /// Waits for another hundred lines of the client, which are about as many rounds.
    ///
    /// # Errors
    /// One end has ended, or no hundred lines came within two minutes.
    pub fn goes_on(&self) -> Result<(), Error> {
        let seen = self.client.lines_from(0).len();
        until("rping to go on", LIMIT, || {
            self.client.expect_alive()?;
            self.server.expect_alive()?;
            Ok((self.client.lines_from(seen).len() > 100).then_some(()))
        })
        .map_err(|error| {
            let came = self.client.lines_from(seen).len();
            let [server, client] = [&self.server, &self.client].map(log_lines);
            let context = format!(", {came} lines came. Server:\n{server}\nClient:\n{client}");
            Error::Timeout { what: error.to_string(), limit: LIMIT, context }
        })
    }
}

/// The last lines of a program that are not data.
fn log_lines(program: &Running) -> String {
    let text = program.text();
    let lines =
        text.lines().filter(|line| !line.contains("ping data") && !line.contains("rdma-ping"));
    let lines: Vec<_> = lines.collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
