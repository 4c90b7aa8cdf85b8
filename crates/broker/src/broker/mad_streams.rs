//! Streams between brokers, by which messages of the connection manager go where UDP brings no answer.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use polypath_cm::{MadAddress, OutgoingMad};
use polypath_telemetry::Event;

use super::{Broker, STREAM, TURN, token};
use crate::host::is_unicast;
use crate::log::log;
use crate::mad_streams::{
    ACCEPTED_MAX, ACCEPTED_OF_ONE_MAX, BROKER, IDLE_ACCEPTED, IDLE_OPENED, Inbox, Known,
    OPENED_MAX, Outbox, goes_by_tcp, is_dreq, mad_in,
};
use crate::qp1;
use crate::streams::{Called, PATIENCE, preamble};
use crate::sys::epoll::Interest;
use crate::sys::process::now;
use crate::sys::tcp;
use crate::ways::Ways;

/// How long the kernel tries to deliver before it ends a connection, in milliseconds: a new one is made when
/// a message is sent again.
const USER_TIMEOUT_MS: u32 = 5000;

/// The streams, by their numbers among all TCP connections of the broker, and what is known of the hosts.
#[derive(Debug, Default)]
pub(super) struct MadStreams {
    open: BTreeMap<u64, MadStream>,
    ways: Ways,
}

/// A stream to another broker.
#[derive(Debug)]
struct MadStream {
    socket: OwnedFd,
    local: IpAddr,
    remote: IpAddr,
    port: u16,
    /// Whether this host has opened it.
    opened: bool,
    connected: bool,
    inbox: Inbox,
    outbox: Outbox,
    known: Known,
    /// When it is given up, if nothing comes or goes.
    until: Duration,
    interest: Interest,
}

impl MadStream {
    /// A stream that this host opens, with what it sends before all messages, or one that it has accepted.
    fn new(
        socket: OwnedFd,
        (local, remote): (IpAddr, IpAddr),
        port: u16,
        first: Option<Vec<u8>>,
    ) -> Self {
        let opened = first.is_some();
        let (patience, interest) = match opened {
            true => (PATIENCE, Interest::Write),
            false => (IDLE_ACCEPTED, Interest::Read),
        };
        Self {
            socket,
            local,
            remote,
            port,
            opened,
            connected: !opened,
            inbox: Inbox::new(),
            outbox: Outbox::new(first.unwrap_or_default()),
            known: Known::default(),
            until: now() + patience,
            interest,
        }
    }

    fn used(&mut self, now: Duration) {
        if self.connected {
            self.until = now + if self.opened { IDLE_OPENED } else { IDLE_ACCEPTED };
        }
    }
}

/// By what a message goes, beside UDP.
#[derive(Debug, Default)]
struct Tcp {
    /// A stream that there is, and whether it is connected.
    stream: Option<(u64, bool)>,
    /// The port to call, if there is none.
    port: Option<u16>,
}

impl MadStreams {
    /// When the next one is given up.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|stream| stream.until).min()
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    pub(super) fn heard_by_udp(&mut self, now: Duration, remote: IpAddr) {
        self.ways.heard_by_udp(now, remote);
    }

    /// Makes room for one more stream that a host has opened.
    fn make_room(&mut self, remote: IpAddr) {
        let accepted = |stream: &&MadStream| !stream.opened;
        let theirs = |stream: &&MadStream| accepted(stream) && stream.remote == remote;
        let crowded = self.open.values().filter(theirs).count() >= ACCEPTED_OF_ONE_MAX;
        if crowded || self.open.values().filter(accepted).count() >= ACCEPTED_MAX {
            let from = |stream: &MadStream| !stream.opened && (!crowded || stream.remote == remote);
            let mut from: Vec<_> = self.open.iter().filter(|(_, stream)| from(stream)).collect();
            from.sort_by_key(|(_, stream)| stream.until);
            let longest = from.first().map(|(number, _)| **number);
            longest.map(|number| self.open.remove(&number));
        }
    }
}

impl Broker {
    /// Notes the port by which a connection's messages may go by TCP, and listens there.
    pub(super) fn allow_mads_by_tcp(&mut self, id: u64, port: Option<u16>) {
        if let Some(port) = port
            && let Err(refusal) = self.listen_by_tcp(port)
        {
            // Other hosts may still be called.
            log!("messages of connection managers can't come by TCP: {}", refusal.text);
        }
        self.streams.callable.set_port(id, port);
    }

