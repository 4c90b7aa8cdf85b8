//! Carries messages between the connection manager, its peers and applications.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use polypath_cm::{ClientId, FileId, OutgoingMad};

use super::{Broker, FILE, TURN, token};
use crate::drops::Drop;
use crate::files::{Delivery, File};
use crate::log::log;
use crate::qp1;
use crate::rendezvous::{Rendezvous, Stays};
use crate::sys::epoll::{Event, Interest};
use crate::sys::process::now;
use crate::sys::udp::Datagram;

impl Broker {
    pub(super) fn receive_mads(&mut self) {
        let mut buffer = [0; qp1::RECEIVE_LEN];
        for _ in 0..TURN {
            let datagram = match self.slots.own().receive(&mut buffer) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return,
                Err(error) => {
                    log!("receiving from QP1: {error}");
                    return;
                }
            };
            if self.manner.rendezvous
                && Rendezvous::is_for(&buffer[..datagram.len.min(buffer.len())])
            {
                self.pass_on(&datagram, &buffer);
                continue;
            }
            match qp1::parse(&datagram, &buffer) {
                Ok((mut from, mad)) => {
                    from.ifindex = self.host.came_by(from.local, from.ifindex);
                    self.counters.qp1_mads_received += 1;
                    if self.is_ping(&from, mad) {
                        continue;
                    }
                    self.mads.heard_by_udp(now(), from.remote);
                    self.cm.handle_mad(now(), from, mad, &mut self.host);
                }
                Err(Drop::NoSuchQp) if self.is_hello(&datagram, &buffer) => {}
                Err(reason) => reason.count(&mut self.counters),
            }
        }
    }

    /// Passes a packet on between two hosts that look for each other.
    fn pass_on(&mut self, datagram: &Datagram, buffer: &[u8]) {
        let (to, packet) = match self.rendezvous.take(now(), datagram, buffer) {
            Ok(passed) => passed,
            Err(Stays::Invalid) => return self.counters.rendezvous_invalid += 1,
            Err(Stays::Unknown) => return self.counters.rendezvous_unknown += 1,
        };
        self.counters.rendezvous_passed_on += 1;
        let through = self.host.forces(to.local, to.remote, to.ifindex);
        if let Err(error) = self.qp1.pass_on(to.local, to.remote, through, &packet)
            && error.to_string() != self.last_send_error
        {
            log!("passing on a packet to {}: {error}", to.remote);
            self.last_send_error = error.to_string();
        }
    }

    /// Passes the CM's messages to peers and applications until it has no more, because an event
    /// whose file is closed causes new MADs.
    pub(super) fn pump(&mut self) {
        loop {
            let mads = self.send_mads();
            let events = self.deliver_events();
            let orders = self.send_path_orders();
            if !mads && !events && !orders {
                return;
            }
        }
    }

    /// Sends MADs. Returns true if there were any.
    pub(super) fn send_mads(&mut self) -> bool {
        let mut any = false;
        while let Some(mad) = self.cm.poll_mad() {
            any = true;
            self.send_mad(&mad);
        }
        any
    }

    pub(super) fn send_mad_by_udp(&mut self, mad: &OutgoingMad) -> io::Result<()> {
        let through = self.host.forces(mad.local, mad.remote, mad.ifindex);
        let sent = self.qp1.send(mad, through);
        match &sent {
            Ok(()) => self.counters.qp1_mads_sent += 1,
            // The CM repeats messages that are not answered.
            Err(error) => {
                self.counters.qp1_mads_send_failed += 1;
                let (from, to) = (mad.local, mad.remote);
                let text = format!("sending a CM message from {from} to {to}: {error}");
                if text != self.last_send_error {
                    log!("{text}");
                    self.last_send_error = text;
                }
            }
        }
        sent
    }

    /// Delivers events. Returns true if there were any. One for which a file has no room stays with the
    /// connection manager, and so in what is written down.
    fn deliver_events(&mut self) -> bool {
        let mut any = false;
        for file in self.cm.files_with_events() {
            while self.files.get(file).is_none_or(File::has_room)
                && let Some(event) = self.cm.next_event_of(file)
            {
                match self.files.deliver(file, event) {
                    Delivery::Sent => drop(self.cm.poll_event_of(file)),
                    Delivery::Full => self.watch_file(file, Interest::Write),
                    Delivery::Gone => {
                        self.cm.poll_event_of(file);
                        self.close_file(file);
                    }
                }
                any = true;
            }
        }
        any
    }

    pub(super) fn handle_file(&mut self, id: u64, event: Event) {
        let Ok(number) = u32::try_from(id) else { return };
        let file = FileId(number);
        if event.hung_up {
            if !self.end_left(file) {
                self.close_file(file);
            }
        } else if event.writable {
            if let Some(open) = self.files.get_mut(file) {
                open.is_writable();
            }
            self.watch_file(file, Interest::HangUp);
        }
    }

    fn watch_file(&mut self, id: FileId, interest: Interest) {
        let Some(file) = self.files.get(id) else { return };
        if let Err(error) = self.epoll.change(file.as_fd(), token(FILE, id.0.into()), interest) {
            log!("watching a CM file: {error}");
            self.close_file(id);
        }
    }

    /// Opens a CM file for a connection.
    pub(super) fn open_file(&mut self, connection: u64) -> io::Result<(FileId, OwnedFd)> {
        let (id, theirs) = self.files.open(connection, self.pid_of(connection))?;
        self.begin_file(id, connection)?;
        Ok((id, theirs))
    }

    /// Watches a new file, and opens it for the connection manager. After an error it is closed.
    pub(super) fn begin_file(&mut self, id: FileId, connection: u64) -> io::Result<()> {
        if let Some(file) = self.files.get(id)
            && let Err(error) =
                self.epoll.add(file.as_fd(), token(FILE, id.0.into()), Interest::HangUp)
        {
            self.files.remove(id);
            return Err(error);
        }
        self.cm.open_file(id, ClientId(connection));
        Ok(())
    }

    /// Closes a CM file. Its connections are ended.
    pub(super) fn close_file(&mut self, id: FileId) {
        if self.files.remove(id).is_some() {
            self.cm.close_file(now(), id, &mut self.host);
        }
    }
}
