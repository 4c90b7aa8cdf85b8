//! What a turn of a queue pair left behind.

/// What [`QueuePair::poll_transmit`](crate::QueuePair::poll_transmit) left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitState {
    /// Nothing to send until something happens.
    Idle,
    /// There is something to send but the path's window is full: call again when it opens.
    Blocked,
    /// There is more: call again, after the others had their turn.
    More,
}
