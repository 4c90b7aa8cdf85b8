//! Accesses to checked memory: copies and atomics.
//!
//! A [`Segment`] proves that memory was checked. The proof is valid while the lane's lock is held
//! under which it was made; see the [module](super). The application's own accesses race with
//! these, as they do with a device's. If the application has given up the memory since the check,
//! the access fails with [`Fault::Gone`].

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use polypath_transport::{AtomicOp, Fault, Segment as _};

use super::guard::guarded;
use super::segment::Segment;

/// Copies received data into checked memory, as far as they fit.
///
/// Programs poll the last bytes of a message. So the bytes up to the last 8-aligned boundary are
/// copied first, and the rest follows in ascending order after a release fence. Aligned pieces of
/// 2, 4 and 8 bytes in that rest are written at once.
///
/// # Errors
/// [`Fault::Gone`]; some bytes may have been written.
#[inline]
pub fn store(segment: Segment, data: &[u8]) -> Result<(), Fault> {
    debug_assert!(data.len() <= segment.bytes());
    if segment.is_listed() {
        return store_in_pages(segment, data);
    }
    let len = data.len().min(segment.bytes());
    if len == 0 {
        return Ok(());
    }
    let (dst, src) = (segment.addr() as *mut u8, data.as_ptr());
    let tail = tail_len(dst as usize, len);
    let head = len - tail;
    // SAFETY: the segment was checked: if memory is present at its address, it is writable memory
    // of this process, of the segment's length. `head <= len`, and `data` has `len` bytes. They
    // don't overlap, because `data` is a receive buffer or belongs to a queue pair, and is never
    // registered memory. The copy may end at any byte.
    let done = unsafe {
        guarded(dst as usize, len, || {
            ptr::copy_nonoverlapping(src, dst, head);
            fence(Ordering::Release);
            store_tail(dst.add(head), src.add(head), tail);
        })
    };
    if done { Ok(()) } else { Err(Fault::Gone) }
}

/// Does the same as [`store`] piece by piece, so that the last bytes are written last.
#[cold]
fn store_in_pages(segment: Segment, data: &[u8]) -> Result<(), Fault> {
    let len = data.len().min(segment.bytes());
    each_piece(segment, len, |piece, at| store(piece, &data[at..][..piece.bytes()]))
}

/// Does the same as [`copy_out_to`] piece by piece.
///
/// # Safety
/// As for [`copy_out_to`].
#[cold]
unsafe fn copy_out_of_pages(segment: Segment, out: *mut u8, len: usize) -> Result<(), Fault> {
    each_piece(segment, len, |piece, at| {
        // SAFETY: the piece begins `at` bytes after the segment and ends within its first `len` bytes.
        unsafe { copy_out_to(piece, out.add(at), piece.bytes()) }.map(drop)
    })
}

/// Calls a function for each piece of a segment that lies in pages, in order.
fn each_piece(
    segment: Segment,
    len: usize,
    mut work: impl FnMut(Segment, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        let piece = segment.part(done as u32, (len - done) as u32).together()?;
        work(piece, done)?;
        done += piece.bytes();
    }
    Ok(())
}

/// The number of bytes that a copy must write last: up to 8, from an 8-aligned address on if there
/// is one.
#[inline]
fn tail_len(dst: usize, len: usize) -> usize {
    if len <= 8 {
        return len;
    }
    match (dst + len) % 8 {
        0 => 8,
        n => n,
    }
}

