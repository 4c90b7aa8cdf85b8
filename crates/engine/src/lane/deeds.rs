//! What an application has done with a lane, by which the lane's thread tells whether it polls busily.

/// The number of polls within a tick that count as busy polling; posts between them count as well.
pub(super) const BUSY_POLLS: u64 = 32;

/// What the application has done with a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deeds {
    /// The number of polls, whether they drove the lane or found completions.
    pub(super) looks: u64,
    /// These, and the entries for other reasons.
    pub(super) all: u64,
}

impl Deeds {
    /// What it has done since then.
    pub(super) fn since(self, then: Self) -> Self {
        Self { looks: self.looks.wrapping_sub(then.looks), all: self.all.wrapping_sub(then.all) }
    }

    /// Whether it polls busily: it was in the lane often since the thread last slept, or is now, and polls
    /// between. What it posts between two polls counts, because a program with many queue pairs posts
    /// hundreds of requests after each poll, and receives while it posts. A thread that only posts may never
    /// come back for completions, so the lane's thread does not leave the socket to it.
    pub(super) fn are_busy(self, contended: bool) -> bool {
        self.looks > 0 && (self.all >= BUSY_POLLS || contended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_left_to_threads_that_poll_and_not_to_those_that_post() {
        let busy =
            |looks, posts, contended| Deeds { looks, all: looks + posts }.are_busy(contended);
        assert!(busy(BUSY_POLLS, 0, false));
        assert!(!busy(BUSY_POLLS - 1, 0, false), "a few polls before a sleep");
        assert!(busy(1, BUSY_POLLS - 1, false), "many posts after a poll");
        assert!(busy(1, 0, true));
        assert!(!busy(0, 1000, false) && !busy(0, 1000, true), "a thread that posts sends");
    }
}
