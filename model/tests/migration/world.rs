//! Two ends and a network that does what it likes: the states, and what leads from one to the next.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use polypath_transport::{MigState, WcStatus};
use polypath_wire::opcode::Opcode;
use stateright::{Model, Property};

use crate::node::{Flying, Node};

/// Time of flight, once nothing goes wrong any more.
const DELAY: Duration = Duration::from_micros(50);
/// How often a program looks whether its queue pair has migrated.
const LOOK: Duration = Duration::from_millis(5);
/// Within this time all must be well.
const PATIENCE: Duration = Duration::from_secs(6);

/// How far to look.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) name: &'static str,
    /// How many requests each end has posted at the start.
    pub(crate) requests: [usize; 2],
    /// Whether each end's program migrates once, when it may.
    pub(crate) migrates: [bool; 2],
    /// Timers that may fire, all together.
    pub(crate) ticks: u8,
    /// Packets that the network may lose, double or hold back, all together.
    pub(crate) misdeeds: u8,
    /// `MigReq` is 0 in all packets: nobody hears of a migration.
    pub(crate) broken: bool,
}

#[derive(Clone)]
pub(crate) struct State {
    nodes: [Arc<Node>; 2],
    digests: [u64; 2],
    net: Vec<Flying>,
    loads: [u8; 2],
    migrations: [bool; 2],
    ticks: u8,
    misdeeds: u8,
    /// An end became ARMED otherwise than by an acknowledgement by its alternate path.
    wrongly_armed: bool,
}

impl State {
    fn key(&self) -> impl PartialEq + Hash + '_ {
        let counts = (self.loads, self.migrations, self.ticks, self.misdeeds, self.wrongly_armed);
        (self.digests, &self.net, counts)
    }

    fn states(&self) -> [MigState; 2] {
        self.nodes.each_ref().map(|node| node.state())
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.key().hash(h);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let counts = |s: &Self| (s.loads, s.migrations, s.ticks, s.misdeeds, s.wrongly_armed);
        self.digests == other.digests && self.net == other.net && counts(self) == counts(other)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.nodes.each_ref().map(|node| node.io.paths);
        write!(f, "{:?} on {paths:?}, on the way {:?}", self.states(), self.net)
    }
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A packet arrives: the first of its path and direction, or one that was held back.
    Deliver(usize),
    /// It arrives, and is still on the way, held back.
    Twice(usize),
    /// It is held back.
    Delay(usize),
    /// It gets lost.
    Lose(usize),
    /// The earliest timer of an end fires.
    Tick(usize),
    /// A program loads the path that is not in use: at first, and when it has migrated.
    Load(usize),
    /// A program migrates.
    Migrate(usize),
}

impl World {
    fn send(&self, state: &mut State, side: usize) {
        for (path, mut bytes) in Arc::make_mut(&mut state.nodes[side]).run() {
            if self.broken {
                bytes[1] &= !0x40; // BTH: solicited event, MigReq, pad count, version
            }
            state.net.push(Flying { to: 1 - side, path, bytes, late: false });
        }
        state.digests[side] = state.nodes[side].digest();
        // By path and direction in the order of sending; what is held back, in any.
        let late = |p: &Flying| p.late.then(|| p.clone());
        state.net.sort_by_key(|p| (p.late, p.to, p.path, late(p)));
    }

    fn deliver(&self, state: &mut State, at: usize, keep: bool) {
        let packet = state.net[at].clone();
        if keep {
            state.net[at].late = true;
        } else {
            state.net.remove(at);
        }
        let node = Arc::make_mut(&mut state.nodes[packet.to]);
        let before = (node.state(), node.io.paths);
        node.take(packet.path, &packet.bytes);
        if before.0 != MigState::Armed && node.state() == MigState::Armed {
            let is_answer = Opcode(packet.bytes[0]) == Opcode::RC_ACK;
            let [primary, alternate] = before.1;
            state.wrongly_armed |= !is_answer || packet.path != alternate || packet.path == primary;
        }
        self.send(state, packet.to);
    }

    /// Everything else that an end does by itself never arms it.
    fn act(&self, state: &mut State, side: usize, act: impl FnOnce(&mut Node)) {
        let node = Arc::make_mut(&mut state.nodes[side]);
        let before = node.state();
        act(node);
        state.wrongly_armed |= before != MigState::Armed && node.state() == MigState::Armed;
        self.send(state, side);
    }

    fn may_load(state: &State, side: usize) -> bool {
        let node = &state.nodes[side];
        // At first, and after each migration: its own, or the peer's.
        let due = 1 + node.qp.migration().count.min(2) as u8;
        node.state() == MigState::Migrated && state.loads[side] < due
    }

