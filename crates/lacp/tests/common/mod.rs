//! Two actors, joined by links that lose, repeat and delay, in virtual time.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::VecDeque;
use std::time::Duration;

use polypath_lacp::{Actor, Config, Event, FRAME_LEN, Lacpdu, PortNumber, PortStatus, SlowFrame};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How long a frame takes.
const LATENCY: Duration = Duration::from_millis(1);

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    Lost,
    Twice,
    /// Later by this.
    Late(Duration),
}

/// A frame under way.
#[derive(Clone, Debug)]
struct Flight {
    at: Duration,
    to: usize,
    link: usize,
    frame: [u8; FRAME_LEN],
}

/// Two actors.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) actors: [Actor; 2],
    /// The port of each actor on each link.
    pub(crate) ports: [Vec<PortNumber>; 2],
    pub(crate) up: Vec<bool>,
    flights: Vec<Flight>,
    /// When each port sent its last LACPDUs.
    sent: [Vec<VecDeque<Duration>>; 2],
    pub(crate) sent_count: usize,
    pub(crate) events: [Vec<Event>; 2],
    /// Sides that do not run: they neither hear nor speak.
    pub(crate) stopped: [bool; 2],
}

pub(crate) fn config(side: usize) -> Config {
    let system = [2, 0, 0, 0, 1, side as u8 + 1];
    Config { lacp_rate: polypath_lacp::LacpRate::Fast, ..Config::new(system) }
}

impl World {
    pub(crate) fn new(configs: [Config; 2], links: usize) -> Self {
        let mut actors = configs.map(|config| Actor::new(config).unwrap());
        let ports: Vec<Vec<PortNumber>> = (0..2)
            .map(|side| {
                let add =
                    |link| actors[side].add_port([2, 0, 0, link as u8, 2, side as u8]).unwrap();
                (0..links).map(add).collect()
            })
            .collect();
        Self {
            now: Duration::from_secs(1000),
            actors,
            ports: ports.try_into().unwrap(),
            up: vec![false; links],
            flights: Vec::new(),
            sent: std::array::from_fn(|_| vec![VecDeque::new(); links]),
            sent_count: 0,
            events: [Vec::new(), Vec::new()],
            stopped: [false; 2],
        }
    }

    /// Two actors of this crate's defaults with fast rate, links up.
    pub(crate) fn started(links: usize) -> Self {
        let mut world = Self::new([config(0), config(1)], links);
        for link in 0..links {
            world.set_link(link, true);
        }
        world
    }

    pub(crate) fn set_link(&mut self, link: usize, up: bool) {
        self.set_link_at(0, link, up, 10_000);
        self.set_link_at(1, link, up, 10_000);
    }

    /// Changes what one end believes.
    pub(crate) fn set_link_at(&mut self, side: usize, link: usize, up: bool, speed_mbps: u32) {
        self.up[link] = up;
        let port = self.ports[side][link];
        self.actors[side].link_changed(self.now, port, up, speed_mbps, true);
        self.flights.retain(|flight| up || flight.link != link);
    }

    /// Lets time pass; `fate` decides about each frame.
    pub(crate) fn run(&mut self, until: Duration, fate: &mut dyn FnMut(usize, usize) -> Fate) {
        let mut stuck = 0;
        loop {
            self.exchange(fate);
            let deadlines = (0..2).filter(|side| !self.stopped[*side]);
            let deadline = deadlines.filter_map(|side| self.actors[side].next_deadline()).min();
            let arrival = self.flights.iter().map(|flight| flight.at).min();
            let next = deadline.into_iter().chain(arrival).min().filter(|next| *next <= until);
            let Some(next) = next else {
                self.now = until;
                return;
            };
            // One that was stopped is late; a deadline that stays is not.
            stuck = if next > self.now { 0 } else { stuck + 1 };
            assert!(stuck < 100, "a deadline that does not move on");
            self.now = self.now.max(next);
            for (actor, stopped) in self.actors.iter_mut().zip(self.stopped) {
                if !stopped {
                    actor.handle_timeout(self.now);
                }
            }
            self.deliver();
        }
    }

    /// Lets time pass without faults.
    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run(self.now + time, &mut |_, _| Fate::Arrives);
    }

    fn exchange(&mut self, fate: &mut dyn FnMut(usize, usize) -> Fate) {
        for side in 0..2 {
            if self.stopped[side] {
                continue;
            }
            while let Some((port, frame)) = self.actors[side].poll_transmit(self.now) {
                let link = self.ports[side].iter().position(|own| *own == port).unwrap();
                if matches!(SlowFrame::parse(&frame), Ok(SlowFrame::Lacpdu(_))) {
                    self.count(side, link);
                }
                self.sent_count += 1;
                if !self.up[link] {
                    continue;
                }
                let (first, second) = match fate(side, link) {
                    Fate::Lost => continue,
                    Fate::Arrives => (Duration::ZERO, None),
                    Fate::Twice => (Duration::ZERO, Some(LATENCY * 3)),
                    Fate::Late(by) => (by, None),
                };
                for late in [Some(first), second].into_iter().flatten() {
                    let at = self.now + LATENCY + late;
                    self.flights.push(Flight { at, to: 1 - side, link, frame });
                }
            }
            while let Some(event) = self.actors[side].poll_event() {
                self.events[side].push(event);
            }
        }
    }

    /// At most 3 LACPDUs of a port in any second.
    fn count(&mut self, side: usize, link: usize) {
        let times = &mut self.sent[side][link];
        times.push_back(self.now);
        if times.len() > 4 {
            times.pop_front();
        }
        if times.len() == 4 {
            let window = times[3] - times[0];
            assert!(window >= SECOND, "4 LACPDUs of side {side}, link {link} within {window:?}");
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, rest) = std::mem::take(&mut self.flights).into_iter().partition(|f| f.at <= now);
        self.flights = rest;
        let mut due: Vec<Flight> = due;
        due.sort_by_key(|flight| flight.at);
        for flight in due {
            let side = flight.to;
            if self.stopped[side] {
                continue;
            }
            let port = self.ports[side][flight.link];
            // A removed port hears nothing.
            let _ = self.actors[side].handle_frame(now, port, &flight.frame);
        }
    }

    /// Hands an actor a frame.
    pub(crate) fn inject(&mut self, side: usize, link: usize, pdu: &Lacpdu) {
        let frame = pdu.to_frame([2, 9, 9, 9, 9, 9]);
        let port = self.ports[side][link];
        let _ = self.actors[side].handle_frame(self.now, port, &frame);
    }

    pub(crate) fn port(&self, side: usize, link: usize) -> PortStatus {
        let number = self.ports[side][link];
        self.actors[side].status().into_iter().find(|port| port.port == number).unwrap()
    }

    /// The links by which this side distributes.
    pub(crate) fn distributing(&self, side: usize) -> Vec<usize> {
        let bit = polypath_lacp::PortState::DISTRIBUTING;
        let distributes = |link: &usize| {
            let number = self.ports[side][*link];
            let all = self.actors[side].status();
            all.iter().any(|port| port.port == number && port.actor.state.has(bit))
        };
        (0..self.up.len()).filter(distributes).collect()
    }

    /// Whether both sides distribute by all links, in one aggregator each, and agree about it.
    pub(crate) fn aggregated(&self) -> bool {
        let all: Vec<usize> = (0..self.up.len()).collect();
        (0..2).all(|side| {
            let aggregators = all.iter().map(|link| self.port(side, *link).aggregator);
            self.distributing(side) == all
                && aggregators.into_iter().all(|one| one == self.actors[side].active_aggregator())
        })
    }
}
