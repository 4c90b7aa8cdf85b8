//! SIGSEGV and SIGBUS. They are ours if an access under [`guard`](super::guard) caused them, else
//! the program's.
//!
//! Our handler is installed with the first memory region, and checked with every further one. The
//! action that the program has set, before or after, is kept here, and is called for every fault
//! that is not ours, as the kernel would call it. For this purpose the preloaded library replaces
//! the C library's functions that set a signal's action or a thread's mask. [`action`] and [`mask`]
//! implement them.

use std::ffi::{CStr, c_int, c_void};
use std::mem::{MaybeUninit, transmute, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering, fence};

use libc::{sigaction, siginfo_t, sigset_t, ucontext_t};

use super::guard::{self, SIGNALS};

/// The program's action for a signal. The handler may read it at any time, so its parts are
/// protected by a sequence lock: a reader gets all of them or tries again.
struct Program {
    /// Odd while it is being written.
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicI32,
    /// A bit for each of Linux's 64 signals.
    mask: AtomicU64,
}

impl Program {
    const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn get(&self) -> sigaction {
        loop {
            let version = self.version.load(Ordering::Acquire);
            // SAFETY: all zeroes are a value of this plain C structure.
            let mut action: sigaction = unsafe { zeroed() };
            action.sa_sigaction = self.handler.load(Ordering::Relaxed);
            action.sa_flags = self.flags.load(Ordering::Relaxed);
            // SAFETY: a set is at least as long as its first word.
            unsafe {
                (&raw mut action.sa_mask).cast::<u64>().write(self.mask.load(Ordering::Relaxed));
            };
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return action;
            }
            std::hint::spin_loop();
        }
    }

    /// Stores an action. The caller has blocked all signals, because a handler in this thread would
    /// otherwise wait for this thread forever.
    fn set(&self, action: &sigaction) {
        let version = loop {
            let version = self.version.load(Ordering::Relaxed) & !1;
            let next = version.wrapping_add(1);
            let (ok, seen) = (Ordering::Acquire, Ordering::Relaxed);
            if self.version.compare_exchange_weak(version, next, ok, seen).is_ok() {
                break version;
            }
            std::hint::spin_loop();
        };
        fence(Ordering::Release);
        self.handler.store(action.sa_sigaction, Ordering::Relaxed);
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        // SAFETY: a set is at least as long as its first word.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        self.mask.store(mask, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

static PROGRAM: [Program; 2] = [const { Program::new() }; 2];
/// Whether the handler was installed, by this process or one that it was forked from.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The process that has the handler. A vfork child shares our memory before its exec, but not our
/// handlers.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn of(signal: c_int) -> Option<&'static Program> {
    SIGNALS.iter().position(|&s| s == signal).map(|at| &PROGRAM[at])
}

/// Installs our handler for faults of guarded accesses. Every registration calls it. That takes two
/// system calls if nothing has changed. If the program has replaced our handler by a direct system
/// call, our handler takes over again and passes other faults on to the program's.
pub(super) fn install() {
    for (signal, program) in SIGNALS.into_iter().zip(&PROGRAM) {
        // SAFETY: all zeroes are a value of this plain C structure.
        let mut current: sigaction = unsafe { zeroed() };
        let known = real_action(signal, null(), &raw mut current) == 0;
        if !known || current.sa_sigaction == on_fault as *const () as usize {
            continue;
        }
        with_all_blocked(|| program.set(&current));
        // SAFETY: all zeroes are a value of this plain C structure.
        let mut ours: sigaction = unsafe { zeroed() };
        ours.sa_sigaction = on_fault as *const () as usize;
        // NODEFER is set because `forward` blocks what the program wants blocked while its handler
        // runs.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        real_action(signal, &raw const ours, null_mut());
    }
    OWNER.store(std::process::id(), Ordering::Relaxed);
    INSTALLED.store(true, Ordering::Release);
}

/// Whether the program's action for a signal is kept here instead of in the kernel.
pub fn is_kept(signal: c_int) -> bool {
    of(signal).is_some() && is_ours()
}

