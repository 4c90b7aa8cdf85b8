//! The log, which is written to standard error if `POLYPATH_LOG` is set. Only the reason why a
//! program has no device of ours, and the loss of ids in a move, are also written without it.

use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// 0 if the variable was not read yet, else one of the three values below.
static STATE: AtomicU8 = AtomicU8::new(0);
/// `POLYPATH_LOG=0`: write nothing.
const SILENT: u8 = 1;
/// Not set: write only what the user must know.
const QUIET: u8 = 2;
/// Write everything.
const ON: u8 = 3;

fn state() -> u8 {
    match STATE.load(Ordering::Relaxed) {
        0 => {
            let state = match std::env::var_os("POLYPATH_LOG") {
                Some(value) if value == "0" => SILENT,
                Some(value) if !value.is_empty() => ON,
                _ => QUIET,
            };
            STATE.store(state, Ordering::Relaxed);
            state
        }
        state => state,
    }
}

/// Whether the log is on.
pub(crate) fn enabled() -> bool {
    #[cfg(test)]
    if tests::is_heard() {
        return true;
    }
    state() == ON
}

/// A line on the stack; text that does not fit is cut.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let take = text.len().min(room);
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}

/// Writes once why the program gets none of our devices, because an empty list would not tell the
/// user.
pub(crate) fn no_devices(reason: &dyn core::fmt::Display) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let first = !SAID.swap(true, Ordering::Relaxed);
    if enabled() || (first && state() == QUIET) {
        write(format_args!("no Polypath devices: {reason}"));
    }
}

/// Writes what the user must know, unless the log is silent.
pub(crate) fn warn(text: Arguments<'_>) {
    if state() != SILENT {
        write(text);
    }
}

/// Writes one line if the log is on.
pub(crate) fn line(text: Arguments<'_>) {
    if enabled() {
        write(text);
    }
}

/// Writes one line, in one system call.
fn write(text: Arguments<'_>) {
    #[cfg(test)]
    if tests::is_heard() {
        return tests::hear(&text.to_string());
    }
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "polypath[{}]: {text}", std::process::id());
    line.bytes[line.len] = b'\n';
    // Not by the C library, so that our own replacement of write() is not involved. Nobody can be told if
    // standard error is gone.
    let _ = rustix::io::write(std::io::stderr(), &line.bytes[..=line.len]);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    thread_local! {
        /// The lines of this thread, which are then not written.
        static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    }

    /// The lines that this thread logs during `work`.
    pub(crate) fn lines_of(work: impl FnOnce()) -> Vec<String> {
        HEARD.set(Some(Vec::new()));
        work();
        HEARD.take().unwrap_or_default()
    }

    pub(super) fn is_heard() -> bool {
        HEARD.with_borrow(Option::is_some)
    }

    pub(super) fn hear(text: &str) {
        HEARD.with_borrow_mut(|heard| heard.as_mut().map(|lines| lines.push(text.to_owned())));
    }
}
