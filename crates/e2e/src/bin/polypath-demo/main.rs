//! The demonstration: two hosts, two links, unmodified programs. Each link fails once.
//!
//! Every program runs on the multi-path device between the two hosts. While it runs, the link it uses
//! is cut silently. Later, when that link has been mended, the other one is taken down visibly. The
//! demonstration shows what happens as it happens. The summary at the end says what was moved and
//! verified, and how long traffic stood still. If anything is lost, doubled, reordered or corrupt, it
//! exits with status 1. A program that fails gets a second attempt, and a line that begins with `UNSTABLE:`.

mod acts;
mod outcome;
mod view;

use acts::ACTS;
use outcome::Outcome;
use polypath_e2e::{Error, Lab, twice};
use std::process::ExitCode;
use std::sync::Arc;
use view::View;

fn main() -> ExitCode {
    match run() {
        Ok(outcomes) => {
            view::summary(&outcomes);
            ExitCode::SUCCESS
        }
        Err(error) => {
            polypath_e2e::say!("\nFAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Vec<Outcome>, Error> {
    let lab = Arc::new(Lab::new()?);
    polypath_e2e::say!(
        "Two hosts, joined by two links of MTU 9000, each through a switch of its own:"
    );
    for host in 0..2 {
        let addresses = (0..2).map(|link| format!("eth{link} {}", lab.host(host).ipv4(link)));
        polypath_e2e::say!("  host {host}:  {}", addresses.collect::<Vec<_>>().join("   "));
    }
    let mut outcomes = Vec::new();
    for act in &ACTS {
        outcomes.push(twice(|| {
            // An earlier attempt may have left a link cut.
            (0..2).try_for_each(|link| lab.heal(link))?;
            let view = View::start(&lab, &act.title());
            let outcome = act.play(&lab, &view);
            view.finish()?;
            outcome
        })?);
    }
    Ok(outcomes)
}
