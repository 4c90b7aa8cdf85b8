//! A ring whose other end does as it likes, for the fuzzer and a test.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};

use super::PACKET_BYTES;
use super::memory::SharedMemory;
use super::ring::{BYTES, CHANNEL_BYTES, Consumer, Producer, Ring};

thread_local! {
    static MEMORY: OnceCell<SharedMemory> = const { OnceCell::new() };
}

/// A file in memory with this size and these seals.
pub(super) fn file(len: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("hostile", flags).expect("there is memory");
    rustix::fs::ftruncate(&fd, len as u64).expect("there is memory");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("nothing is sealed yet");
    fd
}

/// The seals that a channel's memory must have.
pub(super) fn sealed() -> SealFlags {
    SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW
}

/// The memory of a channel.
pub(super) fn memory() -> SharedMemory {
    let fd = file(CHANNEL_BYTES, sealed());
    SharedMemory::map(fd.as_fd(), CHANNEL_BYTES).expect("it is as it should be")
}

/// Writes what `script` says into a ring, and reads packets from it and writes some into it in between.
/// Returns how many packets were read, and how often the ring was broken. Each 12 bytes are one step:
/// where to write (4), what (4), how far the tail goes on (2), and the head (2); the top bits say in
/// which unit.
///
/// # Panics
/// A rule of the ring was broken by this end.
pub(crate) fn run(script: &[u8]) -> (usize, usize) {
    MEMORY.with(|cell| run_in(cell.get_or_init(memory), script))
}

fn run_in(memory: &SharedMemory, script: &[u8]) -> (usize, usize) {
    let ring = Ring::of(false);
    let mut reader = Consumer::new(ring);
    let mut writer = Producer::new(Ring::of(true));
    let mut out = Box::new([0; PACKET_BYTES]);
    let (mut packets, mut broken, mut tail) = (0, 0, 0_u64);
    for word in [0, 128, CHANNEL_BYTES / 2, CHANNEL_BYTES / 2 + 128] {
        memory.word(word).store(0, Ordering::Relaxed);
    }
    for step in script.chunks_exact(12) {
        let number =
            |at: usize| u32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
        let short = |at: usize| u64::from(u16::from_le_bytes([step[at], step[at + 1]]));
        let at = number(0);
        // Near what is read next, or anywhere.
        let at = match at >> 31 {
            0 => 4096 + (reader.head() as usize + at as usize % 256 / 4 * 4) % BYTES,
            _ => at as usize % (CHANNEL_BYTES - 4) / 4 * 4,
        };
        memory.write(at, &number(4).to_le_bytes());
        tail = match short(8) >> 15 {
            0 => tail.wrapping_add(short(8) % 8192 * 8),
            _ => u64::from(number(4)) << 16 | short(8),
        };
        memory.word(0).store(tail, Ordering::Release);
        memory.word(CHANNEL_BYTES / 2 + 128).store(short(10) * 8, Ordering::Release);
        loop {
            let before = reader.head();
            match reader.pop(memory, &mut out) {
                Ok(None) => break,
                Ok(Some((_, _, len))) => {
                    assert!(len <= PACKET_BYTES && reader.head() > before);
                    reader.tell(memory);
                    packets += 1;
                }
                Err(_) => {
                    // Such a channel is given up; another one begins.
                    reader = Consumer::new(ring);
                    (tail, broken) = (0, broken + 1);
                    memory.word(0).store(0, Ordering::Release);
                    break;
                }
            }
        }
        let ip = IpAddr::from([10, 0, 0, 1]);
        if writer.push(memory, ip, ip, &out[..number(4) as usize % PACKET_BYTES]).is_err() {
            writer = Producer::new(Ring::of(true));
            broken += 1;
        }
    }
    (packets, broken)
}
