//! What is to be done in a simulation of connection managers, and what an application does with an id.

use super::case::{CmFault, Place};
use super::model::HalfId;

/// Something that is to be done at some time.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Fault(CmFault),
    /// A process goes on.
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
    /// The listening end accepts or rejects, the connecting one confirms.
    Decide,
    /// The queue pair saw data.
    Notify,
    Disconnect,
    Destroy,
    /// The id is moved to the process's other event channel.
    Migrate,
}
