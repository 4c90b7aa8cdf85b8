//! Interoperability tests of Polypath and Linux rxe.
//!
//! A Debian kernel with rxe is booted in a virtual machine, whose network is a tap interface of a lab's
//! switch. Unmodified programs run between it and Polypath. Either side is server or client, over IPv4
//! and IPv6, with every path MTU, and some programs run with losses. Then a program with requests that
//! must fail runs in all four combinations of rxe and Polypath, and the results are compared.
//!
//! The long tables are written to `target/interop`. If the machine has no emulator or can't get a
//! kernel, the program prints `SKIPPED` and the reason, and exits with status 0. Programs for which
//! there was no time are counted as `NOT RUN`; with `--complete` they count as failures.

mod cases;
mod known;
mod matrix;
mod peer;
mod report;
mod statuses;

use known::Difference;
use matrix::{Outcome, Sides};
use polypath_e2e::guest::{self, Kernel, Problem, installed};
use polypath_e2e::{Lab, Options, compile_c};
use statuses::Seen;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of minutes after which no further program is begun, unless the command line says
/// otherwise.
const MINUTES: u64 = 30;
const USAGE: &str = "usage: polypath-interop [--only TEXT] [--no-programs] [--no-statuses] [--sample] \
    [--complete] [--minutes N] [--directory PATH] [--update-docs]";
/// The page with the known differences and the last result.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/interop.md");
/// What to run, from the command line.
#[derive(Debug)]
struct Wishes {
    /// Runs only programs whose names and settings, as they are reported, contain this.
    only: String,
    no_programs: bool,
    no_statuses: bool,
    /// Whether to use fewer path MTUs.
    sample: bool,
    /// Whether programs that were not run count as failures.
    complete: bool,
    /// The time after which no further program is begun. The rest is counted as not run.
    limit: Duration,
    /// The directory for kernels and results; `None` means `target/interop`.
    directory: Option<PathBuf>,
    /// Whether to write the result into the page.
    update_docs: bool,
}

/// The results.
#[derive(Debug, Default)]
struct Results {
    outcomes: Vec<Outcome>,
    statuses: Vec<Vec<Seen>>,
    /// The number of runs for which there was no time.
    not_run: usize,
}

