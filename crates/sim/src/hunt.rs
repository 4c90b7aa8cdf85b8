//! Runs many seeds, or one seed to watch.

use core::fmt;
use std::fs::File;
use std::io::{BufWriter, IsTerminal as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::cm::{self, ApmCase, ApmReport, CmCase, CmReport, CmSimulation};
use crate::out::say;
use crate::pcapng;
use crate::report::Report;
use crate::run::{Failure, Simulation};
use crate::shrink::{Shrunk, run, shrink};
use crate::trace::Trace;

/// The subject of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// Queue pairs, connected by hand: what verbs promise
    #[default]
    Verbs,
    /// The connection manager: what RDMA CM promises
    Cm,
    /// Queue pairs that migrate between two plain paths
    Migration,
    /// Connections that migrate: a backup is loaded, and both ends agree
    Apm,
}

/// The seeds to run, and the output to print.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    /// The subject of the simulation.
    pub subject: Subject,
    /// The first seed.
    pub first: u64,
    /// The number of seeds, counted from the first.
    pub count: u64,
    /// Whether to print faults and path events, or commands and events of applications.
    pub events: bool,
    /// Whether to print every packet.
    pub packets: bool,
    /// Whether to print the cases that the seeds mean.
    pub plan: bool,
    /// Whether to leave failing cases as they are, without reducing them.
    pub whole: bool,
    /// The pcapng file to write the packets of the last seed to.
    pub trace: Option<PathBuf>,
}

/// A kind of case that is drawn from a seed, run and judged.
trait Game: fmt::Display + Sized {
    type Report;
    type Sum: Default + Send;

    fn draw(seed: u64) -> Self;
    fn run(&self, trace: Option<Trace>) -> (Result<Self::Report, Failure>, Option<Trace>);
    /// Runs it and prints what happens.
    fn watch(&self, events: bool, packets: bool) -> Result<Self::Report, Failure>;
    fn shrink(&self, failure: Failure) -> Shrunk<Self>;
    fn links(&self) -> usize;
    /// Its size, as text.
    fn size(&self) -> String;
    fn add(sum: &mut Self::Sum, report: &Self::Report);
    fn summary(sum: &Self::Sum) -> String;
}

#[derive(Debug, Default)]
struct Sum {
    requests: u64,
    errors: u64,
    packets: u64,
    failovers: u64,
    migrations: u64,
    time: Duration,
    worst: Duration,
}

impl Game for Case {
    type Report = Report;
    type Sum = Sum;

    fn draw(seed: u64) -> Self {
        Self::draw(seed)
    }

    fn run(&self, trace: Option<Trace>) -> (Result<Report, Failure>, Option<Trace>) {
        run(self, None, trace)
    }

    fn watch(&self, events: bool, packets: bool) -> Result<Report, Failure> {
        Simulation::new(self).printing(events, packets).run().0
    }

    fn shrink(&self, failure: Failure) -> Shrunk<Self> {
        shrink(self, failure, None)
    }

    fn links(&self) -> usize {
        self.links.len()
    }

    fn size(&self) -> String {
        format!("{} work requests and {} faults", self.ops(), self.faults.len())
    }

    fn add(sum: &mut Sum, report: &Report) {
        sum.requests += report.requests;
        sum.errors += report.errors;
        sum.packets += report.sent;
        sum.failovers += report.failovers;
        sum.migrations += report.migrations;
        sum.time += report.time;
        sum.worst = sum.worst.max(report.blackout_max);
    }

    fn summary(sum: &Sum) -> String {
        format!(
            "{} requests, {} queue pairs in error as they had to be, {} packets, {} fail-overs \
             (longest {:.0?}, outages of all paths included) in {:.0?} of virtual time",
            sum.requests, sum.errors, sum.packets, sum.failovers, sum.worst, sum.time
        )
    }
}

/// A case whose queue pairs migrate.
struct Migrating(Case);

impl fmt::Display for Migrating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Game for Migrating {
    type Report = Report;
    type Sum = Sum;

    fn draw(seed: u64) -> Self {
        Self(Case::draw_migrating(seed))
    }

    fn run(&self, trace: Option<Trace>) -> (Result<Report, Failure>, Option<Trace>) {
        run(&self.0, None, trace)
    }

    fn watch(&self, events: bool, packets: bool) -> Result<Report, Failure> {
        self.0.watch(events, packets)
    }

