//! The relay behind a file. The program's descriptor is one end of a socket pair. Every event of
//! the broker and of the kernel goes into the other end, the *inlet*; the kernel's events get the
//! program's numbers. So the descriptor polls and blocks as usual. When the program closes it, in
//! whatever way, the inlet hangs up, and everything behind it is closed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::Device;
use crate::ucma::EVENT_MAX;

/// An open file.
pub(super) struct Relay {
    /// The broker's number of it.
    pub(super) number: u64,
    pub(super) device: Arc<dyn Device>,
    /// The broker's socket for events; `None` once it is gone.
    pub(super) broker: Option<OwnedFd>,
    pub(super) inlet: OwnedFd,
    /// Events that wait until the program makes room.
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// Whether the kernel delivers no more events.
    pub(super) deaf: bool,
    /// Whether the thread waits only for room.
    pub(super) paused: bool,
}

/// A source that can be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Inlet,
    Kernel,
    Broker,
}

impl Relay {
    /// Sends an event, or keeps it until there is room. If the program is gone, the inlet shows it.
    pub(super) fn push(&mut self, event: Vec<u8>) {
        self.waiting.push_back(event);
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while let Some(event) = self.waiting.front() {
            // SAFETY: the buffer has the stated length.
            let sent = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let fd = self.inlet.as_raw_fd();
                libc::syscall(
                    libc::SYS_sendto,
                    fd,
                    event.as_ptr(),
                    event.len(),
                    flags,
                    core::ptr::null::<libc::sockaddr>(),
                    0,
                )
            };
            if sent < 0 {
                match io::Error::last_os_error().kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => return,
                    _ => {}
                }
            }
            self.waiting.pop_front();
        }
    }

    /// The next event of the broker: `None` if there is none now, and no bytes if there will be no
    /// more.
    pub(super) fn broker_event(&mut self) -> Option<Vec<u8>> {
        let mut event = [0_u8; EVENT_MAX];
        let fd = self.broker.as_ref()?.as_raw_fd();
        // SAFETY: the buffer has the stated length.
        let got = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                fd,
                event.as_mut_ptr(),
                EVENT_MAX,
                libc::MSG_DONTWAIT,
                core::ptr::null_mut::<libc::sockaddr>(),
                core::ptr::null_mut::<libc::socklen_t>(),
            )
        };
        if got < 0 {
            let kind = io::Error::last_os_error().kind();
            let later = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
            return if later.contains(&kind) { None } else { Some(Vec::new()) };
        }
        Some(event[..usize::try_from(got).unwrap_or(0)].to_vec())
    }

    /// Whether the thread should wait only for room.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether events of the kernel are expected.
    pub(super) fn hears_kernel(&self) -> bool {
        !self.deaf
    }
}
