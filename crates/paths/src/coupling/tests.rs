//! Flows with the windows that ship, through bottlenecks with queues that overflow.

use super::*;
use crate::config::Config;
use crate::congestion::{Congestion, Cut, Limits};
use crate::rtt::Rtt;
use std::collections::VecDeque;

const PACKET: u32 = 1024;
const TICK: Duration = Duration::from_micros(250);

/// Something that sends whenever its window allows.
struct Flow {
    window: Congestion,
    rtt: Rtt,
    delays: Delays,
    /// The bottleneck that it goes through.
    by: usize,
    /// The time that a packet and its answer take, queues apart.
    least: Duration,
    begins: Duration,
    delivered: u64,
}

/// A queue that loses what it can't hold.
struct Bottleneck {
    /// Bytes in a tick, and those that are left from the ticks before.
    rate: u32,
    credit: u32,
    holds: u32,
    queued: u32,
    waiting: VecDeque<(usize, Duration)>,
    /// So many of a thousand packets are lost although there is room.
    losses: u64,
}

impl Bottleneck {
    /// Megabytes per second, and what the queue holds, bytes.
    fn new(rate: u32, holds: u32) -> Self {
        Self { rate: rate * 250, credit: 0, holds, queued: 0, waiting: VecDeque::new(), losses: 0 }
    }
}

/// Flows, of which the first so many are the paths of one association.
struct World {
    paths: usize,
    flows: Vec<Flow>,
    bottlenecks: Vec<Bottleneck>,
    answers: VecDeque<(Duration, usize, Duration)>,
    coupling: Coupling,
    now: Duration,
    /// The first packet that a flow sends in a tick is not always that of the same flow.
    dice: u64,
    /// Until when no path of the association sends.
    stalled: Duration,
}

fn roll(dice: &mut u64, sides: u64) -> u64 {
    *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*dice >> 33) % sides
}

impl World {
    /// Each flow: its bottleneck, and its round trip in milliseconds.
    fn new(bottlenecks: Vec<Bottleneck>, paths: usize, flows: &[(usize, u32)]) -> Self {
        let config = Config { initial_window: 16 << 10, mtu: PACKET, ..Config::default() };
        let flow = |&(by, least): &(usize, u32)| {
            let mut window = Congestion::new(&config, polypath_types::PathKind::Udp);
            window.set_limits(Limits { sure: 4 << 20, max: 4 << 20 });
            Flow {
                window,
                rtt: Rtt::default(),
                delays: Delays::default(),
                by,
                least: Duration::from_millis(least.into()),
                begins: Duration::ZERO,
                delivered: 0,
            }
        };
        Self {
            paths,
            flows: flows.iter().map(flow).collect(),
            bottlenecks,
            answers: VecDeque::new(),
            coupling: Coupling::default(),
            now: Duration::from_millis(1),
            dice: 1,
            stalled: Duration::ZERO,
        }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        roll(&mut self.dice, sides)
    }

    fn answer(&mut self, flow: usize, took: Duration) {
        let f = &mut self.flows[flow];
        f.window.acked(self.now, PACKET, &f.rtt);
        f.rtt.sample(self.now, took);
        f.delivered += u64::from(PACKET);
        if f.delays.sample(self.now, took) && flow < self.paths {
            self.compare();
        }
    }

    fn compare(&mut self) {
        let paths = &mut self.flows[..self.paths];
        let longest = paths.iter().filter_map(|f| f.rtt.smoothed()).max().unwrap_or_default();
        let ends_at = self.now + interval(longest);
        let mut seen = ByNumber::<Option<Seen>>::default();
        for (number, flow) in paths.iter_mut().enumerate() {
            let shortest = flow.rtt.shortest().unwrap_or_default().as_nanos() as f64;
            seen[PathNumber(number as u8)] = flow.delays.restart(ends_at).map(|mean| Seen {
                path: PathId(number as u32),
                mean,
                shortest,
            });
        }
        let cuts = self.coupling.compare(&seen);
        for (number, flow) in paths.iter_mut().enumerate() {
            let number = PathNumber(number as u8);
            if seen[number].is_some() {
                flow.window.share(1 + self.coupling.mates(number).count() as u32);
                if cuts[number] {
                    flow.window.cut(self.now, Cut::Loss, &flow.rtt);
                }
            }
        }
    }

