//! Two hosts and a network that does what it likes: the states, and what leads from one to the next.

use core::fmt;
use core::hash::{Hash, Hasher};
use std::sync::Arc;

use polypath_paths::PathState;
use stateright::{Model, Property};

use crate::heal;

use crate::node::{Broken, LINKS, Node, Request, Rule, Turn};
use crate::packet::Flying;
use crate::sabotage::Sabotage;

/// Rounds of timers after which a macro step gives up, whatever has become of it.
const ROUNDS_MAX: u32 = 80;

/// Something that happens at most once in a run, at any time after `after` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A host sees its link go.
    LinkDown { host: usize, link: usize },
    /// And come back.
    LinkUp { host: usize, link: usize },
    /// A host loses its address on a link: the path leaves the set.
    AddressGone { host: usize, link: usize },
    /// And gets it back: a path is added.
    AddressBack { host: usize, link: usize },
    /// The link silently carries nothing until the host has given its path up.
    Silence { host: usize, link: usize },
    /// Probes go to and fro until all paths of the host are up, or nothing changes any more.
    Prove { host: usize },
}

/// How far to look.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) name: &'static str,
    /// Connected, with all paths up; or with the first packets of the handshake on their way.
    pub(crate) connected: bool,
    /// What each host requests at the start.
    pub(crate) requests: [&'static [Request]; 2],
    /// What may happen, and after which other of them.
    pub(crate) events: &'static [(Event, Option<usize>)],
    /// Timers that may fire, all together.
    pub(crate) ticks: u8,
    /// Packets that the network may lose, double or hold back for as long as it likes, all together.
    pub(crate) misdeeds: u8,
    pub(crate) sabotage: Sabotage,
}

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) nodes: [Arc<Node>; 2],
    pub(crate) net: Vec<Flying>,
    gone: [[bool; LINKS]; 2],
    happened: u16,
    ticks: u8,
    misdeeds: u8,
    pub(crate) broken: Option<Broken>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, h: &mut H) {
        (self.nodes[0].digest(), self.nodes[1].digest(), &self.net, self.gone).hash(h);
        (self.happened, self.ticks, self.misdeeds, &self.broken).hash(h);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let key = |s: &Self| (s.nodes[0].digest(), s.nodes[1].digest(), s.happened);
        let rest = |s: &Self| (s.ticks, s.misdeeds, s.gone);
        key(self) == key(other) && rest(self) == rest(other) && self.net == other.net
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = |n: &Node| [n.path_on(0), n.path_on(1)];
        let paths = [paths(&self.nodes[0]), paths(&self.nodes[1])];
        write!(f, "paths {paths:?}, on the way {:?}, broken {:?}", self.net, self.broken)
    }
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A packet arrives: the first of its link and direction, or one that was held back.
    Deliver(usize),
    /// It arrives, and is still on the way, held back.
    Twice(usize),
    /// It is held back.
    Delay(usize),
    /// It gets lost.
    Lose(usize),
    /// The earliest timer of a host fires.
    Tick(usize),
    /// One of [`World::events`].
    Happen(usize),
}

/// Links that carry nothing while a macro step lasts, and whether data sent meanwhile is kept.
#[derive(Clone, Copy, Default)]
struct Mute {
    links: [bool; LINKS],
    data: bool,
}

impl World {
    fn start(&self) -> State {
        let mut nodes = [Node::new(0), Node::new(1)];
        if self.connected {
            heal::settle(&mut nodes, Vec::new(), None, Sabotage::None).expect("a whole network");
        }
        let mut state = State {
            nodes: nodes.map(Arc::new),
            net: Vec::new(),
            gone: [[false; LINKS]; 2],
            happened: 0,
            ticks: self.ticks,
            misdeeds: self.misdeeds,
            broken: None,
        };
        for host in 0..2 {
            for request in self.requests[host] {
                Arc::make_mut(&mut state.nodes[host]).post(*request);
            }
            self.run(&mut state, host, None, Mute::default());
        }
        self.close(&mut state);
        state
    }

