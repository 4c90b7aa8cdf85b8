//! The InfiniBand connection manager itself (IBTA chapter 12): connections, their MADs and timers.
//!
//! [`Connections`] knows communication ids, not the ids of applications. It reports what happens to
//! a connection as [`IbEvent`]s. The layer above turns these into events for the application.

mod actions;
mod alternates;
mod apm;
pub(crate) mod connection;
mod ended;
mod endpoints;
mod mad;
mod moved;
mod receive;
mod sidr;
mod table;

pub(crate) use actions::ConnectParams;
pub(crate) use alternates::{common_prefix, is_global};
pub(crate) use apm::state::{LapPath, Suggestion};
pub(crate) use apm::told::Told;
pub(crate) use connection::{Connection, IbEvent, Request, State};
pub(crate) use endpoints::Endpoints;
pub(crate) use table::Connections;
