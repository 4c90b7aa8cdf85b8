//! `polypath-sim`: runs the simulator over seeds, or one seed again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use polypath_sim::{Setup, Simulation};

const HELP: &str = "\
Runs Polypath's protocol cores over simulated, faulty links and checks what verbs promise.

Usage: polypath-sim [--seed N] [--count M] [--trace] [--packets]

  --seed N    first seed (default 0)
  --count M   how many seeds from there (default 1 with --seed, else 1000)
  --trace     print faults and path events
  --packets   print every packet

Examples:
  polypath-sim --count 10000        look for failures
  polypath-sim --seed 4711 --trace  repeat one and watch
";

fn main() -> ExitCode {
    let (mut seed, mut count, mut trace, mut packets) = (None, None, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let target = match arg.as_str() {
            "--seed" => &mut seed,
            "--count" => &mut count,
            "--trace" => {
                trace = true;
                continue;
            }
            "--packets" => {
                packets = true;
                continue;
            }
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            _ => {
                eprint!("unknown argument {arg}\n\n{HELP}");
                return ExitCode::from(2);
            }
        };
        let Some(value) = args.next().and_then(|v| v.parse::<u64>().ok()) else {
            eprint!("{arg} wants a number\n\n{HELP}");
            return ExitCode::from(2);
        };
        *target = Some(value);
    }
    let many = if seed.is_some() { 1 } else { 1000 };
    let count = count.unwrap_or(many);
    run(seed.unwrap_or(0), count, trace, packets)
}

fn run(first: u64, count: u64, trace: bool, packets: bool) -> ExitCode {
    let start = Instant::now();
    let (mut failures, mut requests, mut failovers) = (0u64, 0, 0);
    let (mut virtual_time, mut worst) = (Duration::ZERO, Duration::ZERO);
    for seed in first..first.saturating_add(count) {
        let mut simulation = Simulation::new(Setup::random(seed));
        simulation.trace = trace;
        simulation.trace_packets = packets;
        match simulation.run() {
            Ok(report) => {
                requests += report.requests;
                failovers += report.failovers;
                virtual_time += report.time;
                worst = worst.max(report.blackout_max);
                if count == 1 {
                    println!("{report:#?}");
                }
            }
            Err(failure) => {
                failures += 1;
                println!("{failure}");
            }
        }
    }
    println!(
        "{count} seeds, {failures} failures; {requests} requests, {failovers} fail-overs (longest \
         {worst:.0?}, outages of all paths included) in {virtual_time:.0?} of virtual time, {:.1?} of real",
        start.elapsed()
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
