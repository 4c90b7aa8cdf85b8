//! Orphans: processes that had slots or CM files of a broker that was killed, until they have connected to
//! this one.
//!
//! Their slots are unchanged, so their packets arrive all the while. If such a process dies before
//! it has connected, its slots are freed like any other's.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use super::{Broker, ORPHAN, token};
use crate::log::log;
use crate::slots::Owner;
use crate::sys::epoll::Interest;
use crate::sys::process;

impl Broker {
    /// Watches all orphans.
    pub(super) fn watch_orphans(&mut self) {
        let with_files = self.files.left_by();
        for pid in self.slots.orphans().into_iter().chain(with_files).collect::<BTreeSet<_>>() {
            let watched = process::watch(pid).and_then(|fd| {
                self.epoll.add(fd.as_fd(), token(ORPHAN, pid.into()), Interest::Read)?;
                Ok(fd)
            });
            match watched {
                Ok(fd) => drop(self.orphans.insert(pid, fd)),
                // The process ended before it could be watched, or belongs to a pid namespace that
                // is not visible here. Then nothing would ever report its end.
                Err(error) => {
                    log!("process {pid}, which is an orphan, can't be watched: {error}");
                    self.end_orphan(pid);
                }
            }
        }
    }

    /// Frees what a process had that has ended.
    fn end_orphan(&mut self, pid: u32) {
        self.slots.close_orphans_of(pid);
        for file in self.files.left_of(pid) {
            self.end_left(file);
        }
        self.forget_rules_of(pid);
    }

    pub(super) fn orphan_ended(&mut self, pid: u64) {
        let Ok(pid) = u32::try_from(pid) else { return };
        self.orphans.remove(&pid);
        self.end_orphan(pid);
    }

    /// Gives a process its slots back. Returns false if they are not its own.
    pub(super) fn resume(&mut self, connection: u64, slots: &[u8]) -> bool {
        let Some(pid) = self.connections.get(&connection).map(|c| c.pid) else { return false };
        if self.slots.adopt(Owner { connection, pid }, slots).is_none() {
            return false;
        }
        self.forget_orphan(pid);
        true
    }

    /// Watches a process no more that has taken back all that it had.
    pub(super) fn forget_orphan(&mut self, pid: u32) {
        if !self.slots.orphans().contains(&pid) && self.files.left_of(pid).is_empty() {
            self.orphans.remove(&pid);
        }
    }
}
