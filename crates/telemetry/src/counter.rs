//! The types that a declaration of counters expands to.

use core::fmt;

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets on the wire.
    Packets,
    /// Bytes.
    Bytes,
    /// Messages, such as management datagrams.
    Messages,
    /// Work requests.
    Requests,
    /// Times that something happened.
    Times,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Messages => "messages",
            Self::Requests => "requests",
            Self::Times => "times",
        })
    }
}

/// The description of a counter, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its name, unique for its subject: words with underscores, such as `icrc_wrong`.
    pub name: &'static str,
    /// The unit that it counts in.
    pub unit: Unit,
    /// What it counts: sentences that begin with a capital letter and end with a full stop.
    pub help: &'static str,
}

/// A structure of counters, declared by `counters!`.
pub trait Counters: Copy + Default {
    /// The kind of object that has these counters: `qp`, `lane`, `broker`.
    const SUBJECT: &'static str;
    /// The descriptions of the counters, in the order of their declaration.
    const DESCRIPTORS: &'static [Descriptor];

    /// The values, in the same order.
    fn values(&self) -> impl Iterator<Item = u64>;

    /// Adds the values of `other`, for example for the sum over all lanes.
    fn add(&mut self, other: &Self);

    /// The counters with their values.
    fn iter(&self) -> impl Iterator<Item = (&'static Descriptor, u64)> {
        Self::DESCRIPTORS.iter().zip(self.values())
    }
}

/// The text of a documentation comment, without the blanks around it.
pub(crate) const fn trimmed(help: &'static str) -> &'static str {
    help.trim_ascii()
}

/// Declares counters: a structure with public `u64` fields, and [`Counters`] for it.
///
/// `of` names the subject, and `named` is the prefix of each counter's name. Each field has a sentence
/// of documentation and the name of its [`Unit`].
macro_rules! counters {
    (
        $(#[doc = $about:literal])+
        #[of($subject:literal)]
        #[named($prefix:literal)]
        pub struct $name:ident {
            $($(#[doc = $help:literal])+ #[unit($unit:ident)] pub $field:ident: u64,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[doc = $help])+ pub $field: u64,)+
        }

        impl $crate::counter::Counters for $name {
            const SUBJECT: &'static str = $subject;
            const DESCRIPTORS: &'static [$crate::counter::Descriptor] = &[
                $($crate::counter::Descriptor {
                    name: concat!($prefix, stringify!($field)),
                    unit: $crate::counter::Unit::$unit,
                    help: $crate::counter::trimmed(concat!($($help),+)),
                },)+
            ];

            fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$field),+].into_iter()
            }

            fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }
    };
}

pub(crate) use counters;

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro declares what other crates count")]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    counters! {
        /// Two counters.
        #[of("test")]
        #[named("test_")]
        pub struct TestCounters {
            /// Packets that came
            /// in.
            #[unit(Packets)] pub received: u64,
            /// Bytes of them.
            #[unit(Bytes)] pub bytes: u64,
        }
    }

    #[test]
    fn a_declaration_gives_fields_names_units_and_words() {
        let mut counters = TestCounters { received: 1, bytes: 20 };
        counters.add(&TestCounters { received: 2, bytes: u64::MAX });
        assert_eq!(counters, TestCounters { received: 3, bytes: 19 });
        let list: Vec<_> = counters.iter().map(|(d, v)| (d.name, d.unit, d.help, v)).collect();
        assert_eq!(
            list,
            [
                ("test_received", Unit::Packets, "Packets that came in.", 3),
                ("test_bytes", Unit::Bytes, "Bytes of them.", 19)
            ]
        );
    }
}
