//! A channel: the memory and the bell that a lane shares with another one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::memory::SharedMemory;
use super::ring::{CHANNEL_BYTES, Ring};

/// One end of a channel. Its sending and its receiving half have the rings' ends; this is what they and the
/// lane's thread use together.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The slot of the other lane.
    pub(super) slot: u8,
    pub(super) memory: SharedMemory,
    /// The ring that this lane writes, and the one that it reads.
    pub(super) writes: Ring,
    pub(super) reads: Ring,
    bell: OwnedFd,
    /// The bytes that this lane has read. What the memory says of it is for the other lane, which may have
    /// changed it.
    pub(super) head: AtomicU64,
    /// Whether it must not be used any more: the other process has ended, or broken the rules.
    over: AtomicBool,
}

impl Channel {
    /// Uses this memory and this bell. `second`: this is the end that the memory's second ring is written by.
    ///
    /// # Errors
    /// Those of [`SharedMemory::map`].
    pub(crate) fn new(
        slot: u8,
        second: bool,
        memory: BorrowedFd<'_>,
        bell: OwnedFd,
    ) -> io::Result<Self> {
        Ok(Self {
            slot,
            memory: SharedMemory::map(memory, CHANNEL_BYTES)?,
            writes: Ring::of(second),
            reads: Ring::of(!second),
            bell,
            head: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// Whether it can be used.
    #[inline]
    pub(super) fn works(&self) -> bool {
        !self.over.load(Ordering::Relaxed) && self.memory.is_ours()
    }

    /// Gives it up.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Notes that this lane is about to sleep. Returns false if there is something to read, so that it must
    /// not.
    pub(super) fn arm(&self) -> bool {
        self.reads.may_sleep(&self.memory, self.head.load(Ordering::Relaxed))
    }

    /// Whether there is something to read.
    pub(super) fn has_more(&self) -> bool {
        self.reads.tail(&self.memory) != self.head.load(Ordering::Relaxed)
    }

    /// Notes that this lane is awake.
    pub(super) fn wake_up(&self) {
        self.reads.wake_up(&self.memory);
    }

    /// Wakes the other lane if it sleeps. Call this after writing packets.
    #[inline]
    pub(super) fn ring_if_asleep(&self) {
        if self.writes.must_ring(&self.memory) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // If the socket is full, the other lane has rings enough. If the other end is closed, `hear` will
        // notice. The flag, not the descriptor's state, says not to wait: the other process may change that.
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.bell, &[1], flags);
    }

    /// Takes a ring of the bell. If its other end is closed, the channel is over. Further rings end the next
    /// sleep; a lane that rings as agreed leaves one.
    pub(super) fn hear(&self) {
        let mut byte = [0; 1];
        match rustix::net::recv(&self.bell, &mut byte[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.end(),
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => self.end(),
        }
    }

    /// Ends the channel if the bell's other end is closed. Its rings stay for who sleeps until one comes.
    pub(super) fn look_for_end(&self) {
        let mut list = [PollFd::new(&self.bell, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut list, Some(&now)).is_ok_and(|count| count > 0) {
            self.end();
        }
    }

    /// What becomes readable when the bell rings.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A child of this process may have the socket, too, and keep it open.
        if self.memory.is_ours() {
            let _ = rustix::net::shutdown(&self.bell, rustix::net::Shutdown::Both);
        }
    }
}

/// Takes the end of a channel to the lane with this slot, as the broker gives it: a socket, in which a
/// message with the memory waits.
///
/// # Errors
/// `EINVAL` if it is not as it should be; those of the system.
pub(crate) fn from_broker(slot: u8, socket: OwnedFd) -> io::Result<Channel> {
    let mut which = [0; 2];
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    rustix::io::ioctl_fionbio(&socket, true)?;
    let got = polypath_ipc::socket::receive(socket.as_fd(), &mut which)?;
    let second = match which[..got.len] {
        [0] => false,
        [1] => true,
        _ => return Err(invalid()),
    };
    let memory = got.fd.ok_or_else(invalid)?;
    Channel::new(slot, second, memory.as_fd(), socket)
}
