//! The log: standard error, if `POLYPATH_LOG` is set; the application's output is its own.

use std::io::Write;
use std::sync::OnceLock;

/// What `POLYPATH_LOG` asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// `0`: nothing at all.
    Silent,
    /// Not set: only what the user has to know.
    Quiet,
    /// Everything.
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

/// Writes what the user has to know, such as a setting without effect, unless `POLYPATH_LOG` is `0`.
pub(crate) fn warn(text: &str) {
    if level() != Level::Silent {
        // Nobody can be told if standard error is gone.
        let _ = writeln!(std::io::stderr(), "polypath[{}]: {text}", std::process::id());
    }
}

/// Whether [`line()`] writes anything.
pub(crate) fn is_on() -> bool {
    level() == Level::On
}

/// Writes a line with the process id and the time since the start.
pub(crate) fn line(text: &str) {
    if is_on() {
        let at = crate::clock::now();
        // Nobody can be told if standard error is gone.
        let _ = writeln!(
            std::io::stderr(),
            "polypath[{}] {:.6} {text}",
            std::process::id(),
            at.as_secs_f64()
        );
    }
}
