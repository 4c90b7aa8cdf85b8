//! The devices of an engine.

use std::sync::Arc;

use polypath_topology::{DeviceSpec, devices};
use polypath_verbs::{Context, Device, DeviceInfo, Error, Result};

#[cfg(any(test, fuzzing))]
use crate::context::OpenDevice;
use crate::engine_inner::EngineInner;
use crate::{device, drivers};

/// A device that can be opened.
#[derive(Debug)]
struct EngineDevice {
    engine: Arc<EngineInner>,
    info: DeviceInfo,
}

impl Device for EngineDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn open(&self) -> Result<Arc<dyn Context>> {
        let name = &self.info.name;
        let found = device::find(&self.engine.table(), &self.engine.selection, name)
            .ok_or_else(|| Error::new(libc::ENODEV, format!("{name} is gone")))?;
        drivers::of(found.kind)?.open(&self.engine, &self.info, found)
    }
}

/// The devices of an engine.
pub(crate) fn all(engine: &Arc<EngineInner>) -> Vec<Arc<dyn Device>> {
    let table = engine.table();
    let device = |spec: DeviceSpec| -> Arc<dyn Device> {
        Arc::new(EngineDevice { engine: engine.clone(), info: device::info(&spec, &table) })
    };
    devices(&table, &engine.selection).into_iter().map(device).collect()
}

/// The first device of an engine, opened.
#[cfg(any(test, fuzzing))]
pub(crate) fn first(engine: &Arc<EngineInner>) -> Arc<OpenDevice> {
    let table = engine.table();
    let spec = devices(&table, &engine.selection).remove(0);
    OpenDevice::open(engine, &device::info(&spec, &table), spec).expect("a device")
}
