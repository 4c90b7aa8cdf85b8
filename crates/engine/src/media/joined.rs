//! The media of a lane, joined into one sender and one receiver.
//!
//! UDP carries nearly everything, so it is called directly. Other media are behind their traits.
//! Without any, they cost one check of an empty list per round.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use polypath_paths::{PathAddress, PathKind};
use polypath_telemetry::{Counters as _, FaultCounters};
use polypath_topology::Table;
use polypath_transport::{Burst, Unread};

use super::flow::{FlowError, FlowHandle, Flushed, Seal};
use super::medium::{Rx, Tx};
use super::udp;
use super::wait_set::WaitSet;
use crate::memory::Segment;

/// A flow, and the medium that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Udp(FlowHandle),
    /// A flow of the medium with that index.
    Other(u32, FlowHandle),
}

/// The sending halves.
#[derive(Debug)]
pub(crate) struct Senders {
    pub(crate) udp: udp::Sender,
    more: Vec<Box<dyn Tx>>,
    may_hold_back: bool,
    /// Whether no flow may be opened, because the program is between two hosts.
    away: bool,
    /// Errors of the media in `more`.
    errors: Vec<(Flow, FlowError)>,
}

impl Senders {
    /// Joins UDP alone.
    pub(crate) fn new(udp: udp::Sender) -> Self {
        Self { udp, more: Vec::new(), may_hold_back: false, away: false, errors: Vec::new() }
    }

    /// Adds another medium. It is asked whether it carries an address before UDP, and after the
    /// media that were added earlier.
    pub(crate) fn add(&mut self, medium: Box<dyn Tx>) {
        crate::log::line(&format!("medium {}", medium.capabilities()));
        self.more.push(medium);
    }

    /// Whether there are media besides UDP.
    #[inline]
    fn has_more(&self) -> bool {
        !self.more.is_empty()
    }

    /// Notes that the media are wrapped.
    pub(super) fn wrapped(&mut self) {
        self.may_hold_back = true;
    }

    /// Whether a medium may hold packets back for a time.
    #[inline]
    pub(crate) fn may_hold_back(&self) -> bool {
        self.may_hold_back
    }

    /// Says whether the program is between two hosts.
    pub(crate) fn set_away(&mut self, away: bool) {
        self.away = away;
    }

    /// Whether it is. Then no flow may be opened.
    pub(crate) fn is_away(&self) -> bool {
        self.away
    }

    /// Calls [`Tx::open`] of the medium that carries the address.
    pub(crate) fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<Flow> {
        for (index, medium) in (0..).zip(&mut self.more) {
            if medium.carries(address) {
                return medium.open(address, tag).map(|flow| Flow::Other(index, flow));
            }
        }
        if address.kind != PathKind::Udp {
            // A peer may propose what this lane does not have.
            return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        }
        self.udp.open_for(address.into(), tag).map(Flow::Udp)
    }

    fn other(&mut self, medium: u32) -> Option<&mut Box<dyn Tx>> {
        self.more.get_mut(medium as usize)
    }

    /// Calls [`Tx::close`].
    pub(crate) fn close(&mut self, flow: Flow) {
        match flow {
            Flow::Udp(flow) => self.udp.close(flow),
            Flow::Other(medium, handle) => {
                if let Some(medium) = self.other(medium) {
                    medium.close(handle);
                }
                self.errors.retain(|(of, _)| *of != flow);
            }
        }
    }