    /// Sends a message by UDP, by TCP or by both.
    pub(super) fn send_mad(&mut self, mad: &OutgoingMad) {
        let Tcp { stream, port } = self.tcp_for(mad);
        let connected = stream.is_some_and(|(_, connected)| connected);
        let mut prohibited = false;
        if !connected || self.mads.ways.wants_udp(mad.remote, mad.attempt) {
            prohibited = self.send_mad_by_udp(mad).is_err_and(|error| {
                // A firewall of this host's. Nothing else says at once that UDP is of no use.
                error.kind() == io::ErrorKind::PermissionDenied
            });
        }
        if let Some((number, _)) = stream {
            self.send_mad_by_stream(number, mad);
        } else if let Some(port) = port
            && self.mads.ways.wants_tcp(now(), mad.remote, mad.attempt, prohibited)
            && let Err(error) = self.open_mad_stream(mad, port)
        {
            self.counters.streams_failed += 1;
            self.mads.ways.failed(now(), mad.remote);
            log!("connecting to {}, TCP port {port}: {error}", mad.remote);
        }
    }

    fn tcp_for(&self, mad: &OutgoingMad) -> Tcp {
        let (local, remote) = (mad.local, mad.remote);
        let nobody = self.mads.open.is_empty() && !self.streams.callable.has_any_port();
        if nobody || self.host.has_address(remote) || self.host.is_tcp_down() {
            return Tcp::default();
        }
        let client = mad.client.filter(|client| self.connections.contains_key(&client.0));
        let port = match client {
            Some(client) => {
                let port = self.streams.callable.port_of(client.0);
                match port.filter(|_| self.host.is_multipath(client, local)) {
                    None => return Tcp::default(),
                    port => port,
                }
            }
            // Connections of a program that is gone are ended there, too.
            None => self.mads.ways.port(remote).filter(|_| is_dreq(&mad.mad)),
        };
        if !goes_by_tcp(&mad.mad) {
            return Tcp::default();
        }
        let suits = |stream: &MadStream| {
            (stream.local, stream.remote) == (local, remote)
                && (stream.opened || stream.known.has(&mad.mad))
        };
        let suiting = self.mads.open.iter().filter(|(_, stream)| suits(stream));
        let best = suiting.max_by_key(|(number, stream)| (stream.opened, **number));
        Tcp { stream: best.map(|(number, stream)| (*number, stream.connected)), port }
    }

    /// Opens a stream whose first message this is.
    fn open_mad_stream(&mut self, mad: &OutgoingMad, port: u16) -> io::Result<()> {
        let OutgoingMad { local, remote, .. } = *mad;
        if self.mads.open.values().filter(|stream| stream.opened).count() >= OPENED_MAX {
            return Err(io::Error::other(format!("there are {OPENED_MAX} such streams already")));
        }
        let opening = qp1::build_body(self.qp1.next_psn(), &mad.mad);
        let first = preamble(BROKER, BROKER, &opening).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = tcp::connect(local, remote, port, self.host.ifindex_of(local))?;
        tcp::for_messages(&socket, USER_TIMEOUT_MS)?;
        let number = self.streams.next_number();
        self.epoll.add(socket.as_fd(), token(STREAM, number), Interest::Write)?;
        let stream = MadStream::new(socket, (local, remote), port, Some(first));
        self.mads.open.insert(number, stream);
        self.counters.mad_streams_sent += 1;
        Ok(())
    }

    /// Takes a stream that another host's broker has opened. Returns false if it is none.
    pub(super) fn take_mad_stream(
        &mut self,
        number: u64,
        socket: OwnedFd,
        port: u16,
        called: &Called,
    ) -> bool {
        let Ok(mad) = mad_in(&called.opening) else { return false };
        let wanted = called.by == BROKER && self.streams.callable.has_broker(port);
        let Ok((local, remote)) = tcp::ends(&socket) else { return false };
        let possible = is_unicast(remote) && !self.host.has_address(remote);
        if !wanted || !possible || self.host.is_tcp_down() {
            return false;
        }
        if tcp::for_messages(&socket, USER_TIMEOUT_MS).is_err() {
            return false;
        }
        self.mads.make_room(remote);
        let stream = MadStream::new(socket, (local, remote), port, None);
        self.mads.open.insert(number, stream);
        self.counters.mad_streams_accepted += 1;
        self.mad_by_stream(number, &mad);
        true
    }

    fn send_mad_by_stream(&mut self, number: u64, mad: &OutgoingMad) {
        let Some(stream) = self.mads.open.get_mut(&number) else { return };
        let body = qp1::build_body(self.qp1.next_psn(), &mad.mad);
        if !stream.outbox.push(&body) {
            // As a network may lose it.
            self.counters.mad_streams_full += 1;
            return;
        }
        self.counters.mad_streams_sent += 1;
        stream.used(now());
        self.flush_mad_stream(number);
    }

