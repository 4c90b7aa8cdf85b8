//! How reliably a program did what the lane counts on.

/// Trust that is earned by prompt deeds and lost by late ones, of which each cancels `LATE` prompt ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust<const LATE: u8>(u8);

impl<const LATE: u8> Trust<LATE> {
    /// The number of prompt deeds that are needed.
    pub(super) const ENOUGH: u8 = 8;
    /// The largest number of prompt deeds that is remembered.
    pub(super) const MOST: u8 = 16;

    #[inline]
    pub(super) fn judge(&mut self, prompt: bool) {
        self.0 = if prompt { (self.0 + 1).min(Self::MOST) } else { self.0.saturating_sub(LATE) };
    }

    /// Forgets all prompt deeds.
    pub(super) fn lose(&mut self) {
        self.0 = 0;
    }

    #[inline]
    pub(super) fn is_enough(self) -> bool {
        self.0 >= Self::ENOUGH
    }
}
