//! Finds open devices by the identity of their `cmd_fd`. It is a memory file, so that a duplicate
//! of the descriptor refers to the same file.

use core::mem::zeroed;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::{Arc, Weak};

use libc::c_int;
use polypath_verbs::{Error, Result};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::context::Opened;
use crate::lock::Lock;

/// The name of a context's memory file, so that another process can tell what it received.
const NAME: &core::ffi::CStr = c"polypath-context";

/// A file's device and inode.
pub(crate) type Identity = (libc::dev_t, libc::ino_t);

/// Open devices by the identity of their `cmd_fd`.
pub(crate) struct Table(BTreeMap<Identity, Weak<Opened>>);

pub(crate) static CONTEXTS: Lock<Table> = Lock::new(Table(BTreeMap::new()));

fn identity(fd: c_int) -> Result<Identity> {
    // SAFETY: zeroes are valid for stat, which the call fills in.
    unsafe {
        let mut stat: libc::stat = zeroed();
        if libc::fstat(fd, &mut stat) != 0 {
            return Err(Error::new(libc::EBADF, "cmd_fd is not an open file descriptor"));
        }
        Ok((stat.st_dev, stat.st_ino))
    }
}

/// Creates a descriptor for a new context's `cmd_fd`. Also returns its file's identity.
pub(crate) fn command_fd() -> Result<(c_int, Identity)> {
    let fd = memfd_create(NAME, MemfdFlags::CLOEXEC)
        .map_err(|errno| Error::new(errno.raw_os_error(), "cannot make a file for the context"))?;
    let identity = identity(fd.as_raw_fd())?;
    Ok((fd.into_raw_fd(), identity))
}

/// Adds an open device, whose contexts can be imported from now on.
pub(crate) fn remember(identity: Identity, opened: &Arc<Opened>) {
    CONTEXTS.lock().0.insert(identity, Arc::downgrade(opened));
}

/// The open device of a descriptor's file, if this process has it.
pub(crate) fn find(fd: c_int) -> Result<Option<Arc<Opened>>> {
    Ok(CONTEXTS.lock().0.get(&identity(fd)?).and_then(Weak::upgrade))
}

/// Removes an open device that is gone.
pub(crate) fn forget(identity: Identity) {
    CONTEXTS.lock().0.remove(&identity);
}

/// Whether a descriptor is the `cmd_fd` of one of our contexts, in any process.
pub(crate) fn is_context_file(fd: c_int) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    link.to_string_lossy().starts_with(&format!("/memfd:{}", NAME.to_string_lossy()))
}
