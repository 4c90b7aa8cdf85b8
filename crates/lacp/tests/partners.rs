//! Two actors over links that fail: by seed, and with every fate of the first frames.

mod common;

use std::time::Duration;

use common::{Fate, SECOND, World, config};
use polypath_lacp::{AdSelect, Config, LacpRate};

/// After the last fault the longest way back is: the longest silence (90 s) that must be waited for because
/// of an obsolete belief, a slow period (30 s), then 3 s of expiry, 2 s of waiting and a held back PDU.
const SLOW_BOUND: Duration = Duration::from_secs(130);

/// The same with fast rate at both ends: 3 s, 3 s, 1 s, 2 s, 1 s.
const FAST_BOUND: Duration = Duration::from_secs(10);

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

fn drawn(random: &mut Random, side: usize) -> Config {
    Config {
        lacp_rate: if random.below(2) == 0 { LacpRate::Fast } else { LacpRate::Slow },
        coupled_control: random.below(2) == 0,
        lacp_strict: random.below(2) == 0,
        // At least one end is active.
        lacp_active: side == 0 || random.below(2) == 0,
        ad_select: [AdSelect::Stable, AdSelect::Bandwidth, AdSelect::Count]
            [random.below(3) as usize],
        ..config(side)
    }
}

#[test]
fn whatever_happens_they_find_together_again() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let configs = [drawn(&mut random, 0), drawn(&mut random, 1)];
        let links = 1 + random.below(3) as usize;
        let mut world = World::new(configs, links);
        let loss = random.below(60);
        for _ in 0..random.below(30) {
            let link = random.below(links as u64) as usize;
            match random.below(6) {
                0 => world.set_link(link, false),
                // One end may be late to see it.
                1 => world.set_link_at(random.below(2) as usize, link, true, 10_000),
                2 => world.set_link_at(random.below(2) as usize, link, true, 1000),
                3 => world.stopped[random.below(2) as usize] ^= true,
                _ => world.set_link(link, true),
            }
            let until = world.now + Duration::from_millis(random.below(8000));
            world.run(until, &mut |_, _| match random.below(100) {
                n if n < loss => Fate::Lost,
                n if n < loss + 5 => Fate::Twice,
                n if n < loss + 15 => Fate::Late(Duration::from_millis(n * 40)),
                _ => Fate::Arrives,
            });
        }
        world.stopped = [false; 2];
        for link in 0..links {
            world.set_link(link, true);
        }
        // Also with fast rate: who has given its partner up asks for it every 30 seconds only.
        world.run_for(SLOW_BOUND);
        assert!(world.aggregated(), "seed {seed}: {:#?}", world.actors.map(|a| a.status()));
        // And it stays so.
        world.events = [Vec::new(), Vec::new()];
        world.run_for(SECOND * 300);
        assert!(world.aggregated(), "seed {seed}");
        assert_eq!(world.events, [vec![], vec![]], "seed {seed}: nothing happens without a reason");
    }
}

/// Every fate of each of the first frames: what they say is then lost, repeated or late in all combinations.
#[test]
fn every_fate_of_the_first_frames_ends_in_agreement() {
    const FRAMES: u32 = 7;
    for coupled_control in [true, false] {
        for choice in 0..4_u32.pow(FRAMES) {
            let ends = [0, 1].map(|side| Config { coupled_control, ..config(side) });
            let mut world = World::new(ends, 1);
            world.set_link(0, true);
            let mut rest = choice;
            let mut seen = 0;
            let until = world.now + FAST_BOUND + SECOND * 5;
            world.run(until, &mut |_, _| {
                seen += 1;
                let fate = rest % 4;
                rest /= 4;
                match fate {
                    _ if seen > FRAMES => Fate::Arrives,
                    0 => Fate::Arrives,
                    1 => Fate::Lost,
                    2 => Fate::Twice,
                    _ => Fate::Late(Duration::from_millis(1700)),
                }
            });
            assert!(world.aggregated(), "choice {choice}, coupled {coupled_control}");
        }
    }
}