    /// A round of a host's lane; what it sends is on its way then, probes have been answered.
    fn run(&self, state: &mut State, host: usize, arriving: Option<&Flying>, mute: Mute) {
        let node = Arc::make_mut(&mut state.nodes[host]);
        if let Some(packet) = arriving {
            node.host.inbox.push_back(packet.datagram());
        }
        let now = node.host.io.now;
        let turns = node.run(now);
        self.after(state, host, &turns, mute);
    }

    /// What a step of a host leads to: fences, packets, answers to probes.
    fn after(&self, state: &mut State, host: usize, turns: &[Turn], mute: Mute) {
        for turn in turns {
            for packet in state.net.iter_mut().filter(|p| p.is_multipath_data()) {
                match *turn {
                    // What is on its way to it must not get in any more.
                    Turn::GivenUp { link } if link == packet.link && packet.to == host => {
                        packet.fenced = true;
                    }
                    Turn::GivenUp { link } if link == packet.link => packet.given_up = true,
                    // It may use the path again: what it sent before must be fenced by now.
                    Turn::Alive { link } if link == packet.link && packet.to != host => {
                        packet.fenced |= packet.given_up;
                    }
                    _ => {}
                }
            }
        }
        let out = Arc::make_mut(&mut state.nodes[host]).take_out();
        for (link, bytes) in out {
            let bytes = Arc::from(bytes);
            let packet =
                Flying { to: 1 - host, link, bytes, late: false, given_up: false, fenced: false };
            if mute.links[link] {
                continue;
            }
            if packet.is_probe() {
                self.run(state, 1 - host, Some(&packet), mute);
            } else if (!mute.data || packet.opcode().is_mp_management())
                && !self.sabotage.withholds(&state.nodes[host], &packet.bytes)
            {
                state.net.push(packet);
            }
        }
    }

    fn deliver(&self, state: &mut State, at: usize, keep: bool) {
        let mut packet = state.net[at].clone();
        if keep {
            state.net[at].late = true;
        } else {
            state.net.remove(at);
        }
        let fenced = packet.fenced;
        let host = packet.to;
        self.corrupt(state, &mut packet);
        let before = state.nodes[host].refused();
        self.run(state, host, Some(&packet), Mute::default());
        if fenced && state.nodes[host].refused() == before {
            let what = format!("host {host} took {packet:?}, sent before the path was given up");
            state.broken.get_or_insert((Rule::Fence, what));
        }
    }

    /// What a sabotaged receiver would make of a packet.
    fn corrupt(&self, state: &State, packet: &mut Flying) {
        let node = &state.nodes[packet.to];
        if !packet.is_multipath_data() {
            return;
        }
        let mut bytes = packet.bytes.to_vec();
        match self.sabotage {
            Sabotage::GenerationIgnored => {
                if let Some(generation) = node.generation(bytes[13]) {
                    bytes[14..16].copy_from_slice(&generation.to_be_bytes());
                }
            }
            Sabotage::DuplicatesExecuted if packet.opcode().base().is_request() => {
                // As many as were executed: the next one.
                let next = node.host.io.atomics + node.host.io.completions.len() as u64;
                if bytes[11] == 7 && next > 0 {
                    bytes[11] += next as u8;
                }
            }
            _ => {}
        }
        packet.bytes = Arc::from(bytes);
    }

    /// A host's earliest timer fires.
    fn tick(&self, state: &mut State, host: usize, mute: Mute) -> bool {
        let Some(at) = state.nodes[host].deadline() else { return false };
        Arc::make_mut(&mut state.nodes[host]).host.begin(at);
        self.run(state, host, None, mute);
        true
    }

    fn happen(&self, state: &mut State, event: Event) {
        match event {
            Event::LinkDown { host, link } => self.link(state, host, link, false),
            Event::LinkUp { host, link } => self.link(state, host, link, true),
            Event::AddressGone { host, link } => {
                state.gone[host][link] = true;
                self.tell(state, host);
            }
            Event::AddressBack { host, link } => {
                state.gone[host][link] = false;
                self.tell(state, host);
            }
            Event::Silence { host, link } => {
                let mut mute = Mute { data: false, ..Mute::default() };
                mute.links[link] = true;
                let usable = |s: &State| {
                    let path = s.nodes[host].path_on(link);
                    path.is_some_and(|(.., s)| matches!(s, PathState::Up | PathState::Suspect))
                };
                for _ in 0..ROUNDS_MAX {
                    if !usable(state) || !self.tick(state, host, mute) {
                        break;
                    }
                }
            }
            Event::Prove { host } => {
                // What is repeated meanwhile gets lost; the first time is still on its way.
                let mute = Mute { data: true, ..Mute::default() };
                let up = |s: &State, l| {
                    s.nodes[host].path_on(l).is_none_or(|(.., s)| s == PathState::Up)
                };
                for _ in 0..ROUNDS_MAX {
                    if (0..LINKS).all(|l| up(state, l)) || !self.tick(state, host, mute) {
                        break;
                    }
                }
            }
        }
    }

