//! The engine: queue pairs, memory and completion queues on lanes, UDP paths, and the roce and mp
//! devices.
//!
//! An [`Engine`] has devices; everything else is behind the traits of `polypath-verbs`. A process
//! may have several engines. [`devices()`] returns those of the engine that the environment
//! configures. An engine works in the application's own threads: a thread that posts or polls
//! drives its lane. Each lane also has one thread of its own, for times when no other thread drives
//! it.
//!
//! Unsafe code is in `memory` (access to registered memory), `media::udp` (sockets), and in the few system
//! calls of `notify`, `lane::sleeper`, `lane::multicast`, `thread`, `config` and `current`.
//!
//! A process has some things only once, however many engines it has: the handlers of SIGSEGV and
//! SIGBUS (`memory::signals`) with the record of what each thread accesses (`memory::guard`),
//! because the kernel has one handler per process; the addresses of null regions (`memory::null`);
//! the numbers of protection domains; the clock's origin; the log.
#![deny(unsafe_code)]

mod address;
mod channel;
mod clock;
pub mod companion;
mod config;
mod context;
mod context_inner;
mod cq;
mod current;
mod deferrals;
mod departure;
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
mod homes;
mod lane;
mod lanes;
mod limits;
mod log;
#[doc(hidden)]
pub mod media;
#[allow(unsafe_code)]
#[doc(hidden)]
pub mod memory;
mod migration;
mod moderation;
mod mr;
mod notify;
mod other_port;
mod path_settings;
mod port;
mod qp;
mod quota;
mod service;
mod srq;
mod standing;
mod status;
mod sync;
mod thread;
#[cfg(test)]
mod toy_device;
mod xrc;

pub use config::{CaptureTo, Config};
pub use current::{devices, leave, tcp_port};
pub use engine::Engine;
pub use polypath_ipc::settings::{Bonding, Reselect};
pub use polypath_topology::Selection;
/// The only P_Key: full member of the default partition, as on every RoCE port.
pub use polypath_wire::DEFAULT_PKEY;
pub use thread::spawn;