fn is_ours() -> bool {
    INSTALLED.load(Ordering::Acquire) && OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// Implements `sigaction(2)` as the program should see it.
///
/// # Safety
/// As the C library's.
pub unsafe fn action(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    let Some(program) = of(signal).filter(|_| is_ours()) else {
        return real_action(signal, new, old);
    };
    let before = program.get();
    // SAFETY: the caller promises valid arguments. `new` and `old` may be the same.
    unsafe {
        if !new.is_null() {
            let new = new.read();
            with_all_blocked(|| program.set(&new));
        }
        if !old.is_null() {
            old.write(before);
        }
    }
    0
}

/// Implements `sigprocmask(2)` or `pthread_sigmask(3)` by calling `real`. Once memory is
/// registered, the signals of faults are never blocked.
///
/// # Safety
/// As the C library's.
pub unsafe fn mask(
    how: c_int,
    set: *const sigset_t,
    real: impl FnOnce(*const sigset_t) -> c_int,
) -> c_int {
    if set.is_null() || how == libc::SIG_UNBLOCK || !INSTALLED.load(Ordering::Acquire) {
        return real(set);
    }
    // SAFETY: this is the caller's set.
    let mut without = unsafe { set.read() };
    for signal in SIGNALS {
        // SAFETY: this is our set.
        unsafe { libc::sigdelset(&raw mut without, signal) };
    }
    real(&raw const without)
}

fn with_all_blocked(what: impl FnOnce()) {
    let mut old = MaybeUninit::<u64>::uninit();
    let all = u64::MAX;
    // SAFETY: these are two sets of 8 bytes, as the kernel uses them. The call can't fail.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            old.as_mut_ptr(),
            8,
        );
        what();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            old.as_ptr(),
            null_mut::<u64>(),
            8,
        );
    }
}

/// The C library's `sigaction`, or that of a library that replaces it; not our own replacement.
fn real_action(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const sigaction, *mut sigaction) -> c_int;
    const NAME: &CStr = c"sigaction";
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr()) };
        if found.is_null() {
            return -1;
        }
        FOUND.store(found, Ordering::Relaxed);
    }
    // SAFETY: the function of this name has this type, and the arguments are the caller's.
    unsafe { transmute::<*mut c_void, Function>(found)(signal, new, old) }
}

/// The signal handler. Until the fault is known to be the program's, it does not allocate, lock, or
/// change `errno`.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel provides both structures. A fault has a positive code and an address,
    // unlike a signal that was sent. It continues with what `guard` has stored for this purpose.
    unsafe {
        if (*info).si_code > 0 {
            let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
            let stack = registers[libc::REG_RSP as usize] as usize;
            if let Some((code, stack)) = guard::caught((*info).si_addr() as usize, stack) {
                registers[libc::REG_RIP as usize] = code as libc::greg_t;
                registers[libc::REG_RSP as usize] = stack as libc::greg_t;
                return;
            }
        }
        forward(signal, info, context);
    }
}

/// Handles a signal as the program's action says and the kernel would.
///
/// # Safety
/// Only the handler calls it, with its own arguments.
unsafe fn forward(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(program) = of(signal) else { return };
    let action = program.get();
    // SAFETY: zeroes are the default action. The handler is the program's, of the type that its
    // flags say. The mask is a kernel's mask of 8 bytes.
    unsafe {
        let sent = (*info).si_code <= 0;
        match action.sa_sigaction {
            // A signal that was sent can be ignored, but a fault can't.
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                let default: sigaction = zeroed();
                real_action(signal, &raw const default, null_mut());
                // A fault happens again when this handler returns.
                if sent {
                    libc::raise(signal);
                }
            }
            handler => {
                if action.sa_flags & libc::SA_RESETHAND != 0 {
                    with_all_blocked(|| program.set(&zeroed()));
                }
                let mut mask = (&raw const action.sa_mask).cast::<u64>().read();
                if action.sa_flags & libc::SA_NODEFER == 0 {
                    mask |= 1 << (signal - 1);
                }
                let none = null_mut::<u64>();
                libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, none, 8);
                // The kernel restores the previous mask when the handler returns.
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                    transmute::<usize, Handler>(handler)(signal, info, context);
                } else {
                    transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal);
                }
            }
        }
    }
}
