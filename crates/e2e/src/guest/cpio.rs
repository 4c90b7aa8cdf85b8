//! Writes a cpio archive of the "newc" kind, the format of an initramfs (kernel documentation,
//! `driver-api/early-userspace/buffer-format`).

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER: u32 = 0o020_600;

/// An archive that is being written. Parent directories of files are added automatically.
#[derive(Debug)]
pub(super) struct Archive<W> {
    to: W,
    number: u32,
    position: usize,
    known: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, number: 0, position: 0, known: BTreeSet::new() }
    }

    /// Adds an empty directory, unless the archive contains this name already.
    pub(super) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY, (0, 0), &[])
    }

    /// Adds an executable file, unless the archive contains this name already.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.entry(path, PROGRAM, (0, 0), content)
    }

    /// Adds a character device.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, CHARACTER, (major, minor), &[])
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.record("TRAILER!!!", 0, (0, 0), &[])?;
        self.to.flush()
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent)?;
        }
        if !self.known.insert(path.to_owned()) {
            return Ok(());
        }
        self.record(path, mode, device, data)
    }

    fn record(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        self.number += 1;
        let size = u32::try_from(data.len())
            .map_err(|_| io::Error::other(format!("{path} is too large for a cpio archive")))?;
        let name = path.len() as u32 + 1;
        let (major, minor) = device;
        // magic, inode, mode, uid, gid, links, mtime, size, device of the file, device it is, name, checksum
        let numbers = [self.number, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name, 0];
        let mut header = String::from("070701");
        for number in numbers {
            header += &format!("{number:08x}");
        }
        self.put(header.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(data)?;
        self.pad()
    }

    fn put(&mut self, data: &[u8]) -> io::Result<()> {
        self.position += data.len();
        self.to.write_all(data)
    }

    /// Pads to a multiple of four bytes, as names and contents require.
    fn pad(&mut self) -> io::Result<()> {
        let missing = self.position.wrapping_neg() % 4;
        self.put(&[0; 4][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_once_and_before_their_files() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("/usr/bin/one", b"1").unwrap();
        archive.file("usr/bin/two", b"22").unwrap();
        archive.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.len() % 4, 0);
        assert_eq!(text.matches("usr/bin\0").count(), 1);
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("usr\0") < at("usr/bin\0") && at("usr/bin\0") < at("usr/bin/one\0"));
        assert!(text.contains("TRAILER!!!"));
    }

    #[test]
    fn a_header_has_fields_of_eight_hexadecimal_digits() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.device("console", 5, 1).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("07070100000001000021800000000"));
        assert_eq!(&text[78..94], "0000000500000001", "major and minor number");
        assert_eq!(&text[94..102], "00000008", "the name with its final zero");
    }
}
