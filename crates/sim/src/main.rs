//! `polypath-sim`: what `polypath sim` does, without all the rest of the command to build.

use std::process::ExitCode;

use polypath_sim::Hunt;

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
    Hunt { trace, packets, ..Hunt::of(seed, count) }.run()
}