    /// Calls [`Tx::send`].
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: Duration,
        flow: Flow,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        match flow {
            Flow::Udp(flow) => self.udp.queue(flow, burst),
            Flow::Other(medium, flow) => {
                self.other(medium).map_or(Ok(()), |medium| medium.send(now, flow, burst))
            }
        }
    }

    /// Calls [`Tx::send_packet`]; the packet gets a correct ICRC.
    pub(crate) fn send_packet(&mut self, now: Duration, flow: Flow, packet: &[u8]) {
        match flow {
            Flow::Udp(flow) => self.udp.queue_raw(flow, packet),
            Flow::Other(medium, flow) => {
                if let Some(medium) = self.other(medium) {
                    medium.send_packet(now, flow, packet, Seal::Right);
                }
            }
        }
    }

    /// Whether packets wait for [`Senders::flush`].
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        self.udp.has_queued() || self.more.iter().any(|medium| medium.has_queued())
    }

    /// Whether it is time to call [`Senders::flush`].
    #[inline]
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Calls [`Tx::flush`] of all media.
    #[inline]
    pub(crate) fn flush(&mut self, now: Duration) -> Flushed {
        let done = self.udp.flush();
        if self.has_more() { self.flush_more(now, done) } else { done }
    }

    fn flush_more(&mut self, now: Duration, mut done: Flushed) -> Flushed {
        for (index, medium) in (0..).zip(&mut self.more) {
            done += medium.flush(now);
            let errors = medium.take_errors().into_iter();
            self.errors.extend(errors.map(|error| (Flow::Other(index, error.flow), error)));
        }
        done
    }

    /// Calls [`Tx::finish`] of all media.
    pub(crate) fn finish(&mut self, now: Duration) {
        self.more.iter_mut().for_each(|medium| medium.finish(now));
    }

    /// Whether [`Senders::take_errors`] would return an error.
    #[inline]
    pub(crate) fn has_errors(&self) -> bool {
        self.udp.has_flow_errors() || !self.errors.is_empty()
    }

    /// Calls [`Tx::take_errors`] of all media.
    pub(crate) fn take_errors(&mut self) -> Vec<(Flow, FlowError)> {
        let mut errors = std::mem::take(&mut self.errors);
        let udp = self.udp.take_flow_errors().into_iter();
        errors.extend(udp.map(|error| (Flow::Udp(error.flow), error)));
        errors
    }

    /// Calls [`Tx::sent_bytes`].
    pub(crate) fn sent_bytes(&self, flow: Flow) -> u64 {
        match flow {
            Flow::Udp(flow) => self.udp.sent_bytes(flow),
            Flow::Other(medium, flow) => {
                self.more.get(medium as usize).map_or(0, |medium| medium.sent_bytes(flow))
            }
        }
    }

    /// Calls [`Tx::source_port`].
    pub(crate) fn source_port(&self, flow: Flow) -> Option<u16> {
        match flow {
            Flow::Udp(flow) => self.udp.source_port(flow),
            Flow::Other(medium, flow) => self.more.get(medium as usize)?.source_port(flow),
        }
    }

    /// The sum of [`Tx::faults`] of all media.
    pub(crate) fn faults(&self) -> FaultCounters {
        let mut faults = FaultCounters::default();
        self.more.iter().for_each(|medium| faults.add(&medium.faults()));
        faults
    }

    /// The earliest [`Tx::next_deadline`] of all media.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.more.iter().filter_map(|medium| medium.next_deadline()).min()
    }

    /// Calls [`Tx::interfaces_changed`] of all media.
    pub(crate) fn interfaces_changed(&mut self, table: &Table) {
        Tx::interfaces_changed(&mut self.udp, table);
        self.more.iter_mut().for_each(|medium| medium.interfaces_changed(table));
    }
}

/// The receiving halves.
#[derive(Debug)]
pub(crate) struct Receivers {
    /// `None` if nothing arrives by UDP, or if another medium wraps it.
    pub(crate) udp: Option<udp::Receiver>,
    pub(crate) more: Vec<Box<dyn Rx>>,
    /// The slot's socket, also if it is wrapped.
    pub(crate) socket: Option<RawFd>,
    waits: WaitSet,
}

impl Receivers {
    /// Joins UDP alone.
    pub(crate) fn new(udp: udp::Receiver) -> Self {
        let (fd, mut waits) = (udp.fd(), WaitSet::default());
        // The first descriptor of a set takes no other one.
        let _ = waits.add(fd);
        Self { udp: Some(udp), more: Vec::new(), socket: Some(fd), waits }
    }

    /// Joins no medium.
    pub(crate) fn none() -> Self {
        Self { udp: None, more: Vec::new(), socket: None, waits: WaitSet::default() }
    }

    /// Adds another medium.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(crate) fn add(&mut self, medium: Box<dyn Rx>) -> io::Result<()> {
        self.waits.add(medium.wait_on())?;
        self.more.push(medium);
        Ok(())
    }

    /// Takes note that a medium may have got the descriptor that it is waited for by, which it has not from
    /// the beginning. [`wait_on`](Self::wait_on) may be another one then.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        self.more.iter().try_for_each(|medium| self.waits.add(medium.wait_on()))
    }

    /// Receives by this socket in place of the slot's, which is closed. The descriptor keeps its number,
    /// because threads wait for it.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn replace_socket(&mut self, with: &OwnedFd) -> io::Result<()> {
        let Some(fd) = self.socket else { return Ok(()) };
        // One that is wrapped can't be asked. It reports everything.
        let all = udp::Reports { fields: true, ..udp::Reports::default() };
        self.udp.as_ref().map_or(all, udp::Receiver::reports).ask_of(with)?;
        self.waits.forget(fd);
        let replaced = udp::replace(fd, with);
        self.waits.watch_again(fd)?;
        replaced
    }

    /// A descriptor that is readable while there is something to receive.
    pub(crate) fn wait_on(&self) -> RawFd {
        self.waits.fd()
    }

    /// The earliest [`Rx::next_deadline`] of all media.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.more.iter().filter_map(|medium| medium.next_deadline()).min()
    }
}
