//! Limits, kernel, namespaces and other RDMA devices.

use super::Finding;
use crate::text::count;
use rustix::process::Resource;
use std::fs;
use std::path::Path;

/// With a smaller limit on locked bytes some programs complain, although Polypath locks nothing.
const MEMLOCK_USUAL: u64 = 8 << 20;
/// The usual limit of descriptors. A queue pair needs none, a channel one, and a connection of some
/// programs several.
const NOFILE_USUAL: u64 = 1024;
/// A receive buffer that holds a few GSO bursts.
const RMEM_GOOD: u64 = 4 << 20;
/// Linux 5.0 introduced UDP_GRO, without which transfers are slow.
const KERNEL_LEAST: (u32, u32) = (5, 0);

pub(super) fn check() -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|v| kernel(&v)));
    let limit = |resource| rustix::process::getrlimit(resource).current;
    findings.push(memory_limit(limit(Resource::Memlock)));
    findings.extend(file_limit(limit(Resource::Nofile)));
    if let Ok(text) = fs::read_to_string("/proc/sys/net/core/rmem_max") {
        findings.extend(receive_buffer(text.trim().parse().unwrap_or(0)));
    }
    findings.extend(other_devices());
    findings.extend(other_namespaces());
    findings
}

fn kernel(release: &str) -> Finding {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL_LEAST {
        return Finding::ok(format!("Linux {release}"));
    }
    let (major, minor) = KERNEL_LEAST;
    let what = format!("Linux {release} has no UDP segmentation and aggregation");
    Finding::error(what, format!("use Linux {major}.{minor} or later"))
}

/// Judges the memlock limit; `None` means unlimited.
fn memory_limit(bytes: Option<u64>) -> Finding {
    match bytes {
        Some(bytes) if bytes < MEMLOCK_USUAL => Finding::warning(
            format!(
                "memlock limit: {} KiB. Polypath locks no memory, but programs may check the limit",
                bytes >> 10
            ),
            "ulimit -l unlimited, or `* - memlock unlimited` in /etc/security/limits.conf",
        ),
        _ => Finding::ok("memlock limit: ok"),
    }
}

fn file_limit(files: Option<u64>) -> Option<Finding> {
    let files = files.filter(|&files| files < NOFILE_USUAL)?;
    let what = format!("only {} may be open at a time", count(files, "file"));
    Some(Finding::warning(what, format!("ulimit -n {NOFILE_USUAL}")))
}

fn receive_buffer(most: u64) -> Option<Finding> {
    (most < RMEM_GOOD).then(|| {
        let what = format!(
            "UDP receive buffers are limited to {} KiB: everything works, large transfers are slower",
            most >> 10
        );
        Finding::warning(what, format!("as root: sysctl -w net.core.rmem_max={RMEM_GOOD}"))
    })
}

/// RDMA devices of the kernel. They stay visible, and Linux rxe uses the port.
fn other_devices() -> Vec<Finding> {
    let Ok(entries) = fs::read_dir("/sys/class/infiniband") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    if names.is_empty() {
        return Vec::new();
    }
    vec![Finding::note(format!(
        "RDMA devices of the kernel, which stay visible: {}",
        names.join(", ")
    ))]
}

/// Brokers of this user in other network namespaces. They are a frequent cause of "no devices in
/// common".
fn other_namespaces() -> Vec<Finding> {
    let Ok(ours) = fs::read_link("/proc/self/ns/net") else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let elsewhere: Vec<String> = processes
        .flatten()
        .filter(|entry| is_broker(&entry.path()))
        .filter(|entry| fs::read_link(entry.path().join("ns/net")).is_ok_and(|ns| ns != ours))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if elsewhere.is_empty() {
        return Vec::new();
    }
    vec![Finding::note(format!(
        "brokers run in other network namespaces too (processes {}): programs there are not seen \
         from here; enter with `nsenter --net -t PID`",
        elsewhere.join(", ")
    ))]
}

fn is_broker(process: &Path) -> bool {
    let Ok(line) = fs::read(process.join("cmdline")) else { return false };
    let mut words = line.split(|&byte| byte == 0);
    let program = words.next().unwrap_or_default();
    program.ends_with(b"polypath") && words.next() == Some(b"broker")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn old_kernels_are_refused() {
        assert_eq!(kernel("6.1.0-13-amd64\n").level, Level::Ok);
        assert_eq!(kernel("4.19.0").level, Level::Error);
        assert_eq!(kernel("5.0").level, Level::Ok);
    }

    #[test]
    fn a_small_limit_is_a_warning_and_none_is_fine() {
        assert_eq!(memory_limit(Some(65536)).level, Level::Warning);
        assert_eq!(memory_limit(None).level, Level::Ok);
        assert_eq!(file_limit(Some(256)).map(|f| f.level), Some(Level::Warning));
        assert_eq!(file_limit(Some(1024)), None);
    }

    #[test]
    fn the_default_receive_buffer_is_a_warning() {
        assert_eq!(receive_buffer(212_992).map(|f| f.level), Some(Level::Warning));
        assert_eq!(receive_buffer(RMEM_GOOD), None);
    }
}
