//! Pings (`polypath ping`) on sockets.

use std::io;
use std::net::{self, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use polypath_ipc::message::{Ping, PingAnswer, Reply};
use polypath_wire::ROCE_PORT;
use polypath_wire::mad::MAD_LEN;

use super::{Broker, PING, token};
use crate::pings;
use crate::qp1::{self, PADDED_MAX};
use crate::random;
use crate::sys::epoll::Interest;
use crate::sys::process::now;
use crate::sys::udp::UdpSocket;

/// The longest time that a client may wait for an answer.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// The sockets of one ping.
#[derive(Debug)]
pub(crate) struct PingSocket {
    /// It keeps the port, and sends the ping.
    _own: UdpSocket,
    /// The same port, connected, because only a connected socket reports ICMP errors.
    errors: net::UdpSocket,
}

impl Broker {
    /// Sends a ping. The answer follows later, or is returned now if the ping can't be sent.
    pub(super) fn ping(&mut self, id: u64, ping: &Ping) -> Option<PingAnswer> {
        // A token of the epoll set has room for 56 bits.
        let number = (u64::from(random()) << 32 | u64::from(random())) >> 8;
        match self.send_ping(number, ping) {
            Ok(socket) => {
                let patience = Duration::from_millis(ping.timeout_ms.into()).min(PATIENCE_MAX);
                self.pings.begin(now(), id, number, patience, socket);
                None
            }
            Err(error) => Some(answer_of(&error)),
        }
    }

    fn send_ping(&mut self, number: u64, ping: &Ping) -> io::Result<PingSocket> {
        let own = UdpSocket::new()?;
        own.never_fragment()?;
        own.bind_to(SocketAddr::new(ping.local, 0), ping.ifindex)?;
        let errors = net::UdpSocket::from(own.as_fd().try_clone_to_owned()?);
        let to = SocketAddr::new(ping.remote, ROCE_PORT);
        // This is only for the report of errors. The interface may reach the host even if the
        // kernel's routes do not.
        let _ = errors.connect(qp1::mapped(to));
        let port = errors.local_addr()?.port();
        let padding = usize::from(ping.payload).min(PADDED_MAX).saturating_sub(MAD_LEN);
        let mad = pings::question(number);
        let packet = qp1::build_padded(ping.local, ping.remote, port, &mad, padding);
        let through = self.host.forces(ping.local, ping.remote, ping.ifindex);
        own.send(&packet, to, ping.local, through, 0)?;
        self.epoll.add(errors.as_fd(), token(PING, number), Interest::HangUp)?;
        Ok(PingSocket { _own: own, errors })
    }

    /// Handles an event of a ping's socket.
    pub(super) fn ping_error(&mut self, number: u64) {
        let Some(socket) = self.pings.socket(number) else { return };
        if let Ok(Some(error)) = socket.errors.take_error() {
            let told = self.pings.failed(number, answer_of(&error));
            self.tell_ping(told);
        }
    }

    /// Handles a MAD that is a ping or the answer to one. Returns false if it is neither.
    pub(super) fn is_ping(&mut self, from: &polypath_cm::MadAddress, mad: &[u8]) -> bool {
        if let Some(answer) = pings::answer(mad) {
            let (local, remote) = (from.local, from.remote);
            let through = self.host.forces(local, remote, from.ifindex);
            if self.qp1.answer(local, remote, through, &answer).is_err() {
                self.counters.qp1_mads_send_failed += 1;
            }
            return true;
        }
        let told = self.pings.answered(now(), mad);
        let is_answer = told.is_some();
        self.tell_ping(told);
        is_answer
    }

    /// Answers the clients whose time is over.
    pub(super) fn finish_pings(&mut self, now: Duration) {
        for number in self.pings.overdue(now) {
            let told = self.pings.failed(number, PingAnswer::Silent);
            self.tell_ping(told);
        }
    }

    fn tell_ping(&mut self, told: Option<(u64, PingAnswer)>) {
        if let Some((asker, answer)) = told {
            self.answer(asker, &Reply::Ping(answer), None);
        }
    }
}

fn answer_of(error: &io::Error) -> PingAnswer {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => PingAnswer::Refused,
        Some(libc::EMSGSIZE) => PingAnswer::TooLong,
        errno => PingAnswer::Unreachable { errno: errno.unwrap_or(libc::EIO) },
    }
}
