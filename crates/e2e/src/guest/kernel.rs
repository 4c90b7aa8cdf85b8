//! Gets a Debian kernel with its RDMA modules, downloaded and unpacked once into a cache.

use super::problem::Problem;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package that depends on Debian's current kernel.
const META_PACKAGE: &str = "linux-image-amd64";
/// Prefixes of the packages, among those dependencies, that contain parts of the kernel.
const PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];

/// A kernel that can be booted.
#[derive(Debug)]
pub struct Kernel {
    /// The release, which names its modules directory, as `uname -r` prints it.
    pub release: String,
    /// The version of its package.
    pub version: String,
    /// The compressed image.
    pub image: PathBuf,
    /// The directory whose `lib/modules` holds the modules.
    root: PathBuf,
}

impl Kernel {
    /// Finds the kernel in `cache`, or downloads it there.
    ///
    /// # Errors
    /// [`Problem::Skip`] if there is none and it can't be downloaded.
    pub fn get(cache: &Path) -> Result<Self, Problem> {
        fs::create_dir_all(cache).map_err(|e| Problem::os("making the cache", e))?;
        let fresh = current(cache).or_else(|_| {
            // The package lists may be missing or old.
            output(Command::new("apt-get").args(["-q", "update"]))
                .map_err(|e| e.or_skip("the package lists can't be renewed"))?;
            current(cache)
        });
        match (fresh, newest(cache)) {
            (Ok(root), _) => Self::unpacked(&root),
            // Without lists or a network, the kernel that was unpacked before is used.
            (Err(problem), Some(name)) => {
                crate::say!("using the kernel {name}: {problem}");
                Self::unpacked(&cache.join(name))
            }
            (Err(problem), None) => Err(problem),
        }
    }

    fn unpacked(root: &Path) -> Result<Self, Problem> {
        let wrong =
            |what: &str| Problem::Failed(format!("{what} is missing in {}", root.display()));
        let entry = |directory: &str, prefix: &str| {
            let entries = fs::read_dir(root.join(directory)).ok()?;
            let mut names: Vec<String> =
                entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
            names.sort();
            names.into_iter().find(|name| name.starts_with(prefix))
        };
        let release = entry("lib/modules", "").ok_or_else(|| wrong("lib/modules"))?;
        let image = match entry("boot", "vmlinuz") {
            Some(name) => root.join("boot").join(name),
            None => root.join("lib/modules").join(&release).join("vmlinuz"),
        };
        if !image.exists() {
            return Err(wrong("the kernel's image"));
        }
        let version = fs::read_to_string(root.join("complete")).unwrap_or_default();
        Ok(Self { release, version: version.trim().to_owned(), image, root: root.to_owned() })
    }

    /// The files of `modules` and of all modules they depend on, in the order in which they can be
    /// loaded.
    pub(super) fn modules(&self, modules: &[&str]) -> Result<Vec<PathBuf>, Problem> {
        let mut files: Vec<PathBuf> = Vec::new();
        for module in modules {
            let mut command = Command::new("/usr/sbin/modprobe");
            command.arg("-d").arg(&self.root).args(["-S", &self.release, "--show-depends", module]);
            let text = match output(&mut command) {
                // Debian's newest packages do not list built-in modules. If a module is really missing,
                // the guest fails later.
                Err(problem) if problem.to_string().contains("not found in directory") => {
                    crate::say!("module {module}: taken for built in");
                    continue;
                }
                text => text?,
            };
            for line in text.lines() {
                // A built-in module gives the line "builtin".
                let Some(path) = line.strip_prefix("insmod ") else { continue };
                // After the path there may be options with which this machine would load the module.
                let path = PathBuf::from(path.split(' ').next().unwrap_or_default());
                if !files.contains(&path) {
                    files.push(path);
                }
            }
        }
        Ok(files)
    }
}

/// The directory of Debian's current kernel. It is downloaded and unpacked first if necessary.
fn current(cache: &Path) -> Result<PathBuf, Problem> {
    let packages = wanted()?;
    let root = cache.join(packages.join("+"));
    if !root.join("complete").exists() {
        crate::say!("downloading {}", packages.join(" "));
        download(cache, &root, &packages)?;
    }
    Ok(root)
}