    /// Where nothing more may go wrong: both ends come together, and all completes.
    pub(crate) fn converges(&self, state: &State) -> Result<(), String> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        if !actions.is_empty() || state.wrongly_armed {
            return Ok(());
        }
        self.settle(state)
    }

    fn settle(&self, state: &State) -> Result<(), String> {
        let mut nodes = state.nodes.clone().map(Arc::unwrap_or_clone);
        // Each end has a clock of its own: they need not agree.
        let start = nodes.each_ref().map(|node| node.now);
        let mut flying = BTreeMap::new();
        let (mut count, mut now, mut look) = (0_u64, Duration::ZERO, Duration::ZERO);
        while now < PATIENCE {
            for side in 0..2 {
                if now >= look && nodes[side].state() == MigState::Migrated {
                    nodes[side].load();
                }
                for (path, mut bytes) in nodes[side].run() {
                    if self.broken {
                        bytes[1] &= !0x40;
                    }
                    count += 1;
                    flying.insert((now + DELAY, count), (1 - side, path, bytes));
                }
            }
            look = if now >= look { now + LOOK } else { look };
            let arrival = flying.first_key_value().map(|(&(at, _), _)| at);
            let timer =
                |side: usize| Some(nodes[side].qp.next_deadline()?.saturating_sub(start[side]));
            let next = [arrival, timer(0), timer(1), Some(look)].into_iter().flatten().min();
            now = now.max(next.unwrap_or(look));
            for side in 0..2 {
                nodes[side].now = start[side] + now;
            }
            while let Some(entry) = flying.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                let (to, path, bytes) = entry.remove();
                nodes[to].take(path, &bytes);
            }
            for node in &mut nodes {
                if node.qp.next_deadline().is_some_and(|at| at <= node.now) {
                    node.qp.handle_timeout(node.now, &mut node.io);
                }
            }
        }
        let states = nodes.each_ref().map(|node| node.state());
        let paths = nodes.each_ref().map(|node| node.io.paths);
        if states != [MigState::Armed; 2] || paths[0] != paths[1] {
            return Err(format!("apart: {states:?} on {paths:?}"));
        }
        for side in 0..2 {
            let (node, peer) = (&nodes[side], &nodes[1 - side]);
            let good = node.io.completions.iter().filter(|c| c.status == WcStatus::Success);
            if good.count() as u64 != node.posted || peer.io.atomics != node.posted {
                return Err(format!("{} posted, {:?}", node.posted, node.io));
            }
        }
        Ok(())
    }
}

/// Whether both ends are in these states, at once.
fn passes<const A: usize, const B: usize>(_: &World, state: &State) -> bool {
    const ALL: [MigState; 3] = [MigState::Migrated, MigState::Rearm, MigState::Armed];
    state.states() == [ALL[A], ALL[B]]
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            nodes: [0, 1].map(|side| Arc::new(Node::new(side))),
            digests: [0; 2],
            net: Vec::new(),
            loads: [0; 2],
            migrations: [false; 2],
            ticks: self.ticks,
            misdeeds: self.misdeeds,
            wrongly_armed: false,
        };
        for side in 0..2 {
            for _ in 0..self.requests[side] {
                Arc::make_mut(&mut state.nodes[side]).add();
            }
            self.send(&mut state, side);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, packet) in state.net.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| &state.net[at]);
            let waits = before.is_some_and(|b| match packet.late {
                true => b == packet,
                false => (b.to, b.path, b.late) == (packet.to, packet.path, false),
            });
            if waits {
                continue;
            }
            actions.push(Action::Deliver(at));
            if state.misdeeds > 0 && !packet.late {
                actions.extend([Action::Lose(at), Action::Delay(at), Action::Twice(at)]);
            }
        }
        for side in 0..2 {
            if Self::may_load(state, side) {
                actions.push(Action::Load(side));
            }
            let node = &state.nodes[side];
            if self.migrates[side] && !state.migrations[side] && node.state() == MigState::Armed {
                actions.push(Action::Migrate(side));
            }
            if state.ticks > 0 && node.qp.next_deadline().is_some() {
                actions.push(Action::Tick(side));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(at) => self.deliver(&mut state, at, false),
            Action::Twice(at) => {
                state.misdeeds -= 1;
                self.deliver(&mut state, at, true);
            }
            Action::Delay(at) => {
                state.misdeeds -= 1;
                state.net[at].late = true;
                let late = |p: &Flying| p.late.then(|| p.clone());
                state.net.sort_by_key(|p| (p.late, p.to, p.path, late(p)));
            }
            Action::Lose(at) => {
                state.misdeeds -= 1;
                state.net.remove(at);
            }
            Action::Tick(side) => {
                state.ticks -= 1;
                self.act(&mut state, side, Node::tick);
            }
            Action::Load(side) => {
                state.loads[side] += 1;
                self.act(&mut state, side, Node::load);
            }
            Action::Migrate(side) => {
                state.migrations[side] = true;
                self.act(&mut state, side, Node::migrate);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("ARMED only by an answer by the alternate path", |_, s: &State| {
                !s.wrongly_armed
            }),
            Property::always("no request fails", |_, s: &State| {
                s.nodes.iter().all(|node| node.io.said.is_empty())
            }),
            Property::always(
                "in the end, both ends are ARMED on one path and all has completed once",
                |world: &Self, s: &State| world.converges(s).is_ok(),
            ),
            Property::sometimes("MIG and MIG", passes::<0, 0>),
            Property::sometimes("MIG and REARM", passes::<0, 1>),
            Property::sometimes("MIG and ARMED", passes::<0, 2>),
            Property::sometimes("REARM and MIG", passes::<1, 0>),
            Property::sometimes("REARM and REARM", passes::<1, 1>),
            Property::sometimes("REARM and ARMED", passes::<1, 2>),
            Property::sometimes("ARMED and MIG", passes::<2, 0>),
            Property::sometimes("ARMED and REARM", passes::<2, 1>),
            Property::sometimes("ARMED and ARMED", passes::<2, 2>),
        ]
    }
}
