//! Spreads the connections of a client over the ports of this host (active-active), for clients that
//! want it: connections begin where the route leads, and after a failed port has come back all of
//! them are still elsewhere. A connection is moved by a migration to its alternate path, which costs
//! nothing but a repetition of what is under way, so it is not done more often than once an interval.

use core::time::Duration;
use std::collections::BTreeMap;

use super::alternate::{Primary, Uses};
use crate::Cm;
use crate::apm::PathOrder;
use crate::env::{ClientId, Environment};

/// The time from the first alternate path of a client to its first turn: its other connections are
/// made meanwhile, and alternate paths are shown to work.
const SETTLING: Duration = Duration::from_secs(1);

/// When each client's connections are looked at next.
#[derive(Debug, Default)]
pub(crate) struct Turns(BTreeMap<ClientId, Duration>);

impl Turns {
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.0.values().min().copied()
    }

    /// Takes the clients whose turn has come.
    fn due(&mut self, now: Duration) -> Vec<ClientId> {
        let due = self.0.iter().filter(|(_, at)| **at <= now);
        let due: Vec<ClientId> = due.map(|(client, _)| *client).collect();
        for client in &due {
            self.0.remove(client);
        }
        due
    }
}

/// A connection that may be moved.
struct Movable {
    local_id: u32,
    from: u32,
    to: u32,
}

impl Cm {
    /// Has a client's connections balanced soon, because one of them has got an alternate path.
    pub(super) fn await_balance(
        &mut self,
        now: Duration,
        client: ClientId,
        env: &mut dyn Environment,
    ) {
        if env.balance_interval(client).is_some() {
            self.turns.0.entry(client).or_insert(now + SETTLING);
        }
    }

    /// Balances the connections of the clients whose turn has come.
    pub(crate) fn balance(&mut self, now: Duration, env: &mut dyn Environment) {
        for client in self.turns.due(now) {
            let Some(interval) = env.balance_interval(client) else { continue };
            let (mut uses, movable) = self.ports_in_use(client, env);
            if uses.is_empty() {
                continue;
            }
            self.turns.0.insert(client, now + interval);
            for Movable { local_id, from, to } in movable {
                let count = |uses: &Uses, port| uses.get(&port).copied().unwrap_or(0);
                // To move it must leave the two less uneven than they are.
                if count(&uses, from) < count(&uses, to) + 2 {
                    continue;
                }
                let Some(c) = self.ib.get(local_id) else { continue };
                let (qp_num, Some(path)) = (c.qp.local_qpn, c.migration.alternate) else {
                    continue;
                };
                self.order(PathOrder::Leave { client, qp_num, to: path.pair() });
                self.ib.counters.paths_balanced += 1;
                *uses.entry(from).or_default() -= 1;
                *uses.entry(to).or_default() += 1;
            }
        }
    }

    /// How many of the connections that a client began use each port, and which may be moved. The
    /// other connections are their peers' to move.
    fn ports_in_use(&self, client: ClientId, env: &mut dyn Environment) -> (Uses, Vec<Movable>) {
        let own = env.addresses(client);
        let (mut uses, mut movable) = (Uses::new(), Vec::new());
        for local_id in self.ib.with_paths() {
            let Some(c) = self.ib.get(local_id) else { continue };
            if !c.is_active || self.client_of(local_id) != Some(client) {
                continue;
            }
            let from = Primary::of(c, client, env).ifindex;
            *uses.entry(from).or_default() += 1;
            let alternate = c
                .migration
                .alternate
                .filter(|path| path.ifindex != from && own.contains(&(path.local, path.ifindex)));
            if let (Some(path), false) = (alternate, c.migration.is_pending()) {
                movable.push(Movable { local_id, from, to: path.ifindex });
            }
        }
        (uses, movable)
    }

    /// How many of a client's connections use each port or have it in reserve, if they are balanced;
    /// else nothing. Alternate paths are spread by it, so that each port has connections that can move
    /// there.
    pub(super) fn ports_in_reach(&self, client: ClientId, env: &mut dyn Environment) -> Uses {
        if env.balance_interval(client).is_none() {
            return Uses::new();
        }
        let (mut uses, movable) = self.ports_in_use(client, env);
        for Movable { to, .. } in movable {
            *uses.entry(to).or_default() += 1;
        }
        uses
    }
}
