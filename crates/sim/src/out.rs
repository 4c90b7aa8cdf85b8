//! Prints to standard output. `println!` panics when nobody reads any more, as after `polypath sim
//! --plan | head`.

use std::fmt;
use std::io::{ErrorKind, Write as _, stdout};

/// The exit status that a shell reports for a process that `SIGPIPE` ended.
const ENDED_BY_SIGPIPE: i32 = 128 + 13;

/// Prints to standard output. If that fails, the process ends, because nobody would see the rest.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let Err(error) = stdout().write_fmt(text) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(ENDED_BY_SIGPIPE);
    }
    eprintln!("writing: {error}");
    std::process::exit(2);
}

/// Prints a line like `println!`, with [`print()`].
macro_rules! say {
    ($($argument:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($argument)*))) };
}
pub(crate) use say;
