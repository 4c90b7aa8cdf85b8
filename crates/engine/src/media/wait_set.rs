//! Several descriptors that are waited for as one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::epoll::{self, CreateFlags};

/// A set of descriptors. Each is readable while its owner has something to receive.
#[derive(Debug, Default)]
pub(super) struct WaitSet {
    all: Vec<RawFd>,
    /// An epoll set, if there are several descriptors. It is readable while any of them is.
    set: Option<OwnedFd>,
}

impl WaitSet {
    /// The descriptor to wait for: the only one itself, or the epoll set. An empty set gives -1, which `poll`
    /// ignores.
    pub(super) fn fd(&self) -> RawFd {
        match (&self.set, self.all.first()) {
            (Some(set), _) => set.as_raw_fd(),
            (None, Some(only)) => *only,
            (None, None) => -1,
        }
    }

    /// Adds a descriptor, which must stay open as long as this set. Nothing is changed if it is in the set,
    /// or if it is negative.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(super) fn add(&mut self, fd: RawFd) -> io::Result<()> {
        if fd < 0 || self.all.contains(&fd) {
            return Ok(());
        }
        match (&self.set, self.all.first()) {
            (Some(set), _) => watch(set, fd)?,
            (None, Some(first)) => {
                let set = epoll::create(CreateFlags::CLOEXEC)?;
                watch(&set, *first)?;
                watch(&set, fd)?;
                self.set = Some(set);
            }
            (None, None) => {}
        }
        self.all.push(fd);
        Ok(())
    }

    /// Ceases to watch a descriptor that will be another file. Closing the file would not be enough, because
    /// another process may have it, too.
    pub(super) fn forget(&self, fd: RawFd) {
        if let Some(set) = &self.set {
            // It fails only if it is not watched.
            let _ = control(set, libc::EPOLL_CTL_DEL, fd);
        }
    }

    /// Watches a descriptor that was [forgotten](Self::forget).
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn watch_again(&self, fd: RawFd) -> io::Result<()> {
        self.set.as_ref().map_or(Ok(()), |set| watch(set, fd))
    }
}

fn watch(set: &OwnedFd, fd: RawFd) -> io::Result<()> {
    control(set, libc::EPOLL_CTL_ADD, fd)
}

#[allow(unsafe_code)]
fn control(set: &OwnedFd, operation: libc::c_int, fd: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: `event` lives, and the kernel copies it.
    let done = unsafe { libc::epoll_ctl(set.as_raw_fd(), operation, fd, &raw mut event) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use super::*;
    use crate::lane::Waker;

    #[test]
    fn the_set_is_readable_while_one_of_its_descriptors_is() {
        let waker = Waker::new().unwrap();
        let ready = |set: &WaitSet| waker.wait(Some(set.fd()), Duration::ZERO);
        let pairs: Vec<_> = (0..3).map(|_| UnixDatagram::pair().unwrap()).collect();
        let mut set = WaitSet::default();
        set.add(-1).unwrap();
        assert!(!ready(&set));
        for many in 1..=pairs.len() {
            set.add(pairs[many - 1].0.as_raw_fd()).unwrap();
            for (socket, sender) in &pairs[..many] {
                assert!(!ready(&set));
                sender.send(b"a packet").unwrap();
                assert!(ready(&set));
                socket.recv(&mut [0; 16]).unwrap();
            }
            let fd = set.fd();
            set.add(pairs[many - 1].0.as_raw_fd()).unwrap();
            assert_eq!(set.fd(), fd, "it is there already");
            assert_eq!(fd == pairs[0].0.as_raw_fd(), many == 1, "one is waited for itself");
        }
    }

    #[test]
    fn a_descriptor_that_becomes_another_file_is_watched_as_that() {
        let waker = Waker::new().unwrap();
        let ready = |set: &WaitSet| waker.wait(Some(set.fd()), Duration::ZERO);
        let [old, new, other] = [(); 3].map(|()| UnixDatagram::pair().unwrap());
        // Another process has the old file, too, as the broker has a slot's socket.
        let elsewhere = old.0.try_clone().unwrap();
        let mut set = WaitSet::default();
        let fd = old.0.as_raw_fd();
        set.add(fd).unwrap();
        for several in [false, true] {
            if several {
                set.add(other.0.as_raw_fd()).unwrap();
            }
            set.forget(fd);
            let with = if several { &elsewhere } else { &new.0 };
            crate::media::udp::replace(fd, &with.try_clone().unwrap().into()).unwrap();
            set.watch_again(fd).unwrap();
            let [stale, current] = if several { [&new.1, &old.1] } else { [&old.1, &new.1] };
            stale.send(b"to the file of before").unwrap();
            assert!(!ready(&set), "several: {several}");
            current.send(b"to the file of now").unwrap();
            assert!(ready(&set), "several: {several}");
            for socket in [&old.0, &elsewhere, &new.0] {
                socket.set_nonblocking(true).unwrap();
                while socket.recv(&mut [0; 32]).is_ok() {}
            }
            assert!(!ready(&set));
        }
    }
}
