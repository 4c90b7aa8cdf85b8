//! The fuzzer's bytes, taken piece by piece. When there are no more, it is nothing and zeros.

/// What is left of them.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    /// The next byte.
    pub(crate) fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next `n` bytes, or as many as there are.
    pub(crate) fn take(&mut self, n: usize) -> Vec<u8> {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head.to_vec()
    }
}
