//! What the library has to say: to standard error, and only if `POLYPATH_LOG` is set.

use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicU8, Ordering};

/// 0: not looked yet, 1: off, 2: on.
static STATE: AtomicU8 = AtomicU8::new(0);

/// Whether anybody listens.
pub(crate) fn enabled() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => {
            let on = std::env::var_os("POLYPATH_LOG").is_some_and(|v| !v.is_empty() && v != "0");
            STATE.store(if on { 2 } else { 1 }, Ordering::Relaxed);
            on
        }
        state => state == 2,
    }
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

/// Writes one line, in one system call.
pub(crate) fn line(text: Arguments<'_>) {
    if !enabled() {
        return;
    }
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "polypath[{}]: {text}", std::process::id());
    line.bytes[line.len] = b'\n';
    // SAFETY: the buffer has `len + 1` initialised bytes. A raw system call, so that our own
    // stand-in for write() is not involved.
    unsafe { libc::syscall(libc::SYS_write, 2, line.bytes.as_ptr(), line.len + 1) };
}
