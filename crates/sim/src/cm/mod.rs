//! Connection managers on simulated hosts, and a model of what RDMA CM promises as the judge.
//!
//! A seed draws a [`CmCase`]: hosts, links, services, connections with all that both applications do
//! about them, faults. Each host runs the real [`polypath_cm::Cm`], driven as the broker drives it: by
//! the bytes that librdmacm writes, by MADs from QP1 (in packets, with their ICRC), by the passing of
//! time. Applications listen, connect, accept, reject, confirm late, see data early, move ids between
//! event channels, disconnect and destroy ids in any state, from either side or both; they pause, read
//! no events, and die; devices go; hosts start afresh and use numbers again. MADs get lost, doubled,
//! late by up to many repetitions, corrupted, replayed, and forged.
//!
//! The judge is a model of IBTA chapter 12 and of librdmacm's kernel side (`model`). It never looks a
//! communication id up, because it knows who meant whom. After each command, MAD and timer it says what
//! has to follow at once, and nothing else may:
//!
//! - which MADs are sent, from where to where, and what they say: ids, queue pairs, numbers, reasons,
//!   private data, whole; repetitions come exactly when they are due and as often as they should;
//! - which events applications get, of which id, with which status, numbers and private data; never one
//!   of an id that is destroyed;
//! - which commands fail, and how.
//!
//! What is not the model's word but plain to see is checked besides (`life`): events of an id come in a
//! legal order, each at most once; whoever asks is answered; time-waits end; both ends learn the same
//! queue pair numbers and PSNs; where hardly anything gets lost, everybody is reached; where nothing goes
//! wrong, both ends are connected in the end, or none; and when all ids are destroyed, all tables are
//! empty.
//!
//! Not simulated: multicast, native addresses, IPv4 on IPv6 sockets, limits on ids and events. MADs that
//! are damaged but not noticed by their ICRC appear as near misses only ([`Forgery`]): wrong ids, queue
//! pairs and services, and noise. `crates/cm/tests/hostile.rs` has real MADs with random damage.

mod abi;
mod apps;
mod case;
mod draw;
mod expect;
mod forge;
mod host;
mod life;
mod model;
mod run;
mod shrink;
mod step;

pub use case::{
    AttemptPlan, CmCase, CmFault, Decision, EndPlan, Forgery, ListenPlan, Place, Quit, Service,
};
pub use run::{CmPlantedFault, CmReport, CmSimulation, run};
pub use shrink::shrink;
