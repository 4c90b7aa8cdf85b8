//! Queue pairs that are under way: bytes that nobody works with.

use core::time::Duration;

/// A frozen queue pair, and when it is to go on.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) until: Duration,
    pub(crate) pair: usize,
    pub(crate) end: usize,
    pub(crate) bytes: Vec<u8>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Vec<Away>);

impl UnderWay {
    pub(crate) fn add(&mut self, away: Away) {
        self.0.push(away);
    }

    /// When the next one goes on.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.0.iter().map(|away| away.until).min()
    }

    /// When the one of an end goes on, if it is under way.
    pub(crate) fn until(&self, pair: usize, end: usize) -> Option<Duration> {
        self.0.iter().find(|away| (away.pair, away.end) == (pair, end)).map(|away| away.until)
    }

    /// Takes the one of an end.
    pub(crate) fn take(&mut self, pair: usize, end: usize) -> Option<Away> {
        let at = self.0.iter().position(|away| (away.pair, away.end) == (pair, end))?;
        Some(self.0.remove(at))
    }

    /// Takes one whose time has come.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Away> {
        let at = self.0.iter().position(|away| away.until <= now)?;
        Some(self.0.remove(at))
    }

    /// Keeps those of ends that are to stay.
    pub(crate) fn retain(&mut self, stays: impl Fn(usize, usize) -> bool) {
        self.0.retain(|away| stays(away.pair, away.end));
    }
}