    fn shrink(&self, failure: Failure) -> Shrunk<Self> {
        let Shrunk { case, failure, runs } = self.0.shrink(failure);
        Shrunk { case: Self(case), failure, runs }
    }

    fn links(&self) -> usize {
        self.0.links.len()
    }

    fn size(&self) -> String {
        self.0.size()
    }

    fn add(sum: &mut Sum, report: &Report) {
        Case::add(sum, report);
    }

    fn summary(sum: &Sum) -> String {
        format!("{} migrations; {}", sum.migrations, Case::summary(sum))
    }
}

impl Game for CmCase {
    type Report = CmReport;
    type Sum = CmReport;

    fn draw(seed: u64) -> Self {
        Self::draw(seed)
    }

    fn run(&self, trace: Option<Trace>) -> (Result<CmReport, Failure>, Option<Trace>) {
        cm::run(self, None, trace)
    }

    fn watch(&self, events: bool, packets: bool) -> Result<CmReport, Failure> {
        CmSimulation::new(self).printing(events, packets).run().0
    }

    fn shrink(&self, failure: Failure) -> Shrunk<Self> {
        cm::shrink(self, failure, None)
    }

    fn links(&self) -> usize {
        self.links.len()
    }

    fn size(&self) -> String {
        format!("{} attempts and {} faults", self.attempts.len(), self.faults.len())
    }

    fn add(sum: &mut CmReport, report: &CmReport) {
        sum.attempts += report.attempts;
        sum.established += report.established;
        sum.rejected += report.rejected;
        sum.unreachable += report.unreachable;
        sum.sent += report.sent;
        sum.time += report.time;
    }

    fn summary(sum: &CmReport) -> String {
        format!(
            "{} attempts to connect ({} answered, {} rejected, {} unreachable), {} MADs in {:.0?} \
             of virtual time",
            sum.attempts, sum.established, sum.rejected, sum.unreachable, sum.sent, sum.time
        )
    }
}

impl Game for ApmCase {
    type Report = ApmReport;
    type Sum = ApmReport;

    fn draw(seed: u64) -> Self {
        Self { seed }
    }

    fn run(&self, _: Option<Trace>) -> (Result<ApmReport, Failure>, Option<Trace>) {
        (self.run(false), None)
    }

    fn watch(&self, events: bool, packets: bool) -> Result<ApmReport, Failure> {
        self.run(events || packets)
    }

    /// The seed is all that there is.
    fn shrink(&self, failure: Failure) -> Shrunk<Self> {
        Shrunk { case: *self, failure, runs: 0 }
    }

    fn links(&self) -> usize {
        0
    }

    fn size(&self) -> String {
        "one seed".to_string()
    }

    fn add(sum: &mut ApmReport, report: &ApmReport) {
        sum.established += report.established;
        sum.armed += report.armed;
        sum.migrations += report.migrations;
        sum.balanced += report.balanced;
        sum.asked += report.asked;
        sum.postponed += report.postponed;
        sum.sent += report.sent;
    }

    fn summary(sum: &ApmReport) -> String {
        format!(
            "{} connections ({} armed in the end), {} migrations, {} of them for balance, {} LAPs and \
             SAPs, {} of them postponed, {} MADs",
            sum.established,
            sum.armed,
            sum.migrations,
            sum.balanced,
            sum.asked,
            sum.postponed,
            sum.sent
        )
    }
}

/// The number of seeds to run if none is named.
const MANY: u64 = 1000;
/// The number of packets of a small failing case that are printed.
const PACKETS_PRINTED: usize = 60;
/// The number of failing cases that are reduced; of further ones, only the seeds are printed.
const SHRUNK_MAX: u64 = 3;

impl Hunt {
    /// Creates a hunt from the command line's options. A seed without a count means only this seed.
    /// Without either, the first 1000 seeds are run.
    pub fn of(seed: Option<u64>, count: Option<u64>) -> Self {
        let alone = if seed.is_some() { 1 } else { MANY };
        Self { first: seed.unwrap_or(0), count: count.unwrap_or(alone), ..Self::default() }
    }

