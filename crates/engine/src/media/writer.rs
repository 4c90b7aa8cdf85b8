//! The thread that writes a capture. A slow disk delays this thread, and no lane.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::notify::lock;
use crate::{log, thread};

/// How often a lock is tried that must not be waited for.
const RETRY: Duration = Duration::from_millis(1);

/// A file that a thread of its own writes.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// The largest number of bytes that wait.
    waiting_max: u64,
    queue: Mutex<Queue>,
    /// Signalled when an idle thread has something to write, or the file is closed.
    work: Condvar,
    /// Signalled when everything that was handed over is written, or nothing more is written.
    done: Condvar,
}

/// What waits to be written.
#[derive(Debug, Default)]
struct Queue {
    /// Whole blocks.
    blocks: Vec<u8>,
    /// The number of packets in `blocks`.
    packets: u64,
    /// The number of bytes, and of packets, that the thread is writing.
    under_way: (u64, u64),
    /// The number of packets that were dropped.
    dropped: u64,
    /// Whether the thread waits for work.
    idle: bool,
    /// Whether nothing more is accepted: the file was closed, or could not be written.
    ended: bool,
    /// Whether the file could not be written.
    failed: bool,
}

impl Queue {
    fn bytes(&self) -> u64 {
        self.blocks.len() as u64 + self.under_way.0
    }
}

impl Writer {
    /// Starts the thread. `path` is for messages, and `waiting_max` is in bytes.
    ///
    /// # Errors
    /// Those of `pthread_create(3)`.
    pub(super) fn start(path: PathBuf, file: File, waiting_max: u64) -> io::Result<Self> {
        let (queue, work, done) = Default::default();
        let shared = Arc::new(Shared { path, waiting_max, queue, work, done });
        let of_thread = shared.clone();
        let thread = thread::start("polypath-pcap", move || of_thread.run(file))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Hands over a block that others refer to, and that is never dropped.
    pub(super) fn describe(&self, block: &[u8]) {
        let mut queue = lock(&self.shared.queue);
        if !queue.ended {
            queue.blocks.extend_from_slice(block);
        }
    }

    /// Hands over the block of a packet. If it does not fit, it is dropped and counted, and this
    /// returns false.
    pub(super) fn packet(&self, block: &[u8]) -> bool {
        let mut queue = lock(&self.shared.queue);
        if queue.ended {
            return false;
        }
        let fits = queue.bytes() + block.len() as u64 <= self.shared.waiting_max;
        if fits {
            queue.blocks.extend_from_slice(block);
            queue.packets += 1;
        } else {
            queue.dropped += 1;
        }
        fits
    }

    /// Lets the thread write what was handed over.
    pub(super) fn wake(&self) {
        self.shared.wake(&mut lock(&self.shared.queue));
    }

    /// Whether nothing more is accepted.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.shared.queue).ended
    }

    /// The number of bytes that are not yet written.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> u64 {
        lock(&self.shared.queue).bytes()
    }

    /// Accepts nothing more, waits at most for `limit` until what was handed over is written, and
    /// logs how many packets are missing. The thread ends when everything is written, even if that
    /// is after the limit.
    ///
    /// The process may be ending in the middle of anything, even while this thread holds the lock.
    pub(super) fn close(&self, limit: Duration) {
        let Shared { path, done, .. } = &*self.shared;
        let deadline = Instant::now() + limit;
        let Some(mut queue) = self.lock_until(deadline) else { return };
        if queue.ended {
            return;
        }
        queue.ended = true;
        self.shared.wake(&mut queue);
        while queue.bytes() > 0 && !queue.failed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = done.wait_timeout(queue, left);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let finished = queue.bytes() == 0 || queue.failed;
        let missing = queue.dropped + queue.packets + queue.under_way.1;
        // The warning of the failure was the last one.
        let missing = if queue.failed { 0 } else { missing };
        drop(queue);
        if missing > 0 {
            log::warn(&format!(
                "packets missing in {}, because it was written too slowly: {missing}; write to a \
                 quicker disk or to /dev/shm, or keep fewer bytes of each packet (--snaplen)",
                path.display()
            ));
        }
        if finished && let Some(thread) = lock(&self.thread).take() {
            // It has nothing left to do. If it panicked, the panic was already reported.
            let _ = thread.join();
        }
    }

    /// Locks the queue, unless that is not possible until the deadline.
    fn lock_until(&self, deadline: Instant) -> Option<MutexGuard<'_, Queue>> {
        loop {
            match self.shared.queue.try_lock() {
                Ok(queue) => return Some(queue),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(RETRY),
            }
        }
    }
}

impl Shared {
    fn wake(&self, queue: &mut Queue) {
        // It costs a system call to signal, even if nobody waits.
        if core::mem::take(&mut queue.idle) {
            self.work.notify_one();
        }
    }

    /// Writes what is handed over until the file is closed. If that fails, it logs a warning, and
    /// nothing is written from then on.
    fn run(&self, mut file: File) {
        let mut batch = Vec::new();
        let mut written = 0;
        while self.take(&mut batch) {
            let (taken, result) = write(&mut file, &batch);
            if let Err(error) = result {
                // Wireshark rejects a file that ends with half a block.
                let _ = file.set_len(written + whole_blocks(&batch[..taken]) as u64);
                return self.fail(&error);
            }
            written += taken as u64;
        }
    }

    /// Notes that the last batch is written, waits for more, and exchanges it for `batch`. Returns
    /// false if there is no more.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        batch.clear();
        let mut queue = lock(&self.queue);
        queue.under_way = (0, 0);
        while queue.blocks.is_empty() {
            self.done.notify_all();
            if queue.ended {
                return false;
            }
            queue.idle = true;
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.idle = false;
        core::mem::swap(&mut queue.blocks, batch);
        queue.under_way = (batch.len() as u64, core::mem::take(&mut queue.packets));
        true
    }

    fn fail(&self, error: &io::Error) {
        log::warn(&format!(
            "no more packets are written to {}, but the program continues: {error}; the file can be \
             read up to here",
            self.path.display()
        ));
        let mut queue = lock(&self.queue);
        (queue.failed, queue.ended, queue.blocks) = (true, true, Vec::new());
        self.done.notify_all();
    }
}

/// Writes all bytes. Returns how many were written, and what ended it.
fn write(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while done < bytes.len() {
        match file.write(&bytes[done..]) {
            Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// The length of the whole blocks that these bytes begin with.
fn whole_blocks(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(len) = bytes[at..].get(4..8).and_then(|len| len.first_chunk()) {
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 || len > bytes.len() - at {
            break;
        }
        at += len;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_after_its_last_whole_block() {
        let mut bytes = Vec::new();
        polypath_wire::pcapng::section(&mut bytes);
        let first = bytes.len();
        polypath_wire::pcapng::interface(&mut bytes, "eth0", 0);
        for len in 0..bytes.len() {
            assert_eq!(whole_blocks(&bytes[..len]), if len < first { 0 } else { first });
        }
        assert_eq!(whole_blocks(&bytes), bytes.len());
    }
}
