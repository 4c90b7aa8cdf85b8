//! The log, which is written to standard error if `POLYPATH_LOG` is set, because standard output
//! belongs to the application.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;

/// The value of `POLYPATH_LOG`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// `0`: log nothing.
    Silent,
    /// Not set: log only what the user must know.
    Quiet,
    /// Any other value: log everything.
    On,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var_os("POLYPATH_LOG") {
        Some(value) if value == "0" => Level::Silent,
        Some(value) if !value.is_empty() => Level::On,
        _ => Level::Quiet,
    })
}

/// Logs what the user must know, such as a setting without effect, unless `POLYPATH_LOG` is `0`.
pub(crate) fn warn(text: &str) {
    if level() != Level::Silent {
        write(&format!("polypath[{}]: {text}\n", std::process::id()));
    }
}

/// Whether [`line()`] writes anything.
pub(crate) fn is_on() -> bool {
    #[cfg(test)]
    if tests::is_heard() {
        return true;
    }
    level() == Level::On
}

/// Writes a line with the process id and the time since the start.
pub(crate) fn line(text: &str) {
    line_of(crate::clock::now(), &text);
}

/// Writes a line about something that happened at a time of [`crate::clock::now`].
pub(crate) fn line_of(at: Duration, text: &dyn Display) {
    #[cfg(test)]
    if tests::is_heard() {
        return tests::hear(&text.to_string());
    }
    if is_on() {
        let (id, at) = (std::process::id(), at.as_secs_f64());
        write(&format!("polypath[{id}] {at:.6} {text}\n"));
    }
}

/// Writes a whole line with one system call, so that what the application writes at the same time
/// does not get in between: standard error has no buffer.
fn write(line: &str) {
    // If standard error is gone, nobody can be told.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    type Hearer = Box<dyn FnMut(&str)>;

    thread_local! {
        /// Receives the lines of this thread, which are then not written.
        static HEARER: RefCell<Option<Hearer>> = const { RefCell::new(None) };
    }

    /// Passes the lines that this thread writes during `work` to `hearer`.
    pub(crate) fn with_lines(hearer: impl FnMut(&str) + 'static, work: impl FnOnce()) {
        HEARER.set(Some(Box::new(hearer)));
        work();
        HEARER.take();
    }

    pub(super) fn is_heard() -> bool {
        HEARER.with_borrow(Option::is_some)
    }

    pub(super) fn hear(text: &str) {
        HEARER.with_borrow_mut(|hearer| hearer.as_mut().map(|hear| hear(text)));
    }
}
