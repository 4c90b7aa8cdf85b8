//! Why a work request failed, as a number that fits `vendor_err` of a completion.

/// Why a work request did not succeed: the `vendor_err` of its completion.
///
/// A [`crate::Explanation`] says the same together with queue pair, PSN and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Cause {
    /// Nothing went wrong.
    None = 0,
    /// The queue pair went to the error state for another reason than this work request.
    Flushed = 1,
    /// A local key, or the range or right it was used with, was not valid.
    LocalKey = 2,
    /// The peer refused the request: remote key, range or right.
    RemoteAccess = 3,
    /// The peer refused the request as invalid: operation not allowed, too long, out of sequence.
    RemoteInvalid = 4,
    /// The peer failed while executing the request.
    RemoteOperation = 5,
    /// No acknowledgement in spite of all retries.
    RetriesExhausted = 6,
    /// The peer had no receive work request in spite of all RNR retries.
    RnrExhausted = 7,
    /// A response did not fit its request.
    BadResponse = 8,
    /// The message was longer than the receive work request.
    ReceiveTooSmall = 9,
    /// A memory window could not be bound, or a key could not be invalidated.
    LocalOperation = 10,
    /// A request of the peer was refused while the receive work request was in hand.
    PeerRequest = 11,
}

impl Cause {
    /// All causes.
    pub(crate) const ALL: [Self; 12] = [
        Self::None,
        Self::Flushed,
        Self::LocalKey,
        Self::RemoteAccess,
        Self::RemoteInvalid,
        Self::RemoteOperation,
        Self::RetriesExhausted,
        Self::RnrExhausted,
        Self::BadResponse,
        Self::ReceiveTooSmall,
        Self::LocalOperation,
        Self::PeerRequest,
    ];

    /// The number for `vendor_err`.
    #[inline]
    pub const fn number(self) -> u32 {
        self as u32
    }
}
