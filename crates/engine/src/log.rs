//! The log: standard error, if `POLYPATH_LOG` is set; the application's output is its own.

use std::io::Write;
use std::sync::OnceLock;

/// Writes a line with the process id and the time since the start.
pub(crate) fn line(text: &str) {
    static ON: OnceLock<bool> = OnceLock::new();
    if *ON
        .get_or_init(|| std::env::var_os("POLYPATH_LOG").is_some_and(|v| !v.is_empty() && v != "0"))
    {
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
