//! Each machine by the standard's tables (IEEE 802.1AX-2014, clauses 6.4.12 to 6.4.17 and 6.5.4), from
//! outside: one actor, with frames made by hand.

mod common;

use std::time::Duration;

use common::{SECOND, World, config};
use polypath_lacp::{
    Actor, AdSelect, ChurnState, Config, Event, FRAME_LEN, FrameError, LacpRate, Lacpdu, Marker,
    MuxState, ParseError, PeriodicState, PortInfo, PortNumber, PortState, ReceiveState, Selected,
    SlowFrame,
};

const PARTNER: [u8; 6] = [2, 7, 7, 7, 7, 7];
const HEALTHY: PortState = PortState(0x3f);

/// One actor, whose frames are kept.
struct Bench {
    now: Duration,
    actor: Actor,
    sent: Vec<(Duration, PortNumber, [u8; FRAME_LEN])>,
}

impl Bench {
    fn new(config: Config, ports: u16) -> Self {
        let mut actor = Actor::new(config).unwrap();
        for n in 1..=ports {
            assert_eq!(actor.add_port([2, 0, 0, 0, 9, n as u8]), Ok(n));
        }
        Self { now: SECOND * 100, actor, sent: Vec::new() }
    }

    fn up(&mut self, port: PortNumber) {
        self.actor.link_changed(self.now, port, true, 1000, true);
        self.send();
    }

    fn send(&mut self) {
        while let Some((port, frame)) = self.actor.poll_transmit(self.now) {
            self.sent.push((self.now, port, frame));
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.actor.next_deadline().filter(|at| *at <= until) {
            assert!(at >= self.now);
            self.now = at;
            self.actor.handle_timeout(at);
            self.send();
        }
        self.now = until;
    }

    /// What the partner would say that believes all that the port says of itself.
    fn pdu(&self, port: PortNumber, state: PortState) -> Lacpdu {
        let actor = PortInfo {
            system_priority: 100,
            system: PARTNER,
            key: 33,
            port_priority: 128,
            port: 40 + port,
            state,
        };
        Lacpdu { actor, partner: self.status(port).actor }
    }

    fn hear(&mut self, port: PortNumber, pdu: &Lacpdu) -> Result<(), FrameError> {
        let got = self.actor.handle_frame(self.now, port, &pdu.to_frame([2, 8, 8, 8, 8, 8]));
        self.send();
        got
    }

    fn hear_healthy(&mut self, port: PortNumber) {
        self.hear(port, &self.pdu(port, HEALTHY)).unwrap();
    }

    fn status(&self, port: PortNumber) -> polypath_lacp::PortStatus {
        self.actor.status().into_iter().find(|status| status.port == port).unwrap()
    }

    fn last_pdu(&self) -> Lacpdu {
        match SlowFrame::parse(&self.sent.last().unwrap().2) {
            Ok(SlowFrame::Lacpdu(pdu)) => pdu,
            other => panic!("{other:?}"),
        }
    }

    fn carries(&self, port: PortNumber) -> (bool, bool) {
        let state = self.status(port).actor.state;
        (state.has(PortState::COLLECTING), state.has(PortState::DISTRIBUTING))
    }

    /// Keeps a healthy partner on these ports for some seconds.
    fn keep(&mut self, ports: &[PortNumber], seconds: u32) {
        for _ in 0..seconds {
            for port in ports {
                self.hear_healthy(*port);
            }
            self.pass(SECOND);
        }
    }
}

#[test]
fn a_link_that_comes_up_speaks_at_once_and_expects_an_answer() {
    let mut bench = Bench::new(config(0), 1);
    assert_eq!(bench.status(1).receive, ReceiveState::PortDisabled);
    assert_eq!(bench.actor.next_deadline(), None);
    bench.up(1);
    assert_eq!(bench.sent.len(), 1);
    let pdu = bench.last_pdu();
    assert!(pdu.actor.state.has(PortState::EXPIRED.with(PortState::DEFAULTED)));
    assert_eq!(pdu.actor.key, 9);
    let status = bench.status(1);
    assert_eq!((status.receive, status.periodic), (ReceiveState::Expired, PeriodicState::Fast));
    assert!(!status.partner.state.has(PortState::SYNCHRONIZATION));
}

#[test]
fn silence_for_three_seconds_makes_defaults() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    bench.pass(Duration::from_millis(2999));
    assert_eq!(bench.status(1).receive, ReceiveState::Expired);
    bench.pass(Duration::from_millis(1));
    let status = bench.status(1);
    assert_eq!(status.receive, ReceiveState::Defaulted);
    assert!(!status.actor.state.has(PortState::EXPIRED));
    assert!(status.actor.state.has(PortState::DEFAULTED));
    // Without a partner that wants it fast, it is slow.
    assert_eq!(status.periodic, PeriodicState::Slow);
}

