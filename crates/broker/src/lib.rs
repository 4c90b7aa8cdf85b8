//! The broker: the part that a kernel would play.
//!
//! One runs per network namespace and user, started by the first process that opens a device and
//! gone when idle. No packet of the data path passes through it. It
//!
//! - owns UDP port 4791 and divides the QPN space into slots, one for each lane of a process: the
//!   kernel steers every packet to its slot's socket ([`run`] opens it, the process gets it);
//! - is queue pair 1: it carries connection-management datagrams between the network and
//!   [`polypath_cm`], which stands in for the kernel's `/dev/infiniband/rdma_cm`;
//! - watches links and addresses by netlink, and tells every process at once;
//! - answers the command line: status of everything, paths up and down by hand;
//! - cleans up after a process that died: its slots go to the sink, its connections are taken down;
//! - leaves somebody behind who takes its place should it be killed: the keeper.
//!
//! It is one thread around one epoll set. Everything that waits for a client is bounded: a client
//! that does not take its messages is disconnected, and the others notice nothing. Cost: a few
//! descriptors and kilobytes per lane, and no wake-up while nothing changes.

mod broker;
mod changes;
mod chronicle;
mod connection;
mod drops;
mod files;
mod fuzz;
mod gathering;
mod groups;
mod handover;
mod host;
mod keeper;
mod log;
mod memberships;
mod netlink;
mod options;
mod pings;
mod qp1;
mod slots;
mod steering;
mod sys;
mod tables;
mod uplinks;

use std::io;
use std::time::Duration;

use polypath_ipc::{Client, Hello};

pub use fuzz::fuzz_message;
pub use options::{Arguments, IdleTimeout, Options, OptionsError};
pub use slots::PortError;

use crate::broker::Broker;
use crate::handover::Handover;
use crate::keeper::Keeper;
use crate::log::log;

/// Why the broker could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Port 4791 can't be had.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A broker of the same user runs in this network namespace.
    #[error(
        "a Polypath broker of this user runs here already{}",
        pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
    )]
    Already {
        /// Its process, if it answers.
        pid: Option<u32>,
    },
    /// A system call failed that must not.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// How long a broker waits for another to begin or to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it waits for another that has the port to answer: a killed broker's place is taken sooner.
const TAKEOVER: Duration = Duration::from_millis(300);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Runs the broker until it is idle, told to end, or gets `SIGTERM` or `SIGINT`. If one runs
/// already in this network namespace for this user, it returns at once: for a client that waits for
/// [`Options::ready`], that one is as good; else it is [`Error::Already`].
///
/// The process should have nothing else to do, and one thread: it forks, signals are blocked, `SIGHUP`
/// and `SIGPIPE` ignored.
///
/// # Errors
/// [`Error`]; its text is for the user, who has already got it through [`Options::ready`].
pub fn run(mut options: Options) -> Result<(), Error> {
    if let Err(error) = sys::process::raise_file_limit() {
        log!("raising the limit of open files: {error}");
    }
    // The name is the lock: whoever has it may take the port.
    let listener = match polypath_ipc::socket::listen() {
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            return another_runs(options);
        }
        other => other.map_err(|source| Error::Io { doing: "listening", source }),
    };
    request_short_slices();
    let keeper = start_keeper();
    let idle_timeout = options.idle_timeout;
    let broker = listener.and_then(|listener| Broker::new(listener, idle_timeout, keeper, None));
    match broker {
        Ok(broker) => {
            log!("ready");
            options.tell("ready");
            broker.run()
        }
        // A broker that was killed this moment may still hold the port.
        Err(Error::Port(PortError::Taken(_))) if wait_for(TAKEOVER, is_served) => {
            another_runs(options)
        }
        Err(error) => {
            // If it was started by hand, the caller prints the error.
            if options.ready.is_some() {
                log!("{error}");
            }
            options.tell(&error.to_string());
            Err(error)
        }
    }
}

/// Goes on in the place of a broker that was killed.
fn succeed(handover: Handover) {
    let mut listener = None;
    // A broker that started in between finds the port taken, and gives the name back.
    wait_for(PATIENCE, || {
        listener = polypath_ipc::socket::listen().ok();
        listener.is_some()
    });
    let Some(listener) = listener else {
        log!("the broker's name is taken: leaving it to the other");
        return;
    };
    let idle_timeout = handover.state.idle_timeout;
    let broker = Broker::new(listener, idle_timeout, start_keeper(), Some(handover));
    if let Err(error) = broker.and_then(Broker::run) {
        log!("{error}");
    }
}

fn request_short_slices() {
    if let Err(error) = polypath_ipc::sched::request_short_slices() {
        log!("asking for short slices: {error}");
    }
}

fn start_keeper() -> Option<Keeper> {
    sys::process::ignore_children();
    match Keeper::start(succeed) {
        Ok(keeper) => Some(keeper),
        Err(error) => {
            log!("starting the keeper: {error}; the broker must not be killed");
            None
        }
    }
}

/// Another broker serves the clients of this one: they are told to go on.
fn another_runs(mut options: Options) -> Result<(), Error> {
    if options.ready.is_none() {
        let other = Client::connect(&Hello::of_this_process("")).ok();
        return Err(Error::Already { pid: other.map(|other| other.broker_pid()) });
    }
    log!("another broker runs here");
    options.tell("ready");
    Ok(())
}

/// Whether a broker answers here.
fn is_served() -> bool {
    Client::connect(&Hello::of_this_process("")).is_ok()
}

/// Asks again and again; false if the answer never was yes.
fn wait_for(patience: Duration, mut question: impl FnMut() -> bool) -> bool {
    let until = sys::process::now() + patience;
    loop {
        if question() {
            return true;
        }
        if sys::process::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// An unpredictable number.
fn random() -> u32 {
    getrandom::u32().unwrap_or_else(|_| {
        // No kernel that has memfd or pidfd lacks getrandom(2); the clock is better than a panic.
        sys::process::now().subsec_nanos().wrapping_mul(0x9e37_79b9)
    })
}
