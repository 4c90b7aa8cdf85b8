//! Tables of programs, each run in four settings: plain RoCE and multi-path, two hosts and one.

use crate::{Error, Finished, Host, Lab};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How a server shows that it is ready for clients.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It listens on this port of the connection manager.
    Cm(u16),
    /// It writes a line with this text.
    Line(&'static str),
}

/// A server and a client. In both, `{server}` and `{server6}` stand for the server's addresses,
/// `{client}` for the client's.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    server: &'static str,
    ready: Ready,
    client: &'static str,
    expect: &'static [&'static str],
    limit: Duration,
    stays: bool,
    typed: bool,
}

const LIMIT: Duration = Duration::from_secs(30);

impl Case {
    /// A program that acts as server if it is given no host, and connects over TCP.
    pub const fn tcp(program: &'static str, expect: &'static [&'static str]) -> Self {
        Self {
            server: program,
            ready: Ready::Tcp(18515),
            client: program,
            expect,
            limit: LIMIT,
            stays: false,
            typed: false,
        }
    }

    /// The same, but connected by the connection manager (perftest's `-R`).
    pub const fn perftest_cm(program: &'static str, expect: &'static [&'static str]) -> Self {
        Self {
            server: program,
            ready: Ready::Cm(18515),
            client: program,
            expect,
            limit: LIMIT,
            stays: false,
            typed: false,
        }
    }

    /// A server and a client with command lines of their own.
    pub const fn two(
        server: &'static str,
        ready: Ready,
        client: &'static str,
        expect: &'static [&'static str],
    ) -> Self {
        Self { server, ready, client, expect, limit: LIMIT, stays: false, typed: false }
    }

    /// Marks a case whose server, at least in some releases, does not end when the client has ended.
    pub const fn server_may_stay(mut self) -> Self {
        self.stays = true;
        self
    }

    /// Gives the programs a terminal as input, as if a person had typed their names.
    pub const fn typed(mut self) -> Self {
        self.typed = true;
        self
    }

    /// Sets another time limit.
    pub const fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// The hosts of client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Client and server are on different hosts.
    TwoHosts,
    /// Client and server are on the same host.
    OneHost,
}

/// A share of the machine, which is given back when it is dropped.
#[derive(Debug)]
pub struct Share(());

/// The number of labs that run now.
static BUSY: Mutex<usize> = Mutex::new(0);
static FREE: Condvar = Condvar::new();

/// Waits until fewer than `most` labs run. The programs poll, and the machine may have only two cores.
pub fn share(most: usize) -> Share {
    let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    let mut busy =
        FREE.wait_while(busy, |busy| *busy >= most).unwrap_or_else(PoisonError::into_inner);
    *busy += 1;
    Share(())
}

impl Drop for Share {
    fn drop(&mut self) {
        *BUSY.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREE.notify_one();
    }
}

/// The largest number of labs that run at a time if their programs may take their time.
pub const PATIENT: usize = 2;

/// What perftest prints if it fails to measure the processor's clock at its start because the machine
/// is too busy. This has nothing to do with the devices.
pub const PERFTEST_CLOCK: &str = "Can't produce a report";
/// The number of attempts of a case that fails for this reason.
pub const CLOCK_ATTEMPTS: usize = 3;

/// Runs a case. Both programs must succeed, and the client must write what is expected.
///
/// # Errors
/// If they do not. The error contains the output of both.
pub fn check(case: &Case, device: Option<&str>, place: Place) -> Result<(), Error> {
    let _share = share(PATIENT);
    for _ in 1..CLOCK_ATTEMPTS {
        match check_once(case, device, place) {
            Err(error) if error.to_string().contains(PERFTEST_CLOCK) => {
                println!("perftest could not measure the processor's clock: once more\n{error}");
            }
            other => return other,
        }
    }
    check_once(case, device, place)
}

fn check_once(case: &Case, device: Option<&str>, place: Place) -> Result<(), Error> {
    let lab = Lab::new()?;
    let (server_host, client_host) = match place {
        Place::TwoHosts => (lab.host(0), lab.host(1)),
        Place::OneHost => (lab.host(0), lab.host(0)),
    };
    let line = |text: &str| {
        text.replace("{server}", &server_host.ipv4(0))
            .replace("{server6}", &server_host.ipv6(0))
            .replace("{client}", &client_host.ipv4(0))
    };
    let same_program = case.server == case.client;
    let program =
        |host: &Host, line: &str| host.verbs(line.split(' ')).device(device).typed(case.typed);
    let server = program(server_host, &line(case.server)).spawn()?;
    match case.ready {
        Ready::Tcp(port) => server.wait_tcp_listen(port, LIMIT)?,
        Ready::Cm(port) => server_host.wait_cm_listen(&server, port, LIMIT)?,
        Ready::Line(text) => drop(server.wait_line(text, LIMIT)?),
    }
    let mut client = line(case.client);
    if same_program {
        client = format!("{client} {}", server_host.ipv4(0));
    }
    let client = program(client_host, &client).run(case.limit);
    let client = match client.and_then(Finished::expect_success) {
        Ok(client) => client,
        Err(error) => return Err(error.with_server(&server.doing())),
    };
    let mut client = client;
    for text in case.expect {
        client = client.expect_line(text)?;
    }
    if case.stays && server.try_status()?.is_none() {
        return Ok(());
    }
    server.finish(LIMIT)?.expect_success()?;
    Ok(())
}

/// Makes each case a test in each of the four settings.
#[macro_export]
macro_rules! matrix {
    ($($(#[$about:meta])* $name:ident: $case:expr;)+) => {
        $crate::matrix!(@ roce_two_hosts, Some("roce"), TwoHosts; $($(#[$about])* $name: $case;)+);
        $crate::matrix!(@ roce_one_host, Some("roce"), OneHost; $($(#[$about])* $name: $case;)+);
        $crate::matrix!(@ mp_two_hosts, None, TwoHosts; $($(#[$about])* $name: $case;)+);
        $crate::matrix!(@ mp_one_host, None, OneHost; $($(#[$about])* $name: $case;)+);
    };
    (@ $module:ident, $device:expr, $place:ident; $($(#[$about:meta])* $name:ident: $case:expr;)+) => {
        mod $module {
            #[allow(unused_imports, reason = "the cases' expressions may use anything of their file")]
            use super::*;
            $(
                $(#[$about])*
                #[test]
                fn $name() -> Result<(), $crate::Error> {
                    $crate::check(&$case, $device, $crate::Place::$place)
                }
            )+
        }
    };
}
