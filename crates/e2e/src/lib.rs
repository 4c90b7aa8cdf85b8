//! Two hosts, two links and faults on one machine, for any user.
//!
//! A [`Lab`] is a pair of network namespaces joined by links. A link can be cut silently in one or both
//! directions, taken down visibly, or lose an address. A lab needs `iproute2` and either root or user
//! namespaces. It leaves no name in the system, and ends everything that still runs in it when it is
//! dropped, so that any number of labs may exist at a time.
//!
//! Programs run in it through `polypath run --`. Their output goes through a pseudo terminal, so that
//! it arrives line by line, as for a person. Nothing here sleeps to let something happen: it always
//! waits for a line, a listening port, an exit or a state, with a time limit that names what was
//! missing.
//!
//! ```no_run
//! use polypath_e2e::{Direction, Lab};
//! use std::time::Duration;
//!
//! let lab = Lab::new()?;
//! let server = lab.host(0).verbs(["ib_write_bw", "-D", "10"]).spawn()?;
//! server.wait_tcp_listen(18515, Duration::from_secs(5))?;
//! let client = lab.host(1).verbs(["ib_write_bw", "-D", "10", "10.0.0.1"]).spawn()?;
//! client.wait_line("---", Duration::from_secs(5))?;
//! lab.cut(0, Direction::Both)?;
//! client.finish(Duration::from_secs(20))?.expect_success()?;
//! # Ok::<(), polypath_e2e::Error>(())
//! ```

mod again;
mod artifacts;
mod case;
mod error;
mod fabric;
mod failovers;
mod flow;
pub mod guest;
mod lab;
mod ns;
mod page;
mod plot;
mod process;
mod pty;
mod ring;
mod say;
mod scratch;
mod threads;
mod transfer;
mod wait;

pub use again::twice;
pub use artifacts::{Artifacts, compile_c, compile_c_with};
pub use case::{CLOCK_ATTEMPTS, Case, PATIENT, PERFTEST_CLOCK, Place, Ready, Share, check, share};
pub use error::Error;
pub use fabric::Fabric;
pub use failovers::{Failover, failovers, wait_failover};
pub use flow::{Flow, Sample, longest_gap, steps};
pub use lab::{Direction, End, Host, LINKS_MAX, Lab, Options, Wiring};
pub use page::{pictures_of, write_page};
pub use plot::{Curve, svg};
pub use process::{Finished, Line, Program, Running};
pub use ring::Ring;
pub use say::say;
pub use scratch::Scratch;
pub use transfer::{Meeting, Transfer, Words};
pub use wait::{pass, until};
