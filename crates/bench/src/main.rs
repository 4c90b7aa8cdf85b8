//! `make bench`: measures speed, and how long traffic stands still when a path fails.
//!
//! Everything runs on this machine, in namespaces joined by veth pairs, so only ratios within one run
//! have a meaning: RDMA writes against a TCP stream, and a 64-byte send against a raw UDP ping-pong
//! that polls as RDMA programs do. Both sides of a comparison run in turn, several times, and medians
//! are compared, so that a change of the machine's load affects both.

mod blackout;
mod migration;
mod report;
mod speed;
mod train;
mod udp;

use polypath_e2e::Error;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use udp::Style;

const USAGE: &str = "\
usage: polypath-bench [--json FILE] [--markdown] [--check] [--decide] [speed] [blackout] [migration]
       polypath-bench train

Measures and prints a table; without a name, everything.
  --json FILE   also write the results as JSON (default: bench.json beside this program)
  --markdown    print the table as Markdown, with the machine, for README
  --check       exit with 1 if a floor is missed: for an idle machine
  --decide      exit with 1 if something is worse than on any machine where nothing is broken
train measures nothing: it runs the programs that tools/optimise takes a profile of.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        // Both ends of the UDP ping-pong are this program, started again inside the namespaces.
        ["udp-server", style, port] => udp::serve(port, Style::of(style)).map(|()| true),
        ["udp-client", style, address, port] => {
            udp::act(address, port, Style::of(style)).map(|()| true)
        }
        ["train"] => train::train().map(|()| true),
        _ => match Wish::parse(&words) {
            Some(wish) => measure(&wish),
            None => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let error = error.to_string();
            eprintln!("polypath-bench: {error}");
            // Once more in one line, after all that the program wrote.
            eprintln!("FAILED: {}", error.lines().next().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// The options of the command line.
struct Wish {
    speed: bool,
    blackout: bool,
    migration: bool,
    check: bool,
    decide: bool,
    markdown: bool,
    json: Option<PathBuf>,
}

impl Wish {
    fn parse(words: &[&str]) -> Option<Self> {
        let mut wish = Self {
            markdown: false,
            speed: false,
            blackout: false,
            migration: false,
            check: false,
            decide: false,
            json: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "speed" => wish.speed = true,
                "blackout" => wish.blackout = true,
                "migration" => wish.migration = true,
                "--check" => wish.check = true,
                "--decide" => wish.decide = true,
                "--markdown" => wish.markdown = true,
                "--json" => wish.json = Some(words.next()?.into()),
                _ => return None,
            }
        }
        if !wish.speed && !wish.blackout && !wish.migration {
            (wish.speed, wish.blackout, wish.migration) = (true, true, true);
        }
        Some(wish)
    }
}

fn measure(wish: &Wish) -> Result<bool, Error> {
    let mut report = Report::default();
    if wish.speed {
        speed::measure(&mut report)?;
    }
    if wish.blackout {
        blackout::measure(&mut report)?;
    }
    if wish.migration {
        migration::measure(&mut report)?;
    }
    if wish.markdown {
        print!("\n{}", report.markdown(&report::machine()));
    } else {
        print!("{}", report.table());
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("bench.json"));
    if let Some(path) = wish.json.clone().or(beside) {
        report.write_json(&path)?;
        polypath_e2e::say!("written to {}", path.display());
    }
    let broken: Vec<String> = report.broken().collect();
    for line in &broken {
        polypath_e2e::say!("BROKEN: {line}");
    }
    Ok((report.floors_met() || !wish.check) && (broken.is_empty() || !wish.decide))
}
