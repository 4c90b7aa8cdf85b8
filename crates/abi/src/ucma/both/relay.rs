//! The program's descriptor is one end of a socket pair. Into the other end, the *inlet*, goes every
//! event of the broker and of the kernel, the latter with the program's numbers for its ids. So the
//! descriptor polls and blocks as ever; and when the program closes it, in whatever way, the inlet
//! hangs up, and what is behind it is closed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::Device;
use crate::ucma::EVENT_MAX;

/// An open file.
pub(super) struct Relay {
    /// The broker's name for it.
    pub(super) number: u64,
    pub(super) device: Arc<dyn Device>,
    /// The broker's events. `None` once it is gone.
    pub(super) broker: Option<OwnedFd>,
    pub(super) inlet: OwnedFd,
    /// Events for which the program has to make room first.
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// Whether the kernel gives no events any more.
    pub(super) deaf: bool,
    /// Whether the thread waits for room only.
    pub(super) paused: bool,
}

/// What can be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Inlet,
    Kernel,
    Broker,
}

impl Relay {
    /// Sends an event, or keeps it until there is room. A program that is gone is noticed by the
    /// inlet.
    pub(super) fn push(&mut self, event: Vec<u8>) {
        self.waiting.push_back(event);
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while let Some(event) = self.waiting.front() {
            // SAFETY: the buffer is as long as told.
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

    /// The next event of the broker: `None` if there is none, no bytes if there will be none.
    pub(super) fn broker_event(&mut self) -> Option<Vec<u8>> {
        let mut event = [0_u8; EVENT_MAX];
        let fd = self.broker.as_ref()?.as_raw_fd();
        // SAFETY: the buffer has that many bytes.
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

    /// Whether the thread should wait for nothing but room.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether events of the kernel are wanted.
    pub(super) fn hears_kernel(&self) -> bool {
        !self.deaf
    }
}
