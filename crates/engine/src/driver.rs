//! What opens the devices of a kind.

use std::fmt::Debug;
use std::sync::Arc;

use polypath_topology::{DeviceKind, DeviceSpec};
use polypath_verbs::{Context, DeviceInfo, Result};

use crate::engine_inner::EngineInner;

/// Opens devices of one kind.
pub(crate) trait Driver: Debug + Sync {
    /// The kind.
    fn kind(&self) -> &'static DeviceKind;

    /// Opens a device that its provider has made of the engine's table (`ibv_open_device`). `info` is
    /// what the program was shown of it.
    fn open(
        &self,
        engine: &Arc<EngineInner>,
        info: &DeviceInfo,
        device: DeviceSpec,
    ) -> Result<Arc<dyn Context>>;
}
