//! How the broker is called.

use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::sys::process;

/// The arguments of `polypath broker` that say how it runs.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Arguments {
    /// Write `ready`, or why not, to this descriptor
    #[arg(long, value_name = "FD", hide = true)]
    pub ready_fd: Option<RawFd>,
    /// End after this many seconds without a program; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = idle_timeout)]
    pub idle_timeout: IdleTimeout,
}

/// How long the broker stays without clients and CM ids; `None`: until it is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTimeout(pub Option<Duration>);

fn idle_timeout(text: &str) -> Result<IdleTimeout, String> {
    let advice = || "write a number of seconds, such as 10 or 0.5; 0 means never".to_owned();
    let seconds: f64 = text.parse().map_err(|_| advice())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| advice())?;
    Ok(IdleTimeout(Some(duration).filter(|duration| !duration.is_zero())))
}

/// What the broker shall do.
#[derive(Debug)]
pub struct Options {
    /// It ends after this long without clients and CM ids; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Where to write when clients may connect: one line, `ready` or why not. Without it, another
    /// broker that runs already is an error.
    pub ready: Option<OwnedFd>,
}

/// The descriptor for the word `ready` is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--ready-fd {0}: it must be an open descriptor above 2")]
pub struct OptionsError(RawFd);

impl Options {
    /// Takes over the descriptor that the arguments name.
    ///
    /// # Errors
    /// [`OptionsError`], whose text is for the user.
    pub fn new(arguments: &Arguments) -> Result<Self, OptionsError> {
        let ready =
            arguments.ready_fd.map(|fd| process::inherited(fd).map_err(|_| OptionsError(fd)));
        Ok(Self { idle_timeout: arguments.idle_timeout.0, ready: ready.transpose()? })
    }

    /// Tells who started us that clients may connect, or why not.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Some(fd) = self.ready.take() {
            // If nobody reads it any more, nobody is waiting.
            let _ = writeln!(std::fs::File::from(fd), "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(text: &str) -> Result<Options, String> {
        let words = ["broker"].into_iter().chain(text.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Options::new(&line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_idle_timeout_is_in_seconds_and_zero_means_never() {
        assert_eq!(parse("").unwrap().idle_timeout, Some(Duration::from_secs(10)));
        let half = parse("--idle-timeout 0.5").unwrap();
        assert_eq!(half.idle_timeout, Some(Duration::from_millis(500)));
        assert_eq!(parse("--idle-timeout=0").unwrap().idle_timeout, None);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["--idle-timeout", "--idle-timeout=-1", "--idle-timeout NaN", "--what 1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["--ready-fd 1", "--ready-fd 999999", "--ready-fd x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
