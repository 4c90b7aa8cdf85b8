//! The file that a program's packets are written to.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polypath_wire::ip::IpFields;
use polypath_wire::pcapng;

use super::names::Names;
use super::writer::Writer;
use crate::log;
use crate::notify::lock;

/// The number of further names that are tried after the one with the process id.
const NAMES_MAX: u32 = 100;

/// The largest number of bytes that wait to be written. Further packets are dropped.
const WAITING_MAX: u64 = 32 << 20;

/// How long the end of the engine or the process waits for the packets that are not yet written.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// A capture file. All lanes of a program hand packets to it, and none waits for the disk.
#[derive(Debug)]
pub(super) struct Capture {
    writer: Writer,
    snap_len: usize,
    names: Names,
    blocks: Mutex<Blocks>,
}

/// What is known of the blocks so far.
#[derive(Debug, Default)]
struct Blocks {
    /// The numbers of interfaces in the file.
    interfaces: HashMap<Arc<str>, u32>,
    /// How many packets were dropped since the last one that was not.
    gap: u64,
    /// The block that is being made.
    block: Vec<u8>,
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
        Self::over(path, file, WAITING_MAX, snap_len, names)
    }

    /// A capture in a new file, of whose packets up to `waiting_max` bytes wait to be written.
    fn over(
        path: PathBuf,
        file: File,
        waiting_max: u64,
        snap_len: u32,
        names: Names,
    ) -> io::Result<Self> {
        let writer = Writer::start(path, file, waiting_max)?;
        let mut blocks = Blocks::default();
        pcapng::section(&mut blocks.block);
        writer.describe(&blocks.block);
        writer.wake();
        Ok(Self { writer, snap_len: snap_len as usize, names, blocks: Mutex::new(blocks) })
    }

    /// Adds a packet with this UDP payload, which is written after [`Self::flush`]. `local` is the
    /// local address that it was sent from or arrived at, and `time` is in nanoseconds since 1970.
    ///
    /// Drops the packet if too many wait to be written. The next one that is written has a comment
    /// that says how many are missing.
    pub(super) fn add(&self, time: u64, local: IpAddr, fields: &IpFields, payload: &[u8]) {
        if self.writer.has_ended() {
            return;
        }
        let name = self.names.of(local).unwrap_or_else(|| "no interface".into());
        let mut blocks = lock(&self.blocks);
        let Blocks { interfaces, gap, block } = &mut *blocks;
        let next = interfaces.len() as u32;
        let interface = *interfaces.entry(name).or_insert_with_key(|name| {
            block.clear();
            pcapng::interface(block, name, self.snap_len as u32);
            self.writer.describe(block);
            next
        });
        let packet = fields.packet(payload);
        let kept = &packet[..packet.len().min(self.snap_len)];
        let comment = match *gap {
            0 => String::new(),
            n => format!(
                "packets missing before this one: {n}, because the file was written too slowly"
            ),
        };
        block.clear();
        pcapng::packet(block, interface, time, kept, packet.len() as u32, &comment);
        *gap = if self.writer.packet(block) { 0 } else { *gap + 1 };
    }

    /// Lets the packets that were added be written.
    pub(super) fn flush(&self) {
        self.writer.wake();
    }

    /// Ends the capture: waits a while until the packets that were added are written, and logs how
    /// many are missing. Further packets are not written.
    pub(super) fn close(&self) {
        self.writer.close(CLOSE_WAIT);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.close();
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

    const SECTION: u32 = 0x0a0d_0d0a;

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
        blocks_of(&std::fs::read(path).unwrap())
    }

    fn blocks_of(bytes: &[u8]) -> Vec<u32> {
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

    fn add(capture: &Capture, link: u8, len: usize) {
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
        let path = directory.0.join("a.pcapng");
        let capture = Capture::create(&path, 128, names).unwrap();
        for link in [0, 0, 1, 0] {
            add(&capture, link, 4000);
        }
        capture.close();
        assert_eq!(blocks(&path), [SECTION, 1, 6, 6, 1, 6, 6]);
        // Each packet is cut to the snapshot length.
        assert!(std::fs::metadata(&path).unwrap().len() < 5 * 256);
        // It has ended.
        add(&capture, 0, 100);
        drop(capture);
        assert_eq!(blocks(&path).len(), 7);
    }

    #[test]
    fn what_can_not_be_written_ends_the_capture_and_nothing_else() {
        let directory = Directory::new("full");
        let path = directory.0.join("a.pcapng");
        std::fs::write(&path, []).unwrap();
        // A descriptor that cannot be written to, like one on a full disk.
        let file = File::open(&path).unwrap();
        let capture = Capture::over(path.clone(), file, 1 << 20, 65_535, Names::default()).unwrap();
        for _ in 0..100 {
            add(&capture, 0, 100);
            capture.flush();
        }
        capture.close();
        assert_eq!(blocks(&path), []);
    }

    /// Does the work on another thread, and panics if that takes too long.
    fn promptly<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || tx.send(work()));
        let waited = rx.recv_timeout(Duration::from_secs(20));
        waited.expect("the work waits for the file")
    }

    /// A pipe is full after 64 KiB, and takes nothing more until it is read.
    #[test]
    fn a_file_that_takes_no_bytes_stalls_nobody_and_what_is_missing_is_said() {
        const WAITING_MAX: u64 = 200_000;
        let (mut reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let name = "/pipe".into();
        let capture = Capture::over(name, file, WAITING_MAX, 65_535, Names::default()).unwrap();
        let capture = promptly(move || {
            // More than the pipe and the queue hold together, by far.
            for _ in 0..1000 {
                add(&capture, 0, 1000);
                capture.flush();
            }
            capture
        });
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            bytes
        });
        while capture.writer.waiting() > 0 {
            std::thread::yield_now();
        }
        // Now it is read, and packets are recorded again.
        add(&capture, 0, 1000);
        drop(capture);
        let bytes = reading.join().unwrap();
        let kinds = blocks_of(&bytes);
        assert_eq!(kinds[..2], [SECTION, 1]);
        assert!(kinds[2..].iter().all(|kind| *kind == 6), "{kinds:?}");
        let missing = 1001 - (kinds.len() - 2);
        assert!(missing > 500, "{missing}");
        // The pipe may have taken some in between, so there may be several gaps.
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let told = text.split("packets missing before this one: ").skip(1);
        let told: Vec<usize> =
            told.map(|rest| rest.split(',').next().unwrap().parse().unwrap()).collect();
        assert_eq!(told.iter().sum::<usize>(), missing, "{told:?}");
    }

    #[test]
    fn the_end_waits_for_the_file_but_not_for_long() {
        let (_reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let name = "/pipe".into();
        let capture = Capture::over(name, file, 4 << 20, 65_535, Names::default()).unwrap();
        promptly(move || {
            for _ in 0..1000 {
                add(&capture, 0, 1000);
            }
            drop(capture);
        });
    }
}
