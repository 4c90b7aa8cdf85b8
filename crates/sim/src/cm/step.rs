//! Actions of a simulation of connection managers, and the steps of an application with an id.

use super::case::{CmFault, Place};
use super::model::HalfId;

/// An action that is planned for some time.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Fault(CmFault),
    /// A process that was paused continues.
    Wake(Place),
    Listen(usize),
    Unlisten(usize),
    Attempt(usize),
    Half(HalfId, Step),
}

/// A step of an application with one of its ids.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    ResolveRoute,
    Connect,
    /// The listening end accepts or rejects; the connecting end confirms.
    Decide,
    /// The listening application reports that its queue pair saw data, perhaps before the RTU.
    Notify,
    Disconnect,
    Destroy,
    /// The id is moved to the process's other event channel.
    Migrate,
}
