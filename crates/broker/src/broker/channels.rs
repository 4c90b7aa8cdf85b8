//! Gives two lanes memory that they share. The broker only introduces them: no packet passes through it.

use std::rc::Rc;

use polypath_ipc::message::{self, Push, Reply};

use super::Broker;
use super::requests::{Answer, Refusal};
use crate::channels::{self, CHANNELS_MAX};
use crate::slots::NOBODY;

impl Broker {
    /// Opens a channel between a lane of the client and another one. Both belong to the broker's user,
    /// because nobody else gets lanes.
    pub(super) fn open_channel(&mut self, id: u64, slot: u8, to: u8) -> Answer {
        let own = self.slots.owner(slot).filter(|owner| owner.connection == id);
        let own =
            own.ok_or_else(|| Refusal::new(libc::EBADF, format!("slot {slot} is not yours")))?;
        let nobody = || Refusal::new(libc::ENOENT, format!("no connected process has slot {to}"));
        let other = self.slots.owner(to).filter(|owner| owner.connection != NOBODY);
        // Processes of other pid namespaces all have the number 0, and can't be told apart.
        let other = other.filter(|owner| owner.pid != 0 && slot != to).ok_or_else(nobody)?;
        if self.slots.channels.are_joined(slot, to) {
            let text = format!("slots {slot} and {to} share memory already");
            return Err(Refusal::new(libc::EEXIST, text));
        }
        for pid in [own.pid, other.pid] {
            let of = |slot| self.slots.owner(slot).is_some_and(|owner| owner.pid == pid);
            if self.slots.channels.count(of) >= CHANNELS_MAX {
                let text = format!("process {pid} shares memory with {CHANNELS_MAX} lanes already");
                return Err(Refusal::new(libc::EDQUOT, text));
            }
        }
        if self.slots.channels.len() >= channels::most() {
            let text = "the processes of this host share as much memory as they may".to_owned();
            return Err(Refusal::new(libc::EDQUOT, text));
        }
        // Engines that do not have the lane close their copy.
        let streams = self.streams_of(other.pid);
        if streams.is_empty() {
            return Err(nobody());
        }
        let failed = |error| Refusal::of("making memory to share", &error);
        let [first, second] = channels::make().map_err(failed)?;
        let push = message::encode(&Push::Channel { slot: to, to: slot });
        let push: Rc<[u8]> = push.map_err(|e| Refusal::new(libc::EMSGSIZE, e.to_string()))?.into();
        for stream in streams {
            let end = second.try_clone().map_err(failed)?;
            self.send(stream, Rc::clone(&push), Some(end));
        }
        self.slots.channels.join(slot, to);
        Ok((Reply::Channel, Some(first)))
    }
}