/// Writes up to 8 bytes in ascending order, in the largest aligned pieces.
///
/// # Safety
/// `len` bytes are writable at `dst` and readable at `src`.
#[inline]
unsafe fn store_tail(mut dst: *mut u8, mut src: *const u8, mut len: usize) {
    while len > 0 {
        let at = dst as usize;
        let size = match len {
            8.. if at.is_multiple_of(8) => 8,
            4.. if at.is_multiple_of(4) => 4,
            2.. if at.is_multiple_of(2) => 2,
            _ => 1,
        };
        // SAFETY: the caller promises that `size <= len` bytes are there, and `dst` is aligned to
        // `size`. Release makes everything that was copied before visible first.
        unsafe {
            match size {
                8 => AtomicU64::from_ptr(dst.cast())
                    .store(src.cast::<u64>().read_unaligned(), Ordering::Release),
                4 => AtomicU32::from_ptr(dst.cast())
                    .store(src.cast::<u32>().read_unaligned(), Ordering::Release),
                2 => AtomicU16::from_ptr(dst.cast())
                    .store(src.cast::<u16>().read_unaligned(), Ordering::Release),
                _ => AtomicU8::from_ptr(dst).store(*src, Ordering::Release),
            }
            dst = dst.add(size);
            src = src.add(size);
        }
        len -= size;
    }
}

/// Copies from checked memory. Returns the number of bytes: the shorter of both lengths.
///
/// # Errors
/// [`Fault::Gone`]; some bytes may have been copied.
#[inline]
pub fn copy_out(segment: Segment, out: &mut [u8]) -> Result<usize, Fault> {
    // SAFETY: `out` is a buffer of the engine's, never registered memory, of this length.
    unsafe { copy_out_to(segment, out.as_mut_ptr(), out.len()) }
}

/// Copies from checked memory to where `out` points. Returns the number of bytes: at most `most`.
///
/// # Errors
/// [`Fault::Gone`]; some bytes may have been copied.
///
/// # Safety
/// `most` bytes are writable at `out`, and they are not registered memory.
#[inline]
pub unsafe fn copy_out_to(segment: Segment, out: *mut u8, most: usize) -> Result<usize, Fault> {
    let len = most.min(segment.bytes());
    if segment.is_listed() {
        // SAFETY: as promised by the caller.
        unsafe { copy_out_of_pages(segment, out, len) }?;
        return Ok(len);
    }
    if len == 0 {
        return Ok(0);
    }
    let src = segment.addr() as *const u8;
    // SAFETY: the segment was checked: if memory is present, it is readable memory of this process.
    // `out` is none of it, as the caller promises. The copy may end at any byte.
    let done = unsafe { guarded(src as usize, len, || ptr::copy_nonoverlapping(src, out, len)) };
    if done { Ok(len) } else { Err(Fault::Gone) }
}

/// Executes an atomic operation on checked memory and returns the previous value in native byte
/// order. It is also atomic with respect to the process's own atomic operations.
///
/// [`MemoryTable::resolve_remote`](super::MemoryTable::resolve_remote) returns only aligned
/// segments for atomics; any other segment is rejected.
///
/// # Errors
/// [`Fault::Gone`]; nothing was changed.
#[inline]
pub fn atomic(segment: Segment, op: AtomicOp) -> Result<u64, Fault> {
    let mut before = 0;
    let result = &raw mut before;
    on_word(segment, |word| {
        let old = match op {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
            AtomicOp::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(before) | Err(before) => before,
                }
            }
        };
        // SAFETY: this is the variable from above.
        unsafe { result.write(old) };
    })?;
    Ok(before)
}

/// Writes 8 aligned bytes of checked memory at once, after everything that was stored before. A
/// segment that is not 8 aligned bytes is rejected.
///
/// # Errors
/// [`Fault::Gone`]; nothing was changed.
#[inline]
pub fn atomic_write(segment: Segment, value: u64) -> Result<(), Fault> {
    on_word(segment, |word| word.store(value, Ordering::Release))
}

/// Performs one access to the word in a segment. `access` must own nothing, because it may be left
/// in the middle.
#[inline]
fn on_word(segment: Segment, access: impl Fn(&AtomicU64)) -> Result<(), Fault> {
    // A word is aligned, so it never lies in two pages.
    let segment = segment.together()?;
    let fits = segment.bytes() >= 8 && segment.addr().is_multiple_of(8) && segment.addr() != 0;
    debug_assert!(fits, "not checked for atomics: {segment:?}");
    if !fits {
        return Err(Fault::Range);
    }
    // SAFETY: the segment was checked: if memory is present, it is writable memory of this process,
    // of 8 aligned bytes. A single access may be left.
    let done = unsafe {
        guarded(segment.addr(), 8, || access(AtomicU64::from_ptr(segment.addr() as *mut u64)))
    };
    if done { Ok(()) } else { Err(Fault::Gone) }
}

