//! Guarded access to memory that may be gone.
//!
//! Registered memory belongs to the program, which can unmap it, truncate its file or protect it at
//! any time, even between a check and its access. Hardware would not notice, because it has pinned
//! the pages. Here the access faults, and [`guarded`] reports that instead of letting the process
//! die: the handler of SIGSEGV and SIGBUS that [`signals`](super::signals) installs leaves the
//! access in the middle, and makes `guarded` return false.
//!
//! # How it works
//!
//! `guarded` notes the stack pointer and the addresses in question in the thread's [`Frame`], and
//! runs the access through [`call`], which saves the registers that a caller relies on. If the
//! handler finds a fault of this thread at one of these addresses, it continues at [`resume`] with
//! that stack, which restores the registers and returns from `call`. The access is left as
//! `longjmp` would leave it. So it must own nothing that needs to be dropped, and hold no lock.
//!
//! # What it cannot catch
//!
//! A fault while the thread has the signal blocked ends the process, whatever handler is installed.
//! The first access of a thread unblocks both signals, [`signals::mask`](super::signals::mask)
//! keeps them unblocked, and our own threads never block them. Only programs that block them by a
//! direct system call remain.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::null_mut;

/// The signals that a fault raises.
pub(super) const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The access that a thread is performing.
struct Frame {
    /// The stack pointer to continue with; 0 if no access is being performed.
    stack: Cell<usize>,
    /// The first address that may fault.
    from: Cell<usize>,
    /// The number of bytes that may fault.
    len: Cell<usize>,
    /// Whether this thread has unblocked the signals.
    ready: Cell<bool>,
}

thread_local! {
    static FRAME: Frame = const {
        Frame {
            stack: Cell::new(0),
            from: Cell::new(0),
            len: Cell::new(0),
            ready: Cell::new(false),
        }
    };
}

/// The largest distance that the stack may have grown between [`call`] and the fault. A fault
/// beyond it is on another stack, or not ours.
const DEPTH: usize = 64 << 10;

/// Runs `access`, which touches `len` bytes from `addr` on. Returns false if it was left because
/// one of them can't be accessed this way; it may then be half done.
///
/// # Safety
/// `access` may be left at any of these bytes as if it never returned. So it must own nothing that
/// needs to be dropped, must leave no inconsistent state if it is half done, and must not call
/// `guarded`. It must be sound where memory is present at the address.
#[inline]
pub(crate) unsafe fn guarded<F: FnOnce()>(addr: usize, len: usize, access: F) -> bool {
    unsafe extern "C" fn run<F: FnOnce()>(access: *mut c_void) {
        // SAFETY: `guarded` passes its own value, which is used once.
        unsafe { access.cast::<F>().read()() }
    }
    let mut access = ManuallyDrop::new(access);
    FRAME.with(|frame| {
        if !frame.ready.get() {
            unblock();
            frame.ready.set(true);
        }
        frame.from.set(addr);
        frame.len.set(len);
        // SAFETY: `run` gets the argument that it needs. The caller promises that it may be left.
        unsafe { call(run::<F>, (&raw mut access).cast(), frame.stack.as_ptr()) }
    })
}

/// Unblocks the signals of faults in the calling thread.
#[cold]
fn unblock() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: this is our set, which is emptied before it is used.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), null_mut());
    }
}

/// Checks whether a fault of the calling thread, at `addr` and with this stack pointer, comes from
/// a guarded access. If so, returns where to continue, and with which stack pointer.
#[inline]
pub(super) fn caught(addr: usize, stack: usize) -> Option<(usize, usize)> {
    FRAME.with(|frame| {
        let saved = frame.stack.get();
        let ours = saved != 0
            && saved.wrapping_sub(stack) < DEPTH
            && addr.wrapping_sub(frame.from.get()) < frame.len.get();
        ours.then_some((resume as *const () as usize, saved))
    })
}

