//! Polypath and Linux rxe, against each other.
//!
//! A Debian kernel with rxe is booted in a virtual machine whose network is a tap interface of a
//! laboratory's switch. Unmodified programs run between it and Polypath, either side being server or
//! client, over IPv4 and IPv6, with every path MTU, and some with losses. Then a program that makes
//! requests which must fail runs in all four combinations of rxe and Polypath, and what it sees is
//! compared.
//!
//! The long tables go to `target/interop`. Where the machine has no emulator or can't get a kernel,
//! it says `SKIPPED` and why, and ends with status 0.

mod cases;
mod cpio;
mod guest;
mod image;
mod kernel;
mod known;
mod matrix;
mod problem;
mod report;
mod statuses;

use guest::Guest;
use kernel::Kernel;
use known::Difference;
use matrix::{Outcome, Sides};
use polypath_e2e::{Lab, Options, compile_c};
use problem::Problem;
use statuses::Seen;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str =
    "usage: polypath-interop [--only TEXT] [--no-programs] [--no-statuses] [--update-docs]";
/// The page with the known differences and the last result.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/interop.md");
/// The program whose requests must fail.
const STATUSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/statuses.c");

/// What to run.
#[derive(Debug, Default)]
struct Wishes {
    /// A part of the names of the programs to run.
    only: String,
    no_programs: bool,
    no_statuses: bool,
    /// Writes the result into the page.
    update_docs: bool,
}

/// What came out.
#[derive(Debug, Default)]
struct Results {
    outcomes: Vec<Outcome>,
    statuses: Vec<Vec<Seen>>,
}

