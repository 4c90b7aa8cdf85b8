//! Two hosts, two links, and faults, on one machine, as any user.
//!
//! A [`Lab`] is a pair of network namespaces joined by links whose wire can be cut: silently in one
//! or both directions, visibly, or by taking an address away. It needs `iproute2` and either root or
//! user namespaces, leaves no name behind in the system, and takes everything that still runs in it
//! along when it is dropped, so that any number of labs may exist side by side.
//!
//! Programs run in it through `polypath run --` and are watched through a pseudo terminal, so that
//! their output arrives line by line, as it would for a person. Nothing in here sleeps to let
//! something happen: waiting is always for a line, a listening port, an exit or a state, with a time
//! limit that names what was missing.
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

mod artifacts;
mod case;
mod error;
mod failovers;
mod flow;
mod lab;
mod ns;
mod process;
mod pty;
mod ring;
mod say;
mod scratch;
mod wait;

pub use artifacts::{Artifacts, compile_c, compile_c_with};
pub use case::{Case, PATIENT, Place, Ready, Share, check, share};
pub use error::Error;
pub use failovers::{Failover, failovers, wait_failover};
pub use flow::{Flow, Sample, longest_gap};
pub use lab::{Direction, End, Host, Lab, Options, Wiring};
pub use process::{Finished, Line, Program, Running};
pub use ring::Ring;
pub use say::say;
pub use scratch::Scratch;
pub use wait::{pass, until};
