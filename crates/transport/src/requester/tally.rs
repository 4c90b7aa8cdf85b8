//! What an answer or a timer says about many packets, collected per path.

use core::time::Duration;

use crate::host::Host;
use polypath_types::PathId;

/// Bytes per path, collected so that few calls report them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Nearly always the only one.
    first: Option<(PathId, u32)>,
    others: Vec<(PathId, u32)>,
    /// The timestamp that came back and its path (multi-path). A packet sent later than that by the
    /// same path is not the one that arrived.
    pub(super) echo: Option<(PathId, u32)>,
}

impl Tally {
    /// A tally for an answer that brought back the timestamp `echo`, by that path.
    #[inline]
    pub(crate) fn of_answer(echo: Option<(PathId, u32)>) -> Self {
        Self { echo, ..Self::default() }
    }

    /// Whether the answer came by this path, to a packet that was sent at `sent_us` or later.
    #[inline]
    pub(super) fn tells_of(&self, path: PathId, sent_us: u32) -> bool {
        self.echo.is_some_and(|(from, echo)| from == path && echo.wrapping_sub(sent_us) as i32 >= 0)
    }

    #[inline]
    pub(super) fn add(&mut self, path: PathId, bytes: u32) {
        match &mut self.first {
            None => self.first = Some((path, bytes)),
            Some((first, sum)) if *first == path => *sum += bytes,
            Some(_) => self.add_to_others(path, bytes),
        }
    }

    #[cold]
    fn add_to_others(&mut self, path: PathId, bytes: u32) {
        match self.others.iter_mut().find(|(p, _)| *p == path) {
            Some((_, sum)) => *sum += bytes,
            None => self.others.push((path, bytes)),
        }
    }

    #[inline]
    fn each(self, mut f: impl FnMut(PathId, u32)) {
        for (path, bytes) in self.first.into_iter().chain(self.others) {
            f(path, bytes);
        }
    }

    /// Reports the bytes as acknowledged, and the round-trip time to its path.
    pub(crate) fn acked<H: Host>(self, mut rtt: Option<(PathId, Duration)>, host: &mut H) {
        self.each(|path, bytes| {
            let rtt = rtt.take_if(|(measured, _)| *measured == path);
            // What was sent by two paths is charged to neither of them here, and may have arrived by the
            // other one: that is no sign of life of this one.
            if bytes > 0 || rtt.is_some() {
                host.acked(path, bytes, rtt.map(|(_, rtt)| rtt));
            }
        });
        // Another path has already acknowledged the bytes of the path that was measured.
        if let Some((path, rtt)) = rtt {
            host.acked(path, 0, Some(rtt));
        }
    }

    /// Reports the bytes as lost.
    pub(crate) fn lost<H: Host>(self, congestion: bool, host: &mut H) {
        self.each(|path, bytes| host.lost(path, bytes, congestion));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}
