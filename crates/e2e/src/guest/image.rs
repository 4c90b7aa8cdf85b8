//! Builds the guest's initramfs: programs of this machine with the libraries they need, and kernel
//! modules.
//!
//! The guest runs the same program files as this machine, so that both ends of a test have the same
//! version.

use super::cpio::Archive;
use super::kernel::{Kernel, output};
use super::problem::Problem;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the first program of every guest does before and after that of its kind.
const FIRST: &str = include_str!("first.sh");
const LAST: &str = include_str!("last.sh");

/// The content of an initramfs.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// What the guest does before it takes commands: shell commands, which may define functions for them.
    /// Words `polypath.NAME=VALUE` of the kernel's command line are variables.
    pub init: &'a str,
    /// Modules that are listed in `/modules/order`, for the first program to load. Those that they depend
    /// on are listed before them.
    pub modules: &'a [&'a str],
    /// Modules that are listed in `/modules/later`, if they are not in the other list.
    pub later: &'a [&'a str],
    /// Programs, beside those of busybox, and files that programs load at run time. `*` stands for any text
    /// in the last part.
    pub files: &'a [&'a str],
    /// Programs that go to `/usr/bin`.
    pub extra: &'a [&'a Path],
}

impl Image<'_> {
    /// Writes the initramfs to `path`.
    ///
    /// # Errors
    /// If a program or module is missing, or the file can't be written.
    pub fn build(&self, path: &Path, kernel: &Kernel) -> Result<(), Problem> {
        let os = |e| Problem::os(format!("writing {}", path.display()), e);
        let mut archive = Archive::new(BufWriter::new(File::create(path).map_err(os)?));
        for directory in ["proc", "sys", "dev", "tmp", "run", "root", "etc"] {
            archive.directory(directory).map_err(os)?;
        }
        archive.device("dev/console", 5, 1).map_err(os)?;
        let init = [FIRST, self.init, LAST].concat();
        archive.file("init", init.as_bytes()).map_err(os)?;
        archive.file("etc/hosts", b"127.0.0.1 localhost\n").map_err(os)?;
        archive.file("usr/bin/busybox", &read(Path::new("/bin/busybox"))?).map_err(os)?;

        let mut libraries = BTreeSet::new();
        for pattern in self.files {
            for file in matching(pattern)? {
                libraries.extend(libraries_of(&file)?);
                archive.file(&file.to_string_lossy(), &read(&file)?).map_err(os)?;
            }
        }
        for file in self.extra {
            libraries.extend(libraries_of(file)?);
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            archive.file(&format!("usr/bin/{name}"), &read(file)?).map_err(os)?;
        }
        for file in libraries {
            archive.file(&file.to_string_lossy(), &read(&file)?).map_err(os)?;
        }

        let mut known = BTreeSet::new();
        for (list, modules) in [("order", self.modules), ("later", self.later)] {
            let mut order = String::new();
            for module in kernel.modules(modules)? {
                let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let name = name.trim_end_matches(".xz").to_owned();
                if !known.insert(name.clone()) {
                    continue;
                }
                let content = match module.extension().is_some_and(|e| e == "xz") {
                    true => decompress(&module)?,
                    false => read(&module)?,
                };
                archive.file(&format!("modules/{name}"), &content).map_err(os)?;
                order += &format!("{name}\n");
            }
            archive.file(&format!("modules/{list}"), order.as_bytes()).map_err(os)?;
        }
        archive.finish().map_err(os)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    fs::read(path).map_err(|e| Problem::os(format!("reading {}", path.display()), e))
}

fn decompress(path: &Path) -> Result<Vec<u8>, Problem> {
    let output = Command::new("xz")
        .arg("-dc")
        .arg(path)
        .output()
        .map_err(|e| Problem::os("starting xz", e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Problem::Failed(format!("xz could not read {}", path.display())))
}

/// The files that match a path with at most one `*` in its last part. At least one must match.
fn matching(pattern: &str) -> Result<Vec<PathBuf>, Problem> {
    let missing = || Problem::Failed(format!("no file of this machine matches {pattern}"));
    let path = Path::new(pattern);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((before, after)) = name.split_once('*') else {
        return if path.exists() { Ok(vec![path.to_owned()]) } else { Err(missing()) };
    };
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    let entries = fs::read_dir(directory).map_err(|_| missing())?;
    let files: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.len() >= before.len() + after.len()
                && name.starts_with(before)
                && name.ends_with(after)
        })
        .map(|entry| entry.path())
        .collect();
    if files.is_empty() { Err(missing()) } else { Ok(files) }
}

/// The shared libraries, and the loader, that a program or library names.
fn libraries_of(file: &Path) -> Result<Vec<PathBuf>, Problem> {
    // A file that is not dynamically linked, such as a text, names no library.
    let Ok(text) = output(Command::new("ldd").arg(file)) else { return Ok(Vec::new()) };
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        return Err(Problem::Failed(format!("{} needs {}", file.display(), line.trim())));
    }
    Ok(libraries(&text).map(PathBuf::from).collect())
}

/// The paths in the output of `ldd`.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        path.split(' ').next().filter(|path| path.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::libraries;

    #[test]
    fn libraries_and_the_loader_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x2)\n\tstatically linked\n";
        let found: Vec<_> = libraries(text).collect();
        assert_eq!(found, ["/lib/x/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
