//! The ends of connections, which one thread may bring about while another one waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};

use super::{Client, io_error};
use crate::error::IpcError;
use crate::socket;

impl Client {
    /// A handle by which another thread waits for the end of this connection.
    ///
    /// # Errors
    /// [`IpcError::Io`] if the process has no descriptors left.
    pub fn hang_up(&self) -> Result<HangUp, IpcError> {
        HangUp::of(self.socket.as_fd())
    }

    /// Whether the connection is at its end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        socket::wait_for(self.socket.as_fd(), PollFlags::RDHUP, Some(Duration::ZERO)).is_ok()
    }

    /// Ends the connection, although handles of it may be open.
    pub fn end(&self) {
        // It fails only if the broker has already hung up.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A handle of a connection for another thread. While it is open, the connection is not at its end because
/// its owner is dropped.
#[derive(Debug)]
pub struct HangUp(OwnedFd);

impl HangUp {
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<Self, IpcError> {
        let copied = socket.try_clone_to_owned();
        copied.map(Self).map_err(|e| io_error("preparing the end of a connection", e))
    }

    /// Ends the connection for good.
    pub fn hang_up(&self) {
        // It fails only if the broker has already hung up.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    /// Waits until the connection is at its end.
    pub fn wait(&self) {
        // Without a limit, this fails only for want of memory. Then the next call finds the end.
        let _ = socket::wait_for(self.0.as_fd(), PollFlags::RDHUP, None);
    }
}
