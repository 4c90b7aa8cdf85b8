//! Decides who serves librdmacm: Polypath, the kernel, or both.

use polypath_ipc::settings::{self, Apm, RdmaCm, SettingError, rdma_cm};
use rustix::fs::FileType;

use super::PATH;
use crate::paths;

/// The value of `POLYPATH_RDMA_CM`, or the default for this machine if it is not set.
///
/// # Errors
/// [`SettingError`], whose text says what to write instead.
pub(super) fn serves() -> Result<RdmaCm, SettingError> {
    let text = std::env::var_os("POLYPATH_RDMA_CM").unwrap_or_default();
    let said = rdma_cm(&text.to_string_lossy())?;
    Ok(said.unwrap_or_else(|| by_what_is_there(has_node(), paths::has_real_devices)))
}

/// The value of `POLYPATH_APM`: whether connections migrate although the program did not ask for it, and how.
///
/// # Errors
/// [`SettingError`], whose text says what to write instead.
pub(super) fn apm() -> Result<Apm, SettingError> {
    settings::apm(&std::env::var_os("POLYPATH_APM").unwrap_or_default().to_string_lossy())
}

fn by_what_is_there(node: bool, devices: impl FnOnce() -> bool) -> RdmaCm {
    if node && devices() { RdmaCm::Both } else { RdmaCm::Polypath }
}

/// Whether the kernel has the device node.
fn has_node() -> bool {
    let status = rustix::fs::stat(PATH);
    status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_char_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_means_whoever_is_there() {
        assert_eq!(by_what_is_there(true, || true), RdmaCm::Both);
        assert_eq!(by_what_is_there(true, || false), RdmaCm::Polypath);
        assert_eq!(by_what_is_there(false, || true), RdmaCm::Polypath);
    }
}
