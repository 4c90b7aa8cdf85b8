//! Creates the media of a lane.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use polypath_topology::Table;

use super::udp::{Receiver, Sender};
use super::wrappers::Wrappers;
use super::{Halves, Receivers, Senders};

/// Creates the media of a lane whose slot has this socket: UDP and `more`.
///
/// # Errors
/// Those of [`Receiver::new`] and of its options, or no more descriptors.
pub(crate) fn start(
    slot: OwnedFd,
    wrappers: &Wrappers,
    lane: usize,
    now: Duration,
    table: &Table,
    more: impl IntoIterator<Item = Halves>,
) -> io::Result<(Senders, Receivers)> {
    let mut udp = Receiver::new(slot)?;
    if wrappers.is_empty() {
        let (mut senders, mut receivers) = (Senders::new(Sender::new()), Receivers::new(udp));
        for (tx, rx) in more {
            senders.add(tx);
            receivers.add(rx)?;
        }
        return Ok((senders, receivers));
    }
    // This must be set now, because a wrapped receiver can't be asked for it later.
    udp.tell_header_fields(true)?;
    let socket = udp.fd();
    let (mut senders, mut receivers) = (Senders::new(Sender::new()), Receivers::none());
    senders.wrapped();
    let udp: Halves = (Box::new(Sender::new()), Box::new(udp));
    for medium in more.into_iter().chain([udp]) {
        let (tx, rx) = wrappers.wrap(medium, lane, now, table);
        senders.add(tx);
        receivers.add(rx)?;
    }
    receivers.socket = Some(socket);
    Ok((senders, receivers))
}
