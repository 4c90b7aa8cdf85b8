//! Finds what was built: the command, the library, and small C programs of the tests.

use crate::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable that names a directory with a command and a library to test, for example an
/// installation.
const DIRECTORY_VARIABLE: &str = "POLYPATH_E2E_DIRECTORY";

/// The environment variable that names the root directory of another system whose programs are tested.
/// The built files, the sources and the temporary files have the same paths in it.
const ROOT_VARIABLE: &str = "POLYPATH_E2E_ROOT";

/// The files to test.
#[derive(Debug)]
pub struct Artifacts {
    /// The `polypath` command, which finds its library by itself.
    pub command: PathBuf,
    /// The root directory of the system whose RDMA programs are tested, if it is not this one.
    root: Option<PathBuf>,
}

impl Artifacts {
    /// Makes a command for a program of the system whose RDMA programs are tested, without arguments.
    pub(crate) fn of_system(&self, program: impl AsRef<OsStr>) -> Command {
        let Some(root) = &self.root else { return Command::new(program) };
        let mut command = Command::new("/usr/sbin/chroot");
        command.arg(root).arg(program);
        command
    }

    /// The path of a file of that system.
    pub fn path_of_system(&self, path: &str) -> PathBuf {
        let root = self.root.as_deref().unwrap_or_else(|| Path::new("/"));
        root.join(path.trim_start_matches('/'))
    }

    /// Finds the files beside the running program. If that is a test of Cargo, it builds them first.
    ///
    /// # Errors
    /// [`Error::Missing`] if the files do not exist and can't be built.
    pub fn get() -> Result<&'static Self, Error> {
        static FOUND: OnceLock<Result<Artifacts, String>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref().map_err(|problem| Error::Missing(problem.clone()))
    }

    fn find() -> Result<Self, String> {
        let given = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from);
        let directory = given.clone().map_or_else(profile_directory, Ok)?;
        let command = directory.join("polypath");
        // Cargo can't declare that a test needs the binary of another package, so it is built here.
        if given.is_none()
            && let Some(cargo) = std::env::var_os("CARGO")
        {
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "-p", "polypath", "-p", "polypath-abi"]);
            // The directory of the profile `dev` has another name than the profile.
            let profile = directory.file_name().filter(|name| *name != "debug");
            build.arg("--profile").arg(profile.unwrap_or_else(|| "dev".as_ref()));
            let status = build.status().map_err(|e| format!("starting cargo: {e}"))?;
            if !status.success() {
                return Err("cargo could not build the command and the library".to_owned());
            }
        }
        for file in ["polypath", "libpolypath.so"] {
            if !directory.join(file).exists() {
                return Err(format!(
                    "{} is missing: run `make build`",
                    directory.join(file).display()
                ));
            }
        }
        let root = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from);
        Ok(Self { command, root })
    }
}

/// The directory of the running program's profile, for instance `target/release`.
fn profile_directory() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("finding myself: {e}"))?;
    let directory = program.parent().unwrap_or_else(|| Path::new("/"));
    let inner = directory.ends_with("deps") || directory.ends_with("examples");
    Ok(if inner { directory.parent().unwrap_or(directory) } else { directory }.to_owned())
}

/// Compiles a C program of this crate, by its name in `c`, against libibverbs, with the compiler of the
/// system whose RDMA programs are tested. Returns the path of the program.
///
/// # Errors
/// [`Error::Tool`] with the output of the compiler.
pub fn compile_c(name: &str) -> Result<String, Error> {
    compile_c_with("cc", name)
}

/// Does the same with another compiler, such as `mpicc.mpich`.
///
/// # Errors
/// The errors of [`compile_c`].
pub fn compile_c_with(compiler: &str, name: &str) -> Result<String, Error> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name);
    let artifacts = Artifacts::get()?;
    let other = artifacts.root.as_ref().and_then(|root| root.file_name());
    let directory = other.map_or_else(|| "e2e-c".into(), |name| Path::new("e2e-c").join(name));
    let directory = profile_directory().map_err(Error::Missing)?.join(directory);
    std::fs::create_dir_all(&directory)
        .map_err(|e| Error::os(format!("making {}", directory.display()), e))?;
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let name = if compiler == "cc" { stem.into_owned() } else { format!("{stem}.{compiler}") };
    let result = directory.join(&name);
    // Tests run in parallel, so the program is compiled under another name and then renamed in one
    // step.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let aside = directory.join(format!("{name}.{}.{number}", std::process::id()));
    let mut command = artifacts.of_system(compiler);
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    command.arg(&aside).arg(&source).args(["-lrdmacm", "-libverbs", "-lpthread"]);
    let output = command.output().map_err(|e| Error::os(format!("starting {compiler}"), e))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Tool {
            tool: format!("{compiler} {}", source.display()),
            output: words,
        });
    }
    std::fs::rename(&aside, &result)
        .map_err(|e| Error::os(format!("moving {}", result.display()), e))?;
    Ok(result.to_string_lossy().into_owned())
}
