//! An engine: its connection to the broker, the table of interfaces, its lanes, and what is open of its
//! devices. Engines of one process share nothing of that.

use std::sync::Arc;
use std::thread::JoinHandle;

use polypath_verbs::{Device, Result};

use crate::config::Config;
use crate::devices;
use crate::engine_inner::EngineInner;

/// An engine. A process may have several; each has its own connection to the broker, slots, lanes,
/// threads and devices, and objects of one are refused by the others.
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
/// Dropping it is taking an adapter out of the machine. What is posted is flushed with an error, the
/// memory of its contexts is deregistered, and they raise `IBV_EVENT_DEVICE_FATAL`. When the drop is done,
/// the engine's threads have ended, its sockets are closed and its slots are the broker's again. What the
/// program still holds of it answers `ENODEV`, and can be destroyed.
///
/// A child after `fork()` has the handle and nothing behind it: dropping it there does nothing.
#[derive(Debug)]
pub struct Engine {
    inner: Arc<EngineInner>,
    events: Option<JoinHandle<()>>,
}

impl Engine {
    /// Makes an engine. The broker is started if none runs.
    ///
    /// # Errors
    /// `EINVAL`: the configuration makes no sense. `ENODEV`: the broker can't be reached or started, or
    /// there is no interface for such a device. Else what the system gave.
    pub fn open(config: Config) -> Result<Self> {
        let inner = Arc::new(EngineInner::connect(config)?);
        let stream = inner.subscribe()?;
        let events = inner.start_service(stream)?;
        Ok(Self { inner, events: Some(events) })
    }

    /// Its devices as of now.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        devices::all(&self.inner)
    }

    /// False in a child of the process that made it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.inner.pid == std::process::id()
    }

    /// The process ends: acknowledgements that wait are sent, as far as no other thread is at it.
    pub(crate) fn leave(&self) {
        self.inner.lanes.iter().for_each(|lane| lane.leave());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let events = self.events.take();
        if !self.is_of_this_process() {
            // Locks may be held by threads that are not here, and what is behind them half done.
            core::mem::forget((events, self.inner.clone()));
            return;
        }
        self.inner.end_service();
        // What it has panicked of, if it has, was said.
        let _ = events.map(JoinHandle::join);
        self.inner.close();
    }
}
