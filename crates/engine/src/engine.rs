//! An engine: its connection to the broker, the table of interfaces, its lanes, and its open
//! devices. Engines of one process share nothing of these.

use std::sync::Arc;
use std::thread::JoinHandle;

use polypath_verbs::{Device, Result};

use crate::config::Config;
use crate::devices;
use crate::engine_inner::EngineInner;

/// An engine. A process may have several. Each has its own connection to the broker, slots, lanes,
/// threads and devices, and rejects objects of another engine.
///
/// ```no_run
/// use polypath_engine::{Config, Engine, Selection};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let devices = Selection::parse("mp:eth0+eth1")?;
/// let engine = Engine::open(Config { devices, ..Config::default() })?;
/// for device in engine.devices() {
///     let context = device.open()?;
///     println!("{}: {:?}", device.info().name, context.gid_table());
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping an engine is like removing an adapter from the machine. Posted requests are flushed
/// with an error, the memory of its contexts is deregistered, and the contexts raise
/// `IBV_EVENT_DEVICE_FATAL`. When the drop returns, the engine's threads have ended, its sockets
/// are closed, and the broker has its slots back. Only a capture that the disk does not take within
/// two seconds is written on after it. Objects that the program still has return
/// `ENODEV`, and can be destroyed.
///
/// A child after `fork()` has the handle and nothing behind it, so dropping it there does nothing.
#[derive(Debug)]
pub struct Engine {
    inner: Arc<EngineInner>,
    events: Option<JoinHandle<()>>,
}

impl Engine {
    /// Creates an engine, and starts the broker if none runs.
    ///
    /// # Errors
    /// `EINVAL` if the configuration is invalid; `ENODEV` if the broker can't be reached or
    /// started, or there is no interface for such a device; otherwise the system's error.
    pub fn open(config: Config) -> Result<Self> {
        let inner = Arc::new(EngineInner::connect(config)?);
        let stream = inner.subscribe()?;
        let events = inner.start_service(stream)?;
        Ok(Self { inner, events: Some(events) })
    }

    /// The current devices of the engine.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        devices::all(&self.inner)
    }

    /// The port of the TCP streams that the settings want; `None` if they want none.
    pub(crate) fn tcp_port(&self) -> Option<u16> {
        crate::path_settings::tcp_port(&self.inner.in_force())
    }

    /// Whether this process created it; false in a forked child.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.inner.pid == std::process::id()
    }

    /// Ends its work when the process ends.
    pub(crate) fn leave(&self) {
        self.inner.leave();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let events = self.events.take();
        if !self.is_of_this_process() {
            // Threads that do not exist here may hold locks, with half-finished work behind them.
            core::mem::forget((events, self.inner.clone()));
            return;
        }
        self.inner.end_service();
        // If the thread panicked, the panic was already reported.
        let _ = events.map(JoinHandle::join);
        self.inner.close();
    }
}
