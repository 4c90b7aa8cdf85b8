//! The wrappers around the media of a program under test: faults, and a capture.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use polypath_ipc::faults::Faults;
use polypath_topology::Table;

use super::capture::Capture;
use super::judge::Judge;
use super::names::Names;
use super::{Halves, faults, trace};
use crate::config::{CaptureTo, Config};
use crate::log;

/// The wrappers that all lanes of a program share.
#[derive(Debug, Default)]
pub(crate) struct Wrappers {
    faults: Option<Arc<Faults>>,
    capture: Option<CaptureTo>,
    /// `None` if it could not be created. It is created on first use, so that a program without a
    /// lane has no file.
    file: OnceLock<Option<Arc<Capture>>>,
    names: Names,
}

impl Wrappers {
    pub(crate) fn new(config: &Config) -> Self {
        let (faults, capture) = (config.faults.clone().map(Arc::new), config.capture.clone());
        Self { faults, capture, ..Self::default() }
    }

    /// Whether there are no wrappers.
    pub(super) fn is_empty(&self) -> bool {
        self.faults.is_none() && self.capture.is_none()
    }

    /// Wraps a medium of the lane with this index. The capture is next to the medium. So it does
    /// not show outgoing packets that are lost on purpose, but it shows incoming ones that are.
    pub(super) fn wrap(
        &self,
        mut medium: Halves,
        lane: usize,
        now: Duration,
        table: &Table,
    ) -> Halves {
        self.names.learn(table);
        if let Some(capture) = self.file() {
            medium = trace::wrap(medium, &self.names, &capture);
        }
        let Some(faults) = &self.faults else { return medium };
        let ports: Vec<&str> = table.ports.iter().map(|port| port.name.as_str()).collect();
        if let Some(problem) = faults.interface_problem(&ports) {
            log::warn(&problem);
        }
        let seed = faults.seed.unwrap_or_else(random);
        log::line(&format!("faults: the random numbers of lane {lane} begin at seed={seed}"));
        let counts = Arc::default();
        faults::wrap(medium, &self.names, |direction| {
            let seed = seed ^ ((lane as u64) << 1 | direction).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Judge::new(faults.clone(), self.names.clone(), Arc::clone(&counts), seed, now)
        })
    }

    /// Ends the capture, if there is one: what the lanes have recorded is written, unless that takes
    /// too long, and nothing more is.
    pub(crate) fn close(&self) {
        if let Some(Some(capture)) = self.file.get() {
            capture.close();
        }
    }

    fn file(&self) -> Option<Arc<Capture>> {
        let CaptureTo { path, snap_len } = self.capture.as_ref()?;
        let create = || {
            let capture = Capture::create(path, *snap_len, self.names.clone());
            let say = |error: &std::io::Error| {
                log::warn(&format!(
                    "packets cannot be written to {}, but the program continues: {error}; name \
                     a file in a directory where this user may write",
                    path.display()
                ));
            };
            capture.inspect_err(say).ok().map(Arc::new)
        };
        self.file.get_or_init(create).clone()
    }
}

