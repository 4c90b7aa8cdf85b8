//! Memory that two lanes share, and how much of it there may be.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use polypath_ipc::message::CHANNEL_BYTES;
use polypath_ipc::socket;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

/// The most channels that a process may have; each takes up to [`CHANNEL_BYTES`].
pub(crate) const CHANNELS_MAX: usize = 64;

/// All channels together may take this part of the host's memory, or as much as one process's.
const PART_OF_MEMORY: u64 = 32;

/// The pairs of slots whose lanes have a channel. The broker does not keep the memory itself.
#[derive(Debug, Default)]
pub(crate) struct Channels(BTreeSet<(u8, u8)>);

impl Channels {
    fn pair(a: u8, b: u8) -> (u8, u8) {
        (a.min(b), a.max(b))
    }

    /// Whether these lanes have a channel.
    pub(crate) fn are_joined(&self, a: u8, b: u8) -> bool {
        self.0.contains(&Self::pair(a, b))
    }

    /// The number of all channels.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of channels whose one end is a slot that `own` picks.
    pub(crate) fn count(&self, own: impl Fn(u8) -> bool) -> usize {
        self.0.iter().filter(|(a, b)| own(*a) || own(*b)).count()
    }

    /// Notes that these lanes have a channel.
    pub(crate) fn join(&mut self, a: u8, b: u8) {
        self.0.insert(Self::pair(a, b));
    }

    /// Notes that a lane is gone.
    pub(crate) fn forget(&mut self, slot: u8) {
        self.0.retain(|(a, b)| *a != slot && *b != slot);
    }
}

/// The most channels that all processes may have together.
pub(crate) fn most() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    most_of(memory(&info).unwrap_or(0))
}

fn most_of(memory: u64) -> usize {
    let most = memory / PART_OF_MEMORY / CHANNEL_BYTES;
    usize::try_from(most).unwrap_or(usize::MAX).max(CHANNELS_MAX)
}

/// The memory of the host in bytes, as `/proc/meminfo` tells it.
fn memory(info: &str) -> Option<u64> {
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Whether the kernel promises no more memory than there is (`vm.overcommit_memory` is 2). Then a page of a
/// file that comes later may be missing, which would end the process.
fn is_strict() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

/// Makes a channel. Its two ends are sockets. In each waits a message of one byte, 0 in the first and 1
/// in the second, with the memory, whose size nobody can change.
///
/// # Errors
/// There is no memory, or there are no descriptors.
pub(crate) fn make() -> io::Result<[OwnedFd; 2]> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("polypath", flags)?;
    // Pages come with their first use: most channels of a large job carry little.
    rustix::fs::ftruncate(&memory, CHANNEL_BYTES)?;
    if is_strict() {
        rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, CHANNEL_BYTES)?;
    }
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?;
    let (first, second) = socket::pair()?;
    socket::send(second.as_fd(), &[0], Some(memory.as_fd()))?;
    socket::send(first.as_fd(), &[1], Some(memory.as_fd()))?;
    Ok([first, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_one_whichever_lane_asks_and_goes_with_either() {
        let mut channels = Channels::default();
        channels.join(7, 3);
        assert!(
            channels.are_joined(3, 7) && channels.are_joined(7, 3) && !channels.are_joined(3, 3)
        );
        channels.join(3, 9);
        assert_eq!((channels.count(|slot| slot == 3), channels.count(|slot| slot == 7)), (2, 1));
        channels.forget(7);
        assert!(!channels.are_joined(3, 7) && channels.are_joined(9, 3));
        channels.forget(3);
        assert_eq!(channels.count(|_| true), 0);
    }

    #[test]
    fn all_channels_together_take_a_small_part_of_the_memory() {
        let info = "MemTotal:       24689768 kB\nMemFree:          912984 kB\n";
        assert_eq!(memory(info), Some(24_689_768 * 1024));
        assert_eq!(memory("MemFree: 5 kB\n"), None);
        assert_eq!(most_of(24_689_768 * 1024), 375);
        assert_eq!(most_of(1 << 30), CHANNELS_MAX, "a small host");
        assert!(most() >= CHANNELS_MAX);
    }

    #[test]
    fn both_ends_get_the_same_memory_whose_size_stays() {
        let [first, second] = make().unwrap();
        let mut got = [first, second].map(|end| {
            let mut which = [9; 2];
            let message = socket::receive(end.as_fd(), &mut which).unwrap();
            assert_eq!(message.len, 1);
            (which[0], message.fd.unwrap())
        });
        assert_eq!(got.each_ref().map(|(which, _)| *which), [0, 1]);
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&got[0].1), inode(&got[1].1));
        if !is_strict() {
            assert_eq!(rustix::fs::fstat(&got[0].1).unwrap().st_blocks, 0, "nothing is used yet");
        }
        assert!(rustix::fs::ftruncate(&mut got[0].1, 0).is_err());
        assert!(rustix::fs::ftruncate(&mut got[1].1, CHANNEL_BYTES * 2).is_err());
    }
}
