//! Counters and events, each declared once.
//!
//! A counter is a field of a structure that `counters!` declares in [`declared`], with its unit and a
//! sentence that says what it counts. Everything else is derived from the declaration: the structure
//! that the data path adds to, the list that reports go through, the format between a process and the
//! broker, and a test that compares `docs/counters.md` with it. Counting is a plain addition to a
//! field. The lock of the structure protects the counters.
//!
//! To add a counter, add a field, count where it happens, and run this crate's tests, which print the
//! line that `docs/counters.md` needs. A new counter changes what processes and the broker send each
//! other, so `VERSION` of `polypath-ipc` must be increased, too.
//!
//! An [`Event`] is a variant that [`event`] declares, with a name and fields for programs, and a text
//! for people. It is made of plain values where it happens, is kept and sent in this form, and becomes
//! text when somebody reads it.
#![forbid(unsafe_code)]

mod counter;
mod declared;
pub mod event;
mod words;

pub use counter::{Counters, Descriptor, Unit};
pub use declared::{
    BrokerCounters, CmCounters, ControlDrops, FaultCounters, LaneCounters, LaneDrops, PathCounters,
    QpCounters,
};
pub use event::{Event, EventKind, Level, Occurrence};
pub use words::{Errno, InterfaceName, Micros, MigrationCause, PathName, Qpn, Reason, Value};
