//! Connection managers on simulated hosts, with a model of what RDMA CM promises as the judge.
//!
//! A seed determines a [`CmCase`]: hosts, links, services, connections with all that both applications
//! do, and faults. Each host runs the real [`polypath_cm::Cm`], driven as the broker drives it: by the
//! bytes that librdmacm writes, by MADs from QP1 (in packets, with their ICRC), and by the passing of
//! time. Services are of RC, of UD, or of XRC, where initiators connect to targets. Applications listen,
//! connect, accept, reject, confirm late, see data early, move ids between event channels, and
//! disconnect and destroy ids in any state, at one end or both. They pause, read no events, and die.
//! Devices are removed. Hosts start again and reuse numbers. MADs are lost, doubled,
//! late by up to many repetitions, corrupted, replayed, and forged.
//!
//! The judge is a model of IBTA chapter 12 and of the kernel side of librdmacm (`model`). It never
//! looks up a communication id, because it knows which end each message is for. After each command, MAD
//! and timer it says what has to follow at once. Nothing else may follow:
//!
//! - which MADs are sent, from and to which addresses, and with which ids, queue pairs, numbers,
//!   reasons and private data. Repetitions come exactly when they are due, and as often as they
//!   should.
//! - which events applications get, for which id, with which status, numbers and private data. No
//!   event comes for an id that was destroyed.
//! - which commands fail, and with which error.
//!
//! Some properties are checked without the model (`life`): the events of an id come in a legal order,
//! each at most once; each attempt is answered; time-waits end; both ends learn the same queue pair
//! numbers and PSNs. If hardly anything is lost, every peer is reached. If nothing goes wrong, both
//! ends are connected in the end, or neither is. When all ids are destroyed, all tables are empty.
//!
//! Not simulated are multicast, native addresses, IPv4 on IPv6 sockets, and limits on ids and events.
//! MADs that are damaged without their ICRC noticing are simulated only as near misses ([`Forgery`]):
//! wrong ids, queue pairs and services, and noise. `crates/cm/tests/hostile.rs` has real MADs with
//! random damage.

mod abi;
mod apm;
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

pub use apm::{ApmCase, ApmReport};
pub use case::{
    AttemptPlan, CmCase, CmFault, Decision, EndPlan, Forgery, ListenPlan, Place, Quit, Service,
};
pub use run::{CmPlantedFault, CmReport, CmSimulation, run};
pub use shrink::shrink;
