//! The thread that passes events of both sides to the program. One thread serves all files, and
//! sleeps until there is an event.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libc::c_int;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;

use super::relay::{Relay, Source};
use super::watch::{Watch, of_token, token};
use super::{Both, Outside};
use crate::guard;
use crate::ucma::IDS;

/// The largest number of descriptors that are handled in one round.
const ROUND: usize = 16;

/// The event sources of a relay.
fn sources(relay: &Relay) -> impl Iterator<Item = (Source, c_int)> {
    let kernel = relay.hears_kernel().then(|| (Source::Kernel, relay.device.fd()));
    let broker = relay.broker.as_ref().map(|socket| (Source::Broker, socket.as_raw_fd()));
    [kernel, broker].into_iter().flatten()
}

impl Both {
    /// Lets the thread serve a file from now on.
    ///
    /// # Errors
    /// The errno, if no thread can be started.
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

    /// Stops serving a file. This is done explicitly, because a child that is just being forked may
    /// have the descriptors.
    pub(super) fn unwatch(&self, relay: &Relay) {
        let Some(watch) = &self.watch else { return };
        let inlet = (Source::Inlet, relay.inlet.as_raw_fd());
        for (_, fd) in sources(relay).chain([inlet]) {
            let _ = watch.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    }

    /// Switches between waiting only for room and waiting for events, if that has changed.
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
            // Remove the descriptors completely, because a broker that is gone would otherwise be
            // reported forever.
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
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(Errno::raw_os_error)?;
    let epoll = Arc::new(epoll);
    let own = epoll.clone();
    let started = polypath_engine::spawn("polypath-cm", move || serve(&own));
    started.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    Ok(Watch(epoll))
}

/// The body of the thread, which runs as long as the process.
fn serve(epoll: &OwnedFd) {
    loop {
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); ROUND];
        let events = match epoll::wait(epoll, &mut room, None) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        for &mut epoll::Event { flags, data } in events {
            let (file, source) = of_token(data.u64());
            let hung_up = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
            guard::run((), || IDS.lock().serve(file, source, hung_up, &mut Outside));
        }
    }
}
