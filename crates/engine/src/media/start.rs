//! Creates the media of a lane.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use polypath_topology::Table;

use super::udp::{Receiver, Sender};
use super::wrappers::Wrappers;
use super::{Receivers, Senders};

/// Creates the media of a lane whose slot has this socket. Add a medium of another kind here.
///
/// # Errors
/// Those of [`Receiver::new`] and of its options, or no more descriptors.
pub(crate) fn start(
    slot: OwnedFd,
    wrappers: &Wrappers,
    lane: usize,
    now: Duration,
    table: &Table,
) -> io::Result<(Senders, Receivers)> {
    let mut udp = Receiver::new(slot)?;
    if wrappers.is_empty() {
        return Ok((Senders::new(Sender::new()), Receivers::new(udp)));
    }
    // This must be set now, because a wrapped receiver can't be asked for it later.
    udp.tell_header_fields(true)?;
    let socket = udp.fd();
    let (tx, rx) = wrappers.wrap((Box::new(Sender::new()), Box::new(udp)), lane, now, table);
    let (mut senders, mut receivers) = (Senders::new(Sender::new()), Receivers::none());
    senders.add(tx);
    receivers.add(rx)?;
    receivers.socket = Some(socket);
    Ok((senders, receivers))
}
