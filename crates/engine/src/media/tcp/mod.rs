//! TCP streams between two lanes, for networks in which UDP or its port does not pass.
//!
//! The broker connects to the other host's broker, or takes the connection of that one, and gives the socket
//! to the lane's process. From then on the two lanes exchange [`frames`]: packets as they are on the wire,
//! without ICRC, each after its length. The addresses of a path are those of the socket.
//!
//! What comes from a stream is not believed more than a datagram. A length that is impossible ends the
//! stream, because what follows can't be found any more, and its path with it. A stream that does not drain
//! becomes full and loses packets like any path: whole ones, because what was begun is finished first.
//!
//! A payload is copied by the kernel only on its way out ([`run`]), and once in this process on its way in.

mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod run;
mod rx;
mod stream;
mod streams;
mod tx;

pub(crate) use rx::TcpRx;
pub(crate) use stream::Stream;
pub(crate) use streams::Streams;
pub(crate) use tx::TcpTx;

use std::sync::Arc;

use super::Halves;

/// The largest packet, in bytes: a path MTU of 4096 and all headers fit.
pub(super) const PACKET_BYTES: usize = 4352;

/// How much a peer may have in flight on such a path at most, as the transport counts packets. Requests and
/// the answers to the peer's READs share the buffer of a stream, and the rest of it is for acknowledgements
/// and control packets.
pub(crate) const WINDOW: u32 = 4 << 20;

/// The most bytes that wait in this process until the kernel takes them.
const WAITING_MAX: usize = (8 << 20) + (256 << 10);
/// All streams of a lane may have so many at the same time.
const WAITING_SURE: usize = (2 << 20) + (256 << 10);
/// One may have more only while all of them together have less than this.
const WAITING_ALL_MAX: usize = 64 * WAITING_SURE;

const _: () = assert!(2 * WINDOW as usize + (64 << 10) < WAITING_MAX);

/// Creates the medium of a lane. Streams come and go through the [`Streams`].
pub(crate) fn halves() -> (Halves, Arc<Streams>) {
    let streams = Arc::new(Streams::new());
    let tx = Box::new(TcpTx::new(streams.clone()));
    ((tx, Box::new(TcpRx::new(streams.clone()))), streams)
}

#[cfg(test)]
mod tests;
