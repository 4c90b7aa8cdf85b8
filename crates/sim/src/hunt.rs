//! Running many seeds, or one to watch.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::run::{Report, Setup, Simulation};

/// Which seeds to run, and what to print of them.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// The first seed.
    pub first: u64,
    /// How many from there.
    pub count: u64,
    /// Print faults and path events.
    pub trace: bool,
    /// Print every packet.
    pub packets: bool,
}

#[derive(Debug, Default)]
struct Sum {
    failures: u64,
    requests: u64,
    failovers: u64,
    time: Duration,
    worst: Duration,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.requests += report.requests;
        self.failovers += report.failovers;
        self.time += report.time;
        self.worst = self.worst.max(report.blackout_max);
    }
}

/// So many seeds if none is named.
const MANY: u64 = 1000;

impl Hunt {
    /// As the command line has it: a seed alone means this one, nothing a thousand from 0 on.
    pub fn of(seed: Option<u64>, count: Option<u64>) -> Self {
        let alone = if seed.is_some() { 1 } else { MANY };
        Self {
            first: seed.unwrap_or(0),
            count: count.unwrap_or(alone),
            trace: false,
            packets: false,
        }
    }

    /// Runs the seeds, as many at a time as there are processors; one after the other if they are to
    /// be watched. Writes failures, as they are found, and a summary to standard output. The exit
    /// code is 1 if any seed failed.
    pub fn run(self) -> ExitCode {
        let start = Instant::now();
        let watched = self.trace || self.packets;
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
        println!(
            "{} seeds, {} failures; {} requests, {} fail-overs (longest {:.0?}, outages of all \
             paths included) in {:.0?} of virtual time, {:.1?} of real",
            self.count,
            sum.failures,
            sum.requests,
            sum.failovers,
            sum.worst,
            sum.time,
            start.elapsed()
        );
        if sum.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// One thread: takes seeds until there are none.
    fn work(self, next: &AtomicU64, sum: &Mutex<Sum>) {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            let mut simulation = Simulation::new(Setup::random(self.first.wrapping_add(number)));
            simulation.trace = self.trace;
            simulation.trace_packets = self.packets;
            let result = simulation.run();
            let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match result {
                Ok(report) => {
                    sum.add(&report);
                    if self.count == 1 {
                        println!("{report:#?}");
                    }
                }
                Err(failure) => {
                    sum.failures += 1;
                    println!("{failure}");
                }
            }
        }
    }
}
