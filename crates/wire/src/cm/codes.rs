//! Fields whose numbers mostly have names.

/// Defines the type of such a field: an enum of the names, with `code` and `from_code`.
macro_rules! codes {
    (
        $(#[$about:meta])* $type:ident: $int:ty;
        $($(#[$doc:meta])* $name:ident = $code:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$doc])* $name,)*
            /// A number without a name.
            Unknown($int),
        }

        impl $type {
            /// The number on the wire.
            pub const fn code(self) -> $int {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// The value with this number.
            pub const fn from_code(code: $int) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Unknown(other),
                }
            }
        }
    };
}

pub(super) use codes;
