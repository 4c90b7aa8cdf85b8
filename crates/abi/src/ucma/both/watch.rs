//! The descriptors that the thread waits for, in an epoll instance.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libc::c_int;

use super::relay::Source;
use crate::guard;

/// The thread's epoll instance.
pub(super) struct Watch(pub(super) Arc<OwnedFd>);

/// The value that the kernel returns with a ready descriptor.
pub(super) fn token(file: u64, source: Source) -> u64 {
    let source = match source {
        Source::Inlet => 0,
        Source::Kernel => 1,
        Source::Broker => 2,
    };
    file << 2 | source
}

pub(super) fn of_token(token: u64) -> (u64, Source) {
    let source = match token & 3 {
        0 => Source::Inlet,
        1 => Source::Kernel,
        _ => Source::Broker,
    };
    (token >> 2, source)
}

impl Watch {
    /// Performs `EPOLL_CTL_ADD`, `EPOLL_CTL_MOD` or `EPOLL_CTL_DEL` on a descriptor.
    pub(super) fn control(
        &self,
        what: c_int,
        fd: c_int,
        token: u64,
        events: c_int,
    ) -> Result<(), c_int> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
        // SAFETY: the event is plain data, which the call reads.
        let done = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &raw mut event) };
        if done < 0 { Err(guard::errno()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_file_and_source() {
        for source in [Source::Inlet, Source::Kernel, Source::Broker] {
            assert_eq!(of_token(token(7, source)), (7, source));
        }
    }
}
