//! A lane gives back what it has of this host, and goes on with what another one gives it.

use std::io;
use std::os::fd::OwnedFd;

use super::{Lane, State};
use crate::media::udp;

impl Lane {
    /// Gives up shared memory, TCP streams and all sockets. The lane hears and sends nothing until it
    /// [arrives](Self::arrive).
    ///
    /// # Errors
    /// There are no more descriptors. Then its socket is still that of this host.
    pub(crate) fn depart(&self, why: &str) -> io::Result<()> {
        if self.has_failed() {
            return Ok(());
        }
        if let Some(exchange) = &self.exchange {
            exchange.remove_all(why);
        }
        if let Some(streams) = &self.streams {
            streams.remove_all(why);
        }
        // A round takes note of their end, and lets go of the memory.
        self.drain();
        let nothing = udp::unbound()?;
        self.enter(|state| {
            state.io.shut();
            state.core.paths_mut().left_host();
            state.groups.forget_interfaces();
            state.hear_by(&nothing)?;
            self.sleeper.more_to_wait_for();
            Ok::<(), io::Error>(())
        })?;
        self.sleeper.wake();
        Ok(())
    }

    /// Hears by the socket of its slot here from now on, and sends again.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn arrive(&self, opened: &polypath_ipc::Lane) -> io::Result<()> {
        if self.has_failed() {
            return Ok(());
        }
        self.enter(|state| {
            state.hear_by(&opened.socket)?;
            let window = crate::path_settings::receive_window(opened.receive_buffer);
            state.core.paths_mut().set_receive_window(window);
            state.io.open_again();
            self.sleeper.more_to_wait_for();
            Ok::<(), io::Error>(())
        })?;
        self.sleeper.wake();
        Ok(())
    }
}

impl State {
    /// Hears by this socket in place of the one before.
    fn hear_by(&mut self, socket: &OwnedFd) -> io::Result<()> {
        self.receivers.as_mut().map_or(Ok(()), |receivers| receivers.replace_socket(socket))
    }
}
