//! Queue pairs, memory and completion queues on lanes; UDP paths; the roce and mp devices.
//!
//! An [`Engine`] has devices; everything else is behind the traits of `polypath-verbs`. There may be
//! several in a process; [`devices()`] are those of the one that the environment configures. An engine
//! works in the application's own threads (whoever posts or polls drives its lane) and in one thread of
//! its own per lane for when nobody does.
//!
//! Unsafe code is in `memory` (access to registered memory), `media::udp` (sockets), and in the few system
//! calls of `notify`, `lane::sleeper`, `lane::multicast`, `thread`, `config` and `current`.
//!
//! Some things a process has once, whatever engines there are: the handlers of SIGSEGV and SIGBUS
//! (`memory::signals`) with what each thread accesses (`memory::guard`), since the kernel knows one
//! handler; the addresses that stand for null regions (`memory::null`); the numbers of protection
//! domains; the clock's origin; the log.
#![deny(unsafe_code)]

mod address;
mod channel;
mod clock;
mod config;
mod context;
mod context_inner;
mod cq;
mod current;
mod deferrals;
mod device;
mod devices;
mod dm;
mod dm_table;
mod drive;
mod driver;
mod drivers;
mod engine;
mod engine_inner;
mod error;
mod events;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod lane;
mod lanes;
mod limits;
mod log;
#[doc(hidden)]
pub mod media;
#[allow(unsafe_code)]
#[doc(hidden)]
pub mod memory;
mod moderation;
mod mr;
mod notify;
mod path_settings;
mod port;
mod qp;
mod quota;
mod service;
mod srq;
mod status;
mod sync;
mod thread;
#[cfg(test)]
mod toy_device;
mod xrc;

pub use config::{CaptureTo, Config};
pub use current::{devices, leave};
pub use engine::Engine;
pub use polypath_ipc::settings::{Bonding, Reselect};
pub use polypath_topology::Selection;
/// The one P_Key: full member of the default partition, as every RoCE port has it.
pub use polypath_wire::DEFAULT_PKEY;
pub use thread::spawn;
