//! Tests of windows that are coupled, with two managers that have agreed on two paths.

use super::tests::{MS, Pair};
use crate::config::{Config, Mode};
use polypath_types::{PathId, PeerId};

impl Pair {
    /// Both paths carry a little, with round trips that move together, until their windows are coupled.
    fn couple(&mut self, paths: [PathId; 2]) {
        let mut dice: u64 = 1;
        for round in 0..2000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let rtt = MS + MS * ((dice >> 33) % 4096) as u32 / 1024;
            for _ in 0..10 {
                self.run(2);
                for path in paths {
                    self.managers[0].sent(self.now, path, 4096);
                    self.managers[0].acked(self.now, path, 4096, Some(rtt));
                }
            }
            let sharers = paths.map(|path| self.sharers(path));
            if sharers == [2; 2] {
                return;
            }
            assert_eq!(sharers, [1; 2], "in round {round}");
        }
        panic!("they are not coupled");
    }

    fn sharers(&self, path: PathId) -> u32 {
        self.managers[0].paths.get(path).unwrap().congestion.sharers()
    }
}

#[test]
fn paths_that_share_a_bottleneck_are_tried_by_a_cut_of_one_and_then_cut_together() {
    let config = Config { mode: Mode::Balance, ..Config::default() };
    let (mut pair, _) = Pair::configured(&config, None);
    let mut paths: Vec<PathId> = pair.managers[0].path_ids().collect();
    paths.sort_by_key(|path| pair.managers[0].path(*path).map(|p| p.ifindex));
    let paths = [paths[0], paths[1]];
    let windows = |pair: &Pair| paths.map(|path| pair.managers[0].path_window(path));
    let at_first = windows(&pair);
    let shown = |pair: &Pair| {
        let peer = pair.managers[0].peers_from(PeerId(0)).next().unwrap().peer;
        pair.managers[0].paths_of(peer).map(|path| path.coupled).collect::<Vec<_>>()
    };
    assert_eq!(shown(&pair), [0, 0]);
    pair.couple(paths);
    assert_eq!(shown(&pair), [1, 1]);
    let tried = windows(&pair);
    let cut = [0, 1].map(|n| tried[n] < at_first[n]);
    assert!(cut[0] != cut[1], "one was cut alone: {at_first:?} {tried:?}");
    for lost in paths {
        let before = windows(&pair);
        pair.run(20);
        pair.managers[0].lost(pair.now, lost, 4096, true);
        let after = windows(&pair);
        assert!(after[0] < before[0] && after[1] < before[1], "{before:?} {after:?}");
    }
}
