//! Programs over bonds of the Linux kernel, whose slaves fail.
//!
//! Two guests with Debian's kernel are joined by cables. Each has a bond of its kernel's over its ends of
//! them. Unmodified programs run between them over Polypath, while slaves lose their carrier, are released
//! and enslaved again, and fall silent. Nothing may be lost. Then the same traffic is measured over Polypath,
//! over Linux rxe and over TCP; tables and plots are written to `target/bonds`.
//!
//! If the machine has no emulator or can't get a kernel, the program prints `SKIPPED` and the reason, and
//! exits with status 0.

mod cases;
mod figures;
mod own;
mod report;
mod spread;
mod stage;

use figures::Carrier;
use polypath_e2e::guest::{self, Kernel, Problem, installed};
use polypath_e2e::{CLOCK_ATTEMPTS, PERFTEST_CLOCK};
use stage::{Mode, Stage};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: polypath-bonds [--sample] [--only TEXT] [--no-cases] [--no-figures]";

/// What to run, from the command line.
#[derive(Debug, Default)]
struct Wishes {
    /// Runs few cases, which have each mode and each program, and measures nothing.
    sample: bool,
    /// Runs only cases whose names contain this.
    only: String,
    no_cases: bool,
    no_figures: bool,
}

fn main() -> ExitCode {
    let wishes = match wishes(std::env::args().skip(1)) {
        Ok(wishes) => wishes,
        Err(argument) => {
            eprintln!("{argument}: not known\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    Problem::conclude(run(&wishes), "programs over bonds of the kernel were not run")
}

fn wishes(mut arguments: impl Iterator<Item = String>) -> Result<Wishes, String> {
    let mut wishes = Wishes::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--sample" => wishes.sample = true,
            "--only" => wishes.only = arguments.next().ok_or("--only without a text")?,
            "--no-cases" => wishes.no_cases = true,
            "--no-figures" => wishes.no_figures = true,
            _ => return Err(argument),
        }
    }
    Ok(wishes)
}

fn run(wishes: &Wishes) -> Result<bool, Problem> {
    let start = Instant::now();
    guest::can_run(&["iperf3", "strip", "rping"], "bonds")?;
    let kernel = Kernel::get(&guest::directory("interop")?.join("kernels"))?;
    let directory = guest::directory("bonds")?;
    let mut stage = Stage::boot(&kernel, &directory)?;
    let took = start.elapsed().as_secs();
    polypath_e2e::say!("two guests with Linux {} are up after {took} s", kernel.release);
    let done = play(&mut stage, wishes, &kernel, &directory);
    if done.is_err() {
        polypath_e2e::say!("the guests' consoles:\n{}", stage.consoles());
    }
    stage.stop()?;
    polypath_e2e::say!("all took {} s", start.elapsed().as_secs());
    done.map(|()| true)
}

/// Runs everything that the command line asks for, up to the first failure: what that leaves behind would
/// make others fail.
fn play(
    stage: &mut Stage,
    wishes: &Wishes,
    kernel: &Kernel,
    directory: &Path,
) -> Result<(), Problem> {
    if !wishes.no_cases {
        let cases = cases::plan(&wishes.only, wishes.sample);
        for (number, case) in (1..).zip(&cases) {
            let began = Instant::now();
            run_case(stage, *case)
                .map_err(|problem| Problem::Failed(format!("{case}: {problem}")))?;
            let took = began.elapsed().as_secs();
            polypath_e2e::say!("{number}/{} {case}: ok, {took} s", cases.len());
        }
        for case in spread::CASES {
            let sampled = !wishes.sample || spread::SAMPLE.contains(&case.what);
            if !case.to_string().contains(&wishes.only) || !sampled {
                continue;
            }
            let began = Instant::now();
            let shares =
                case.run(stage).map_err(|problem| Problem::Failed(format!("{case}: {problem}")))?;
            let took = began.elapsed().as_secs();
            polypath_e2e::say!("{case}: ok, {took} s, bytes by slave: {shares:?}");
        }
    }
    if !wishes.no_cases {
        own::run_all(stage, &wishes.only)?;
    }
    if wishes.no_figures || wishes.sample {
        return Ok(());
    }
    let figures = figures::all(stage)?;
    let versions = ["rdma-core", "perftest", "iperf3"].map(installed).join(", ");
    let text = format!(
        "Linux {} ({}), {versions}.\n\n{}\n{}",
        kernel.release,
        kernel.version,
        report::blackouts(&figures),
        report::shares(&figures)
    );
    polypath_e2e::say!("{text}");
    write(&directory.join("figures.md"), &text)?;
    for mode in Mode::ALL {
        write(&directory.join(format!("{mode}.svg")), &report::plot(&figures, mode))?;
    }
    // What others can't do is a figure; what we can't is a failure.
    let ours = figures.iter().filter(|row| row.carrier == Carrier::Polypath);
    for row in ours {
        if let Some(reason) = row.failure() {
            return Err(Problem::Failed(format!("measuring over {}: {reason}", row.mode)));
        }
    }
    Ok(())
}

/// Runs a case, and again if perftest was not able to measure the clock, which has nothing to do with bonds.
fn run_case(stage: &mut Stage, case: cases::Case) -> Result<(), Problem> {
    for _ in 1..CLOCK_ATTEMPTS {
        match cases::run(stage, case) {
            Err(problem) if problem.to_string().contains(PERFTEST_CLOCK) => {
                polypath_e2e::say!(
                    "perftest could not measure the processor's clock: {case} again"
                );
                cases::stop(stage)?;
            }
            other => return other,
        }
    }
    cases::run(stage, case)
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    std::fs::write(path, text).map_err(|e| Problem::os(format!("writing {}", path.display()), e))
}
