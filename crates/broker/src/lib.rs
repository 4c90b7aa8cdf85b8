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
//! - cleans up after a process that died: its slots go to the sink, its connections are taken down.
//!
//! It is one thread around one epoll set. Everything that waits for a client is bounded: a client
//! that does not take its messages is disconnected, and the others notice nothing. Cost: a few
//! descriptors and kilobytes per lane, and no wake-up while nothing changes.

mod broker;
mod connection;
mod drops;
mod files;
mod fuzz;
mod gathering;
mod groups;
mod host;
mod log;
mod memberships;
mod netlink;
mod options;
mod port_owner;
mod qp1;
mod slots;
mod steering;
mod sys;
mod tables;

use std::io;

pub use fuzz::fuzz_message;
pub use options::{Options, OptionsError};
pub use slots::PortError;

use crate::broker::Broker;
use crate::log::log;

/// Why the broker could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Port 4791 can't be had.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A system call failed that must not.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Runs the broker until it is idle, told to end, or gets `SIGTERM` or `SIGINT`. If one runs
/// already in this network namespace for this user, it returns at once: that one serves the same
/// clients.
///
/// The process should have nothing else to do: signals are blocked, `SIGHUP` and `SIGPIPE` ignored.
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
            log!("another broker runs here");
            options.tell("ready");
            return Ok(());
        }
        other => other.map_err(|source| Error::Io { doing: "listening", source }),
    };
    if let Err(error) = polypath_ipc::sched::hurry() {
        log!("asking for short slices: {error}");
    }
    let idle_timeout = options.idle_timeout;
    let broker = listener.and_then(|listener| Broker::new(listener, idle_timeout));
    match broker {
        Ok(broker) => {
            log!("ready");
            options.tell("ready");
            broker.run()
        }
        Err(error) => {
            log!("{error}");
            options.tell(&error.to_string());
            Err(error)
        }
    }
}

/// An unpredictable number.
fn random() -> u32 {
    getrandom::u32().unwrap_or_else(|_| {
        // No kernel that has memfd or pidfd lacks getrandom(2); the clock is better than a panic.
        sys::process::now().subsec_nanos().wrapping_mul(0x9e37_79b9)
    })
}