fn main() -> ExitCode {
    let wishes = match wishes(std::env::args().skip(1)) {
        Ok(wishes) => wishes,
        Err(argument) => {
            eprintln!("{argument}: not known\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&wishes) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Problem::Skip(reason)) => {
            println!("SKIPPED: interoperability with Linux rxe was not tested: {reason}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("FAILED: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn wishes(mut arguments: impl Iterator<Item = String>) -> Result<Wishes, String> {
    let mut wishes = Wishes::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => wishes.only = arguments.next().ok_or("--only without a text")?,
            "--no-programs" => wishes.no_programs = true,
            "--no-statuses" => wishes.no_statuses = true,
            "--update-docs" => wishes.update_docs = true,
            _ => return Err(argument),
        }
    }
    Ok(wishes)
}

fn run(wishes: &Wishes) -> Result<bool, Problem> {
    let start = Instant::now();
    can_run()?;
    let directory = directory()?;
    let kernel = Kernel::get(&directory.join("kernels"))?;
    let program = compile_c(Path::new(STATUSES))?;
    let initramfs = directory.join("initramfs");
    image::build(&initramfs, &kernel, &[&program])?;
    let lab = Lab::with(Options { links: 1, ..Options::default() })?;
    let guest = Guest::boot(&lab, &kernel.image, &initramfs)?;
    println!("Linux {} with rxe is up after {} s", kernel.release, start.elapsed().as_secs());
    let mut sides = Sides::new(&lab, guest);
    let mut results = Results::default();
    let done = play(&mut sides, wishes, &program, &mut results);
    if done.is_err() {
        println!("the guest's console:\n{}", sides.guest.console());
    }
    done?;
    sides.guest.stop()?;
    println!("all took {} s", start.elapsed().as_secs());
    judge(wishes, &directory, &kernel, &results)
}

/// Runs everything that is wished for.
fn play(
    sides: &mut Sides<'_>,
    wishes: &Wishes,
    program: &Path,
    results: &mut Results,
) -> Result<(), Problem> {
    if !wishes.no_statuses {
        results.statuses = statuses::all(sides, program)?;
    }
    if wishes.no_programs {
        return Ok(());
    }
    let plan = matrix::plan(&wishes.only);
    let count = plan.len();
    for (number, (interface, pair, setting)) in (1..).zip(plan) {
        let outcome = sides.run(interface, pair, setting)?;
        let verdict = report::verdict(&outcome);
        println!("{number}/{count} {}, {setting}: {verdict}", pair.name);
        if let Some(text) = outcome.failure.as_ref().or(outcome.first.as_ref()) {
            println!("{}", indented(text));
        }
        results.outcomes.push(outcome);
    }
    Ok(())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Writes the tables and tells whether all is well.
fn judge(
    wishes: &Wishes,
    directory: &Path,
    kernel: &Kernel,
    results: &Results,
) -> Result<bool, Problem> {
    let read = |e| Problem::os(format!("reading {PAGE}"), e);
    let old = fs::read_to_string(PAGE).map_err(read)?;
    let known = known::known(&old);
    let differences = known::differences(&results.statuses);
    let unknown: Vec<Difference> =
        differences.iter().filter(|d| !known.contains(d)).cloned().collect();
    let failed = results.outcomes.iter().filter(|o| o.failure.is_some()).count();

    let versions = format!(
        "Linux {} ({}), {}",
        kernel.release,
        kernel.version,
        ["rdma-core", "perftest"].map(installed).join(", ")
    );
    let count = results.outcomes.len();
    let cases = results.statuses.first().map_or(0, Vec::len);
    let again =
        results.outcomes.iter().filter(|o| o.first.is_some() && o.failure.is_none()).count();
    let summary = format!(
        "{versions}: {count} runs of programs, {failed} failed, {again} needed a second attempt; {cases} \
         cases of statuses, {} differences, {} of them not known.",
        differences.len(),
        unknown.len()
    );
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).map_err(|e| Problem::os(format!("writing {}", path.display()), e))
    };
    let reference = results.statuses.first().map_or(&[][..], Vec::as_slice);
    write("programs.md", &format!("{summary}\n\n{}", report::long(&results.outcomes)))?;
    let table = report::statuses(reference, &differences);
    let rows = report::rows(&differences);
    write("statuses.md", &format!("{summary}\n\n{table}\nDifferences:\n\n{rows}"))?;
    if wishes.update_docs {
        let short = report::short(&results.outcomes);
        let result = format!("{summary}\n\n### Programs\n\n{short}\n### Statuses\n\n{table}");
        let new = report::page(&old, &result)
            .ok_or_else(|| Problem::Failed(format!("{PAGE} has no place for the result")))?;
        fs::write(PAGE, new).map_err(|e| Problem::os(format!("writing {PAGE}"), e))?;
    }
    if !unknown.is_empty() {
        println!("differences that docs/interop.md does not know:\n{}", report::rows(&unknown));
    }
    for difference in known.iter().filter(|d| cases > 0 && !differences.contains(d)) {
        let Difference { case, end, couple, .. } = difference;
        println!("no longer a difference: {case}, {end}, {couple}");
    }
    println!("{summary}\nThe tables are in {}.", directory.display());
    Ok(failed == 0 && unknown.is_empty())
}

/// A package with its version.
fn installed(package: &str) -> String {
    // Of rdma-core, the library is what programs use.
    let name = if package == "rdma-core" { "libibverbs1" } else { package };
    let mut query = std::process::Command::new("dpkg-query");
    let version = kernel::output(query.args(["-W", "-f", "${Version}", name]));
    format!("{package} {}", version.unwrap_or_else(|_| "of unknown version".to_owned()))
}

/// What the machine must offer.
fn can_run() -> Result<(), Problem> {
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let found = |name: &str| directories.clone().any(|d| Path::new(d).join(name).exists());
    for program in [guest::EMULATOR, "busybox", "modprobe", "apt-get", "dpkg-deb", "ib_send_bw"] {
        if !found(program) {
            let reason = format!("{program} is not installed (as root: tools/packages interop)");
            return Err(Problem::Skip(reason));
        }
    }
    match fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::Skip(format!("/dev/net/tun can't be opened: {error}"))),
    }
}

/// `target/interop`: kernels are kept there, results are written there.
fn directory() -> Result<PathBuf, Problem> {
    let program = std::env::current_exe().map_err(|e| Problem::os("finding myself", e))?;
    let target = program.ancestors().nth(2).unwrap_or(Path::new("."));
    let directory = target.join("interop");
    fs::create_dir_all(&directory).map_err(|e| Problem::os("making target/interop", e))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::wishes;

    #[test]
    fn unknown_arguments_are_refused() {
        let words = |words: &[&str]| wishes(words.iter().map(|&w| w.to_owned()));
        assert_eq!(words(&["--only", "rping"]).unwrap().only, "rping");
        assert!(words(&["--onyl"]).is_err());
        assert!(words(&["--only"]).is_err());
    }
}
