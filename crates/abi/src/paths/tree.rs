//! The directory of made-up files. It is written when the first file is asked for. All processes of
//! the user that see the same devices share it, and it is private to the user.

use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use polypath_ipc::Client;
use polypath_topology::{DeviceSpec, Table, devices};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat, readlinkat_raw};

use crate::lock::Lock;
use crate::paths::text::{Contents, Real, contents};
use crate::paths::{c_path, counters, exists, shown};
use crate::{broker, log};

/// How long a directory is used before checking again whether addresses have changed.
const FRESH: Duration = Duration::from_secs(1);

/// How long a directory of another device set is kept after its last use. A process whose directory
/// was removed writes it again.
const KEPT: Duration = Duration::from_secs(600);

/// The largest number of such directories; the ones used last are kept.
const KEPT_MAX: usize = 16;

/// The smallest interval at which counters are fetched.
const COUNTED: Duration = Duration::from_millis(50);

/// The largest number of real devices that a listing shows.
const REAL_MAX: usize = 256;

/// The state of the directory.
pub(crate) struct Tree {
    root: PathBuf,
    /// The time of the last check.
    looked: Instant,
    devices: Vec<DeviceSpec>,
    /// The time at which its counters were written.
    counted: Option<Instant>,
}

/// The directory, if any file was asked for.
pub(crate) static TREE: Lock<Option<Tree>> = Lock::new(None);

/// The place of the file with this path, if it is one of ours.
pub(super) fn find(path: &[u8]) -> Option<CString> {
    let root = root()?;
    if is_real(path) {
        return None;
    }
    let relative = path.strip_prefix(b"/")?;
    let ours = root.join(Path::new(&OsString::from_vec(relative.to_vec())));
    let ours = c_path(&ours)?;
    if !is_there(&ours) {
        return None;
    }
    if leads_to_counters(path) {
        count(&root);
    }
    Some(ours)
}

/// A path without links, as `realpath(3)` has it; `None` if it does not exist.
pub(super) fn resolved(path: &[u8]) -> Option<Vec<u8>> {
    let place = find(path).or_else(|| CString::new(path).ok())?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat(CWD, &place, flags, Mode::empty()).ok()?;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut found = readlinkat(CWD, link, Vec::new()).ok()?.into_bytes();
    found.drain(..shown::prefix(&found));
    Some(found)
}

/// Whether a path leads to the counters of a port.
fn leads_to_counters(path: &[u8]) -> bool {
    let mut parts = path.split(|&byte| byte == b'/');
    parts.by_ref().any(|part| part == b"ports") && parts.nth(1) == Some(b"counters")
}

/// Whether the path is below a directory that shows real devices beside ours, but not one of ours.
fn is_real(path: &[u8]) -> bool {
    let first = |root: &[u8]| {
        let name = path.strip_prefix(root)?.split(|&byte| byte == b'/').next()?;
        (!name.is_empty()).then_some(name.to_vec())
    };
    let tree = TREE.lock();
    let Some(tree) = tree.as_ref() else { return false };
    if let Some(name) = first(b"/sys/class/infiniband/") {
        return tree.devices.iter().all(|device| device.name.as_bytes() != name);
    }
    first(b"/dev/infiniband/").is_some_and(|name| {
        let is_of = |device: &DeviceSpec| device.uverbs_name().as_bytes() == name;
        name != b"rdma_cm" && !tree.devices.iter().any(is_of)
    })
}

/// Whether a file or link exists. A link need not lead anywhere.
fn is_there(path: &CString) -> bool {
    if exists(path) {
        return true;
    }
    readlinkat_raw(CWD, path, &mut [MaybeUninit::uninit(); 1]).is_ok()
}

/// Updates the counters.
fn count(root: &Path) {
    let devices = {
        let mut tree = TREE.lock();
        let Some(tree) = tree.as_mut().filter(|tree| tree.root == root) else { return };
        if tree.counted.is_some_and(|when| when.elapsed() < COUNTED) {
            return;
        }
        tree.counted = Some(Instant::now());
        tree.devices.clone()
    };
    match broker::ask(true, Client::traffic) {
        Ok(status) => counters::write(root, &devices, &status),
        Err(error) => log::line(format_args!("no counters: {error}")),
    }
}

fn root() -> Option<PathBuf> {
    if let Some(tree) = TREE.lock().as_ref()
        && tree.looked.elapsed() < FRESH
    {
        return Some(tree.root.clone());
    }
    match build() {
        Ok((root, devices)) => {
            let mut tree = TREE.lock();
            let counted = tree.as_ref().filter(|tree| tree.root == root).and_then(|t| t.counted);
            *tree = Some(Tree { root: root.clone(), looked: Instant::now(), devices, counted });
            Some(root)
        }
        Err(error) => {
            log::line(format_args!("no files for our devices: {error}"));
            None
        }
    }
}

/// The broker's current devices and interfaces.
fn ask() -> io::Result<(Vec<DeviceSpec>, Table)> {
    broker::ask(true, |client| {
        let table = client.table()?;
        let list = devices(&table, client.selection());
        Ok((list, table))
    })
    .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))
}

