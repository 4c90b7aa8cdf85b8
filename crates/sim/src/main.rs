//! `polypath-sim`: what `polypath sim` does, without all the rest of the command to build.

use std::io::Write as _;
use std::process::ExitCode;

use polypath_sim::{Hunt, Subject};

const HELP: &str = "\
Runs Polypath's protocol cores over simulated, faulty links and checks what verbs promise.

Usage: polypath-sim [cm] [--seed N] [--count M] [--plan] [--events] [--packets] [--trace FILE] [--whole]

  cm            connection managers and what RDMA CM promises, instead of queue pairs

  --seed N      first seed (default 0)
  --count M     how many seeds from there (default 1 with --seed, else 1000)
  --plan        print what the seeds mean
  --events      print faults and path events, or commands and events of applications
  --packets     print every packet
  --trace FILE  write the packets of the last seed as pcapng, for Wireshark
  --whole       leave failing seeds as they are, do not cut them down

Examples:
  polypath-sim --count 10000               look for failures
  polypath-sim --seed 4711 --events        repeat one and watch
  polypath-sim --seed 4711 --trace x.pcapng
  polypath-sim cm --count 10000            the same of connection managers
";

fn main() -> ExitCode {
    let (mut seed, mut count) = (None, None);
    let mut hunt = Hunt::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let target = match arg.as_str() {
            "cm" => {
                hunt.subject = Subject::Cm;
                continue;
            }
            "--seed" => &mut seed,
            "--count" => &mut count,
            "--trace" => {
                hunt.trace = args.next().map(Into::into);
                if hunt.trace.is_none() {
                    eprint!("--trace wants a file\n\n{HELP}");
                    return ExitCode::from(2);
                }
                continue;
            }
            "--plan" | "--events" | "--packets" | "--whole" => {
                let switch = match arg.as_str() {
                    "--plan" => &mut hunt.plan,
                    "--events" => &mut hunt.events,
                    "--packets" => &mut hunt.packets,
                    _ => &mut hunt.whole,
                };
                *switch = true;
                continue;
            }
            "--help" | "-h" => {
                let _ = std::io::stdout().write_all(HELP.as_bytes());
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
    let Hunt { first, count, .. } = Hunt::of(seed, count);
    Hunt { first, count, ..hunt }.run()
}
