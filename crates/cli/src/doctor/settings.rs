//! The environment variables: each that is set must have a valid value and an effect.

use super::Finding;
use polypath_ipc::faults::Faults;
use polypath_ipc::settings::{
    Bonding, VARIABLES, apm, bonding, busy_poll, lanes, rdma_cm, snap_len,
};
use polypath_topology::{Selection, Table, devices};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const CURE: &str = "correct the variable, or unset it";

/// Checks every variable that can be judged by itself.
pub(super) fn check() -> Vec<Finding> {
    let set: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into(), value.to_string_lossy().into()))
        .filter(|(name, _): &(String, String)| name.starts_with("POLYPATH_"))
        .collect();
    let mut findings: Vec<Finding> =
        set.iter().filter_map(|(name, value)| judge(name, value)).collect();
    if findings.is_empty() && !set.is_empty() {
        let names: Vec<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
        findings.push(Finding::ok(format!("environment: {}", names.join(", "))));
    }
    findings
}

/// The fault of a variable's value, if it has one.
fn judge(name: &str, value: &str) -> Option<Finding> {
    let wrong = |what: String| Some(Finding::error(what, CURE));
    match name {
        "POLYPATH_LANES" => lanes(value).err().and_then(|error| wrong(error.to_string())),
        "POLYPATH_BUSY_POLL" => busy_poll(value).err().and_then(|error| wrong(error.to_string())),
        "POLYPATH_FAULT" => match Faults::parse(value) {
            Err(error) => wrong(error.to_string()),
            Ok(None) => None,
            Ok(Some(_)) => Some(Finding::warning(
                format!("POLYPATH_FAULT is `{value}`: programs lose or delay packets on purpose"),
                "unset it, unless programs are being tested",
            )),
        },
        "POLYPATH_PCAP" => unwritable(Path::new(value)),
        "POLYPATH_SNAPLEN" => snap_len(value).err().and_then(|error| wrong(error.to_string())),
        "POLYPATH_APM" => apm(value).err().and_then(|error| wrong(error.to_string())),
        "POLYPATH_MP" => bonding(value).err().and_then(|error| wrong(error.to_string())),
        "POLYPATH_RDMA_CM" => rdma_cm(value).err().and_then(|error| wrong(error.to_string())),
        // `broker()` checks the form, and which interfaces exist.
        "POLYPATH_DEVICE" => None,
        // `library::check()` checks it.
        "POLYPATH_LIBRARY" => None,
        "POLYPATH_LOG" if !matches!(value, "" | "0" | "1") => wrong(format!(
            "POLYPATH_LOG is `{value}`: write 1 to log everything, or 0 to log nothing"
        )),
        "POLYPATH_BROKER_BIN" if !is_program(Path::new(value)) => {
            wrong(format!("POLYPATH_BROKER_BIN is `{value}`, which is not a program"))
        }
        name if VARIABLES.contains(&name) => None,
        name => Some(Finding::warning(
            format!("{name} is not a variable of Polypath: it has no effect"),
            format!("choose one of {}", VARIABLES.join(", ")),
        )),
    }
}

/// The directory that a capture's file should be in, if it does not exist.
fn unwritable(file: &Path) -> Option<Finding> {
    let parent = file.parent()?;
    let directory = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    (!directory.is_dir()).then(|| {
        Finding::warning(
            format!("POLYPATH_PCAP is `{}`: there is no such directory", file.display()),
            "make the directory, or name a file in another one; programs run without it",
        )
    })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The fault of an interface that the settings of the mp device name, if there is one.
pub(super) fn interfaces(table: &Table, selection: &Selection) -> Option<Finding> {
    let bonding = Bonding::parse(&std::env::var("POLYPATH_MP").unwrap_or_default()).ok()?;
    judge_interfaces(&bonding, table, selection)
}

fn judge_interfaces(bonding: &Bonding, table: &Table, selection: &Selection) -> Option<Finding> {
    let Bonding { primary, costs, numa_nodes, .. } = bonding;
    if primary.is_none() && costs.is_empty() && numa_nodes.is_empty() {
        return None;
    }
    let devices = devices(table, selection);
    let Some(mp) = devices.iter().find(|device| device.kind.multipath) else {
        let what = "POLYPATH_MP names an interface, but there is no mp device: it has no effect";
        return Some(Finding::warning(what, "choose an mp device with --device"));
    };
    let ports = mp.interfaces(table);
    let names: Vec<&str> = ports.map(|port| port.name.as_str()).collect();
    let problem = bonding.interface_problem(&names);
    problem.map(|what| Finding::error(format!("POLYPATH_MP: {what}"), CURE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::status::tests::example;

    fn level(name: &str, value: &str) -> Option<Level> {
        judge(name, value).map(|finding| finding.level)
    }

    #[test]
    fn a_setting_that_stops_the_program_is_an_error() {
        for (name, value) in [
            ("POLYPATH_LANES", "99"),
            ("POLYPATH_BUSY_POLL", "soon"),
            ("POLYPATH_MP", "primry=eth1"),
            ("POLYPATH_FAULT", "loss=1"),
            ("POLYPATH_SNAPLEN", "1"),
            ("POLYPATH_LOG", "debug"),
            ("POLYPATH_RDMA_CM", "Kernel"),
            ("POLYPATH_BROKER_BIN", "/etc/passwd"),
        ] {
            assert_eq!(level(name, value), Some(Level::Error), "{name}={value}");
        }
        assert_eq!(level("POLYPATH_DEVICES", "mp"), Some(Level::Warning));
        assert_eq!(level("POLYPATH_FAULT", "loss=1%"), Some(Level::Warning), "forgotten, perhaps");
        assert_eq!(level("POLYPATH_PCAP", "/nowhere/a.pcapng"), Some(Level::Warning));
    }

    #[test]
    fn a_setting_that_makes_sense_is_none() {
        for (name, value) in [
            ("POLYPATH_LANES", "4"),
            ("POLYPATH_MP", "primary=eth1,updelay=500"),
            ("POLYPATH_LOG", "1"),
            ("POLYPATH_FAULT", ""),
            ("POLYPATH_PCAP", "a.pcapng"),
            ("POLYPATH_SNAPLEN", "256"),
            ("POLYPATH_RDMA_CM", "both"),
            ("POLYPATH_BROKER_BIN", "/bin/sh"),
        ] {
            assert_eq!(level(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn what_is_named_must_be_an_interface_of_the_mp_device() {
        let table = example().broker.table;
        let judge = |text: &str, device: &str| {
            let bonding = Bonding::parse(text).unwrap();
            let finding = judge_interfaces(&bonding, &table, &Selection::parse(device).unwrap());
            finding.map(|finding| finding.level)
        };
        assert_eq!(judge("primary=eth0", "mp"), None);
        assert_eq!(judge("primary=eth7", "mp"), Some(Level::Error));
        assert_eq!(judge("policy=efficient,cost=eth0:1", "mp"), None);
        assert_eq!(judge("policy=efficient,cost=eth7:1", "mp"), Some(Level::Error));
        assert_eq!(judge("primary=eth0", "roce"), Some(Level::Warning));
        assert_eq!(judge("", "roce"), None);
    }
}
