//! The interface for opening devices of a kind.

use std::fmt::Debug;
use std::sync::Arc;

use polypath_topology::{DeviceKind, DeviceSpec};
use polypath_verbs::{Context, DeviceInfo, Result};

use crate::engine_inner::EngineInner;

/// Opens devices of one kind.
pub(crate) trait Driver: Debug + Sync {
    /// The kind of device.
    fn kind(&self) -> &'static DeviceKind;

    /// Opens a device (`ibv_open_device`). `spec` is what its provider made of the engine's table,
    /// and `info` is what the program was shown.
    fn open(
        &self,
        engine: &Arc<EngineInner>,
        info: &DeviceInfo,
        device: DeviceSpec,
    ) -> Result<Arc<dyn Context>>;
}
