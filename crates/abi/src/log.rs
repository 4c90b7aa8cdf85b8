//! What the library has to say: to standard error, and, but for what leaves the program without
//! any device of ours, only if `POLYPATH_LOG` is set.

use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// 0: not looked yet, else one of the three below.
static STATE: AtomicU8 = AtomicU8::new(0);
/// `POLYPATH_LOG=0`: nothing at all.
const SILENT: u8 = 1;
/// Not set: only what the user has to know.
const QUIET: u8 = 2;
/// Everything is said.
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

/// Whether anybody listens.
pub(crate) fn enabled() -> bool {
    state() == ON
}

/// A line on the stack: what does not fit is cut.
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

/// Writes why the program gets none of our devices: once, as an empty list alone would leave its
/// user to guess.
pub(crate) fn no_devices(reason: &dyn core::fmt::Display) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let first = !SAID.swap(true, Ordering::Relaxed);
    if enabled() || (first && state() == QUIET) {
        write(format_args!("no Polypath devices: {reason}"));
    }
}

/// Writes one line, if anybody listens.
pub(crate) fn line(text: Arguments<'_>) {
    if enabled() {
        write(text);
    }
}

/// Writes one line, in one system call.
fn write(text: Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "polypath[{}]: {text}", std::process::id());
    line.bytes[line.len] = b'\n';
    // SAFETY: the buffer has `len + 1` initialised bytes. A raw system call, so that our own
    // stand-in for write() is not involved.
    unsafe { libc::syscall(libc::SYS_write, 2, line.bytes.as_ptr(), line.len + 1) };
}
