//! Attackers are drawn, and their packets arrive. Every seed checks what these packets must not do.

use std::collections::BTreeSet;

use polypath_sim::{Case, Simulation, Trace, Way};

fn attacked() -> impl Iterator<Item = Case> {
    (0..).map(Case::draw).filter(|case| !case.attacks.is_empty())
}

#[test]
fn attackers_of_every_kind_are_drawn() {
    let ways = attacked().take(60).flat_map(|case| case.attacks).map(|a| format!("{:?}", a.way));
    assert_eq!(ways.collect::<BTreeSet<_>>().len(), 5);
}

#[test]
fn each_kind_of_attack_reaches_its_target() {
    let ways = [Way::Guess, Way::Stranger, Way::Replay, Way::Stale, Way::Forge];
    for way in ways {
        let injected = attacked().take(200).filter(|case| case.ops() > 200).find_map(|mut case| {
            case.attacks.retain(|attack| attack.way == way);
            if case.attacks.is_empty() {
                return None;
            }
            let trace = Simulation::new(&case).with_trace(Trace::whole()).run().1?;
            let injected = trace.to_string().matches("an attacker's").count();
            (injected > 0).then_some(injected)
        });
        assert!(injected.is_some(), "{way:?}");
    }
}
