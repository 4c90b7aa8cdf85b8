//! A queue pair as bytes, to be continued somewhere else or later.
//!
//! [`QueuePair::freeze`] ends a queue pair and returns everything that its peer or its program
//! could miss; [`QueuePair::thaw`] makes it anew. To the peer this is a pause: what was in flight
//! counts as lost and is sent again, as after a timeout, and RC executes nothing twice. The bytes
//! contain work requests, the message that is arriving, answers that are still to be sent, atomics
//! and READs that may be asked for again, and packets that wait for their predecessors.
//!
//! They do not contain what belongs to the host: completions that were generated, memory, keys,
//! receives of shared queues, staged window binds, and the peer, which the host names again
//! ([`QueuePair::set_peer`]). Paths are named by the numbers that the freezing host had for them. A
//! host that has other paths calls [`QueuePair::on_paths_unknown`] for all of them once it has a
//! route. Counters start at zero, and round trips are measured anew.
//!
//! # Layout
//!
//! Integers are in network byte order. A flag is a byte, 0 or 1; an option is a flag, and the value
//! if it is 1; a list is a 32-bit count and its elements.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `PPQP` |
//! | 2 | [`VERSION`] |
//! | … | configuration: queue pair number, service (as `enum ibv_qp_type`), protection domain, … |
//! | … | attributes, in the order of `words::put_attr` |
//! | … | what was agreed with the peer: multi-path, the limit of packets in flight, blocks, joined READs |
//! | … | migrations: whether the peer was heard since, how many, the last one's cause and age |
//! | … | requester or sender: clocks, work requests with their sequence numbers, a byte for each in flight |
//! | … | responder or receiver: receives, expected sequence number, answers, requests that may be repeated |
//! | 4 | CRC-32 (as Ethernet's) of all before it |
//!
//! Any change of this layout raises the version. Bytes that are of another version, cut off,
//! changed, or made up are refused with a [`ThawError`]; they never cause a panic.
//!
//! [`QueuePair::freeze`]: crate::QueuePair::freeze
//! [`QueuePair::thaw`]: crate::QueuePair::thaw
//! [`QueuePair::set_peer`]: crate::QueuePair::set_peer
//! [`QueuePair::on_paths_unknown`]: crate::QueuePair::on_paths_unknown

mod bytes;
mod error;
mod queue_pair;
pub(crate) mod words;

pub(crate) use bytes::{Reader, Writer};
pub use error::{ThawError, VERSION};
