//! The broker: the part that a kernel would otherwise do.
//!
//! One broker runs per network namespace and user. The first process that opens a device starts it,
//! and it ends when it is idle. No packet of the data path passes through it. The broker
//!
//! - owns UDP port 4791 and divides the QPN space into slots, one for each lane of a process. The
//!   kernel steers every packet to its slot's socket ([`run`] opens it, and the process gets it);
//! - is queue pair 1: it carries connection management datagrams between the network and
//!   [`polypath_cm`], which replaces the kernel's `/dev/infiniband/rdma_cm`;
//! - watches links and addresses by netlink, and tells every process at once;
//! - answers the command line: status of everything, paths up and down by hand;
//! - cleans up after a process that died: packets for its slots go to the sink, and its connections
//!   are ended;
//! - starts the keeper, which takes its place if it is killed.
//!
//! It has one thread and one epoll set. Everything that waits for a client is bounded: a client
//! that does not take its messages is disconnected, without effect on the others. It costs a few
//! descriptors and kilobytes per lane, and does not wake up while nothing changes.

mod broker;
mod changes;
mod channels;
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
mod lacp;
mod ledger;
mod log;
mod mad_streams;
mod memberships;
mod netlink;
mod options;
mod pings;
mod qp1;
mod rendezvous;
mod rules;
mod slot_order;
mod slots;
mod steering;
mod streams;
mod sys;
mod tables;
mod uplinks;
mod ways;

use std::io;
use std::time::Duration;

use polypath_ipc::{Client, Hello};

pub use fuzz::{fuzz_mad_stream, fuzz_message, fuzz_preamble};
pub use lacp::{Interfaces, LacpArguments, LacpError, speak as speak_lacp};
pub use options::{Arguments, IdleTimeout, Manner, Options, OptionsError};
pub use slots::PortError;

use crate::broker::Broker;
use crate::handover::Handover;
use crate::keeper::Keeper;
use crate::log::log;

/// The reason why the broker could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Port 4791 is not available.
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
    /// A system call failed that should not fail.
    #[error("{doing}: {source}")]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// How long a broker waits for another one to begin or to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it waits for the one that has the port to answer or to leave it. A killed broker's place is
/// taken, or its sockets are closed, faster than this, even if a processor is taken away meanwhile.
const TAKEOVER: Duration = Duration::from_secs(1);

/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(2);

/// Runs the broker until it is idle, is told to end, or gets `SIGTERM` or `SIGINT`. If one already
/// runs in this network namespace for this user, it returns at once. For a client that waits for
/// [`Options::ready`], the other broker is just as good; otherwise this is [`Error::Already`].
///
/// The process should have nothing else to do and only one thread, because this function forks,
/// blocks signals, and ignores `SIGHUP` and `SIGPIPE`.
///
/// # Errors
/// [`Error`]. Its text is for the user, who has already received it through [`Options::ready`].
pub fn run(mut options: Options) -> Result<(), Error> {
    if options.ready.is_some() {
        sys::process::leave_limits();
    }
    if let Err(error) = sys::process::raise_file_limit() {
        log!("raising the limit of open files: {error}");
    }
    request_short_slices();
    let mut broker = begin(options.manner);
    // A broker that was just killed may still have the port. Another process takes its place, or the
    // kernel closes its sockets.
    if matches!(broker, Err(Error::Port(PortError::Taken(_))))
        && wait_for(TAKEOVER, || is_served() || slots::port_is_free())
    {
        broker = begin(options.manner);
    }
    match broker {
        Ok(broker) => {
            log!("ready");
            options.tell("ready");
            broker.run()
        }
        Err(Error::Already { .. }) => another_runs(options),
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

/// Creates the broker, unless one runs here.
fn begin(manner: Manner) -> Result<Broker, Error> {
    // The name is the lock: its owner may take the port.
    let listener =
        polypath_ipc::socket::listen().map_err(|source| match source.raw_os_error() {
            Some(libc::EADDRINUSE) => Error::Already { pid: None },
            _ => Error::Io { doing: "listening", source },
        })?;
    Broker::new(listener, manner, start_keeper(), None)
}

/// Takes the place of a broker that was killed.
fn succeed(handover: Handover) {
    let mut listener = None;
    // If a broker was started in between, it finds the port taken, and releases the name.
    wait_for(PATIENCE, || {
        listener = polypath_ipc::socket::listen().ok();
        listener.is_some()
    });
    let Some(listener) = listener else {
        log!("the broker's name is taken: leaving it to the other");
        return;
    };
    let manner = handover.state.manner;
    let broker = Broker::new(listener, manner, start_keeper(), Some(handover));
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

/// Lets the waiting client use another broker that runs here.
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

/// Asks repeatedly. Returns false if the answer was never yes.
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
        // Every kernel with memfd or pidfd has getrandom(2). The clock is better than a panic.
        sys::process::now().subsec_nanos().wrapping_mul(0x9e37_79b9)
    })
}
