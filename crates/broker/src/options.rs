//! The broker's arguments and options.

use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sys::process;

/// The arguments of `polypath broker` that control its run.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Arguments {
    /// Write `ready`, or the reason of a failure, to this descriptor
    #[arg(long, value_name = "FD", hide = true)]
    pub ready_fd: Option<RawFd>,
    /// End after this many seconds without a program; 0 means never
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = idle_timeout)]
    pub idle_timeout: IdleTimeout,
    /// Pass on what hosts send here that have both got new addresses, so that they find each other
    #[arg(long)]
    pub rendezvous: bool,
}

/// How long the broker stays without clients and CM ids; `None` until it is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTimeout(pub Option<Duration>);

fn idle_timeout(text: &str) -> Result<IdleTimeout, String> {
    let advice = || "write a number of seconds, such as 10 or 0.5; 0 means never".to_owned();
    let seconds: f64 = text.parse().map_err(|_| advice())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| advice())?;
    Ok(IdleTimeout(Some(duration).filter(|duration| !duration.is_zero())))
}

/// What kind of broker it is. One that takes its place is of the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// How long it stays without clients and CM ids; `None` forever.
    pub idle_timeout: Option<Duration>,
    /// Whether it passes on packets of hosts that look for each other.
    pub rendezvous: bool,
}

/// The options of the broker.
#[derive(Debug)]
pub struct Options {
    /// What kind of broker it is.
    pub manner: Manner,
    /// The descriptor to which one line is written when clients may connect: `ready`, or the reason
    /// of a failure. Without it, another running broker is an error.
    pub ready: Option<OwnedFd>,
}

/// The descriptor for `ready` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--ready-fd {0}: it must be an open descriptor above 2")]
pub struct OptionsError(RawFd);

impl Options {
    /// Takes ownership of the descriptor in the arguments.
    ///
    /// # Errors
    /// [`OptionsError`], whose text is for the user.
    pub fn new(arguments: &Arguments) -> Result<Self, OptionsError> {
        let ready =
            arguments.ready_fd.map(|fd| process::inherited(fd).map_err(|_| OptionsError(fd)));
        let Arguments { idle_timeout: IdleTimeout(idle_timeout), rendezvous, .. } = *arguments;
        // Its users are on other hosts.
        let idle_timeout = idle_timeout.filter(|_| !rendezvous);
        let manner = Manner { idle_timeout, rendezvous };
        Ok(Self { manner, ready: ready.transpose()? })
    }

    /// Tells the process that started this one that clients may connect, or the reason of a
    /// failure.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Some(fd) = self.ready.take() {
            // If nobody reads it any more, nobody waits for it.
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
        assert_eq!(parse("").unwrap().manner.idle_timeout, Some(Duration::from_secs(10)));
        let half = parse("--idle-timeout 0.5").unwrap();
        assert_eq!(half.manner.idle_timeout, Some(Duration::from_millis(500)));
        assert_eq!(parse("--idle-timeout=0").unwrap().manner.idle_timeout, None);
    }

    #[test]
    fn a_rendezvous_stays_without_programs() {
        let manner = Manner { idle_timeout: None, rendezvous: true };
        assert_eq!(parse("--rendezvous").unwrap().manner, manner);
        assert!(!parse("").unwrap().manner.rendezvous);
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
