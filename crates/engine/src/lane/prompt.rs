//! Whether the application answers at once what it is given.
//!
//! An acknowledgement sent before a completion is handed out delays the answer that a ping-pong
//! program is about to post; sent after it, it costs no time. But a program that turns to something
//! else instead would keep the peer waiting for it. So acknowledgements wait only for applications
//! that came back promptly the last times.

use std::time::Duration;

/// Coming back within this time is prompt.
const PROMPT: Duration = Duration::from_micros(30);
/// So many prompt returns in a row earn trust.
const TRUST: u8 = 8;

#[derive(Debug, Default)]
pub(super) struct Promptness {
    /// When completions were last handed out, if nobody came back since.
    given: Option<Duration>,
    in_a_row: u8,
}

impl Promptness {
    /// Completions are being handed out.
    #[inline]
    pub(super) fn given(&mut self, now: Duration) {
        self.given = Some(now);
    }

    /// Somebody is in the lane again.
    #[inline]
    pub(super) fn back(&mut self, now: Duration) {
        if let Some(given) = self.given.take() {
            let prompt = now.saturating_sub(given) <= PROMPT;
            self.in_a_row = if prompt { (self.in_a_row + 1).min(TRUST) } else { 0 };
        }
    }

    /// Acknowledgements may wait for the application.
    #[inline]
    pub(super) fn trusted(&self) -> bool {
        self.in_a_row >= TRUST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_earned_slowly_and_lost_at_once() {
        let mut p = Promptness::default();
        let mut now = Duration::from_secs(1);
        for _ in 0..TRUST {
            assert!(!p.trusted());
            p.given(now);
            now += PROMPT;
            p.back(now);
        }
        assert!(p.trusted());
        now += Duration::from_secs(1);
        p.back(now);
        assert!(p.trusted(), "nothing was given: nothing to be prompt about");
        p.given(now);
        p.back(now + PROMPT * 2);
        assert!(!p.trusted());
    }
}