/// The kernel's entries in a directory that also shows our devices, each with its real place.
fn real(directory: &CStr) -> Vec<(String, String)> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let mut found = Vec::new();
    // SAFETY: the path is a C string. System calls are used, so that our own replacements are not
    // involved. The stream is closed here, and each entry is read before the next call.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, directory.as_ptr(), flags, 0);
        let Ok(fd @ 0..) = libc::c_int::try_from(fd) else { return found };
        let stream = libc::fdopendir(fd);
        if stream.is_null() {
            libc::close(fd);
            return found;
        }
        while found.len() < REAL_MAX {
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((&raw const (*entry).d_name).cast());
            let mut target = [0_u8; 4096];
            let got = libc::syscall(
                libc::SYS_readlinkat,
                fd,
                name.as_ptr(),
                target.as_mut_ptr(),
                target.len(),
            );
            let target = usize::try_from(got).map_or(&[][..], |length| &target[..length]);
            if let (Ok(name), Ok(directory)) = (name.to_str(), directory.to_str())
                && !name.starts_with('.')
            {
                // The links of the class have the form `../../devices/...`.
                let target = str::from_utf8(target).ok().and_then(|t| t.strip_prefix("../../"));
                let place = target.map_or_else(
                    || format!("{directory}/{name}"),
                    |target| format!("/sys/{target}"),
                );
                found.push((name.to_owned(), place));
            }
        }
        libc::closedir(stream);
    }
    found.sort();
    found
}

/// Whether the kernel has RDMA devices.
pub(crate) fn has_real_devices() -> bool {
    !real(c"/sys/class/infiniband").is_empty()
}

/// A private directory of the user: in the session's directory, or below `/tmp`.
fn private() -> io::Result<PathBuf> {
    let user = polypath_ipc::socket::user_id();
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
    // This is the form in which the kernel returns its place.
    fs::canonicalize(path)
}

/// Finds or writes the directory for the current devices.
fn build() -> io::Result<(PathBuf, Vec<DeviceSpec>)> {
    let (list, table) = ask()?;
    let real = Real {
        devices: real(c"/sys/class/infiniband"),
        nodes: real(c"/dev/infiniband"),
        interface: |name| {
            CString::new(format!("/sys/class/net/{name}")).is_ok_and(|path| exists(&path))
        },
    };
    let all = contents(&list, &table, &real);
    let parent = private()?;
    let name = format!("files-{:016x}", all.fingerprint());
    let root = parent.join(&name);
    if root.is_dir() {
        // Mark it as in use: see remove_old().
        let _ = fs::File::open(&root).and_then(|dir| dir.set_modified(SystemTime::now()));
        return Ok((root, list));
    }
    let draft = parent.join(format!("draft-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&draft);
    write(&draft, &all)?;
    // Another process may have been faster. Its directory is just as good.
    if let Err(error) = fs::rename(&draft, &root) {
        let _ = fs::remove_dir_all(&draft);
        if !root.is_dir() {
            return Err(error);
        }
    }
    remove_old(&parent, &name);
    Ok((root, list))
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
        let mut open = fs::OpenOptions::new();
        // The files have the same mode as in sysfs.
        let mut open = open.write(true).create_new(true).mode(0o444).open(path)?;
        open.write_all(file.text.as_bytes())?;
    }
    for (path, target) in &all.links {
        let path = root.join(path);
        above(&path)?;
        symlink(target, path)?;
    }
    Ok(())
}

/// Removes directories that were not used for a long time, and the oldest ones if there are too
/// many.
fn remove_old(parent: &Path, current: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let now = SystemTime::now();
    let mut others: Vec<(Duration, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let known = [&b"files-"[..], b"draft-"].iter().any(|p| name.as_bytes().starts_with(p));
        if !known || name == *current {
            continue;
        }
        if let Ok(when) = entry.metadata().and_then(|status| status.modified()) {
            others.push((now.duration_since(when).unwrap_or_default(), entry.path()));
        }
    }
    others.sort();
    let kept = others.iter().take(KEPT_MAX).take_while(|(age, _)| *age <= KEPT).count();
    for (_, path) in &others[kept..] {
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_device_sets_long_gone_are_removed() {
        let parent = std::env::temp_dir().join(format!("polypath-tree-{}", std::process::id()));
        let _ = fs::remove_dir_all(&parent);
        let make = |name: &str, age_s: u64| {
            let path = parent.join(name);
            fs::create_dir_all(path.join("sys")).unwrap();
            let when = SystemTime::now() - Duration::from_secs(age_s);
            fs::File::open(&path).unwrap().set_modified(when).unwrap();
        };
        for number in 0..30 {
            make(&format!("files-{number:016x}"), 10 + number);
        }
        make("files-old", KEPT.as_secs() + 60);
        make("draft-1-files-x", KEPT.as_secs() + 60);
        make("files-current", KEPT.as_secs() + 60);
        make("other", KEPT.as_secs() + 60);
        remove_old(&parent, "files-current");
        let mut left: Vec<String> = fs::read_dir(&parent)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expect: Vec<String> =
            (0..KEPT_MAX).map(|number| format!("files-{number:016x}")).collect();
        expect.extend(["files-current".to_owned(), "other".to_owned()]);
        assert_eq!(left, expect);
        fs::remove_dir_all(&parent).unwrap();
    }
}