#[test]
fn a_partner_is_given_up_after_the_time_that_it_was_asked_for() {
    for (rate, time) in [(LacpRate::Fast, 3), (LacpRate::Slow, 90)] {
        let mut bench = Bench::new(Config { lacp_rate: rate, ..config(0) }, 1);
        bench.up(1);
        bench.hear_healthy(1);
        bench.pass(SECOND * time - Duration::from_millis(1));
        assert_eq!(bench.status(1).receive, ReceiveState::Current, "{rate:?}");
        bench.pass(Duration::from_millis(1));
        let status = bench.status(1);
        assert_eq!(status.receive, ReceiveState::Expired, "{rate:?}");
        assert!(status.partner.state.has(PortState::TIMEOUT), "fast, to find it again");
        assert_eq!(bench.carries(1), (false, false));
        bench.pass(SECOND * 3);
        assert_eq!(bench.status(1).receive, ReceiveState::Defaulted);
        assert_eq!(bench.status(1).partner.system, [0; 6]);
    }
}

#[test]
fn half_duplex_links_do_without_lacp() {
    let mut bench = Bench::new(config(0), 1);
    bench.actor.link_changed(bench.now, 1, true, 1000, false);
    bench.send();
    assert_eq!(bench.status(1).receive, ReceiveState::LacpDisabled);
    bench.pass(SECOND * 10);
    assert_eq!(bench.sent.len(), 0);
    bench.hear_healthy(1);
    assert_eq!(bench.status(1).receive, ReceiveState::LacpDisabled);
    bench.up(1);
    assert_eq!(bench.status(1).receive, ReceiveState::Expired);
}

#[test]
fn a_port_waits_two_seconds_for_others_and_then_for_its_partner() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    let unsynced = PortState(HEALTHY.0 & !PortState::SYNCHRONIZATION.0);
    bench.hear(1, &bench.pdu(1, unsynced)).unwrap();
    assert_eq!(bench.status(1).mux, MuxState::Waiting);
    bench.pass(Duration::from_millis(1999));
    assert_eq!(bench.status(1).mux, MuxState::Waiting);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.status(1).mux, MuxState::Attached);
    assert!(bench.last_pdu().actor.state.has(PortState::SYNCHRONIZATION), "told at once");
    bench.hear_healthy(1);
    assert_eq!(bench.carries(1), (true, true));
    bench.hear(1, &bench.pdu(1, unsynced)).unwrap();
    assert_eq!((bench.status(1).mux, bench.carries(1)), (MuxState::Attached, (false, false)));
}

#[test]
fn independent_control_distributes_when_the_partner_collects() {
    let mut bench = Bench::new(Config { coupled_control: false, ..config(0) }, 1);
    bench.up(1);
    let deaf = PortState(HEALTHY.0 & !PortState::COLLECTING.0 & !PortState::DISTRIBUTING.0);
    bench.hear(1, &bench.pdu(1, deaf)).unwrap();
    bench.pass(SECOND * 2);
    bench.hear(1, &bench.pdu(1, deaf)).unwrap();
    assert_eq!((bench.status(1).mux, bench.carries(1)), (MuxState::Collecting, (true, false)));
    bench.hear_healthy(1);
    assert_eq!((bench.status(1).mux, bench.carries(1)), (MuxState::Distributing, (true, true)));
    bench.hear(1, &bench.pdu(1, deaf)).unwrap();
    assert_eq!(bench.carries(1), (true, false));
}

