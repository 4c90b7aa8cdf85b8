//! The driver of each kind of device.

use std::sync::Arc;

use polypath_topology::{BOND, DeviceKind, DeviceSpec, MP, Provider, ROCE, ROCE2};
use polypath_verbs::{Context, DeviceInfo, Error, Result};

use crate::context::OpenDevice;
use crate::driver::Driver;
use crate::engine_inner::EngineInner;

/// The driver of each kind.
static DRIVERS: &[&dyn Driver] = &[
    &OnLanes(ROCE),
    &OnLanes(ROCE2),
    &OnLanes(MP),
    &OnLanes(BOND),
    #[cfg(test)]
    &crate::toy_device::ToyDriver,
];

/// The driver of a kind.
///
/// # Errors
/// `EOPNOTSUPP` if the engine has none.
pub(crate) fn of(kind: &DeviceKind) -> Result<&'static dyn Driver> {
    let found = DRIVERS.iter().find(|driver| driver.kind() == kind);
    found.copied().ok_or_else(|| {
        Error::unsupported(format!(
            "this engine can't open {} devices: their driver is missing in crates/engine/src/drivers.rs",
            kind.prefix
        ))
    })
}

/// Opens devices whose queue pairs are on the engine's lanes.
#[derive(Debug)]
struct OnLanes(&'static dyn Provider);

impl Driver for OnLanes {
    fn kind(&self) -> &'static DeviceKind {
        self.0.kind()
    }

    fn open(
        &self,
        engine: &Arc<EngineInner>,
        info: &DeviceInfo,
        device: DeviceSpec,
    ) -> Result<Arc<dyn Context>> {
        Ok(OpenDevice::open(engine, info, device)?)
    }
}

#[cfg(test)]
mod tests {
    use polypath_topology::PROVIDERS;

    use super::*;

    #[test]
    fn each_kind_of_device_has_a_driver() {
        for provider in PROVIDERS {
            assert_eq!(of(provider.kind()).unwrap().kind(), provider.kind());
        }
    }

    #[test]
    fn a_kind_without_a_driver_is_not_supported() {
        static LOST: DeviceKind =
            DeviceKind { prefix: "lost", forms: &["lost"], title: "", multipath: false };
        assert_eq!(of(&LOST).unwrap_err().errno, libc::EOPNOTSUPP);
    }
}
