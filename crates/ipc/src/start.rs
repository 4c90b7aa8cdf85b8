//! Starts the broker from inside another program's process.
//!
//! The host program must not notice: there must be no `SIGCHLD` and no zombie, and the broker must
//! not get descriptors or environment variables of the host or of this library. So `clone(2)`
//! creates an intermediate process with exit signal 0, which is waited for with `__WALL`; the
//! host's own `wait()` never sees it. It starts the broker in a new session and exits. Both share
//! the host's memory until they are done with it (`CLONE_VM | CLONE_VFORK`), which costs the same
//! whether the host has 1 MiB or 1 TiB mapped. So they only make system calls, and do not use the C
//! library's wrappers: other preloaded libraries, such as librspreload, replace `close` and `dup2`,
//! and would record in the host's memory that its descriptors are closed.
//!
//! The program is searched in `POLYPATH_BROKER_BIN`, then as `polypath` beside the shared library
//! or program that contains this code, then beside the running program, then in `PATH`. It is
//! called as `polypath broker --ready-fd 3`, and writes one line to descriptor 3 when clients may
//! connect: `ready`, or a sentence with the reason why it ends.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use crate::error::IpcError;
use crate::socket::user_id;

/// The environment variable that names the broker's program.
const BINARY_VARIABLE: &str = "POLYPATH_BROKER_BIN";

/// The broker's program.
const BINARY: &str = "polypath";

/// The line that the broker writes when clients may connect.
const READY: &str = "ready";

/// The descriptor of the broker's end of the readiness pipe.
const READY_FD: RawFd = 3;

/// The size in bytes at which a new log is begun; one old log is kept.
const LOG_MAX: u64 = 1 << 20;

/// Stack for each of the two short-lived processes, in bytes.
const STACK: usize = 64 * 1024;

/// Variables that the broker does not get, because they would load this library or a tool into it.
const UNWANTED: [&str; 3] = ["LD_PRELOAD", "LD_AUDIT", "LD_PROFILE"];

/// Starts the broker and waits until it is ready.
pub(crate) fn broker() -> Result<(), IpcError> {
    let binary = find_binary()?;
    let log = open_log();
    let (ready, theirs) = io::pipe().map_err(|e| IpcError::Start(format!("no pipe: {e}")))?;
    let command = Command::new(&binary, log.as_ref(), theirs.as_fd())?;
    command.spawn()?;
    drop(theirs);
    let mut said = String::new();
    ready
        .take(1024)
        .read_to_string(&mut said)
        .map_err(|e| IpcError::Start(format!("reading its readiness: {e}")))?;
    match said.trim_end() {
        READY => Ok(()),
        "" => Err(IpcError::Start(format!(
            "{} ended before it was ready; run `polypath broker` by hand to see why",
            binary.display()
        ))),
        reason => Err(IpcError::Start(reason.to_owned())),
    }
}

fn find_binary() -> Result<PathBuf, IpcError> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        return Ok(path.into());
    }
    let beside = |path: PathBuf| path.parent().map(|directory| directory.join(BINARY));
    let path = std::env::var_os("PATH").unwrap_or_default();
    own_object()
        .and_then(beside)
        .into_iter()
        .chain(std::env::current_exe().ok().and_then(beside))
        .chain(std::env::split_paths(&path).map(|directory| directory.join(BINARY)))
        .find(|candidate| is_program(candidate))
        .ok_or_else(|| {
            IpcError::Start(format!(
                "no program `{BINARY}` beside the library or in PATH; \
                 set {BINARY_VARIABLE} to its path"
            ))
        })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The file (shared library or program) that contains this code.
