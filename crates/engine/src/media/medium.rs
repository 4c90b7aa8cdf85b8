//! What every medium can do.

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
/// A medium has two halves, since answers are sent while what has arrived is handed out. Both are used
/// under the lane's lock, and none of their methods waits. `docs/extend/path-kind.md` builds one.
pub trait Tx: Debug + Send {
    /// What the medium can do; always the same.
    fn capabilities(&self) -> Capabilities;

    /// Whether packets between these addresses go by this medium. The first one that says yes has them;
    /// UDP takes what nobody else wants.
    fn carries(&self, address: &PathAddress) -> bool;

    /// Opens a flow: a way for packets that have these addresses in common. `tag` comes back with its
    /// errors.
    ///
    /// # Errors
    /// Of the system. The lane tells the user, and tries again after a while.
    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle>;

    /// Closes a flow; what is queued is sent first. A handle that is no longer open is ignored, here
    /// and by all other methods.
    fn close(&mut self, flow: FlowHandle);

    /// Queues one packet, from the BTH to its padding; what is to follow is `seal`. A medium without an
    /// ICRC, which is one that verifies, drops a packet with [`Seal::Wrong`].
    fn send_packet(&mut self, now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal);

    /// Queues the packets of a burst. The payload is read before the lane's lock is released.
    ///
    /// # Errors
    /// The payload of the packet after those that are queued can't be read.
    fn send(
        &mut self,
        now: Duration,
        flow: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        packets(burst, |_, packet, seal| self.send_packet(now, flow, packet, seal))
    }

    /// Whether something waits for [`Tx::flush`].
    fn has_queued(&self) -> bool;

    /// Sends all that is queued and tells what became of it, and of what was sent before by itself.
    fn flush(&mut self, now: Duration) -> Flushed;

    /// What went wrong since the last call.
    fn take_errors(&mut self) -> Vec<FlowError> {
        Vec::new()
    }

    /// Bytes that left by a flow, headers and trailers of the medium's own not included.
    fn sent_bytes(&self, flow: FlowHandle) -> u64;

    /// The UDP source port that a flow has, if it is not that of its address.
    fn source_port(&self, _flow: FlowHandle) -> Option<u16> {
        None
    }

    /// When the medium has something to send by itself, on the lane's clock: [`Tx::flush`] is then
    /// called soon.
    fn next_deadline(&self) -> Option<Duration> {
        None
    }

    /// Packets to which something was done on purpose, for `polypath status`.
    fn faults(&self) -> FaultCounters {
        FaultCounters::default()
    }

    /// Interfaces or addresses have changed, or are told for the first time.
    fn interfaces_changed(&mut self, _table: &Table) {}
}

/// The receiving half of a medium.
pub trait Rx: Debug + Send {
    /// Hands out some of what has arrived, in order, without waiting; gives how many packets, 0 if
    /// nothing is there.
    ///
    /// # Errors
    /// Of the system. It is counted, and told once.
    fn receive(&mut self, now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize>;

    /// Whether something may be left that can be had without waiting.
    fn more(&self) -> bool;

    /// A descriptor that is readable while there is something to receive. It lives as long as this.
    fn wait_on(&self) -> RawFd;

    /// When something arrives that [`Rx::wait_on`] does not tell, on the lane's clock.
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