    /// Runs the seeds, as many at a time as there are processors, or one after the other if they are to
    /// be watched. Prints failures as they are found and a summary at the end. The exit code is 1 if
    /// any seed failed, and 2 if the trace can't be written.
    pub fn run(&self) -> ExitCode {
        match self.subject {
            Subject::Verbs => self.hunt::<Case>(),
            Subject::Migration => self.hunt::<Migrating>(),
            Subject::Cm => self.hunt::<CmCase>(),
            Subject::Apm => self.hunt::<ApmCase>(),
        }
    }

    fn hunt<G: Game>(&self) -> ExitCode {
        let start = Instant::now();
        // A file that can't be written is reported before the seeds are run.
        let trace = match self.trace.as_ref().map(|path| (path, File::create(path))) {
            None => None,
            Some((path, Ok(file))) => Some((path, file)),
            Some((path, Err(error))) => {
                eprintln!("writing {}: {error}", path.display());
                return ExitCode::from(2);
            }
        };
        let watched = self.events || self.packets || self.plan || self.trace.is_some();
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = if watched { 1 } else { processors };
        let next = AtomicU64::new(0);
        let sum = Mutex::new((0, G::Sum::default()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work::<G>(&next, &sum));
            }
            if !watched && std::io::stderr().is_terminal() {
                self.tell_progress(&next, &sum, start);
            }
        });
        let (failures, sum) = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        say!(
            "{}, {}; {}, {:.1?} of real time",
            number_of(self.count, "seed"),
            number_of(failures, "failure"),
            G::summary(&sum),
            start.elapsed()
        );
        if let Some((path, file)) = trace
            && let Err(error) = self.write::<G>(file)
        {
            eprintln!("writing {}: {error}", path.display());
            return ExitCode::from(2);
        }
        if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Prints the progress every second on standard error, which is a terminal.
    fn tell_progress<S>(&self, next: &AtomicU64, sum: &Mutex<(u64, S)>, start: Instant) {
        let mut told = start;
        loop {
            let begun = next.load(Ordering::Relaxed).min(self.count);
            if begun == self.count {
                break;
            }
            if told.elapsed() >= Duration::from_secs(1) {
                told = Instant::now();
                let failures = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0;
                eprint!(
                    "\r\x1b[K{begun} of {} seeds, {}, {:.0?} ",
                    self.count,
                    number_of(failures, "failure"),
                    start.elapsed()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if told != start {
            eprint!("\r\x1b[K");
        }
    }

    /// Runs the last seed again and writes its packets.
    fn write<G: Game>(&self, file: File) -> std::io::Result<()> {
        let last = self.first.wrapping_add(self.count.saturating_sub(1));
        let case = G::draw(last);
        let (_, trace) = case.run(Some(Trace::whole()));
        let mut file = BufWriter::new(file);
        pcapng::write(&trace.unwrap_or_default(), case.links(), &mut file)?;
        std::io::Write::flush(&mut file)
    }

    /// Runs seeds until there are none left. Each thread calls it.
    fn work<G: Game>(&self, next: &AtomicU64, sum: &Mutex<(u64, G::Sum)>) {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            let seed = self.first.wrapping_add(number);
            let case = G::draw(seed);
            if self.plan {
                crate::out::print(format_args!("{case}"));
            }
            let result = if self.events || self.packets {
                case.watch(self.events, self.packets)
            } else {
                case.run(None).0
            };
            let mut failures = 0;
            {
                let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match &result {
                    Ok(report) => G::add(&mut sum.1, report),
                    Err(_) => {
                        sum.0 += 1;
                        failures = sum.0;
                    }
                }
            }
            match result {
                Ok(_) => {}
                Err(failure) if self.whole || failures > SHRUNK_MAX => {
                    say!("seed {seed} {failure}");
                }
                Err(failure) => say!("{}", explain(seed, &case, &failure)),
            }
        }
    }
}

/// Returns a number with its noun, such as `1 seed` or `2 seeds`.
fn number_of(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Describes a failure: what went wrong, the smallest case that fails in the same way, and its last
/// packets.
fn explain<G: Game>(seed: u64, case: &G, failure: &Failure) -> String {
    let small = case.shrink(failure.clone());
    let (_, trace) = small.case.run(Some(Trace::last(PACKETS_PRINTED)));
    format!(
        "seed {seed} {failure}\n\nreduced from {} to {} in {} runs:\n{}\nits last packets:\n{}\nit \
         fails {}\n",
        case.size(),
        small.case.size(),
        small.runs,
        small.case,
        trace.unwrap_or_default(),
        small.failure
    )
}