    /// Sends what waits, as far as there is room, and waits for what is to be waited for.
    fn flush_mad_stream(&mut self, number: u64) {
        let Some(stream) = self.mads.open.get_mut(&number).filter(|stream| stream.connected) else {
            return;
        };
        while !stream.outbox.is_empty() {
            match tcp::send(&stream.socket, stream.outbox.next()) {
                Ok(0) => break,
                Ok(len) => stream.outbox.sent(len),
                Err(_) => return self.end_mad_stream(number),
            }
        }
        let interest = if stream.outbox.is_empty() { Interest::Read } else { Interest::Both };
        if stream.interest != interest {
            stream.interest = interest;
            let fd = stream.socket.as_fd();
            if self.epoll.change(fd, token(STREAM, number), interest).is_err() {
                self.end_mad_stream(number);
            }
        }
    }

    /// Something happened to a stream.
    pub(super) fn mad_stream_event(&mut self, number: u64) {
        let Some(stream) = self.mads.open.get_mut(&number) else { return };
        if !stream.connected {
            if tcp::connected(&stream.socket).is_err() {
                return self.end_mad_stream(number);
            }
            stream.connected = true;
            stream.used(now());
            self.counters.mad_streams_opened += 1;
        }
        self.flush_mad_stream(number);
        for _ in 0..TURN {
            let Some(stream) = self.mads.open.get_mut(&number) else { return };
            match tcp::receive(&stream.socket, stream.inbox.room()) {
                Ok(None) => return,
                Ok(Some(0)) | Err(_) => return self.end_mad_stream(number),
                Ok(Some(len)) => stream.inbox.arrived(len),
            }
            match stream.inbox.take() {
                Ok(None) => {}
                Ok(Some(mad)) => self.mad_by_stream(number, &mad),
                Err(_) => {
                    self.counters.mad_streams_broken += 1;
                    return self.end_mad_stream(number);
                }
            }
        }
    }

    /// A message came by a stream. It is from whom the stream is from, whatever it says.
    fn mad_by_stream(&mut self, number: u64, mad: &[u8; polypath_wire::mad::MAD_LEN]) {
        let Some(stream) = self.mads.open.get_mut(&number) else { return };
        let now = now();
        stream.used(now);
        stream.known.add(mad);
        let MadStream { local, remote, port, .. } = *stream;
        self.counters.mad_streams_received += 1;
        if self.mads.ways.heard_by_tcp(now, remote, port) {
            self.happened(Event::ConnectsByTcp { local, peer: remote });
        }
        let ifindex = self.host.ifindex_of(local);
        let from = MadAddress { local, remote, ifindex, source_qpn: qp1::QP1 };
        self.cm.handle_mad(now, from, mad, &mut self.host);
    }

    fn end_mad_stream(&mut self, number: u64) {
        let Some(stream) = self.mads.open.remove(&number) else { return };
        if !stream.connected {
            self.counters.streams_failed += 1;
            self.mads.ways.failed(now(), stream.remote);
        }
    }

    /// Ends streams that were silent for too long, and connections that take too long.
    pub(super) fn tend_mad_streams(&mut self, now: Duration) {
        let late = |(number, stream): (&u64, &MadStream)| (stream.until <= now).then_some(*number);
        let late: Vec<u64> = self.mads.open.iter().filter_map(late).collect();
        late.into_iter().for_each(|number| self.end_mad_stream(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn stream(remote: IpAddr, opened: bool, until: u64) -> MadStream {
        MadStream {
            socket: std::fs::File::open("/dev/null").unwrap().into(),
            local: address(1),
            remote,
            port: 4791,
            opened,
            connected: true,
            inbox: Inbox::new(),
            outbox: Outbox::new(Vec::new()),
            known: Known::default(),
            until: Duration::from_secs(until),
            interest: Interest::Read,
        }
    }

    #[test]
    fn one_host_has_a_few_streams_and_takes_nobody_elses() {
        let mut mads = MadStreams::default();
        mads.open.insert(1, stream(address(2), true, 0));
        mads.open.insert(2, stream(address(3), false, 0));
        for number in 10..30 {
            mads.make_room(address(2));
            mads.open.insert(number, stream(address(2), false, number));
        }
        let left: Vec<u64> = mads.open.keys().copied().collect();
        assert_eq!(left, [1, 2, 26, 27, 28, 29]);
    }

    #[test]
    fn all_hosts_together_have_so_many_and_the_most_silent_makes_room() {
        let mut mads = MadStreams::default();
        mads.open.insert(1, stream(address(2), true, 0));
        for number in 100..200_u64 {
            let remote = address(u8::try_from(number).unwrap());
            mads.make_room(remote);
            mads.open.insert(number, stream(remote, false, 1000 - number));
        }
        assert_eq!(mads.open.len(), 1 + ACCEPTED_MAX);
        // The one that ends first is the one that came last before it.
        let left: Vec<u64> = mads.open.keys().copied().collect();
        assert_eq!((left[0], left[1], left[ACCEPTED_MAX]), (1, 100, 199));
    }
}