#[test]
fn a_partner_that_means_another_port_is_not_in_sync() {
    let change: [fn(&mut PortInfo); 6] = [
        |info| info.port += 1,
        |info| info.port_priority += 1,
        |info| info.system[5] ^= 1,
        |info| info.system_priority ^= 1,
        |info| info.key += 1,
        |info| info.state.set(PortState::AGGREGATION, false),
    ];
    for (at, change) in change.iter().enumerate() {
        let mut bench = Bench::new(config(0), 1);
        bench.up(1);
        bench.pass(SECOND);
        let before = bench.sent.len();
        let mut pdu = bench.pdu(1, HEALTHY);
        change(&mut pdu.partner);
        bench.hear(1, &pdu).unwrap();
        assert!(!bench.status(1).partner.state.has(PortState::SYNCHRONIZATION), "change {at}");
        assert!(bench.sent.len() > before, "it is corrected at once: change {at}");
    }
}

#[test]
fn a_partner_that_cannot_aggregate_is_in_sync_whatever_it_believes() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    let mut pdu = bench.pdu(1, PortState(HEALTHY.0 & !PortState::AGGREGATION.0));
    pdu.partner = PortInfo::default();
    bench.hear(1, &pdu).unwrap();
    assert!(bench.status(1).partner.state.has(PortState::SYNCHRONIZATION));
}

#[test]
fn no_pdu_comes_of_two_passive_ends() {
    let mut bench = Bench::new(Config { lacp_active: false, ..config(0) }, 1);
    bench.up(1);
    bench.pass(SECOND * 100);
    assert_eq!(bench.sent.len(), 0);
    // Spoken to by a passive one, it stays silent, and is not in sync.
    let passive = PortState(HEALTHY.0 & !PortState::ACTIVITY.0);
    bench.hear(1, &bench.pdu(1, passive)).unwrap();
    assert_eq!(bench.sent.len(), 0);
    assert!(!bench.status(1).partner.state.has(PortState::SYNCHRONIZATION));
    bench.hear_healthy(1);
    bench.pass(SECOND);
    assert!(!bench.sent.is_empty(), "an active one is answered");
}

#[test]
fn three_pdus_leave_within_a_second_whatever_happens() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    for n in 0..50 {
        let mut pdu = bench.pdu(1, HEALTHY);
        pdu.partner.port_priority = n;
        bench.hear(1, &pdu).unwrap();
        bench.pass(Duration::from_millis(10));
    }
    assert_eq!(bench.sent.len(), 3);
    // What was held back follows as soon as it may.
    bench.pass(SECOND - Duration::from_millis(500));
    assert_eq!(bench.sent.len(), 4);
    assert_eq!(bench.sent[3].0 - bench.sent[0].0, SECOND);
}

#[test]
fn the_period_is_the_partners_wish() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    let slow = PortState(HEALTHY.0 & !PortState::TIMEOUT.0);
    for _ in 0..10 {
        bench.hear(1, &bench.pdu(1, slow)).unwrap();
        bench.pass(SECOND);
    }
    assert_eq!(bench.status(1).periodic, PeriodicState::Slow);
    let before = bench.sent.len();
    bench.hear(1, &bench.pdu(1, slow)).unwrap();
    bench.pass(SECOND * 2);
    assert_eq!(bench.sent.len(), before);
    bench.hear_healthy(1);
    assert_eq!(bench.sent.len(), before + 1, "from slow to fast it speaks at once");
    bench.keep(&[1], 10);
    assert_eq!(bench.sent.len(), before + 11);
}

#[test]
fn churn_is_found_after_a_minute_out_of_sync() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    let unsynced = PortState(HEALTHY.0 & !PortState::SYNCHRONIZATION.0);
    for _ in 0..59 {
        bench.hear(1, &bench.pdu(1, unsynced)).unwrap();
        bench.pass(SECOND);
    }
    assert_eq!(bench.status(1).partner_churn, ChurnState::Monitor);
    assert_eq!(bench.status(1).actor_churn, ChurnState::None);
    bench.hear(1, &bench.pdu(1, unsynced)).unwrap();
    bench.pass(SECOND);
    assert_eq!(bench.status(1).partner_churn, ChurnState::Churned);
    assert_eq!(bench.status(1).counters.partner_churned, 1);
    let churned = |event: &Event| matches!(event, Event::Churn { partner: true, actor: false, .. });
    assert!(std::iter::from_fn(|| bench.actor.poll_event()).any(|event| churned(&event)));
    bench.hear_healthy(1);
    assert_eq!(bench.status(1).partner_churn, ChurnState::None);
}

