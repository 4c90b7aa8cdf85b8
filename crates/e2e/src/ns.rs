//! Network namespaces without names, held by file descriptors.
//!
//! A namespace exists as long as it has a process or a descriptor. A child makes each namespace: it
//! unshares, and then waits for the end of its input, which comes when our process ends, however that
//! happens. For an ordinary user, all namespaces of a lab belong to one user namespace in which the
//! user is root.

use crate::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A network namespace, and the user namespace that owns it if we are not root.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    user: Option<Arc<File>>,
    net: Arc<File>,
    holder: Arc<Holder>,
}

/// The child that lives in the namespace and does nothing.
#[derive(Debug)]
struct Holder(Mutex<Child>);

impl Drop for Holder {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The child ends when its input ends. Killing it can only fail if it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Namespace {
    /// Makes a new, empty namespace. The owner is the user namespace of `sibling`. The first one gets a
    /// new user namespace, unless this process does not need one.
    pub(crate) fn new(sibling: Option<&Self>) -> Result<Self, Error> {
        if let Some(sibling) = sibling {
            let user = sibling.user.clone();
            return Self::make(user, false);
        }
        match Self::make(None, false) {
            Ok(ns) => Ok(ns),
            Err(_) => Self::make(None, true),
        }
    }

    fn make(user: Option<Arc<File>>, new_user: bool) -> Result<Self, Error> {
        let enter = user.as_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: getuid and getgid have no preconditions.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let uid_map = format!("0 {uid} 1");
        let gid_map = format!("0 {gid} 1");
        let mut holder = Command::new("cat");
        holder.stdin(Stdio::piped()).stdout(Stdio::null());
        let hook = move || {
            if let Some(fd) = enter {
                set_ns(fd, libc::CLONE_NEWUSER)?;
            }
            if new_user {
                unshare(libc::CLONE_NEWUSER)?;
                write_file(c"/proc/self/setgroups", b"deny")?;
                write_file(c"/proc/self/uid_map", uid_map.as_bytes())?;
                write_file(c"/proc/self/gid_map", gid_map.as_bytes())?;
            }
            unshare(libc::CLONE_NEWNET)
        };
        // SAFETY: between fork and exec the hook only makes system calls on values prepared before.
        unsafe { holder.pre_exec(hook) };
        let holder = holder.spawn().map_err(|source| {
            Error::os("making a network namespace (needs root or user namespaces)", source)
        })?;
        let open = |kind: &str| {
            let path = format!("/proc/{}/ns/{kind}", holder.id());
            File::open(&path).map(Arc::new).map_err(|source| Error::os(path, source))
        };
        let net = open("net");
        let user = if new_user { open("user").map(Some) } else { Ok(user) };
        Ok(Self { user: user?, net: net?, holder: Arc::new(Holder(Mutex::new(holder))) })
    }

    /// Its file in `/proc`, which exists as long as the namespace.
    pub(crate) fn path(&self) -> String {
        let id = self.holder.0.lock().unwrap_or_else(PoisonError::into_inner).id();
        format!("/proc/{id}/ns/net")
    }

    /// Reads a file of `/proc/net` as a process inside sees it.
    pub(crate) fn proc_net(&self, file: &str) -> Result<String, Error> {
        let id = self.holder.0.lock().unwrap_or_else(PoisonError::into_inner).id();
        let path = format!("/proc/{id}/net/{file}");
        std::fs::read_to_string(&path).map_err(|source| Error::os(path, source))
    }

    /// Makes `command` run inside. With `inherit`, it gets these namespaces as descriptors from
    /// [`FIRST_INHERITED`] on.
    pub(crate) fn enter(&self, command: &mut Command, inherit: &[&Self]) {
        let user = self.user.clone();
        let net = Arc::clone(&self.net);
        let inherited: Vec<Arc<File>> = inherit.iter().map(|ns| Arc::clone(&ns.net)).collect();
        let hook = move || {
            for (target, file) in (FIRST_INHERITED..).zip(&inherited) {
                duplicate(file.as_raw_fd(), target)?;
            }
            if let Some(user) = &user {
                set_ns(user.as_raw_fd(), libc::CLONE_NEWUSER)?;
            }
            set_ns(net.as_raw_fd(), libc::CLONE_NEWNET)?;
            hear_interrupts()?;
            die_with_parent()
        };
        // SAFETY: between fork and exec the hook only makes system calls on values prepared before.
        unsafe { command.pre_exec(hook) };
    }

    /// Kills every process inside.
    pub(crate) fn kill_all(&self) {
        // A killed process may have started another one.
        for _ in 0..KILL_ROUNDS {
            if self.kill_each() == 0 {
                return;
            }
        }
    }

    /// Kills every process inside once, and returns how many there were.
    fn kill_each(&self) -> usize {
        let Ok(ours) = self.net.metadata().map(|meta| meta.ino()) else { return 0 };
        let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
        let mut count = 0;
        for entry in processes.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let same =
                std::fs::metadata(entry.path().join("ns/net")).is_ok_and(|m| m.ino() == ours);
            if same {
                // SAFETY: kill has no memory preconditions; the process is one of this lab's.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                count += 1;
            }
        }
        count
    }
}

/// The largest number of times that all processes are searched for those to kill.
const KILL_ROUNDS: usize = 50;

/// The first descriptor number under which a command sees the namespaces given to it.
pub(crate) const FIRST_INHERITED: RawFd = 900;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: unshare takes no pointers.
    check(unsafe { libc::unshare(flags) })
}

fn set_ns(fd: RawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: setns takes no pointers; a bad descriptor is an error.
    check(unsafe { libc::setns(fd, kind) })
}

fn duplicate(fd: RawFd, target: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes no pointers; the target number is not in use by the standard library.
    check(unsafe { libc::dup2(fd, target) })
}

/// Takes SIGINT as usual. A shell without job control starts what it runs in the background with SIGINT
/// ignored, and programs inherit that: those that are to be ended by it would stay.
fn hear_interrupts() -> io::Result<()> {
    // SAFETY: the call takes numbers only, and SIG_DFL is no handler that could be called.
    match unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Asks the kernel to kill this process when its parent ends. The kernel forgets this when credentials
/// change, so it must be asked after entering the namespaces.
fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes an integer.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
}

fn write_file(path: &std::ffi::CStr, data: &[u8]) -> io::Result<()> {
    // SAFETY: the path is a C string, the buffer is valid for its length, the descriptor is closed.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(fd)?;
        let written = libc::write(fd, data.as_ptr().cast(), data.len());
        libc::close(fd);
        if written == data.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
