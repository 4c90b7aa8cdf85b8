//! How the broker is called.

use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use crate::sys::process;

/// How long it stays without anything to do, if not told otherwise.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the broker shall do.
#[derive(Debug)]
pub struct Options {
    /// It ends after this long without clients and CM ids; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Where to write when clients may connect: one line, `ready` or why not.
    pub ready: Option<OwnedFd>,
}

impl Default for Options {
    fn default() -> Self {
        Self { idle_timeout: Some(IDLE_TIMEOUT), ready: None }
    }
}

/// An argument that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// No such argument.
    #[error(
        "the broker knows no argument `{0}`; there are --idle-timeout SECONDS and --ready-fd FD"
    )]
    Unknown(String),
    /// A value is missing or wrong.
    #[error("{0} needs {1}")]
    Value(&'static str, &'static str),
}

impl Options {
    /// Reads the arguments after `polypath broker`: `--idle-timeout SECONDS` (0: stay for ever) and
    /// `--ready-fd FD` (an inherited descriptor, above 2).
    ///
    /// # Errors
    /// [`OptionsError`], whose text is for the user.
    pub fn from_args<I: IntoIterator<Item = String>>(arguments: I) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            match name.as_str() {
                "--idle-timeout" => {
                    let what = OptionsError::Value("--idle-timeout", "a number of seconds");
                    let value = value.or_else(|| arguments.next());
                    let seconds: f64 =
                        value.and_then(|v| v.parse().ok()).ok_or_else(|| what.clone())?;
                    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| what)?;
                    options.idle_timeout = Some(duration).filter(|d| !d.is_zero());
                }
                "--ready-fd" => {
                    let what = OptionsError::Value("--ready-fd", "an open descriptor above 2");
                    let value = value.or_else(|| arguments.next());
                    let fd: RawFd =
                        value.and_then(|v| v.parse().ok()).ok_or_else(|| what.clone())?;
                    options.ready = Some(process::inherited(fd).map_err(|_| what)?);
                }
                _ => return Err(OptionsError::Unknown(name)),
            }
        }
        Ok(options)
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
    use super::*;

    fn parse(text: &str) -> Result<Options, OptionsError> {
        Options::from_args(text.split_whitespace().map(str::to_owned))
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
        for text in ["--idle-timeout", "--idle-timeout -1", "--idle-timeout NaN", "--what 1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["--ready-fd 1", "--ready-fd 999999", "--ready-fd x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
