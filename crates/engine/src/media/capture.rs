//! The file that a program's packets are written to.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polypath_wire::ip::IpFields;
use polypath_wire::pcapng;

use super::names::Names;
use crate::log;

/// The number of further names that are tried after the one with the process id.
const NAMES_MAX: u32 = 100;

/// A capture file. All lanes of a program write to it.
#[derive(Debug)]
pub(super) struct Capture {
    path: PathBuf,
    /// `None` after the file could not be written.
    file: Option<File>,
    /// The number of bytes in the file.
    written: u64,
    /// Whole blocks that are written next.
    buffer: Vec<u8>,
    snap_len: usize,
    names: Names,
    /// The numbers of interfaces in the file.
    interfaces: HashMap<Arc<str>, u32>,
}

impl Capture {
    /// Creates the file. It does not overwrite one: if the file exists, the process id is put
    /// before the extension.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn create(path: &Path, snap_len: u32, names: Names) -> io::Result<Self> {
        let (path, file) = create_new(path, std::process::id())?;
        log::warn(&format!("packets are written to {}", path.display()));
        let mut buffer = Vec::new();
        pcapng::section(&mut buffer);
        let (snap_len, interfaces) = (snap_len as usize, HashMap::new());
        let mut capture =
            Self { path, file: Some(file), written: 0, buffer, snap_len, names, interfaces };
        capture.flush();
        Ok(capture)
    }

    /// Adds a packet with this UDP payload. `local` is the local address that it was sent from or
    /// arrived at, and `time` is in nanoseconds since 1970.
    pub(super) fn add(&mut self, time: u64, local: IpAddr, fields: &IpFields, payload: &[u8]) {
        if self.file.is_none() {
            return;
        }
        let name = self.names.of(local).unwrap_or_else(|| "no interface".into());
        let next = self.interfaces.len() as u32;
        let interface = *self.interfaces.entry(name).or_insert_with_key(|name| {
            pcapng::interface(&mut self.buffer, name, self.snap_len as u32);
            next
        });
        let packet = fields.packet(payload);
        let kept = &packet[..packet.len().min(self.snap_len)];
        pcapng::packet(&mut self.buffer, interface, time, kept, packet.len() as u32, "");
    }

    /// Writes the packets that were added. If that fails, it logs a warning, and nothing is written
    /// from then on.
    pub(super) fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        if self.buffer.is_empty() {
            return;
        }
        match file.write_all(&self.buffer) {
            Ok(()) => self.written += self.buffer.len() as u64,
            Err(error) => {
                // Wireshark rejects a file that ends with half a block.
                let _ = file.set_len(self.written);
                log::warn(&format!(
                    "no more packets are written to {}, but the program continues: {error}; the file is \
                     complete up to here",
                    self.path.display()
                ));
                self.file = None;
            }
        }
        self.buffer.clear();
    }
}

/// Creates the file under the first name that is free.
fn create_new(path: &Path, pid: u32) -> io::Result<(PathBuf, File)> {
    let mut name = path.to_owned();
    let mut number = 0;
    loop {
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((name, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NAMES_MAX => {}
            Err(error) => return Err(error),
        }
        name = path.with_file_name(numbered(path, pid, number));
        number += 1;
    }
}

/// `trace.pcapng` as `trace.PID.pcapng`, then `trace.PID-1.pcapng`.
fn numbered(path: &Path, pid: u32, number: u32) -> OsString {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{pid}"));
    if number > 0 {
        name.push(format!("-{number}"));
    }
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    name
}

#[cfg(test)]
mod tests {
    use polypath_wire::icrc::Flow;

    use super::*;

    /// A new directory, which is removed when dropped.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("polypath-capture-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The kinds of the blocks in a file.
    fn blocks(path: &Path) -> Vec<u32> {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            assert_eq!((len, len % 4), (word(at + len - 4) as usize, 0));
            kinds.push(word(at));
            at += len;
        }
        kinds
    }

    fn fields() -> IpFields {
        let flow = Flow::new(crate::fuzz::ip(0, 0), crate::fuzz::ip(0, 1), 0xc000);
        IpFields { flow, id: 0, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }

    fn add(capture: &mut Capture, link: u8, len: usize) {
        capture.add(1, crate::fuzz::ip(link, 0), &fields(), &vec![0; len]);
    }

    #[test]
    fn a_file_that_is_there_is_not_overwritten() {
        let directory = Directory::new("names");
        let path = directory.0.join("a.b.pcapng");
        let names: Vec<String> = (0..3)
            .map(|_| create_new(&path, 7).unwrap().0)
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["a.b.pcapng", "a.b.7.pcapng", "a.b.7-1.pcapng"]);
        let bare = directory.0.join("trace");
        create_new(&bare, 7).unwrap();
        assert_eq!(create_new(&bare, 7).unwrap().0, directory.0.join("trace.7"));
        let nowhere = directory.0.join("nowhere/a.pcapng");
        assert_eq!(create_new(&nowhere, 7).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn each_interface_is_described_before_its_first_packet() {
        let directory = Directory::new("blocks");
        let names = Names::default();
        names.learn(&crate::fuzz::table());
        let mut capture = Capture::create(&directory.0.join("a.pcapng"), 128, names).unwrap();
        for link in [0, 0, 1, 0] {
            add(&mut capture, link, 4000);
        }
        capture.flush();
        assert_eq!(blocks(&capture.path), [0x0a0d_0d0a, 1, 6, 6, 1, 6, 6]);
        // Each packet is cut to the snapshot length.
        assert!(std::fs::metadata(&capture.path).unwrap().len() < 5 * 256);
    }

    #[test]
    fn what_can_not_be_written_ends_the_capture_and_nothing_else() {
        let directory = Directory::new("full");
        let path = directory.0.join("a.pcapng");
        let mut capture = Capture::create(&path, 65_535, Names::default()).unwrap();
        // A descriptor that cannot be written to, like one on a full disk.
        capture.file = Some(File::open(&path).unwrap());
        add(&mut capture, 0, 100);
        capture.flush();
        assert!(capture.file.is_none());
        add(&mut capture, 0, 100);
        capture.flush();
        assert_eq!(blocks(&path), [0x0a0d_0d0a]);
    }
}
