//! Frozen queue pairs that no host has at the moment.

use core::time::Duration;

/// A frozen queue pair, and when it is to be thawed.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) until: Duration,
    pub(crate) pair: usize,
    pub(crate) end: usize,
    pub(crate) bytes: Vec<u8>,
}

/// All frozen queue pairs that no host has.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Vec<Away>);

impl UnderWay {
    pub(crate) fn add(&mut self, away: Away) {
        self.0.push(away);
    }

    /// The time when the next one is to be thawed.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.0.iter().map(|away| away.until).min()
    }

    /// The time when the queue pair of an end is to be thawed, if it is frozen.
    pub(crate) fn until(&self, pair: usize, end: usize) -> Option<Duration> {
        self.0.iter().find(|away| (away.pair, away.end) == (pair, end)).map(|away| away.until)
    }

    /// Takes the frozen queue pair of an end, if there is one.
    pub(crate) fn take(&mut self, pair: usize, end: usize) -> Option<Away> {
        let at = self.0.iter().position(|away| (away.pair, away.end) == (pair, end))?;
        Some(self.0.remove(at))
    }

    /// Takes a frozen queue pair whose time has come, if there is one.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Away> {
        let at = self.0.iter().position(|away| away.until <= now)?;
        Some(self.0.remove(at))
    }

    /// Keeps only the queue pairs of ends for which `stays` is true.
    pub(crate) fn retain(&mut self, stays: impl Fn(usize, usize) -> bool) {
        self.0.retain(|away| stays(away.pair, away.end));
    }
}
