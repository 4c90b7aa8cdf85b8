//! Queue pairs, memory and completion queues on lanes; UDP paths; the roce and mp devices.
//!
//! [`devices`] gives the devices that this process sees; everything else is behind the traits of
//! `polypath-verbs`. The engine works in the application's own threads (whoever posts or polls drives
//! its lane) and in one thread of its own per lane for when nobody does.
//!
//! Unsafe code is in `memory` (access to registered memory), `media::udp` (sockets), and in the few system
//! calls of `notify`, `lane::sleeper`, `thread`, `multicast`, `config` and `process`.
#![deny(unsafe_code)]

mod address;
mod channel;
mod clock;
mod config;
mod context;
mod cq;
mod device;
mod dm;
mod events;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod lane;
mod limits;
mod log;
#[doc(hidden)]
pub mod media;
#[allow(unsafe_code)]
#[doc(hidden)]
pub mod memory;
mod moderation;
mod mp;
mod mr;
mod multicast;
mod notify;
mod port;
mod process;
mod qp;
mod quota;
mod srq;
mod status;
mod sync;
mod target;
mod thread;
mod xrc;

pub use device::devices;
/// The one P_Key: full member of the default partition, as every RoCE port has it.
pub use polypath_wire::DEFAULT_PKEY;
pub use process::leave;
pub use thread::spawn;