#[test]
fn markers_are_answered_and_answers_are_not() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    bench.sent.clear();
    let ask = Marker { response: false, port: 9, system: PARTNER, transaction: 77 };
    bench.actor.handle_frame(bench.now, 1, &ask.to_frame(PARTNER)).unwrap();
    bench.send();
    let answer = Marker { response: true, ..ask };
    assert_eq!(SlowFrame::parse(&bench.sent[0].2), Ok(SlowFrame::Marker(answer)));
    assert_eq!(bench.sent[0].2[6..12], [2, 0, 0, 0, 9, 1], "from the port's own address");
    bench.actor.handle_frame(bench.now, 1, &answer.to_frame(PARTNER)).unwrap();
    bench.send();
    assert_eq!(bench.sent.len(), 1);
    // A flood is answered by few, and the rest is counted.
    for _ in 0..100 {
        bench.actor.handle_frame(bench.now, 1, &ask.to_frame(PARTNER)).unwrap();
        bench.send();
    }
    assert_eq!(bench.sent.len(), 3);
    assert_eq!(bench.status(1).counters.markers_dropped, 90);
}

#[test]
fn its_own_pdus_make_no_partner() {
    let mut bench = Bench::new(config(0), 2);
    bench.up(1);
    bench.up(2);
    let own = bench.last_pdu();
    assert_eq!(bench.hear(1, &own), Err(FrameError::Loopback));
    bench.pass(SECOND * 10);
    assert!(bench.status(1).looped && !bench.status(2).looped);
    assert_eq!(bench.carries(1), (false, false), "not even as a plain link");
    assert_eq!(bench.status(1).counters.loopbacks, 1);
    bench.hear_healthy(1);
    assert!(!bench.status(1).looped);
    assert_eq!(bench.status(1).receive, ReceiveState::Current);
}

#[test]
fn strict_actors_do_without_what_has_no_partner() {
    for strict in [false, true] {
        let mut bench = Bench::new(Config { lacp_strict: strict, ..config(0) }, 2);
        bench.up(1);
        bench.up(2);
        bench.pass(SECOND * 10);
        let carrying = [1, 2].into_iter().filter(|port| bench.carries(*port).1).count();
        assert_eq!(carrying, usize::from(!strict), "never more than one, strict: {strict}");
        assert_eq!(bench.actor.carrier(), !strict);
    }
}

#[test]
fn a_partner_takes_precedence_over_a_plain_link() {
    let mut bench = Bench::new(config(0), 2);
    bench.up(1);
    bench.pass(SECOND * 10);
    assert_eq!(bench.carries(1), (true, true));
    bench.up(2);
    bench.keep(&[2], 4);
    assert_eq!(bench.carries(1), (false, false));
    assert_eq!(bench.carries(2), (true, true));
    assert_eq!(bench.status(1).selected, Selected::Standby);
}

/// Ports 1 lead to one partner, 2 and 3 to another.
fn two_partners(ad_select: AdSelect) -> Bench {
    let mut bench = Bench::new(Config { ad_select, ..config(0) }, 3);
    bench.up(1);
    bench.keep(&[1], 4);
    assert_eq!(bench.carries(1), (true, true));
    bench.up(2);
    bench.up(3);
    bench
}

fn hear_other(bench: &mut Bench, seconds: u32) {
    for _ in 0..seconds {
        bench.hear_healthy(1);
        for port in [2, 3] {
            let mut pdu = bench.pdu(port, HEALTHY);
            pdu.actor.system[0] = 6;
            bench.hear(port, &pdu).unwrap();
        }
        bench.pass(SECOND);
    }
}