/// Calls `run(access)` and returns true. It stores the stack pointer at `stack` before, and 0
/// afterwards. If execution continues at [`resume`] with that stack pointer, this function returns
/// false.
///
/// # Safety
/// `run` may be called with `access`, and may be left in the middle.
#[unsafe(naked)]
unsafe extern "C" fn call(
    run: unsafe extern "C" fn(*mut c_void),
    access: *mut c_void,
    stack: *mut usize,
) -> bool {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // This is the seventh word, so the stack is aligned to 16 bytes again.
        "push rdx",
        "mov [rdx], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "pop rdx",
        "mov qword ptr [rdx], 0",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "mov eax, 1",
        "ret",
        ".cfi_endproc",
    )
}

/// The end of [`call`] after a fault.
///
/// # Safety
/// Execution may only continue here with the stack pointer that `call` has stored.
#[unsafe(naked)]
unsafe extern "C" fn resume() -> bool {
    naked_asm!(
        // The fault may have interrupted a backward copy.
        "cld",
        "pop rdx",
        "mov qword ptr [rdx], 0",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "xor eax, eax",
        "ret",
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::Command;
    use std::ptr::without_provenance_mut;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use polypath_transport::{AtomicOp, Fault};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::memory::place::place;
    use crate::memory::segment::Segment;
    use crate::memory::signals;
    use crate::memory::{MemoryTable, atomic, atomic_write, copy_out, store};

    const PAGE: usize = 4096;

    /// Maps pages, of a file or anonymous ones; at `at`, or at an unused place if that is 0.
    fn map(at: usize, pages: usize, file: Option<&File>) -> usize {
        let flags = match file {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        let (at, fixed) = match at {
            0 => (place(), libc::MAP_FIXED_NOREPLACE),
            at => (without_provenance_mut(at), libc::MAP_FIXED),
        };
        let (fd, prot) = (file.map_or(-1, File::as_raw_fd), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: this is a new mapping, or it replaces one of this test.
        let at = unsafe { libc::mmap(at, pages * PAGE, prot, flags | fixed, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as usize
    }

    fn unmap(at: usize, pages: usize) {
        // SAFETY: this is a mapping of the test.
        assert_eq!(unsafe { libc::munmap(without_provenance_mut(at), pages * PAGE) }, 0);
    }

    /// Does what a program does that registers some memory.
    fn prepare() {
        let table = MemoryTable::new();
        table
            .register(1, &raw const table as usize, 0, 0, polypath_transport::Access::empty())
            .unwrap();
    }

    fn assert_gone(at: usize, len: u32) {
        let all = Segment::checked(at as u64, len);
        let mut buffer = vec![0; len as usize];
        assert_eq!(store(all, &buffer), Err(Fault::Gone));
        assert_eq!(copy_out(all, &mut buffer), Err(Fault::Gone));
    }

    #[test]
    fn every_access_to_memory_that_was_unmapped_is_an_error() {
        prepare();
        let at = map(0, 4, None);
        unmap(at + 2 * PAGE, 1);
        for len in [1, 2, 3, 7, 8, 9, 63, 64, 511, 512, 4096] {
            assert_gone(at + 2 * PAGE, len);
        }
        assert_gone(at, 3 * PAGE as u32);
        assert_gone(at + 2 * PAGE - 3, 4);
        let word = Segment::checked((at + 2 * PAGE) as u64, 8);
        assert_eq!(atomic(word, AtomicOp::FetchAdd { add: 1 }), Err(Fault::Gone));
        assert_eq!(atomic(word, AtomicOp::CompareSwap { compare: 0, swap: 1 }), Err(Fault::Gone));
        assert_eq!(atomic_write(word, 1), Err(Fault::Gone));
        // The pages beside it can still be accessed.
        for page in [0, 1, 3] {
            let there = Segment::checked((at + page * PAGE) as u64, PAGE as u32);
            assert_eq!(store(there, &[7; PAGE]), Ok(()));
            let mut out = [0; PAGE];
            assert_eq!(copy_out(there, &mut out), Ok(PAGE));
            assert_eq!(out, [7; PAGE]);
        }
        unmap(at, 4);
    }

    #[test]
    fn a_file_that_was_cut_and_pages_that_were_protected_are_errors_too() {
        prepare();
        let file = File::from(memfd_create("cut", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(2 * PAGE as u64).unwrap();
        let at = map(0, 2, Some(&file));
        let second = Segment::checked((at + PAGE) as u64, 100);
        assert_eq!(store(second, &[1; 100]), Ok(()));
        file.set_len(PAGE as u64).unwrap();
        assert_gone(at + PAGE, 100);
        file.set_len(2 * PAGE as u64).unwrap();
        assert_eq!(store(second, &[1; 100]), Ok(()));
        // SAFETY: this is the mapping from above.
        unsafe { libc::mprotect(without_provenance_mut(at), PAGE, libc::PROT_READ) };
        let first = Segment::checked(at as u64, 100);
        assert_eq!(store(first, &[1; 100]), Err(Fault::Gone));
        assert_eq!(copy_out(first, &mut [0; 100]), Ok(100));
        unmap(at, 2);
    }

    #[test]
    fn memory_that_comes_and_goes_under_a_copy_ends_nothing() {
        prepare();
        let at = map(0, 4, None);
        let (done, gone, kept) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: nobody else maps anything here, because the range is never released.
                    unsafe {
                        libc::mprotect(without_provenance_mut(at + PAGE), PAGE, libc::PROT_NONE);
                    }
                    map(at + PAGE, 1, None);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let all = Segment::checked(at as u64, 4 * PAGE as u32);
                    let mut buffer = vec![1; 4 * PAGE];
                    while gone.load(Ordering::Relaxed) < 200 || kept.load(Ordering::Relaxed) < 200 {
                        for result in [store(all, &buffer), copy_out(all, &mut buffer).map(drop)] {
                            let count = if result.is_ok() { &kept } else { &gone };
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    done.store(true, Ordering::Relaxed);
                });
            }
        });
        unmap(at, 4);
    }

    #[test]
    fn a_thread_that_blocks_all_signals_is_guarded_from_its_first_access_on() {
        prepare();
        let at = map(0, 1, None);
        unmap(at, 1);
        std::thread::spawn(move || {
            // SAFETY: this is plain data.
            unsafe {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut());
            }
            assert_gone(at, 100);
        })
        .join()
        .unwrap();
    }

    /// The child process of the tests below. Its arguments are this test's own.
    #[test]
    #[ignore = "run by the tests that watch it end"]
    fn child() {
        static SEEN: AtomicU32 = AtomicU32::new(0);
        extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
            // SAFETY: the structure comes with the signal; this ends the process.
            unsafe {
                assert_eq!((*info).si_addr() as usize, 8);
                SEEN.fetch_add(1, Ordering::Relaxed);
                libc::_exit(40 + signal);
            }
        }
        let case = std::env::var("POLYPATH_TEST_GUARD").unwrap();
        let handle = || {
            // SAFETY: zeroes are a value of this structure, and the handler has the type that the
            // flags say.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                signals::action(libc::SIGSEGV, &raw const action, null_mut());
            }
        };
        let default = || {
            // SAFETY: zeroes are the default action.
            unsafe {
                let action: libc::sigaction = std::mem::zeroed();
                signals::action(libc::SIGSEGV, &raw const action, null_mut());
            }
        };
        default();
        match case.as_str() {
            "before" => handle(),
            "after" | "default" => {}
            _ => panic!("{case}"),
        }
        prepare();
        if case == "after" {
            handle();
        }
        let at = map(0, 1, None);
        unmap(at, 1);
        assert_gone(at, 8);
        assert_eq!(SEEN.load(Ordering::Relaxed), 0);
        // SAFETY: this is unsound on purpose, because the test needs the fault.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(8).write_volatile(1) };
    }

    fn end_of_child(case: &str) -> std::process::ExitStatus {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["memory::guard::tests::child", "--exact", "--ignored", "--nocapture"]);
        child.env("POLYPATH_TEST_GUARD", case).output().unwrap().status
    }

    #[test]
    fn faults_that_are_not_ours_are_the_programs() {
        use std::os::unix::process::ExitStatusExt;
        for case in ["before", "after"] {
            assert_eq!(end_of_child(case).code(), Some(40 + libc::SIGSEGV), "{case}");
        }
        assert_eq!(end_of_child("default").signal(), Some(libc::SIGSEGV));
    }
}