/// A random number or, if the system has none, the time.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => crate::clock::realtime_ns(crate::clock::now()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::super::pair::{Pair, table};
    use super::super::toy;
    use polypath_telemetry::Counters as _;

    use super::*;
    use crate::config::CaptureTo;

    /// The media of one lane of both hosts, wrapped as given, and their files.
    fn wrapped(faults: &str, capture: Option<&str>) -> (Pair, [PathBuf; 2]) {
        let files = [0, 1].map(|host| {
            let name = format!("polypath-{host}-{}-{}", capture.unwrap_or(""), std::process::id());
            std::env::temp_dir().join(name).with_extension("pcapng")
        });
        let mut wires = toy::wire(Pair::ADDRESSES[0], Pair::ADDRESSES[1]).unwrap().into_iter();
        let ends = [0, 1].map(|host| {
            let path = files[host].clone();
            let config = Config {
                faults: Faults::parse(faults).unwrap(),
                capture: capture.map(|_| CaptureTo { path, snap_len: 65_535 }),
                ..Config::default()
            };
            let now = crate::clock::now();
            Wrappers::new(&config).wrap(wires.next().unwrap(), 0, now, &table(host as u8))
        });
        (Pair::over(ends), files)
    }

    fn data() -> Vec<u8> {
        (0..1_000_000_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect()
    }

    #[test]
    fn data_arrives_whole_whatever_befalls_its_packets() {
        let faults = "loss=2%,dup=2%,reorder=5%,corrupt=1%,delay=200us~100us,seed=1";
        let (mut pair, _) = wrapped(faults, None);
        assert_eq!(pair.write(&data()), data());
        let faults = pair.faults(0);
        let counted: BTreeMap<&str, u64> = faults.iter().map(|(c, n)| (c.name, n)).collect();
        for fault in ["lost", "corrupted", "duplicated", "reordered", "delayed"] {
            assert!(counted[format!("fault_{fault}").as_str()] > 0, "{fault}: {counted:?}");
        }
        assert_eq!(counted["fault_cut"], 0);
    }

    #[test]
    fn both_hosts_captures_have_the_same_packets() {
        let (mut pair, files) = wrapped("", Some("same"));
        assert_eq!(pair.write(&data()), data());
        drop(pair);
        let packets = files.map(|file| {
            let bytes = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            packets(&bytes)
        });
        let [(own, names), (peer, _)] = packets;
        assert_eq!(names, [Pair::INTERFACE]);
        // Each packet has 1024 bytes of payload; there are acknowledgements too.
        let payload: usize = own.iter().map(Vec::len).filter(|len| *len > 1024).sum();
        assert!(payload > 1_000_000, "{payload}");
        // Compares addresses, and the bytes between UDP header and ICRC, because the toy has no
        // ports.
        let same =
            |a: &[u8], b: &[u8]| a[12..20] == b[12..20] && a[28..a.len() - 4] == b[28..b.len() - 4];
        // The peer may not have received the packets of the last rounds.
        let missing = own.iter().filter(|a| !peer.iter().any(|b| same(a, b))).count();
        assert!(missing * 100 < own.len(), "{missing} of {}", own.len());
    }

    #[test]
    fn the_end_of_a_program_leaves_a_whole_file() {
        let name = format!("polypath-end-{}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(name);
        let to = CaptureTo { path: path.clone(), snap_len: 65_535 };
        let config = Config { capture: Some(to), ..Config::default() };
        let wrappers = Wrappers::new(&config);
        let mut wires = toy::wire(Pair::ADDRESSES[0], Pair::ADDRESSES[1]).unwrap().into_iter();
        let now = crate::clock::now();
        let first = wrappers.wrap(wires.next().unwrap(), 0, now, &table(0));
        let mut pair = Pair::over([first, wires.next().unwrap()]);
        assert_eq!(pair.write(&data()), data());
        // The lanes still have the media, and other threads may use them.
        wrappers.close();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let payload: usize = packets(&bytes).0.iter().map(Vec::len).filter(|len| *len > 1024).sum();
        assert!(payload > 1_000_000, "{payload}");
        assert_eq!(pair.write(&data()), data());
    }

    /// The packets of a file, and the names of its interfaces.
    fn packets(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<String>) {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
        let (mut packets, mut names, mut at) = (Vec::new(), Vec::new(), 0);
        while at < bytes.len() {
            match word(at) {
                1 => {
                    let len = usize::from(u16::from_le_bytes([bytes[at + 18], bytes[at + 19]]));
                    names.push(String::from_utf8(bytes[at + 20..][..len].to_vec()).unwrap());
                }
                6 => packets.push(bytes[at + 28..][..word(at + 20)].to_vec()),
                kind => assert_eq!((at, kind), (0, 0x0a0d_0d0a)),
            }
            at += word(at + 4);
        }
        (packets, names)
    }
}
