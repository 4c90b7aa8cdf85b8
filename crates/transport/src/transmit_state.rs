//! What remains after a turn of a queue pair.

/// What remains after [`QueuePair::poll_transmit`](crate::QueuePair::poll_transmit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitState {
    /// There is nothing to send until something happens.
    Idle,
    /// There is something to send, but the path's window is full: call again when it opens.
    Blocked,
    /// There is more to send: call again after the others had their turn.
    More,
}