/// Makes everything that was stored before visible to all threads, and to every process that maps
/// the same memory, before anything that follows. This is a FLUSH to global visibility. Caches are
/// coherent, so a fence is enough.
#[inline]
pub fn make_visible() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(of: &mut [u8]) -> Segment {
        Segment::checked(of.as_mut_ptr() as u64, of.len() as u32)
    }

    #[test]
    fn store_copies_every_length_at_every_alignment() {
        let data: Vec<u8> = (1..=255).collect();
        for offset in 0..16 {
            for len in 0..80 {
                let mut memory = vec![0u64; 16];
                // SAFETY: these are the bytes of the vector.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), 128) };
                store(segment(&mut bytes[offset..offset + len]), &data[..len]).unwrap();
                assert_eq!(bytes[offset..offset + len], data[..len]);
                assert!(bytes[..offset].iter().chain(&bytes[offset + len..]).all(|b| *b == 0));
            }
        }
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn store_never_writes_beyond_the_segment() {
        let mut memory = [0u8; 8];
        store(segment(&mut memory[..4]), &[1; 8]).unwrap();
        assert_eq!(memory, [1, 1, 1, 1, 0, 0, 0, 0]);
    }

    /// A program polls the last byte and then reads the rest.
    #[test]
    fn last_byte_is_seen_after_all_others() {
        use std::sync::atomic::{AtomicU8, Ordering};
        for len in [9, 64, 100, 4096] {
            let memory: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
            let target = Segment::checked(memory.as_ptr() as u64, len as u32);
            let seen = AtomicU8::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=100 {
                        while memory[len - 1].load(Ordering::Acquire) != round {
                            std::thread::yield_now();
                        }
                        assert!(memory.iter().all(|b| b.load(Ordering::Relaxed) == round));
                        seen.store(round, Ordering::Release);
                    }
                });
                for round in 1..=100 {
                    store(target, &vec![round; len]).unwrap();
                    while seen.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            });
        }
    }

    #[test]
    fn copy_out_takes_the_shorter_of_the_two() {
        let mut memory = [1, 2, 3, 4];
        let mut out = [0; 3];
        assert_eq!(copy_out(segment(&mut memory), &mut out), Ok(3));
        assert_eq!(out, [1, 2, 3]);
        assert_eq!(copy_out(segment(&mut memory[..1]), &mut out), Ok(1));
    }

    #[test]
    fn atomics_are_atomic_among_threads_and_return_what_was_there() {
        let mut word = 5u64;
        let at = Segment::checked(&raw mut word as u64, 8);
        assert_eq!(atomic(at, AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(5));
        assert_eq!(atomic(at, AtomicOp::CompareSwap { compare: 5, swap: u64::MAX }), Ok(5));
        assert_eq!(atomic(at, AtomicOp::FetchAdd { add: 2 }), Ok(u64::MAX));
        assert_eq!(copy_word(at), 1, "wraps");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..1000 {
                        atomic(at, AtomicOp::FetchAdd { add: 1 }).unwrap();
                    }
                });
            }
        });
        assert_eq!(copy_word(at), 4001);
    }

    fn copy_word(at: Segment) -> u64 {
        let mut out = [0; 8];
        copy_out(at, &mut out).unwrap();
        u64::from_ne_bytes(out)
    }

    #[test]
    fn words_are_written_at_once() {
        let mut word = 5u64;
        let at = Segment::checked(&raw mut word as u64, 8);
        let (one, other) = (0x1111_1111_1111_1111, 0x2222_2222_2222_2222);
        atomic_write(at, one).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..20_000).for_each(|n| atomic_write(at, [one, other][n % 2]).unwrap());
            });
            for _ in 0..20_000 {
                let seen = atomic(at, AtomicOp::FetchAdd { add: 0 }).unwrap();
                assert!([one, other].contains(&seen), "{seen:#x}");
            }
        });
    }
}
