//! The payload of a packet whose turn comes: it is here, or in memory already ([`early`](super::early)).

/// The payload of a packet whose turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data<'a> {
    /// Here it is.
    Here(&'a [u8]),
    /// These bytes of the message that is arriving are in memory already.
    Placed(Placed),
}

/// Bytes of a message that were put into memory before their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// The number of bytes of the message before them.
    pub(super) at: u32,
    /// Their number.
    pub(super) len: u32,
}

impl<'a> Data<'a> {
    /// The length in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Placed(placed) => placed.len as usize,
        }
    }

    /// The bytes that are still to be put into memory.
    #[inline]
    pub(super) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Placed(_) => &[],
        }
    }
}
