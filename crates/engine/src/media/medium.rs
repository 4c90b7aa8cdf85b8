//! The interface of every medium.

use std::fmt::Debug;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use polypath_paths::PathAddress;
use polypath_telemetry::FaultCounters;
use polypath_topology::Table;
use polypath_transport::{Burst, Unread};

use super::Received;
use super::flow::{Capabilities, FlowError, FlowHandle, Flushed, Seal};
use super::gather::packets;
use crate::memory::Segment;

/// The sending half of a medium.
///
/// A medium has two halves, because answers are sent while arrived packets are being handed out.
/// Both are used under the lane's lock, and none of their methods waits. `docs/extend/path-kind.md`
/// shows how to build a medium.
pub trait Tx: Debug + Send {
    /// The capabilities of the medium, which never change.
    fn capabilities(&self) -> Capabilities;

    /// Whether the medium carries packets between these addresses. The first medium that answers
    /// yes gets them. UDP takes those that no other medium wants.
    fn carries(&self, address: &PathAddress) -> bool;

    /// Opens a flow for packets that have these addresses in common. `tag` is returned with the
    /// flow's errors.
    ///
    /// # Errors
    /// Those of the system. The lane logs the error, and tries again after a while.
    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle>;

    /// Closes a flow after sending what is queued. This and all other methods ignore a handle that
    /// is no longer open.
    fn close(&mut self, flow: FlowHandle);

    /// Queues one packet, from the BTH to its padding. `seal` is the trailer that follows it. A
    /// medium that verifies packets has no trailer, and drops a packet with [`Seal::Wrong`].
    fn send_packet(&mut self, now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal);

    /// Queues the packets of a burst. The payload is read before the lane's lock is released.
    ///
    /// # Errors
    /// The payload of the next packet, after those that are queued, can't be read.
    fn send(
        &mut self,
        now: Duration,
        flow: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        packets(burst, |_, packet, seal| self.send_packet(now, flow, packet, seal))
    }

    /// Whether packets wait for [`Tx::flush`].
    fn has_queued(&self) -> bool;

    /// Sends everything that is queued. The result also counts what the medium sent by itself
    /// before.
    fn flush(&mut self, now: Duration) -> Flushed;
    /// Sends what it delays on purpose, and waits for as long as that takes, because the process ends. By
    /// default it delays nothing.
    fn finish(&mut self, _now: Duration) {}

    /// The errors since the last call.
    fn take_errors(&mut self) -> Vec<FlowError> {
        Vec::new()
    }

    /// The bytes that were sent on a flow, without the medium's own headers and trailers.
    fn sent_bytes(&self, flow: FlowHandle) -> u64;

    /// The UDP source port of a flow, if it differs from that of its address.
    fn source_port(&self, _flow: FlowHandle) -> Option<u16> {
        None
    }

    /// The time, on the lane's clock, at which the medium has something to send by itself.
    /// [`Tx::flush`] is called soon after that.
    fn next_deadline(&self) -> Option<Duration> {
        None
    }

    /// Counters of the faults that were injected on purpose, for `polypath status`.
    fn faults(&self) -> FaultCounters {
        FaultCounters::default()
    }

    /// Tells the interfaces and addresses, at first and after each change.
    fn interfaces_changed(&mut self, _table: &Table) {}
}

/// The receiving half of a medium.
pub trait Rx: Debug + Send {
    /// Hands out some of the packets that have arrived, in order and without waiting. Returns the
    /// number of packets, 0 if there are none.
    ///
    /// # Errors
    /// Those of the system. The error is counted, and logged once.
    fn receive(&mut self, now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize>;

    /// Whether there may be more packets that can be received without waiting.
    fn more(&self) -> bool;

    /// A descriptor that is readable while there is something to receive. It lives as long as the
    /// medium.
    fn wait_on(&self) -> RawFd;

    /// The time, on the lane's clock, at which packets arrive without [`Rx::wait_on`] becoming
    /// readable.
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
