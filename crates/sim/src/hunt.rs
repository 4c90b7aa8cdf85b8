//! Running many seeds, or one to watch.

use std::fs::File;
use std::io::BufWriter;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::out::say;
use crate::pcapng;
use crate::run::{Failure, Report, Simulation};
use crate::shrink::{run, shrink};
use crate::trace::Trace;

/// Which seeds to run, and what to print of them.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    /// The first seed.
    pub first: u64,
    /// How many from there.
    pub count: u64,
    /// Print faults and path events.
    pub events: bool,
    /// Print every packet.
    pub packets: bool,
    /// Print what the seeds mean.
    pub plan: bool,
    /// Leave failing seeds as they are, do not cut them down.
    pub whole: bool,
    /// Write the packets of the last seed to this file, as pcapng.
    pub trace: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Sum {
    failures: u64,
    requests: u64,
    errors: u64,
    packets: u64,
    failovers: u64,
    time: Duration,
    worst: Duration,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.requests += report.requests;
        self.errors += report.errors;
        self.packets += report.sent;
        self.failovers += report.failovers;
        self.time += report.time;
        self.worst = self.worst.max(report.blackout_max);
    }
}

/// So many seeds if none is named.
const MANY: u64 = 1000;
/// So many packets of a small failing case are printed.
const PACKETS_PRINTED: usize = 60;
/// So many failing seeds are cut down; of more, only the seeds are told.
const SHRUNK_MAX: u64 = 3;

impl Hunt {
    /// As the command line has it: a seed alone means this one, nothing a thousand from 0 on.
    pub fn of(seed: Option<u64>, count: Option<u64>) -> Self {
        let alone = if seed.is_some() { 1 } else { MANY };
        Self { first: seed.unwrap_or(0), count: count.unwrap_or(alone), ..Self::default() }
    }

    /// Runs the seeds, as many at a time as there are processors; one after the other if they are to
    /// be watched. Writes failures, as they are found, and a summary to standard output. The exit
    /// code is 1 if any seed failed, 2 if the trace can't be written.
    pub fn run(&self) -> ExitCode {
        let start = Instant::now();
        let watched = self.events || self.packets || self.plan || self.trace.is_some();
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = if watched { 1 } else { processors };
        let next = AtomicU64::new(0);
        let sum = Mutex::new(Sum::default());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&next, &sum));
            }
        });
        let sum = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        say!(
            "{} seeds, {} failures; {} requests, {} queue pairs in error as they had to be, {} \
             packets, {} fail-overs (longest {:.0?}, outages of all paths included) in {:.0?} of \
             virtual time, {:.1?} of real",
            self.count,
            sum.failures,
            sum.requests,
            sum.errors,
            sum.packets,
            sum.failovers,
            sum.worst,
            sum.time,
            start.elapsed()
        );
        if let Some(path) = &self.trace
            && let Err(error) = self.write(path)
        {
            eprintln!("{}: {error}", path.display());
            return ExitCode::from(2);
        }
        if sum.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Writes the packets of the last seed.
    fn write(&self, path: &std::path::Path) -> std::io::Result<()> {
        let last = self.first.wrapping_add(self.count.saturating_sub(1));
        let case = Case::draw(last);
        let (_, trace) = run(&case, None, Some(Trace::whole()));
        let mut file = BufWriter::new(File::create(path)?);
        pcapng::write(&trace.unwrap_or_default(), case.links.len(), &mut file)?;
        std::io::Write::flush(&mut file)
    }

    /// One thread: takes seeds until there are none.
    fn work(&self, next: &AtomicU64, sum: &Mutex<Sum>) {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            let seed = self.first.wrapping_add(number);
            let case = Case::draw(seed);
            if self.plan {
                crate::out::print(format_args!("{case}"));
            }
            let result = if self.events || self.packets {
                Simulation::new(&case).printing(self.events, self.packets).run().0
            } else {
                run(&case, None, None).0
            };
            let mut failures = 0;
            {
                let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match &result {
                    Ok(report) => sum.add(report),
                    Err(_) => {
                        sum.failures += 1;
                        failures = sum.failures;
                    }
                }
            }
            match result {
                Ok(report) if self.count == 1 => say!("{report:#?}"),
                Ok(_) => {}
                Err(failure) if self.whole || failures > SHRUNK_MAX => {
                    say!("seed {seed} {failure}");
                }
                Err(failure) => say!("{}", explain(seed, &case, &failure)),
            }
        }
    }
}

/// A failure in full: what went wrong, the smallest case that still does, its last packets.
pub fn explain(seed: u64, case: &Case, failure: &Failure) -> String {
    let small = shrink(case, failure.clone(), None);
    let (_, trace) = run(&small.case, None, Some(Trace::last(PACKETS_PRINTED)));
    format!(
        "seed {seed} {failure}\n\ncut down from {} to {} work requests and from {} to {} faults in \
         {} runs:\n{}\nits last packets:\n{}\nit fails {}\n",
        case.ops(),
        small.case.ops(),
        case.faults.len(),
        small.case.faults.len(),
        small.runs,
        small.case,
        trace.unwrap_or_default(),
        small.failure
    )
}