    fn step(&mut self) {
        self.now += TICK;
        while let Some((_, flow, took)) = self.answers.front().copied().filter(|a| a.0 <= self.now)
        {
            self.answers.pop_front();
            self.answer(flow, took);
        }
        let mut lost = Vec::new();
        let first = self.roll(self.flows.len() as u64) as usize;
        for turn in 0..self.flows.len() {
            let flow = (first + turn) % self.flows.len();
            let stalled = flow < self.paths && self.now < self.stalled;
            let f = &mut self.flows[flow];
            let queue = &mut self.bottlenecks[f.by];
            let dice = &mut self.dice;
            while !stalled && self.now >= f.begins && f.window.room() >= PACKET {
                f.window.sent(self.now, PACKET);
                if queue.queued + PACKET > queue.holds || roll(dice, 1000) < queue.losses {
                    f.window.lost(self.now, PACKET, true, &f.rtt);
                    lost.push(flow);
                    break;
                }
                queue.queued += PACKET;
                queue.waiting.push_back((flow, self.now));
            }
        }
        for flow in lost.into_iter().filter(|flow| *flow < self.paths) {
            for mate in self.coupling.mates(PathNumber(flow as u8)) {
                let f = &mut self.flows[usize::from(mate.0)];
                f.window.cut(self.now, Cut::Loss, &f.rtt);
            }
        }
        for queue in &mut self.bottlenecks {
            queue.credit = (queue.credit + queue.rate).min(queue.rate + PACKET);
            while queue.credit >= PACKET
                && let Some((flow, sent)) = queue.waiting.pop_front()
            {
                queue.credit -= PACKET;
                queue.queued -= PACKET;
                let at = self.now + self.flows[flow].least;
                self.answers.push_back((at, flow, at - sent));
            }
        }
        // Each flow has another round trip.
        self.answers.make_contiguous().sort_by_key(|(at, ..)| *at);
    }

    /// Runs for so many seconds. Returns what each flow delivered, bytes per second.
    fn run(&mut self, seconds: u32) -> Vec<u64> {
        let end = self.now + Duration::from_secs(seconds.into());
        self.flows.iter_mut().for_each(|f| f.delivered = 0);
        while self.now < end {
            self.step();
        }
        self.flows.iter().map(|f| f.delivered / u64::from(seconds)).collect()
    }

    fn sharers(&self) -> Vec<u32> {
        self.flows[..self.paths].iter().map(|f| f.window.sharers()).collect()
    }
}

#[test]
fn paths_of_one_bottleneck_leave_another_flow_its_half() {
    for paths in [2, 4] {
        for queue in [50_000, 100_000, 400_000] {
            let flows = vec![(0, 10); paths + 1];
            let mut world = World::new(vec![Bottleneck::new(10, queue)], paths, &flows);
            world.run(60);
            let rates = world.run(60);
            let (ours, other) = (rates[..paths].iter().sum::<u64>(), rates[paths]);
            assert!(ours + other > 9_300_000, "the link is full: {rates:?}");
            assert!(ours < other * 2 && other < ours * 2, "{paths} paths, {queue}: {rates:?}");
        }
    }
}

#[test]
fn paths_of_one_bottleneck_with_other_ways_to_it_share_it_too() {
    let mut world = World::new(vec![Bottleneck::new(10, 200_000)], 2, &[(0, 10), (0, 30), (0, 20)]);
    world.run(60);
    let rates = world.run(60);
    assert!(rates[0] + rates[1] < rates[2] * 2, "{rates:?}");
}

/// Two paths, each with a bottleneck of its own (megabytes per second, round trip in ms, losses in a
/// thousand). Gives what each delivers if they are compared, and if not.
fn apart(queue: u32, paths: [(u32, u32, u64); 2]) -> [Vec<u64>; 2] {
    [2, 0].map(|compared| {
        let bottleneck = |(rate, _, losses)| Bottleneck { losses, ..Bottleneck::new(rate, queue) };
        let flows = [(0, paths[0].1), (1, paths[1].1)];
        let mut world = World::new(paths.map(bottleneck).into(), compared, &flows);
        world.run(10);
        world.run(60)
    })
}

#[test]
fn paths_with_bottlenecks_of_their_own_carry_what_they_do_alone() {
    for queue in [30_000, 200_000] {
        for second in [(10, 10, 0), (8, 10, 0), (10, 30, 0), (2, 5, 0), (10, 10, 2), (10, 10, 10)] {
            let [compared, alone] = apart(queue, [(10, 10, 0), second]);
            for (with, without) in compared.iter().zip(&alone) {
                assert!(with * 100 > without * 97, "{queue} {second:?}: {compared:?} {alone:?}");
            }
        }
    }
}

#[test]
fn paths_that_do_not_share_a_bottleneck_any_more_are_apart_again() {
    let bottlenecks = vec![Bottleneck::new(10, 100_000), Bottleneck::new(10, 100_000)];
    let mut world = World::new(bottlenecks, 2, &[(0, 10), (0, 10)]);
    world.run(60);
    assert_eq!(world.sharers(), [2, 2]);
    world.flows[1].by = 1;
    let rates = world.run(60);
    assert!(rates.iter().all(|rate| *rate > 9_000_000), "{rates:?}");
}

#[test]
fn stalls_of_a_process_are_no_bottleneck() {
    let bottlenecks = vec![Bottleneck::new(10, 200_000), Bottleneck::new(6, 200_000)];
    let mut world = World::new(bottlenecks, 2, &[(0, 10), (1, 10)]);
    world.run(10);
    for _ in 0..60 {
        let pause = Duration::from_millis(world.roll(200));
        world.stalled = world.now + pause;
        world.run(1);
        assert_eq!(world.sharers(), [1, 1], "at {:?}", world.now);
    }
}
