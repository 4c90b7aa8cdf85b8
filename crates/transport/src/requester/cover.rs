//! Which bytes the ICRC of a FLUSH covers.
//!
//! By the IBTA's rule it covers the same bytes as in every other packet. Linux rxe covers a FLUSH
//! twice and drops any that is not, and such a peer can't be told from others. So an unanswered
//! FLUSH is sent again in the other way, in turns, until it is known which way the peer expects.

/// What is known about the peer.
#[derive(Clone, Debug, Default)]
pub(super) struct FlushCover {
    twice: bool,
    known: bool,
}

impl FlushCover {
    /// The fields `twice` and `known`, for freezing.
    pub(super) fn parts(&self) -> (bool, bool) {
        (self.twice, self.known)
    }

    /// Makes one from both fields.
    pub(super) fn of(twice: bool, known: bool) -> Self {
        Self { twice, known }
    }

    /// Whether to cover the next FLUSH twice.
    pub(super) fn twice(&self) -> bool {
        self.twice
    }

    /// Notes that a FLUSH is sent again.
    pub(super) fn sends_again(&mut self) {
        self.twice ^= !self.known;
    }

    /// Notes that a FLUSH was answered. If it was sent more than once, nobody knows which way was
    /// right.
    pub(super) fn answered(&mut self, sent_once: bool) {
        self.known |= sent_once;
    }
}

#[cfg(test)]
mod tests {
    use super::FlushCover;

    #[test]
    fn both_ways_are_tried_until_one_is_answered_at_once() {
        let mut cover = FlushCover::default();
        assert!(!cover.twice(), "by the rule first");
        cover.sends_again();
        assert!(cover.twice());
        cover.answered(false);
        assert!(cover.twice(), "the last way is the likelier one");
        cover.sends_again();
        assert!(!cover.twice(), "but not sure");
        cover.sends_again();
        cover.answered(true);
        cover.sends_again();
        assert!(cover.twice(), "lost, now");
    }
}
