//! The InfiniBand connection manager proper (IBTA chapter 12): connections, their MADs and timers.
//!
//! [`Connections`] knows communication ids, not the ids of applications. What happens to a
//! connection it reports as [`IbEvent`]s, which the layer above turns into events for the
//! application.

mod actions;
mod alternates;
pub(crate) mod connection;
mod endpoints;
mod mad;
mod receive;
mod sidr;
mod table;

pub(crate) use actions::ConnectParams;
pub(crate) use connection::{Connection, IbEvent, Request, State};
pub(crate) use endpoints::Endpoints;
pub(crate) use table::Connections;