/// Every pattern of silence, second by second and in each direction, while aggregated.
#[test]
fn every_pattern_of_silence_is_survived() {
    const SECONDS: u32 = 6;
    for pattern in 0..4_u32.pow(SECONDS) {
        let mut world = World::started(1);
        world.run_for(SECOND * 4);
        assert!(world.aggregated());
        for second in 0..SECONDS {
            let lost = pattern >> (2 * second) & 3;
            let until = world.now + SECOND;
            world.run(until, &mut |side, _| {
                if lost >> side & 1 == 1 { Fate::Lost } else { Fate::Arrives }
            });
        }
        world.run_for(FAST_BOUND);
        assert!(world.aggregated(), "pattern {pattern:#o}");
    }
}

#[test]
fn two_passive_ends_never_aggregate() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut world = World::new(
            [0, 1].map(|side| Config { lacp_active: false, ..drawn(&mut Random::new(seed), side) }),
            2,
        );
        // drawn() makes side 0 active, so both are said to be passive here, once more.
        assert!(world.actors.iter().all(|actor| !actor.config().lacp_active));
        for _ in 0..20 {
            world.set_link(random.below(2) as usize, random.below(3) > 0);
            world.run_for(Duration::from_millis(random.below(20_000)));
            assert!((0..2).all(|side| world.distributing(side).len() <= 1), "seed {seed}");
        }
        assert_eq!(world.sent_count, 0, "seed {seed}: nobody begins");
    }
}

#[test]
fn a_partner_that_stops_is_given_up_and_found_again() {
    let mut world = World::new([0, 1].map(|side| Config { lacp_strict: true, ..config(side) }), 2);
    world.set_link(0, true);
    world.set_link(1, true);
    world.run_for(SECOND * 4);
    assert!(world.aggregated());
    world.stopped[1] = true;
    world.run_for(SECOND * 4);
    assert_eq!(world.distributing(0), [], "silent for 3 seconds");
    world.stopped[1] = false;
    world.run_for(FAST_BOUND);
    assert!(world.aggregated());
}

#[test]
fn one_link_of_two_fails_without_harm_to_the_other() {
    let mut world = World::started(2);
    world.run_for(SECOND * 4);
    assert!(world.aggregated());
    // It is silent in one direction only.
    let until = world.now + SECOND * 9;
    world.run(until, &mut |side, link| {
        if (side, link) == (0, 1) { Fate::Lost } else { Fate::Arrives }
    });
    assert_eq!((world.distributing(0), world.distributing(1)), (vec![0], vec![0]));
    world.run_for(FAST_BOUND);
    assert!(world.aggregated());
    world.set_link(0, false);
    world.run_for(Duration::from_millis(10));
    assert_eq!((world.distributing(0), world.distributing(1)), (vec![1], vec![1]), "at once");
}

#[test]
fn a_change_of_key_splits_and_joins_them() {
    let mut world = World::started(2);
    world.run_for(SECOND * 4);
    world.set_link_at(0, 1, true, 1000);
    world.run_for(FAST_BOUND);
    assert_eq!((world.distributing(0), world.distributing(1)), (vec![0], vec![0]));
    world.set_link_at(0, 1, true, 10_000);
    world.run_for(FAST_BOUND);
    assert!(world.aggregated());
}

#[test]
fn a_port_that_leaves_is_not_used_by_the_partner_any_more() {
    let mut world = World::started(2);
    world.run_for(SECOND * 4);
    let port = world.ports[0][1];
    world.actors[0].remove_port(world.now, port);
    world.run_for(Duration::from_millis(10));
    assert_eq!(world.distributing(1), [0]);
    assert_eq!(world.distributing(0), [0]);
}

#[test]
fn crossed_cables_of_one_host_carry_nothing() {
    // Both ends have the same system address, as when two ports of a host are joined.
    let mut world = World::new([config(0), config(0)], 2);
    world.set_link(0, true);
    world.set_link(1, true);
    world.run_for(SECOND * 20);
    for side in 0..2 {
        assert_eq!(world.distributing(side), []);
        assert!(world.port(side, 0).looped && world.port(side, 1).looped);
    }
}
