//! Checks that ports and bad ways are drawn, and that paths over several ports carry data.

use polypath_sim::{Case, Fault, run};

#[test]
fn seeds_have_several_ports_and_bad_ways() {
    let (mut several, mut older, mut failed, mut lossy) = (0, 0, 0, 0);
    for seed in 0..600 {
        let case = Case::draw(seed);
        several += u32::from(case.lanes.iter().any(|lane| lane.ports > 1));
        older += u32::from(case.lanes.iter().any(|lane| lane.ports == 0));
        let ways = |lossy: bool| {
            case.faults.iter().any(|(_, fault)| match *fault {
                Fault::Ways { ways, loss, .. } => ways > 0 && (loss < 1000) == lossy,
                _ => false,
            })
        };
        failed += u32::from(ways(false));
        lossy += u32::from(ways(true));
    }
    assert!(several > 100 && older > 40, "{several} {older}");
    assert!(failed > 80 && lossy > 40, "{failed} {lossy}");
}

/// Without ports, a case of one link has one path.
#[test]
fn data_of_one_peer_goes_by_several_ports_of_one_link() {
    let mut spread = 0;
    for seed in 0..400 {
        let case = Case::draw(seed);
        if case.links.len() > 1 || case.lanes.iter().all(|lane| lane.ports < 2) {
            continue;
        }
        let report = run(&case, None, None).0;
        let report = report.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        spread += u32::from(report.carriers > 1);
    }
    assert!(spread > 2, "{spread}");
}
