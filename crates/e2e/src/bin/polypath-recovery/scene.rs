//! The scenes: links, their rates, and what happens to one of them.

use polypath_e2e::{Direction, End, Error, Lab};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Of two equal links, one loses its carrier.
    Cut,
    /// Of two equal links, one falls silent.
    Silence,
    /// Of four equal links, one falls silent.
    OneOfFour,
    /// Of two links, the one that is ten times as fast falls silent.
    Uneven,
}

impl Scene {
    pub(crate) const ALL: [Self; 4] = [Self::Cut, Self::Silence, Self::OneOfFour, Self::Uneven];

    /// Its name, of files too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Silence => "silence",
            Self::OneOfFour => "one-of-four",
            Self::Uneven => "uneven",
        }
    }

    /// Its heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Cut => "One of two links loses its carrier",
            Self::Silence => "One of two links falls silent",
            Self::OneOfFour => "One of four links falls silent",
            Self::Uneven => "The faster of two links, 10 : 1, falls silent",
        }
    }

    /// The rate of each link, in Mbit/s.
    pub(crate) fn rates(self) -> &'static [u64] {
        match self {
            Self::Cut | Self::Silence => &[400, 400],
            Self::OneOfFour => &[200, 200, 200, 200],
            Self::Uneven => &[400, 40],
        }
    }

    /// The link that fails, if `busiest` carries the most.
    pub(crate) fn victim(self, busiest: usize) -> usize {
        if self == Self::Uneven { 0 } else { busiest }
    }

    /// Lets a link fail.
    pub(crate) fn fail(self, lab: &Lab, link: usize) -> Result<(), Error> {
        match self {
            Self::Cut => lab.link_down(link, End::Both),
            _ => lab.cut(link, Direction::Both),
        }
    }

    /// A word for the failure.
    pub(crate) fn failure(self) -> &'static str {
        if self == Self::Cut { "no carrier" } else { "silent" }
    }
}
