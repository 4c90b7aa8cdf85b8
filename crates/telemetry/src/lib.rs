//! Counters and events, each declared once.
//!
//! A counter is one field of a structure that `counters!` declares in [`declared`]: with its unit and
//! a sentence that says what it counts. All else comes from there: the structure that the data path
//! adds to, the list that reports walk through, the way between a process and the broker, and a test
//! that compares `docs/counters.md` with it. To count is a plain add to a field; whoever guards the
//! structure guards the count.
//!
//! To add a counter, add a field, count where it happens, and run this crate's tests, which print the
//! line that the page wants. It changes what processes and the broker send each other, so that
//! `VERSION` of `polypath-ipc` goes up, too.
//!
//! An [`Event`] is a variant that [`event`] declares: with a name and fields for programs, and words for
//! people. Where it happens it is made of plain values. It is kept and sent as it is, and becomes
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
pub use words::{Errno, InterfaceName, Micros, PathName, Qpn, Reason, Value};
