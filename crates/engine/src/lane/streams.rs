//! TCP streams come to a lane.

use std::os::fd::OwnedFd;

use polypath_paths::StreamEnds;

use crate::lane::Lane;
use crate::media::tcp::Stream;

/// A stream that a lane wants, and the packet that it is to begin with.
pub(crate) struct Wanted {
    pub(crate) ends: StreamEnds,
    pub(crate) opening: Vec<u8>,
}

impl Lane {
    /// The port of the TCP streams of the lane; `None` if it has none.
    pub(crate) fn tcp_port(&self) -> Option<u16> {
        self.tcp_port
    }

    /// The streams that are wanted since the last call.
    pub(crate) fn take_wanted_streams(&self) -> Vec<Wanted> {
        let wanted = self.streams.as_ref().map_or_else(Vec::new, |streams| streams.take_wanted());
        if wanted.is_empty() || self.has_failed() || self.is_closed() {
            return Vec::new();
        }
        self.enter(|state| {
            let now = state.core.now();
            let paths = state.core.paths_mut();
            let with_opening =
                |ends| Some(Wanted { ends, opening: paths.stream_opening(now, ends)? });
            wanted.into_iter().filter_map(with_opening).collect()
        })
    }

    /// Uses a TCP stream to another lane from now on. `opening`: the packet that it began with, if the other
    /// lane opened it.
    ///
    /// # Errors
    /// The lane uses none, or no more, or the opening is refused, which is counted.
    pub(crate) fn add_stream(
        &self,
        ends: StreamEnds,
        opening: Option<&[u8]>,
        socket: OwnedFd,
    ) -> std::io::Result<()> {
        let error = std::io::Error::from_raw_os_error;
        let streams = self.streams.as_ref().ok_or_else(|| error(libc::EOPNOTSUPP))?;
        if self.has_failed() || self.is_closed() {
            return Err(error(libc::ESHUTDOWN));
        }
        let stream = Stream::new(ends, socket)?;
        let added = self.enter(|state| {
            let now = state.core.now();
            let paths = state.core.paths_mut();
            match opening {
                Some(opening) if !paths.accept_stream(now, ends, opening) => {
                    return Err(error(libc::EACCES));
                }
                // The other lane was faster.
                None if streams.has(ends) => return Err(error(libc::EEXIST)),
                _ => {}
            }
            // It may take the place of another one, whose end is not the end of this one.
            streams.add(stream)?;
            self.renew_wait(state).inspect_err(|_| streams.give_up(ends))?;
            let paths = state.core.paths_mut();
            paths.set_stream(now, ends, false);
            paths.set_stream(now, ends, true);
            Ok(())
        });
        self.sleeper.wake();
        added
    }
}
