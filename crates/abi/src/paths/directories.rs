//! The directories of a device below the root.

/// The directory of a device below the root.
pub(super) fn directory_of(name: &str) -> String {
    format!("sys/devices/virtual/polypath/{name}/infiniband/{name}")
}

/// The directory of a device's counters.
pub(super) fn counters_of(name: &str) -> String {
    format!("{}/ports/1/counters", directory_of(name))
}