#[test]
fn the_active_aggregator_is_chosen_by_policy() {
    for (policy, moves) in
        [(AdSelect::Stable, false), (AdSelect::Bandwidth, true), (AdSelect::Count, true)]
    {
        let mut bench = two_partners(policy);
        hear_other(&mut bench, 5);
        assert_eq!(bench.carries(1).1, !moves, "{policy:?}");
        assert_eq!((bench.carries(2).1, bench.carries(3).1), (moves, moves), "{policy:?}");
        // When its last link goes down, another takes its place under each policy.
        bench.actor.link_changed(bench.now, 1, false, 1000, true);
        hear_other(&mut bench, 5);
        assert_eq!((bench.carries(2).1, bench.carries(3).1), (true, true), "{policy:?}");
    }
}

#[test]
fn ports_of_different_speed_are_not_aggregated() {
    let mut bench = Bench::new(config(0), 2);
    bench.up(1);
    bench.actor.link_changed(bench.now, 2, true, 10_000, true);
    bench.keep(&[1, 2], 5);
    assert_ne!(bench.status(1).aggregator, bench.status(2).aggregator);
    assert_eq!((bench.carries(1).1, bench.carries(2).1), (false, true), "the faster one");
    // As soon as they are equal, they are.
    bench.actor.link_changed(bench.now, 2, true, 1000, true);
    bench.keep(&[1, 2], 5);
    assert_eq!((bench.carries(1).1, bench.carries(2).1), (true, true));
}

#[test]
fn min_links_make_the_carrier() {
    let mut bench = Bench::new(Config { min_links: 2, ..config(0) }, 2);
    bench.up(1);
    bench.keep(&[1], 4);
    assert!(bench.carries(1).1 && !bench.actor.carrier());
    bench.up(2);
    bench.keep(&[1, 2], 4);
    assert!(bench.actor.carrier());
    bench.actor.link_changed(bench.now, 1, false, 1000, true);
    assert!(!bench.actor.carrier());
    let events: Vec<Event> = std::iter::from_fn(|| bench.actor.poll_event()).collect();
    let gone = Event::Port { port: 1, collecting: false, distributing: false };
    assert!(!events.contains(&gone), "what came and went between two looks is not told");
    assert!(!events.contains(&Event::Carrier { up: true }));
}

#[test]
fn who_leaves_says_so_and_is_gone() {
    let mut bench = Bench::new(config(0), 2);
    bench.up(1);
    bench.up(2);
    bench.keep(&[1, 2], 5);
    bench.actor.remove_port(bench.now, 1);
    bench.send();
    assert!(!bench.last_pdu().actor.state.has(PortState::AGGREGATION));
    assert!(!bench.last_pdu().actor.state.has(PortState::SYNCHRONIZATION));
    assert_eq!(bench.actor.port_count(), 1);
    assert!(bench.carries(2).1, "the other is not touched");
    // A port that has spoken three times just now waits, and is gone within a second.
    for n in 0..5 {
        let mut pdu = bench.pdu(2, HEALTHY);
        pdu.partner.port_priority = n;
        bench.hear(2, &pdu).unwrap();
    }
    bench.actor.remove_port(bench.now, 2);
    bench.send();
    assert_eq!(bench.actor.port_count(), 1);
    assert!(!bench.actor.carrier());
    bench.pass(SECOND);
    assert!(!bench.last_pdu().actor.state.has(PortState::AGGREGATION));
    assert_eq!((bench.actor.port_count(), bench.actor.next_deadline()), (0, None));
}

#[test]
fn nonsense_is_counted_and_changes_nothing() {
    let mut bench = Bench::new(config(0), 1);
    bench.up(1);
    bench.keep(&[1], 4);
    let before = bench.status(1);
    let got = bench.actor.handle_frame(bench.now, 1, &[0xff; 200]);
    assert_eq!(got, Err(FrameError::Parse(ParseError::NotSlow)));
    assert_eq!(bench.actor.handle_frame(bench.now, 7, &[]), Err(FrameError::NoSuchPort));
    let after = bench.status(1);
    assert_eq!(after.counters.illegal_received, 1);
    assert_eq!(
        (after.receive, after.mux, after.partner),
        (before.receive, before.mux, before.partner)
    );
}

#[test]
fn two_actors_aggregate_in_three_seconds() {
    let mut world = World::started(2);
    world.run_for(Duration::from_millis(2500));
    assert!(world.aggregated());
    let up = Event::Carrier { up: true };
    assert!(world.events[0].contains(&up) && world.events[1].contains(&up));
}
