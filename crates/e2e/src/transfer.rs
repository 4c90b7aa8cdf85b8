//! A program at both ends that transfers until it is killed.

use crate::{Error, Host, Running, until};
use std::time::Duration;

/// The time for programs to start, by far.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a program is started that is rejected: perftest's client connects twice, and its server listens
/// anew in between.
const ATTEMPTS: usize = 5;
/// More bytes than programs exchange before they transfer.
const TRANSFER_LEAST: u64 = 1 << 20;

/// How a program's ends find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// By rdma_cm, on this port.
    Manager(u16),
    /// By a TCP connection, on this port.
    ByHand(u16),
}

/// The command lines of a program's ends. `{server}` stands for the server's address.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// What runs on host 0.
    pub server: &'static str,
    /// What runs on host 1.
    pub client: &'static str,
    /// How they meet.
    pub meeting: Meeting,
}

impl Words {
    /// WRITEs from host 1 to host 0.
    pub const WRITE: Self = Self {
        server: "ib_write_bw -R --run_infinitely",
        client: "ib_write_bw -R --run_infinitely {server}",
        meeting: Meeting::Manager(18515),
    };
}

/// A program that runs at both ends.
#[derive(Debug)]
pub struct Transfer {
    /// What runs on host 0.
    pub server: Running,
    /// What runs on host 1.
    pub client: Running,
}

impl Transfer {
    /// Starts a program between two hosts, by `run`, which gets the host and the command line. Waits until it
    /// transfers: `moved` returns the bytes that were received so far.
    ///
    /// # Errors
    /// If it does not start, ends, is rejected again and again, or transfers nothing for a minute.
    pub fn start(
        hosts: [&Host; 2],
        words: Words,
        run: impl Fn(&Host, &str) -> Result<Running, Error>,
        moved: impl Fn() -> Result<u64, Error>,
    ) -> Result<Self, Error> {
        let run = |number: usize, line: &str| {
            run(hosts[number], &line.replace("{server}", &hosts[0].ipv4(0)))
        };
        for _ in 0..ATTEMPTS {
            let server = run(0, words.server)?;
            match words.meeting {
                Meeting::Manager(port) => hosts[0].wait_cm_listen(&server, port, LIMIT)?,
                Meeting::ByHand(port) => server.wait_tcp_listen(port, LIMIT)?,
            }
            let client = run(1, words.client)?;
            let before = moved()?;
            let transfers = until("a transfer", LIMIT, || {
                client.expect_alive()?;
                Ok((moved()? > before + TRANSFER_LEAST).then_some(()))
            });
            match transfers {
                Err(_) if client.text().contains("REJECTED") => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(Self { server, client }),
            }
        }
        Err(Error::Missing(format!("the client of {words:?} was rejected {ATTEMPTS} times")))
    }

    /// Fails if an end has ended.
    ///
    /// # Errors
    /// What the program wrote.
    pub fn expect_alive(&self) -> Result<(), Error> {
        self.server.expect_alive()?;
        self.client.expect_alive()
    }
}
