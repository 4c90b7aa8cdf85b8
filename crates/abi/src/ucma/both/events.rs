//! Passes events of the broker and of the kernel to the program.
//!
//! All of this is done under the lock that commands also hold. So no event is read before its id is
//! known, or after its number may belong to another id.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::relay::{Relay, Source};
use super::resolve::TCP_RC;
use super::{Both, Device, Id, MEMBERSHIP, Side, World, kernel};
use crate::log;
use crate::ucma::ids::{EventFate, Ids};
use crate::ucma::layout::{CONNECT_REQUEST, CREATE_ID, MULTICAST, command, put_u32, u32_at};

/// The largest number of events of one source that are taken at a time, so that commands can run in
/// between.
const TURN: usize = 32;

/// The offsets of the id's number and of the kind in an event.
const ID: usize = 8;
const KIND: usize = 12;

impl Both {
    /// Adds a file and returns its number. [`Both::watch`] must be called next.
    pub(crate) fn attach(
        &mut self,
        number: u64,
        device: Arc<dyn Device>,
        broker: OwnedFd,
        inlet: OwnedFd,
    ) -> u64 {
        self.last += 1;
        let relay = Relay {
            number,
            device,
            broker: Some(broker),
            inlet,
            waiting: VecDeque::new(),
            deaf: false,
            paused: false,
        };
        self.files.insert(self.last, relay);
        self.last
    }

    /// Closes a file that the program has closed. The kernel and the broker end its ids.
    pub(crate) fn close(&mut self, file: u64) {
        let Some(relay) = self.files.remove(&file) else { return };
        self.unwatch(&relay);
        self.ids.retain(|_, id| id.file != file);
        self.numbers.retain(|_, number| self.ids.contains_key(number));
    }

    /// Replaces the numbers in one of the kernel's events with the program's. `None` if its id is
    /// unknown.
    fn translate(&mut self, file: u64, event: &mut [u8], world: &mut dyn World) -> Option<()> {
        let (kernel, kind) = (u32_at(event, ID).ok()?, u32_at(event, KIND).ok()?);
        let number = match kind {
            CONNECT_REQUEST => self.adopt(file, kernel, world)?,
            kind if MULTICAST.contains(&kind) => kernel | MEMBERSHIP,
            _ => *self.numbers.get(&kernel)?,
        };
        put_u32(event, ID, number);
        Some(())
    }

    /// Gives a connection that came to the kernel a number of the broker's, which no other id has.
    fn adopt(&mut self, file: u64, kernel: u32, world: &mut dyn World) -> Option<u32> {
        let mut body = [0; 24];
        body[16..24].copy_from_slice(&TCP_RC);
        let made = self.ask(file, &command(CREATE_ID, &body, 4), world);
        match made.and_then(|answer| u32_at(&answer, 0)) {
            Ok(number) => {
                let id = Id {
                    file,
                    uid: 0,
                    kind: TCP_RC,
                    options: Vec::new(),
                    side: Side::Kernel,
                    bound: true,
                    kernel: Some(kernel),
                };
                if let Some(lost) = self.insert(number, id) {
                    let _ = lost.run();
                }
                Some(number)
            }
            Err(errno) => {
                log::line(format_args!(
                    "a connection over a real device was rejected: errno {errno}"
                ));
                let _ = kernel::destroy(&*self.device(file).ok()?, kernel);
                None
            }
        }
    }
}

impl Ids {
    /// Handles a ready source of a file.
    pub(super) fn serve(
        &mut self,
        file: u64,
        source: Source,
        hung_up: bool,
        world: &mut dyn World,
    ) {
        match source {
            Source::Inlet if hung_up => self.both.close(file),
            Source::Inlet => {
                if let Some(relay) = self.both.files.get_mut(&file) {
                    relay.flush();
                }
            }
            Source::Kernel => self.serve_kernel(file, world),
            Source::Broker => self.serve_broker(file, world),
        }
        self.both.adjust(file);
    }

    fn serve_kernel(&mut self, file: u64, world: &mut dyn World) {
        for _ in 0..TURN {
            let Some(relay) = self.both.files.get_mut(&file) else { return };
            if relay.is_full() || relay.deaf {
                return;
            }
            match kernel::event(&*relay.device) {
                Ok(None) => return,
                Ok(Some(mut event)) => {
                    if self.both.translate(file, &mut event, world).is_some() {
                        self.relay(file, event.to_vec(), world);
                    }
                }
                Err(errno) => {
                    log::line(format_args!("the kernel gives no events of RDMA CM: errno {errno}"));
                    relay.deaf = true;
                }
            }
        }
    }

    fn serve_broker(&mut self, file: u64, world: &mut dyn World) {
        for _ in 0..TURN {
            let Some(relay) = self.both.files.get_mut(&file) else { return };
            if relay.is_full() {
                return;
            }
            let Some(event) = relay.broker_event() else { return };
            if event.is_empty() {
                // For the program the file is at its end, as if the driver had been unloaded. The
                // kernel's connections stay until the program closes the file.
                relay.broker = None;
                relay.deaf = true;
                // SAFETY: this is our descriptor.
                unsafe { libc::shutdown(relay.inlet.as_raw_fd(), libc::SHUT_WR) };
                return;
            }
            self.relay(file, event, world);
        }
    }

    /// Passes an event on, unless its id is gone or was moved.
    fn relay(&mut self, file: u64, event: Vec<u8>, world: &mut dyn World) {
        let Some(relay) = self.both.files.get(&file) else { return };
        match self.judge(&event, relay.number) {
            EventFate::Deliver => {
                if let Some(relay) = self.both.files.get_mut(&file) {
                    relay.push(event);
                }
            }
            EventFate::Forward(home) => world.requeue(home, &event),
            EventFate::Drop(child) => {
                if let Some(child) = child {
                    self.both.abandon(file, child, world);
                }
            }
        }
    }
}
