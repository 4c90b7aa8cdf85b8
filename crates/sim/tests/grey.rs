//! Checks how often stalls, holes and unequal fates are drawn.

use polypath_sim::{Case, Fault};

/// They are drawn from a stream of their own, so that old seeds stay the same in everything else. All
/// kinds must occur in a few hundred seeds.
#[test]
fn seeds_have_stalls_holes_and_unequal_fates() {
    let (mut stalls, mut by_size, mut by_queue_pair, mut unequal) = (0, 0, 0, 0);
    for seed in 0..600 {
        let case = Case::draw(seed);
        let faults = || case.faults.iter().map(|(_, fault)| fault);
        stalls += u32::from(
            faults().any(|f| matches!(f, Fault::Pause { time, .. } if time.as_millis() > 100)),
        );
        let holes = |f: &Fault| match f {
            Fault::Holes { holes, .. } => (holes.over > 0, holes.classes > 0),
            _ => (false, false),
        };
        by_size += u32::from(faults().any(|f| holes(f).0));
        by_queue_pair += u32::from(faults().any(|f| holes(f).1));
        let dies = faults().any(|f| matches!(f, Fault::Die { reborn: false, .. }));
        let flaps = faults().filter(|f| matches!(f, Fault::Cut { cut: true, .. })).count() > 10;
        unequal += u32::from(dies && flaps && case.hosts > 2);
    }
    assert!(stalls > 60 && by_size > 5 && by_queue_pair > 5, "{stalls} {by_size} {by_queue_pair}");
    assert!(unequal > 5, "{unequal}");
}
