//! The engine of this process. The environment configures it, for programs that do not know about
//! engines because they use the C interface.
//!
//! It is created when a program first asks for devices, and lives as long as the process. A child
//! after `fork()` has neither the threads nor the connections of its parent, so it gets its own
//! engine.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use polypath_verbs::{Device, Result};

use crate::config::Config;
use crate::engine::Engine;
use crate::notify::lock;

/// The engine of this process. It is replaced after a fork, and never freed, because the objects
/// that the program has open use it until the process ends.
static CURRENT: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());
static MAKING: Mutex<()> = Mutex::new(());

/// The engine, if this process has already created it.
#[allow(unsafe_code)]
fn known() -> Option<&'static Engine> {
    // SAFETY: the pointer is null or came from Box::leak and is never freed.
    let engine = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    engine.filter(|engine| engine.is_of_this_process())
}

/// The engine of this process, connected to the broker. A child after fork() gets its own engine.
fn current() -> Result<&'static Engine> {
    if let Some(engine) = known() {
        return Ok(engine);
    }
    let _making = lock(&MAKING);
    if let Some(engine) = known() {
        return Ok(engine);
    }
    let engine = Box::leak(Box::new(Engine::open(Config::from_env()?)?));
    CURRENT.store(engine, Ordering::Release);
    Ok(engine)
}

/// The devices that this process sees, as `POLYPATH_DEVICE` selects them.
///
/// # Errors
/// If the environment is invalid, or the broker can't be reached or started.
pub fn devices() -> Result<Vec<Arc<dyn Device>>> {
    Ok(current()?.devices())
}

/// The TCP port by which the settings let this process be reached, too; `None` if they do not, or there is no
/// engine.
pub fn tcp_port() -> Option<u16> {
    current().ok()?.tcp_port()
}

/// Ends the engine's work when the process ends: acknowledgements that wait are sent, unless
/// another thread is in their lane.
pub fn leave() {
    if let Some(engine) = known() {
        engine.leave();
    }
}
