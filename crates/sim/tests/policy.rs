//! Promises hold with any policy. The one here sends on all paths at once.

use polypath_paths::{Class, Next, PathSet, Policy, Want};
use polypath_sim::{Case, Failure, Report, Simulation};

/// Sends bursts on all paths that are up and have room, in turn. Sends answers on the path that their
/// requests came by.
#[derive(Clone, Debug, Default)]
struct RoundRobin {
    turn: usize,
}

impl Policy for RoundRobin {
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        if let Class::Answer { asked_by } = want.class {
            return Next::By { path: asked_by, bytes: 0 };
        }
        self.turn += 1;
        let open = |path: &_| set.room(*path) >= want.bytes.min(8192);
        let count = set.up().filter(open).count().max(1);
        match set.up().filter(open).nth(self.turn % count) {
            Some(path) => Next::By { path, bytes: 0 },
            None => Next::Wait,
        }
    }

    fn spreads(&self) -> bool {
        true
    }
}

fn run(seed: u64) -> Result<Report, Failure> {
    Simulation::with_policy(&Case::draw(seed), || Box::new(RoundRobin::default())).run().0
}

/// The cases have faults of all kinds: paths are lost and come back while several carry data.
/// `POLYPATH_SEEDS` is the number of seeds, 150 if it is not set; `POLYPATH_FIRST` is the first.
#[test]
fn verbs_keep_their_promises_over_several_paths_at_once() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("POLYPATH_FIRST").unwrap_or(0);
    let (mut spread, mut deaths) = (0, 0);
    for seed in first..first + number("POLYPATH_SEEDS").unwrap_or(150) {
        let report = run(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        spread += u64::from(report.carriers > 1);
        deaths += report.deaths;
    }
    assert!(spread > 40 && deaths > 100, "{spread} seeds over several paths, {deaths} deaths");
}
