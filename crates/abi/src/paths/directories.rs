//! The directories of a device below the root.

/// The directory of a device below the root.
pub(super) fn directory_of(name: &str) -> String {
    format!("sys/devices/virtual/polypath/{name}/infiniband/{name}")
}

/// The directory of a port of a device.
pub(super) fn port_of(name: &str, port: u8) -> String {
    format!("{}/ports/{port}", directory_of(name))
}
