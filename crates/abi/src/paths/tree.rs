//! The directory of made-up files: written when the first of them is asked for, shared by all
//! processes of the user that see the same devices, private to the user.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use polypath_ipc::{DeviceSpec, Table, devices};

use crate::lock::Lock;
use crate::paths::text::{Contents, contents};
use crate::paths::{c_path, exists};
use crate::{broker, device, log};

/// How long a directory is used before it is asked whether addresses have changed.
const FRESH: Duration = Duration::from_secs(1);

/// Directories of other device sets that are kept; older ones are removed.
const KEPT: Duration = Duration::from_secs(3600);

/// Most real devices that a listing shows.
const REAL_MAX: usize = 256;

/// The directory, and when it was looked at.
pub(crate) static ROOT: Lock<Option<(PathBuf, Instant)>> = Lock::new(None);

/// Where the file of this path is, if it is one of ours.
pub(super) fn find(path: &[u8]) -> Option<CString> {
    let root = root()?;
    let relative = path.strip_prefix(b"/")?;
    let ours = root.join(Path::new(&OsString::from_vec(relative.to_vec())));
    let ours = c_path(&ours)?;
    exists(&ours).then_some(ours)
}

fn root() -> Option<PathBuf> {
    let known = ROOT.lock().clone();
    if let Some((root, when)) = known
        && when.elapsed() < FRESH
    {
        return Some(root);
    }
    match build() {
        Ok(root) => {
            *ROOT.lock() = Some((root.clone(), Instant::now()));
            Some(root)
        }
        Err(error) => {
            log::line(format_args!("no files for our devices: {error}"));
            None
        }
    }
}

/// Devices and interfaces as the broker has them now.
fn ask() -> io::Result<(Vec<DeviceSpec>, Table)> {
    broker::ask(true, |client| {
        let table = client.table()?;
        let list = devices(&table, client.selection());
        Ok((list, table))
    })
    .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))
}

/// Names of the real devices.
fn real_devices() -> Vec<String> {
    let path = c"/sys/class/infiniband".as_ptr();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let mut names = Vec::new();
    // SAFETY: a valid path; by system call, past our own stand-in. The stream is closed here, and
    // each entry is read before the next is asked for.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0);
        let Ok(fd @ 0..) = libc::c_int::try_from(fd) else { return names };
        let stream = libc::fdopendir(fd);
        if stream.is_null() {
            libc::close(fd);
            return names;
        }
        while names.len() < REAL_MAX {
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                break;
            }
            let name = std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast());
            if let Ok(name) = name.to_str()
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        libc::closedir(stream);
    }
    names.sort();
    names
}

/// A directory of the user's own: where the session's files are, or below `/tmp`.
fn private() -> io::Result<PathBuf> {
    // SAFETY: takes nothing and can't fail.
    let user = unsafe { libc::geteuid() };
    let base = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().find_map(std::env::var_os);
    let base = base.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let usable = base.is_absolute() && base.is_dir();
    let base = if usable { base } else { PathBuf::from("/tmp") };
    let path = base.join(format!("polypath-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let status = fs::symlink_metadata(&path)?;
    if !status.is_dir() || status.uid() != user || status.mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} must be a directory of this user alone", path.display()),
        ));
    }
    Ok(path)
}

/// The directory for what the devices are now.
fn build() -> io::Result<PathBuf> {
    let (list, table) = ask()?;
    let all = contents(&list, &table, &real_devices(), device::file_name);
    let parent = private()?;
    let name = format!("files-{:016x}", all.fingerprint());
    let root = parent.join(&name);
    if root.is_dir() {
        return Ok(root);
    }
    let draft = parent.join(format!("draft-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&draft);
    write(&draft, &all)?;
    // Another process may have been quicker: then its directory is as good.
    if let Err(error) = fs::rename(&draft, &root) {
        let _ = fs::remove_dir_all(&draft);
        if !root.is_dir() {
            return Err(error);
        }
    }
    remove_old(&parent, &name);
    Ok(root)
}

fn write(root: &Path, all: &Contents) -> io::Result<()> {
    let make = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let above = |path: &Path| path.parent().map_or(Ok(()), make);
    for path in &all.directories {
        make(&root.join(path))?;
    }
    for file in &all.files {
        let path = root.join(&file.path);
        above(&path)?;
        fs::write(path, &file.text)?;
    }
    for (path, target) in &all.links {
        let path = root.join(path);
        above(&path)?;
        symlink(target, path)?;
    }
    Ok(())
}

/// Removes directories that nobody has needed for long.
fn remove_old(parent: &Path, current: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let known = [&b"files-"[..], b"draft-"].iter().any(|p| name.as_bytes().starts_with(p));
        if !known || name == *current {
            continue;
        }
        let age = entry.metadata().and_then(|status| status.modified()).ok();
        let age = age.and_then(|when| SystemTime::now().duration_since(when).ok());
        if age.is_some_and(|age| age > KEPT) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