    fn link(&self, state: &mut State, host: usize, link: usize, up: bool) {
        Arc::make_mut(&mut state.nodes[host]).host.local[link].link_up = up;
        self.tell(state, host);
    }

    fn tell(&self, state: &mut State, host: usize) {
        let gone = state.gone[host];
        let turns = Arc::make_mut(&mut state.nodes[host]).tell(gone);
        self.after(state, host, &turns, Mute::default());
    }

    /// Ends a step: promises are checked, equal states become equal.
    fn close(&self, state: &mut State) {
        // By link and direction in the order of sending; what is held back, in any.
        let late = |p: &Flying| p.late.then(|| p.clone());
        state.net.sort_by_key(|p| (p.late, p.to, p.link, late(p)));
        for host in 0..2 {
            if state.nodes[host].is_sealed() {
                continue;
            }
            Arc::make_mut(&mut state.nodes[host]).seal();
            if let Err(broken) = state.nodes[host].check(&state.nodes[1 - host]) {
                state.broken.get_or_insert(broken);
            }
        }
    }

    fn may_happen(&self, state: &State, at: usize) -> bool {
        let done = |at: usize| state.happened & 1 << at != 0;
        !done(at) && self.events[at].1.is_none_or(done)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (at, packet) in state.net.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| &state.net[at]);
            let waits = before.is_some_and(|b| match packet.late {
                true => b == packet,
                false => (b.to, b.link) == (packet.to, packet.link),
            });
            if waits {
                continue;
            }
            actions.push(Action::Deliver(at));
            if state.misdeeds > 0 && !packet.late {
                actions.extend([Action::Lose(at), Action::Delay(at), Action::Twice(at)]);
            }
        }
        let events = (0..self.events.len()).filter(|at| self.may_happen(state, *at));
        actions.extend(events.map(Action::Happen));
        if state.ticks > 0 {
            let hosts = (0..2).filter(|h| state.nodes[*h].deadline().is_some());
            actions.extend(hosts.map(Action::Tick));
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
            }
            Action::Lose(at) => {
                state.misdeeds -= 1;
                state.net.remove(at);
            }
            Action::Tick(host) => {
                state.ticks -= 1;
                self.tick(&mut state, host, Mute::default());
            }
            Action::Happen(at) => {
                state.happened |= 1 << at;
                self.happen(&mut state, self.events[at].0);
            }
        }
        self.close(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing sent before a fence is accepted after it", |_, s: &State| {
                s.broken.as_ref().is_none_or(|b| b.0 != Rule::Fence)
            }),
            Property::always(
                "each request is executed and completes once, in order, without error",
                |_, s: &State| s.broken.as_ref().is_none_or(|b| b.0 != Rule::Once),
            ),
            Property::always(
                "while a link works, all completes and both ends agree in the end",
                |world: &Self, s: &State| world.converges(s).is_ok(),
            ),
        ]
    }
}

impl World {
    /// Where nothing more may go wrong: with a whole network, and with each of the links cut, all is
    /// done after a while.
    pub(crate) fn converges(&self, state: &State) -> Result<(), String> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        if !actions.is_empty() || state.broken.is_some() {
            return Ok(());
        }
        self.converges_now(state)
    }

    /// The same for any state.
    pub(crate) fn converges_now(&self, state: &State) -> Result<(), String> {
        for cut in [None, Some(0), Some(1)] {
            let mut nodes = state.nodes.clone().map(Arc::unwrap_or_clone);
            heal::settle(&mut nodes, state.net.clone(), cut, self.sabotage)
                .map_err(|what| format!("link {cut:?} cut: {what}"))?;
        }
        Ok(())
    }
}
