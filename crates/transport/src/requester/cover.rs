//! What the ICRC of a FLUSH covers.
//!
//! By the IBTA's rule it is what the ICRC of every packet covers. Linux' rxe covers a FLUSH twice, drops
//! what is not so, and can't be told from other peers. So what is not answered is sent again in the
//! other way, in turns, until it is known how the peer wants it.

/// What is known of the peer.
#[derive(Clone, Debug, Default)]
pub(super) struct FlushCover {
    twice: bool,
    known: bool,
}

impl FlushCover {
    /// Both parts.
    pub(super) fn parts(&self) -> (bool, bool) {
        (self.twice, self.known)
    }

    /// Of both parts.
    pub(super) fn of(twice: bool, known: bool) -> Self {
        Self { twice, known }
    }

    /// How to send.
    pub(super) fn twice(&self) -> bool {
        self.twice
    }

    /// A FLUSH is to be sent again.
    pub(super) fn sends_again(&mut self) {
        self.twice ^= !self.known;
    }

    /// A FLUSH was answered. If it was sent more than once, it can't be told in which way.
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