fn own_object() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    let here: fn() -> Option<PathBuf> = own_object;
    // SAFETY: dladdr only looks the address up, and `info` is valid for writing.
    let found = unsafe { libc::dladdr(here as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a NUL-terminated name that lives as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// The log file, in the user's state directory, or in the user's own directory under /tmp. Without
/// either the broker is started all the same, and its log is lost.
fn open_log() -> Option<File> {
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")))
        .filter(|path| path.is_absolute())
        .map(|path| path.join("polypath"));
    let fallback = PathBuf::from(format!("/tmp/polypath-{}", user_id()));
    state.into_iter().chain([fallback]).find_map(|directory| open_log_in(&directory).ok())
}

fn open_log_in(directory: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // Everybody can write to /tmp, so another user might have created the directory.
    let meta = fs::symlink_metadata(directory)?;
    if !meta.is_dir() || meta.uid() != user_id() || meta.permissions().mode() & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let path = directory.join("broker.log");
    if fs::symlink_metadata(&path).is_ok_and(|meta| meta.len() > LOG_MAX) {
        fs::rename(&path, directory.join("broker.log.1"))?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// The data for the two short-lived processes. They are prepared in advance, because these
/// processes may not allocate.
struct Command {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    null: File,
    log: RawFd,
    ready: RawFd,
}

/// The data that the processes use: pointers into [`Command`].
struct Prepared {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    null: RawFd,
    log: RawFd,
    ready: RawFd,
    second_stack_top: *mut c_void,
}

impl Command {
    fn new(program: &Path, log: Option<&File>, ready: BorrowedFd<'_>) -> Result<Self, IpcError> {
        let text = |bytes: Vec<u8>| {
            CString::new(bytes).map_err(|_| IpcError::Start("a NUL byte in its path".into()))
        };
        let program = text(program.as_os_str().as_bytes().to_vec())?;
        let fd = READY_FD.to_string();
        let arguments = [BINARY, "broker", "--ready-fd", &fd]
            .into_iter()
            .map(|argument| text(argument.into()))
            .collect::<Result<_, _>>()?;
        let environment = std::env::vars_os()
            .filter(|(name, _)| !UNWANTED.iter().any(|unwanted| name == unwanted))
            .filter_map(|(name, value)| variable(&name, &value))
            .collect();
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(|e| IpcError::Start(format!("/dev/null: {e}")))?;
        let log = log.map_or_else(|| null.as_raw_fd(), AsRawFd::as_raw_fd);
        Ok(Self { program, arguments, environment, null, log, ready: ready.as_raw_fd() })
    }

    fn spawn(&self) -> Result<(), IpcError> {
        let pointers = |list: &[CString]| -> Vec<*const c_char> {
            list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        // The type is u128, because a stack must be aligned to 16 bytes.
        let mut first_stack = vec![0_u128; STACK / 16];
        let mut second_stack = vec![0_u128; STACK / 16];
        let prepared = Prepared {
            program: self.program.as_ptr(),
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
            null: self.null.as_raw_fd(),
            log: self.log,
            ready: self.ready,
            second_stack_top: second_stack.as_mut_ptr_range().end.cast(),
        };
        let blocked = BlockedSignals::new();
        // SAFETY: `intermediate` runs on its own stack while this thread is suspended
        // (CLONE_VFORK), so everything it points to outlives it. It only makes system calls.
        let pid = unsafe {
            libc::clone(
                intermediate,
                first_stack.as_mut_ptr_range().end.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK,
                (&raw const prepared).cast_mut().cast(),
            )
        };
        let error = io::Error::last_os_error();
        drop(blocked);
        if pid < 0 {
            return Err(IpcError::Start(format!("clone: {error}")));
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writing. EINTR is possible, because the host's signals
        // arrive here again.
        while unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
        Ok(())
    }
}

fn variable(name: &OsString, value: &OsString) -> Option<CString> {
    let mut text = name.clone().into_vec();
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    CString::new(text).ok()
}

/// The first process. It creates a session and the second process in it, and exits.
extern "C" fn intermediate(prepared: *mut c_void) -> c_int {
    // SAFETY: `prepared` is the pointer that `spawn` passed, and its thread waits for us.
    let second_stack_top = unsafe { (*prepared.cast::<Prepared>()).second_stack_top };
    // SAFETY: these are plain system calls. `broker_process` has its own stack, as `spawn`
    // explains. The broker has no parent after this process exits, so it may have the ordinary exit
    // signal.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        c_int::from(libc::clone(broker_process, second_stack_top, flags, prepared) < 0)
    }
}

/// The second process, which becomes the broker.
extern "C" fn broker_process(prepared: *mut c_void) -> c_int {
    // SAFETY: the same as in `intermediate`.
    let prepared = unsafe { &*prepared.cast::<Prepared>() };
    // SAFETY: these are plain system calls on our own descriptor table. The pointers are valid, and
    // the lists end with null. Signals stay blocked until the broker unblocks them, because memory
    // is shared, and a handler of the host must not run here.
    unsafe {
        // The sources may themselves be any of 0..=3, so they are moved out of the way first.
        let above = READY_FD + 1;
        let away = |fd: RawFd| libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD, above);
        let (null, log, ready) = (away(prepared.null), away(prepared.log), away(prepared.ready));
        for (from, to) in [(null, 0), (null, 1), (log, 2), (ready, READY_FD)] {
            libc::syscall(libc::SYS_dup3, from, to, 0);
        }
        if libc::syscall(libc::SYS_close_range, above, u32::MAX, 0) < 0 {
            for fd in above..1024 {
                libc::syscall(libc::SYS_close, fd);
            }
        }
        libc::syscall(libc::SYS_chdir, c"/".as_ptr());
        let (arguments, environment) = (prepared.arguments, prepared.environment);
        libc::syscall(libc::SYS_execve, prepared.program, arguments, environment);
        let said = c"its program cannot be executed; is POLYPATH_BROKER_BIN right?";
        libc::syscall(libc::SYS_write, READY_FD, said.as_ptr(), said.count_bytes());
        127
    }
}

/// Blocks all signals of this thread while it lives.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // The C library only writes as many bytes of a set as signals need.
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are valid for writing, and all zeroes are a set.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: this restores the set that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
