//! Shared memory between two lanes of one host.
//!
//! The broker makes a *channel* for two lanes: memory that both map ([`memory`]), and a pair of sockets, the
//! *bells*. The memory has one [`ring`] for each direction. A lane writes packets into its ring and reads the
//! other one whenever it is driven, without a system call. Before a lane's thread sleeps, it says so in the
//! memory ([`Exchange::arm`]); only then does the other lane ring the bell. A bell also tells the end of the
//! other process, because the kernel closes its socket.
//!
//! The other process is of the same user, but not trusted: it may write anything at any time, or stop in the
//! middle. So each number that is read from the memory is copied and checked once, packets are copied out
//! before anything looks at them, and nothing waits. A ring that nobody reads becomes full, and loses packets
//! like any path. A ring with impossible numbers is given up, and its path with it.

mod asleep;
mod channel;
mod exchange;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod memory;
mod ring;
mod rx;
mod tx;

pub(crate) use channel::{Channel, from_broker};
pub(crate) use exchange::Exchange;
pub(crate) use rx::LocalRx;
pub(crate) use tx::LocalTx;

use std::sync::Arc;

use super::Halves;

/// The largest packet, in bytes: a path MTU of 4096 and all headers fit.
pub(super) const PACKET_BYTES: usize = 4352;

/// How much a peer may have in flight on such a path, as the transport counts packets. In the ring, a packet
/// takes less than it counts for. Requests and the answers to the peer's READs share a ring, so this is less
/// than half of it, and the rest is for acknowledgements and control packets.
pub(crate) const WINDOW: u32 = 448 << 10;

const _: () = assert!(ring::CHANNEL_BYTES as u64 == polypath_ipc::message::CHANNEL_BYTES);
const _: () = assert!(2 * WINDOW as usize + (64 << 10) < ring::BYTES);

/// Creates the medium of a lane. Channels come and go through the [`Exchange`].
pub(crate) fn halves() -> (Halves, Arc<Exchange>) {
    let exchange = Arc::new(Exchange::new());
    let tx = Box::new(LocalTx::new(exchange.clone()));
    ((tx, Box::new(LocalRx::new(exchange.clone()))), exchange)
}

#[cfg(test)]
mod tests;
