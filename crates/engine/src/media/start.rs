//! The media that a lane begins with.

use std::io;
use std::os::fd::OwnedFd;

use super::udp::{Receiver, Sender};
use super::{Receivers, Senders};

/// Media of a lane whose slot has this socket. A medium of another kind is added here.
///
/// # Errors
/// Those of [`Receiver::new`].
pub(crate) fn start(slot: OwnedFd) -> io::Result<(Senders, Receivers)> {
    Ok((Senders::new(Sender::new()), Receivers::new(Receiver::new(slot)?)))
}
