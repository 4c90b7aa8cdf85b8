//! Connection managers: a few hundred seeds with every `cargo test`, seeds that failed once, and
//! whether the judge notices planted faults. `polypath-sim cm` runs any number of seeds.

use core::time::Duration;

use polypath_sim::Trace;
use polypath_sim::cm::{ApmCase, CmCase, CmPlantedFault, CmSimulation, run, shrink};
use polypath_wire::Packet;
use polypath_wire::cm::CmMad;

/// The number of seeds that are tried for each planted fault.
const SEEDS: u64 = 40;

fn check(seeds: impl IntoIterator<Item = u64>) {
    let run = |seed| run(&CmCase::draw(seed), None, None).0.err().map(|failure| (seed, failure));
    let failures: Vec<_> = seeds.into_iter().filter_map(run).collect();
    assert!(failures.is_empty(), "{:?}", failures[0]);
}

#[test]
fn rdma_cm_keeps_its_promises_whatever_the_network_does() {
    check(0..500);
}

/// XRC connections are among what seeds mean, and a target's REP is judged by its own rules.
#[test]
fn initiators_connect_to_targets() {
    let cases = || (0..100).map(CmCase::draw);
    let attempts = cases().flat_map(|case| case.attempts);
    assert!(attempts.filter(|a| a.service.xrc).count() > 50);
    let mut established = 0;
    for mut case in cases() {
        case.attempts.retain(|a| a.service.xrc);
        let (result, _) = run(&case, None, None);
        established += result.unwrap_or_else(|failure| panic!("{case}: {failure}")).established;
    }
    assert!(established > 20, "{established}");
}

/// Seeds that failed once, each with its fault.
#[test]
fn seeds_that_failed_once_pass() {
    check([
        55,      // a DREP was lost, and none followed after the time-wait: a minute of DREQs
        4,       // a connection was gone when its RTU came, and the peer believed to be connected
        0,       // a REJ that followed a REP was lost: the same
        174,     // a REJ of a REP from a queue pair in use named no connection of its receiver
        9979,    // a DREQ for another queue pair moved the peer, and the DREP went there
        613, // a request without room, which had waited for its listener, made the next one look stale
        131_625, // a damaged SIDR_REQ passed as one with another IPv4 identification
        138_070, // the same, a REJ
        146_466, // the same, a DREQ
        253_457, // the same
        279_295, // data came from a peer that did not know of the connection, because the REP was lost
    ]);
}

/// Only a peer that has got the REP sends data. So data before the RTU leaves no peer without an answer.
#[test]
fn data_that_comes_before_the_rtu_comes_from_a_peer_that_is_connected() {
    for seed in 0..100 {
        let mut case = CmCase::draw(279_295);
        case.seed = seed;
        case.attempts.iter_mut().for_each(|a| a.data_after = Some(Duration::ZERO));
        let (result, _) = run(&case, None, None);
        assert!(result.is_ok(), "{case}: {result:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 159] {
        let case = CmCase::draw(seed);
        let trace = || CmSimulation::new(&case).with_trace(Trace::whole()).run();
        let (first, again) = (trace(), trace());
        assert!(first.0.is_ok() && !first.1.as_ref().unwrap().is_empty());
        assert!(first == again, "seed {seed}");
    }
}

#[test]
fn a_trace_holds_mads_as_they_were_on_the_wire() {
    let case = CmCase::draw(3);
    let (_, trace) = run(&case, None, Some(Trace::whole()));
    let trace = trace.unwrap();
    let mut packets = 0;
    for record in trace.packets() {
        let packet = Packet::parse(&record.datagram.bytes).unwrap();
        assert!(CmMad::parse(packet.payload).is_ok());
        packets += 1;
    }
    assert!(packets > 0);
    assert!(trace.to_string().contains("CM.REQ"), "{trace}");
}

/// Finds the first seed at which a planted fault is noticed, and reduces its case.
fn noticed(planted: CmPlantedFault, rules: &[&str]) -> CmCase {
    let planted = Some((1, planted));
    let found = (0..SEEDS).find_map(|seed| {
        let case = CmCase::draw(seed);
        let failure = run(&case, planted, None).0.err()?;
        Some((case, failure))
    });
    let (case, failure) =
        found.unwrap_or_else(|| panic!("{planted:?} is not noticed in {SEEDS} seeds"));
    assert!(rules.contains(&failure.rule), "{planted:?}: {failure}");
    let small = shrink(&case, failure.clone(), planted);
    assert_eq!(small.failure.rule, failure.rule);
    // The reduced case fails in the same way each time, and only with the planted fault.
    assert_eq!(run(&small.case, planted, None).0, Err(small.failure));
    assert!(run(&small.case, None, None).0.is_ok());
    small.case
}

#[test]
fn whatever_a_host_does_wrong_is_noticed_and_cut_down() {
    let due = "messages are sent when they are due";
    let uncalled = "no message is sent that nothing calls for";
    let true_ = "messages say what is true";
    let events = "events come when they are due";
    for (planted, rules) in [
        (CmPlantedFault::Lose(1), &[due][..]),
        (CmPlantedFault::Double(1), &[uncalled]),
        (CmPlantedFault::Spoil(1), &[true_]),
        (CmPlantedFault::Forget(1), &[events]),
    ] {
        let small = noticed(planted, rules);
        // One attempt is enough.
        assert!(small.attempts.len() <= 1 && small.faults.is_empty(), "{small}");
        assert_eq!((small.hosts, small.links.len()), (2, 1), "{small}");
    }
    // Faults that come later are noticed as well.
    for planted in [CmPlantedFault::Lose(7), CmPlantedFault::Double(7), CmPlantedFault::Forget(9)] {
        noticed(planted, &[due, uncalled, events, "no event comes that nothing has caused"]);
    }
}

/// Connections whose queue pairs migrate, over networks that lose and delay.
#[test]
fn migrating_connections_keep_an_armed_backup() {
    let (mut sum, mut postponed) = ([0; 4], 0);
    // The path to go back to was forgotten (96), and a migration to an address that was gone (the rest).
    for seed in (0..300).chain([96, 223, 1315, 3622, 3815, 4857]) {
        let report =
            ApmCase { seed }.run(false).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        for (sum, n) in
            sum.iter_mut().zip([report.established, report.armed, report.migrations, report.asked])
        {
            *sum += n;
        }
        postponed += report.postponed;
    }
    assert!(sum.iter().all(|n| *n > 300), "little happened: {sum:?}");
    assert!(postponed > 10, "{postponed} LAPs had to wait");
}

#[test]
fn a_run_of_migrations_repeats_itself() {
    for seed in [3, 14, 159] {
        assert_eq!(ApmCase { seed }.run(false).unwrap(), ApmCase { seed }.run(false).unwrap());
    }
}