/// The packages of the kernel that the meta package depends on.
fn wanted() -> Result<Vec<String>, Problem> {
    let text = output(Command::new("apt-cache").args(["depends", "--recurse", META_PACKAGE]))
        .map_err(|e| e.or_skip("there are no package lists (as root: apt-get update)"))?;
    let mut packages: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with(' ') && is_part(line))
        .map(str::to_owned)
        .collect();
    packages.sort();
    if packages.is_empty() {
        let reason = format!("apt knows no kernel behind {META_PACKAGE}");
        return Err(Problem::Skip(reason));
    }
    Ok(packages)
}

/// Whether a package contains a part of one kernel. The names of meta packages have no version.
fn is_part(package: &str) -> bool {
    PARTS.iter().any(|prefix| {
        let rest = package.strip_prefix(prefix).unwrap_or_default();
        rest.starts_with(|c: char| c.is_ascii_digit())
            && rest.ends_with("-amd64")
            && !["rt", "cloud"].iter().any(|flavour| rest.contains(&format!("-{flavour}-")))
    })
}

/// The name of the kernel in the cache that was unpacked last.
fn newest(cache: &Path) -> Option<String> {
    let entries = fs::read_dir(cache).ok()?.flatten();
    let complete = entries.filter_map(|entry| {
        let time = entry.path().join("complete").metadata().ok()?.modified().ok()?;
        Some((time, entry.file_name().into_string().ok()?))
    });
    complete.max().map(|(_, name)| name)
}

fn download(cache: &Path, root: &Path, packages: &[String]) -> Result<(), Problem> {
    let os = |what: &str| {
        let what = format!("{what} in {}", cache.display());
        move |e| Problem::os(what, e)
    };
    let _ = fs::remove_dir_all(root);
    let archives = cache.join("archives");
    let _ = fs::remove_dir_all(&archives);
    fs::create_dir_all(&archives).map_err(os("making a directory"))?;
    fs::create_dir_all(root).map_err(os("making a directory"))?;
    let mut fetch = Command::new("apt-get");
    fetch.args(["-q", "-o", "APT::Sandbox::User=root", "download"]);
    output(fetch.args(packages).current_dir(&archives))
        .map_err(|e| e.or_skip("the kernel can't be downloaded"))?;
    let mut version = String::new();
    for entry in fs::read_dir(&archives).map_err(os("reading the archives"))?.flatten() {
        let archive = entry.path();
        version = output(Command::new("dpkg-deb").arg("-f").arg(&archive).arg("Version"))?;
        unpack(&archive, root)?;
    }
    // Debian is moving /lib to /usr/lib.
    if !root.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib")).map_err(os("making a link"))?;
    }
    let kernel = Kernel::unpacked(root)?;
    output(Command::new("/usr/sbin/depmod").arg("-b").arg(root).arg(&kernel.release))?;
    fs::remove_dir_all(&archives).map_err(os("removing the archives"))?;
    fs::write(root.join("complete"), version).map_err(os("writing"))
}

/// Unpacks the image and the modules that may be needed.
fn unpack(archive: &Path, root: &Path) -> Result<(), Problem> {
    let mut stream = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Problem::os("starting dpkg-deb", e))?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(root).args(["--no-same-owner", "--exclude=*/drivers/gpu/*"]);
    tar.args(["--exclude=*/sound/*", "--exclude=*/drivers/media/*", "-xf", "-"]);
    tar.args(["--wildcards", "./boot/vmlinuz*", "*/modules/*"]);
    if let Some(archive) = stream.stdout.take() {
        tar.stdin(archive);
    }
    let result = tar.output().map_err(|e| Problem::os("starting tar", e))?;
    let ended = stream.wait().map_err(|e| Problem::os("waiting for dpkg-deb", e))?;
    // tar reports an error about the pattern if a package has no image. A missing file is found later.
    if ended.success() || result.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&result.stderr).into_owned();
    Err(Problem::Failed(format!("unpacking {}: {words}", archive.display())))
}

/// Runs a command that must succeed, and returns its output.
pub(super) fn output(command: &mut Command) -> Result<String, Problem> {
    let spoken = format!("{command:?}");
    let output = command.output().map_err(|e| Problem::os(format!("starting {spoken}"), e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Problem::Failed(format!("{spoken}: {}", words.trim())))
}

#[cfg(test)]
mod tests {
    use super::is_part;

    #[test]
    fn a_part_of_the_kernel_has_a_version_in_its_name() {
        assert!(is_part("linux-image-6.1.0-56-amd64"));
        assert!(is_part("linux-modules-7.2.3+deb14-amd64"));
        assert!(!is_part("linux-image-amd64"), "the meta package");
        assert!(!is_part("linux-image-6.1.0-56-rt-amd64"));
        assert!(!is_part("linux-base"));
    }
}
