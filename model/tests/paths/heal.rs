//! The rest of a run, when nothing goes wrong any more: packets arrive in order, timers fire in time.

use core::time::Duration;
use std::collections::BTreeMap;

use polypath_paths::PathState;

use crate::host::{Datagram, address};
use crate::node::{LINKS, Node};
use crate::packet::Flying;
use crate::sabotage::Sabotage;

/// Time of flight.
const DELAY: Duration = Duration::from_micros(50);
/// How often to look whether all is done.
const LOOK: Duration = Duration::from_millis(5);
/// All must be done within this time: a path that flapped waits seconds before it is used again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs until all requests are done, all paths but that on `cut` are up, and both ends agree on them.
/// Each host has a clock of its own: they need not agree.
pub(crate) fn settle(
    nodes: &mut [Node; 2],
    net: Vec<Flying>,
    cut: Option<usize>,
    sabotage: Sabotage,
) -> Result<(), String> {
    let start = [nodes[0].host.io.now, nodes[1].host.io.now];
    let mut flying: BTreeMap<(Duration, u64), (usize, Datagram)> = BTreeMap::new();
    let mut count = 0;
    for packet in net {
        if Some(packet.link) != cut {
            flying.insert((Duration::ZERO, count), (packet.to, packet.datagram()));
            count += 1;
        }
    }
    let mut look = Duration::ZERO;
    let mut now = Duration::ZERO;
    for node in nodes.iter_mut() {
        node.host.local.iter_mut().for_each(|a| a.link_up = true);
        node.tell([false; LINKS]);
    }
    loop {
        while let Some(entry) = flying.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to, datagram) = entry.remove();
            nodes[to].host.inbox.push_back(datagram);
        }
        for number in 0..2 {
            nodes[number].run(start[number] + now);
            for (link, bytes) in nodes[number].take_out() {
                if Some(link) == cut || sabotage.withholds(&nodes[number], &bytes) {
                    continue;
                }
                let (src, dst) = (address(link, number), address(link, 1 - number));
                flying.insert((now + DELAY, count), (1 - number, Datagram { src, dst, bytes }));
                count += 1;
            }
            nodes[number].check(&nodes[1 - number]).map_err(|b| b.1)?;
        }
        if now >= look {
            look = now + LOOK;
            match pending(nodes, cut) {
                None => return Ok(()),
                Some(what) if now > PATIENCE => return Err(what),
                Some(_) => {}
            }
        }
        let due = (0..2).filter_map(|n| Some(nodes[n].deadline()?.saturating_sub(start[n])));
        let arrival = flying.keys().next().map(|k| k.0);
        let next = due.chain(arrival).chain([look]).min().unwrap_or(look);
        now = now.max(next);
    }
}

fn pending(nodes: &[Node; 2], cut: Option<usize>) -> Option<String> {
    for number in 0..2 {
        if !nodes[number].agreed() {
            return Some(format!("host {number} has not agreed"));
        }
        if let Some(what) = nodes[number].unfinished(&nodes[1 - number]) {
            return Some(what);
        }
    }
    for link in (0..LINKS).filter(|l| Some(*l) != cut) {
        let paths = [nodes[0].path_on(link), nodes[1].path_on(link)];
        if paths[0] != paths[1] || paths[0].is_none_or(|(.., s)| s != PathState::Up) {
            return Some(format!("link {link} is known as {paths:?}"));
        }
    }
    None
}
