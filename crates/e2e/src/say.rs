//! Printing by tools that have something to take down at their end: `println!` panics when nobody reads
//! any more, as after `make demo | head`.

use std::fmt;
use std::io::{Write as _, stdout};

/// Prints a line; one that can't be printed is left out.
pub fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(stdout(), "{text}");
}

/// `println!` that goes on when nobody reads any more.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::say(format_args!($($argument)*)) };
}
