//! Prints for tools that have to clean up at their end. `println!` panics when nobody reads any more,
//! as after `make demo | head`.

use std::fmt;
use std::io::{Write as _, stdout};

/// Prints a line. A line that can't be printed is dropped.
pub fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(stdout(), "{text}");
}

/// Like `println!`, but does not panic when nobody reads any more.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::say(format_args!($($argument)*)) };
}
