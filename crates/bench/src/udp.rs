//! The raw UDP ping-pong: 64 bytes there and back, both ends polling, no other work.
//!
//! This is what a latency of ours is compared with: the same sockets, without any protocol.

use polypath_e2e::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Bytes of a datagram, as `ib_send_lat -s 64` sends.
const SIZE: usize = 64;
/// Round trips measured.
const ROUNDS: usize = 20_000;
/// Round trips before measuring.
const WARM_UP: usize = 1_000;
/// A lost datagram ends the measurement: there is nobody who would send it again.
const PATIENCE: Duration = Duration::from_secs(2);

fn os(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Os { what: what.to_owned(), source }
}

/// Answers every datagram until it hears nothing for a while.
pub(crate) fn serve(port: &str) -> Result<(), Error> {
    let socket = UdpSocket::bind(format!("0.0.0.0:{port}")).map_err(os("binding"))?;
    println!("ready");
    let mut buffer = [0; SIZE];
    let (count, peer) = socket.recv_from(&mut buffer).map_err(os("receiving"))?;
    socket.connect(peer).map_err(os("connecting"))?;
    socket.set_nonblocking(true).map_err(os("setting non-blocking"))?;
    socket.send(&buffer[..count]).map_err(os("sending"))?;
    while let Some(count) = poll(&socket, &mut buffer)? {
        socket.send(&buffer[..count]).map_err(os("sending"))?;
    }
    Ok(())
}

/// Sends, waits for the answer, and prints the median of half the round trip in microseconds.
pub(crate) fn act(address: &str, port: &str) -> Result<(), Error> {
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(os("binding"))?;
    socket.connect(format!("{address}:{port}")).map_err(os("connecting"))?;
    socket.set_nonblocking(true).map_err(os("setting non-blocking"))?;
    let mut buffer = [0; SIZE];
    let mut half_us = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        socket.send(&buffer).map_err(os("sending"))?;
        if poll(&socket, &mut buffer)?.is_none() {
            return Err(Error::Missing("a datagram was lost".to_owned()));
        }
        if round >= WARM_UP {
            half_us.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    println!("{}", crate::report::median(&half_us));
    Ok(())
}

fn poll(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
    let start = Instant::now();
    loop {
        match socket.recv(buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The other end has finished.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(os("receiving")(error)),
        }
        if start.elapsed() > PATIENCE {
            return Ok(None);
        }
    }
}
