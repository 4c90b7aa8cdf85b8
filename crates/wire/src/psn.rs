//! Packet sequence numbers: numbers of 24 bits that wrap (IBTA 9.7.2).

use core::fmt;

/// Mask of the 24 bits of a packet sequence number.
pub const PSN_MASK: u32 = 0x00ff_ffff;

/// A packet sequence number, always below 2^24.
///
/// There is deliberately no `Ord`: sequence numbers wrap, so only the distance between two of them
/// ([`Psn::diff`]) says which comes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The sequence number in the low 24 bits of `v`; the rest is dropped.
    #[inline]
    pub const fn new(v: u32) -> Self {
        Self(v & PSN_MASK)
    }

    /// The number, 0 to 2^24 − 1.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `n` packets later, wrapping.
    #[inline]
    #[allow(clippy::should_implement_trait)] // Psn + u32 would read as if it could overflow.
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The number `n` packets earlier, wrapping.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// The following number, wrapping.
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The preceding number, wrapping.
    #[inline]
    pub const fn prev(self) -> Self {
        self.sub(1)
    }

    /// The signed distance `self − other`, −2^23 to 2^23 − 1. It is positive if `self` is later.
    #[inline]
    pub const fn diff(self, other: Self) -> i32 {
        // Shifting to the top of the word makes the 24-bit sign the word's sign.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<Psn> for u32 {
    fn from(p: Psn) -> Self {
        p.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff00_0001).get(), 1);
        assert_eq!(Psn::new(PSN_MASK).next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), Psn::new(PSN_MASK));
        assert_eq!(Psn::new(0xff_fffe).add(5), Psn::new(3));
        assert_eq!(Psn::new(3).sub(5), Psn::new(0xff_fffe));
    }

    #[test]
    fn distance_is_signed_across_the_wrap() {
        assert_eq!(Psn::new(2).diff(Psn::new(0xff_ffff)), 3);
        assert_eq!(Psn::new(0xff_ffff).diff(Psn::new(2)), -3);
        assert_eq!(Psn::new(0).diff(Psn::new(0x80_0000)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).diff(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0xff_ffff).diff(Psn::new(0)), -1);
    }
}
