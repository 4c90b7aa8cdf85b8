//! The thread that carries events of both to the program: one for all files, asleep until there is
//! one.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;

use super::relay::{Relay, Source};
use super::watch::{Watch, of_token, token};
use super::{Both, Outside};
use crate::guard;
use crate::ucma::IDS;

/// Most descriptors looked at in one round.
const ROUND: usize = 16;

/// The sources of events that a relay has.
fn sources(relay: &Relay) -> impl Iterator<Item = (Source, c_int)> {
    let kernel = relay.hears_kernel().then(|| (Source::Kernel, relay.device.fd()));
    let broker = relay.broker.as_ref().map(|socket| (Source::Broker, socket.as_raw_fd()));
    [kernel, broker].into_iter().flatten()
}

impl Both {
    /// Has a file served by the thread from now on.
    ///
    /// # Errors
    /// The errno if there is no thread to be had.
    pub(crate) fn watch(&mut self, file: u64) -> Result<(), c_int> {
        if self.watch.is_none() {
            self.watch = Some(start()?);
        }
        let (Some(watch), Some(relay)) = (&self.watch, self.files.get(&file)) else {
            return Ok(());
        };
        let inlet = (Source::Inlet, relay.inlet.as_raw_fd());
        for (source, fd) in sources(relay).chain([inlet]) {
            let events = if source == Source::Inlet { libc::EPOLLRDHUP } else { libc::EPOLLIN };
            watch.control(libc::EPOLL_CTL_ADD, fd, token(file, source), events)?;
        }
        Ok(())
    }

    /// Ceases to. Explicitly, as a child that was forked in this moment may have the descriptors.
    pub(super) fn unwatch(&self, relay: &Relay) {
        let Some(watch) = &self.watch else { return };
        let inlet = (Source::Inlet, relay.inlet.as_raw_fd());
        for (_, fd) in sources(relay).chain([inlet]) {
            let _ = watch.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    }

    /// Waits for room only, or for events again, if that has changed.
    pub(super) fn adjust(&mut self, file: u64) {
        let (Some(watch), Some(relay)) = (&self.watch, self.files.get_mut(&file)) else { return };
        if !relay.hears_kernel() {
            let _ = watch.control(libc::EPOLL_CTL_DEL, relay.device.fd(), 0, 0);
        }
        if relay.paused == relay.is_full() {
            return;
        }
        relay.paused = relay.is_full();
        let (what, room) = match relay.paused {
            // Whole, and not only their events: a broker that is gone would be told for ever.
            true => (libc::EPOLL_CTL_DEL, libc::EPOLLOUT),
            false => (libc::EPOLL_CTL_ADD, 0),
        };
        for (source, fd) in sources(relay) {
            let _ = watch.control(what, fd, token(file, source), libc::EPOLLIN);
        }
        let inlet = relay.inlet.as_raw_fd();
        let events = libc::EPOLLRDHUP | room;
        let _ = watch.control(libc::EPOLL_CTL_MOD, inlet, token(file, Source::Inlet), events);
    }
}

/// Starts the thread.
fn start() -> Result<Watch, c_int> {
    // SAFETY: the descriptor is new, and nobody else's.
    let epoll = unsafe {
        let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if fd < 0 {
            return Err(guard::errno());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let fd = epoll.as_raw_fd();
    let started = polypath_engine::spawn("polypath-cm", move || serve(fd));
    started.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    Ok(Watch(epoll))
}

/// The thread's life: as long as the process.
fn serve(epoll: c_int) {
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; ROUND];
        // SAFETY: room for that many events.
        let got = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), ROUND as c_int, -1) };
        let Ok(got) = usize::try_from(got) else {
            if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return;
        };
        for event in &events[..got] {
            let (file, source) = of_token(event.u64);
            let hung_up =
                event.events & (libc::EPOLLHUP | libc::EPOLLRDHUP | libc::EPOLLERR).cast_unsigned();
            guard::run((), || IDS.lock().serve(file, source, hung_up != 0, &mut Outside));
        }
    }
}
