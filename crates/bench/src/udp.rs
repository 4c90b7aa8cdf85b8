//! The raw UDP ping-pong: 64 bytes in each direction, both ends polling, without any other work.
//!
//! Our latency is compared with it: the same sockets without any protocol. Like those of a lane, the
//! sockets are not connected: one socket is used for all peers. Connected sockets, which save the
//! kernel the route look-up, are measured for information.

use polypath_e2e::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// The size of a datagram in bytes, as `ib_send_lat -s 64` sends.
const SIZE: usize = 64;
/// The number of round trips that are measured.
const ROUNDS: usize = 20_000;
/// The number of round trips before the measurement.
const WARM_UP: usize = 1_000;
/// The time without a datagram after which the measurement ends. A lost datagram ends it, because
/// nothing sends it again.
const PATIENCE: Duration = Duration::from_secs(2);

fn os(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Os { what: what.to_owned(), source }
}

/// Whether sockets are connected to their peer, or name it with every datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `sendto()` and `recvfrom()`.
    Unconnected,
    /// `connect()`, `send()` and `recv()`.
    Connected,
}

impl Style {
    /// The word of the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unconnected => "unconnected",
            Self::Connected => "connected",
        }
    }

    /// The style that a word of the command line names.
    pub(crate) fn of(word: &str) -> Self {
        if word == Self::Connected.word() { Self::Connected } else { Self::Unconnected }
    }
}

/// Answers every datagram until none comes for a while.
pub(crate) fn serve(port: &str, style: Style) -> Result<(), Error> {
    let socket = UdpSocket::bind(format!("0.0.0.0:{port}")).map_err(os("binding"))?;
    polypath_e2e::say!("ready");
    let mut buffer = [0; SIZE];
    let (count, peer) = socket.recv_from(&mut buffer).map_err(os("receiving"))?;
    let link = Link::new(socket, peer, style)?;
    link.send(&buffer[..count])?;
    while let Some(count) = link.poll(&mut buffer)? {
        link.send(&buffer[..count])?;
    }
    Ok(())
}

/// Measures: sends, waits for the answer, and prints the median of half the round trip in microseconds.
pub(crate) fn act(address: &str, port: &str, style: Style) -> Result<(), Error> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(os("binding"))?;
    let peer = format!("{address}:{port}");
    let peer = peer.parse().map_err(|_| Error::Missing(format!("no address: {peer}")))?;
    let link = Link::new(socket, peer, style)?;
    let mut buffer = [0; SIZE];
    let mut half_us = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        link.send(&buffer)?;
        if link.poll(&mut buffer)?.is_none() {
            return Err(Error::Missing("a datagram was lost".to_owned()));
        }
        if round >= WARM_UP {
            half_us.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    polypath_e2e::say!("{}", crate::report::median(&half_us));
    Ok(())
}

/// One end of the ping-pong.
struct Link {
    socket: UdpSocket,
    peer: SocketAddr,
    style: Style,
}

impl Link {
    fn new(socket: UdpSocket, peer: SocketAddr, style: Style) -> Result<Self, Error> {
        if style == Style::Connected {
            socket.connect(peer).map_err(os("connecting"))?;
        }
        socket.set_nonblocking(true).map_err(os("setting non-blocking"))?;
        Ok(Self { socket, peer, style })
    }

    fn send(&self, data: &[u8]) -> Result<(), Error> {
        let sent = match self.style {
            Style::Unconnected => self.socket.send_to(data, self.peer),
            Style::Connected => self.socket.send(data),
        };
        sent.map(drop).map_err(os("sending"))
    }

    /// Polls until a datagram comes. Returns `None` if the other end has finished, or nothing came
    /// within [`PATIENCE`].
    fn poll(&self, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        let start = Instant::now();
        loop {
            let received = match self.style {
                Style::Unconnected => self.socket.recv_from(buffer).map(|(count, _)| count),
                Style::Connected => self.socket.recv(buffer),
            };
            match received {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
                Err(error) => return Err(os("receiving")(error)),
            }
            if start.elapsed() > PATIENCE {
                return Ok(None);
            }
        }
    }
}
