//! The streams of a lane.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polypath_paths::StreamEnds;

use super::stream::Stream;
use crate::media::connections::{Connection, Connections};

/// The streams of a lane.
pub(crate) type Streams = Connections<Stream>;

impl Connection for Stream {
    type Ends = StreamEnds;
    const MAX: usize = 64;

    fn ends(&self) -> StreamEnds {
        self.ends
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket()
    }

    fn end(&self, why: &str) {
        self.end(why);
    }
}

impl Streams {
    /// Whether there is a stream between these ends.
    pub(crate) fn has(&self, ends: StreamEnds) -> bool {
        self.all().iter().any(|stream| stream.ends == ends && stream.works())
    }

    /// Makes the lines of one half those of the streams that there are. New ones are made by `new`.
    pub(super) fn follow<L>(
        &self,
        lines: &mut Vec<L>,
        stream_of: impl Fn(&L) -> &Arc<Stream>,
        new: impl Fn(Arc<Stream>) -> L,
    ) {
        let all = self.all();
        lines.retain(|line| all.iter().any(|stream| Arc::ptr_eq(stream, stream_of(line))));
        for stream in all.iter() {
            if lines.iter().all(|line| !Arc::ptr_eq(stream_of(line), stream)) {
                lines.push(new(stream.clone()));
            }
        }
    }
}