fn main() -> ExitCode {
    let wishes = match wishes(std::env::args().skip(1)) {
        Ok(wishes) => wishes,
        Err(argument) => {
            eprintln!("{argument}: not known\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    Problem::conclude(run(&wishes), "interoperability with Linux rxe was not tested")
}

fn wishes(mut arguments: impl Iterator<Item = String>) -> Result<Wishes, String> {
    let mut wishes = Wishes {
        only: String::new(),
        no_programs: false,
        no_statuses: false,
        sample: false,
        complete: false,
        limit: Duration::from_secs(60 * MINUTES),
        directory: None,
        update_docs: false,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => wishes.only = arguments.next().ok_or("--only without a text")?,
            "--no-programs" => wishes.no_programs = true,
            "--no-statuses" => wishes.no_statuses = true,
            "--sample" => wishes.sample = true,
            "--complete" => wishes.complete = true,
            "--minutes" => {
                let minutes = arguments.next().and_then(|text| text.parse().ok());
                let minutes: u64 = minutes.ok_or("--minutes without a number")?;
                wishes.limit = Duration::from_secs(minutes.saturating_mul(60));
            }
            "--directory" => {
                let path = arguments.next().ok_or("--directory without a path")?;
                wishes.directory = Some(PathBuf::from(path));
            }
            "--update-docs" => wishes.update_docs = true,
            _ => return Err(argument),
        }
    }
    Ok(wishes)
}

fn run(wishes: &Wishes) -> Result<bool, Problem> {
    let start = Instant::now();
    can_run()?;
    let directory = directory(wishes)?;
    let kernel = Kernel::get(&directory.join("kernels"))?;
    let program = PathBuf::from(compile_c("statuses.c")?);
    let initramfs = directory.join("initramfs");
    let lab = Lab::with(Options { links: 1, ..Options::default() })?;
    let guest = peer::boot(&lab, &kernel, &initramfs, &program)?;
    polypath_e2e::say!(
        "Linux {} with rxe is up after {} s",
        kernel.release,
        start.elapsed().as_secs()
    );
    let mut sides = Sides::new(&lab, guest);
    let mut results = Results::default();
    let done = play(&mut sides, wishes, &program, &mut results);
    if done.is_err() {
        polypath_e2e::say!("the guest's console:\n{}", sides.guest.console());
    }
    done?;
    let complaints = sides.guest.run("dmesg | grep -i 'bad icrc' | tail -n 20; true")?;
    sides.guest.stop()?;
    if !complaints.is_empty() {
        polypath_e2e::say!("FAILED: rxe dropped packets whose check sum was wrong:\n{complaints}");
    }
    polypath_e2e::say!("all took {} s", start.elapsed().as_secs());
    Ok(judge(wishes, &directory, &kernel, &results)? && complaints.is_empty())
}

/// Runs everything that the command line asks for.
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
    let plan = matrix::plan(&wishes.only, wishes.sample);
    let count = plan.len();
    let start = Instant::now();
    for (number, (interface, pair, setting)) in (1..).zip(plan) {
        if start.elapsed() > wishes.limit {
            results.not_run = count - results.outcomes.len();
            polypath_e2e::say!("NOT RUN: {} programs, for lack of time", results.not_run);
            break;
        }
        let outcome = sides.run(interface, pair, setting)?;
        let verdict = report::verdict(&outcome);
        polypath_e2e::say!("{number}/{count} {}, {setting}: {verdict}", pair.name);
        for text in outcome.earlier.iter().map(|(_, text)| text).chain(&outcome.failure) {
            polypath_e2e::say!("{}", indented(text));
        }
        results.outcomes.push(outcome);
    }
    Ok(())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Writes the tables, and decides whether all is well.
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
    let page = old;
    let mut new = page.clone();
    let mut write = |name: &str, summary: &str, long: &str, short: &str| {
        polypath_e2e::say!("{summary}");
        let path = directory.join(format!("{name}.md"));
        fs::write(&path, format!("{summary}\n\n{long}"))
            .map_err(|e| Problem::os(format!("writing {}", path.display()), e))?;
        new = report::page(&new, name, &format!("{summary}\n\n{short}"))
            .ok_or_else(|| Problem::Failed(format!("{PAGE} has no place for {name}")))?;
        Ok::<(), Problem>(())
    };
    if let Some(reference) = results.statuses.first() {
        let summary = format!(
            "{versions}: {} cases, {} differences, {} of them not known.",
            reference.len(),
            differences.len(),
            unknown.len()
        );
        let short = report::statuses(reference, &differences);
        let long = format!("{short}\nDifferences:\n\n{}", report::rows(&differences));
        write("statuses", &summary, &long, &short)?;
    }
    if !results.outcomes.is_empty() {
        let again = report::again(&results.outcomes);
        let count = results.outcomes.len();
        let not_run = match results.not_run {
            0 => String::new(),
            count => format!(" {count} were not run for lack of time."),
        };
        let part = match wishes.only.as_str() {
            "" => String::new(),
            only => format!(" This run was of `{only}` alone; other lines are of an earlier one."),
        };
        let summary = format!("{versions}: {count} runs, {failed} failed{again}.{not_run}{part}");
        let short = report::short(&results.outcomes, &page);
        let long = report::long(&results.outcomes);
        write("programs", &summary, &long, &short)?;
    }
    polypath_e2e::say!("The tables are in {}.", directory.display());
    if wishes.update_docs {
        fs::write(PAGE, new).map_err(|e| Problem::os(format!("writing {PAGE}"), e))?;
    }
    if !unknown.is_empty() {
        polypath_e2e::say!(
            "differences that docs/interop.md does not know:\n{}",
            report::rows(&unknown)
        );
    }
    // Kernels differ: a difference that one of them shows in another way still exists.
    let is_gone = |known: &&Difference| {
        let Difference { case, end, couple, .. } = known;
        !differences.iter().any(|d| (&d.case, &d.end, &d.couple) == (case, end, couple))
    };
    for difference in known.iter().filter(|d| !wishes.no_statuses && is_gone(d)) {
        let Difference { case, end, couple, .. } = difference;
        polypath_e2e::say!("no longer a difference: {case}, {end}, {couple}");
    }
    for outcome in &results.outcomes {
        if let Some(failure) = &outcome.failure {
            let Outcome { pair, setting, .. } = outcome;
            polypath_e2e::say!("FAILED: {}, {setting}: {}", pair.name, first_line(failure));
        }
    }
    if results.not_run > 0 && wishes.complete {
        polypath_e2e::say!("FAILED: {} programs were not run", results.not_run);
    }
    Ok(failed == 0 && unknown.is_empty() && (results.not_run == 0 || !wishes.complete))
}

/// The first line of a reason, for a summary.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Fails unless the machine has what the tests need.
fn can_run() -> Result<(), Problem> {
    guest::can_run(&[], "interop")?;
    match fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::Skip(format!("/dev/net/tun can't be opened: {error}"))),
    }
}

/// The directory for kernels and results.
fn directory(wishes: &Wishes) -> Result<PathBuf, Problem> {
    let Some(directory) = &wishes.directory else { return guest::directory("interop") };
    fs::create_dir_all(directory)
        .map_err(|e| Problem::os(format!("making {}", directory.display()), e))?;
    Ok(directory.clone())
}
