//! The holders of each port in each port space, and the rules for sharing a port.

use core::ops::RangeInclusive;
use std::collections::HashMap;

use polypath_wire::cm::PortSpace;

use crate::abi::address::{Address, Family};
use crate::errno;
use crate::ids::{CmId, IdState, IdTable};

/// The ports in use. The addresses that belong to them are those of the ids.
#[derive(Debug, Default)]
pub(crate) struct PortTable {
    owners: HashMap<(PortSpace, u16), Vec<u32>>,
    last_used: Option<u16>,
}

impl PortTable {
    /// The ids that hold a port, the latest first.
    pub(crate) fn owners(&self, port_space: PortSpace, port: u16) -> impl Iterator<Item = u32> {
        self.owners.get(&(port_space, port)).into_iter().flatten().rev().copied()
    }

    /// Chooses the port for an id whose source address is set, and whose destination is set if it
    /// is being resolved: the port that the source names, or any free port if it names 0.
    pub(crate) fn choose(
        &mut self,
        ids: &IdTable,
        id: &CmId,
        source: &Address,
        port_space: PortSpace,
        ephemeral: &RangeInclusive<u16>,
        random: u32,
    ) -> Result<u16, i32> {
        match source.port() {
            0 => self.choose_any(ids, id, source, port_space, ephemeral, random),
            port => {
                self.check(ids, id, source, (port_space, port), id.options.reuse_address)?;
                Ok(port)
            }
        }
    }

    fn choose_any(
        &mut self,
        ids: &IdTable,
        id: &CmId,
        source: &Address,
        port_space: PortSpace,
        ephemeral: &RangeInclusive<u16>,
        random: u32,
    ) -> Result<u16, i32> {
        let (low, high) = (u32::from(*ephemeral.start()), u32::from(*ephemeral.end()));
        let count = (high + 1).saturating_sub(low).max(1);
        for i in 0..count {
            let port = (low + (random % count + i) % count) as u16;
            // The port chosen last is not chosen again: the peer may still know it.
            if self.last_used == Some(port) {
                continue;
            }
            if self.is_free_for(ids, id, source, (port_space, port)) {
                self.last_used = Some(port);
                return Ok(port);
            }
        }
        Err(errno::EADDRNOTAVAIL)
    }

    /// Whether every other holder of the port has another destination or another source.
    fn is_free_for(
        &self,
        ids: &IdTable,
        id: &CmId,
        source: &Address,
        key: (PortSpace, u16),
    ) -> bool {
        self.others(ids, id, key).all(|other| {
            let (Some(other_source), Some(mine), Some(theirs)) =
                (&other.source, &id.destination, &other.destination)
            else {
                return false;
            };
            let talks_elsewhere = theirs.port() != 0 && theirs.port() != mine.port()
                || !theirs.is_any() && theirs.ip() != mine.ip();
            let is_elsewhere =
                !source.is_any() && !other_source.is_any() && source.ip() != other_source.ip();
            talks_elsewhere || is_elsewhere
        })
    }

    /// Checks that an id may hold a port beside its other holders.
    pub(crate) fn check(
        &self,
        ids: &IdTable,
        id: &CmId,
        source: &Address,
        key: (PortSpace, u16),
        reuse: bool,
    ) -> Result<(), i32> {
        let family_only = id.options.family_only.unwrap_or_else(|| source.family() == Family::Inet);
        for other in self.others(ids, id, key) {
            let Some(other_source) = &other.source else { continue };
            if reuse && other.options.reuse_address && other.state != IdState::Listen {
                continue;
            }
            if family_only && other.family_only() && source.family() != other_source.family() {
                continue;
            }
            if source.is_any() || other_source.is_any() {
                return Err(errno::EADDRNOTAVAIL);
            }
            if source.family() == other_source.family() && source.ip() == other_source.ip() {
                return Err(errno::EADDRINUSE);
            }
        }
        Ok(())
    }

    fn others<'a>(
        &'a self,
        ids: &'a IdTable,
        id: &CmId,
        key: (PortSpace, u16),
    ) -> impl Iterator<Item = &'a CmId> {
        let me = id.id;
        self.owners
            .get(&key)
            .into_iter()
            .flatten()
            .filter(move |other| **other != me)
            .filter_map(|other| ids.get(*other))
    }

    /// The number of ports held.
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn hold(&mut self, key: (PortSpace, u16), id: u32) {
        self.owners.entry(key).or_default().push(id);
    }

    pub(crate) fn release(&mut self, key: (PortSpace, u16), id: u32) {
        if let Some(owners) = self.owners.get_mut(&key) {
            owners.retain(|owner| *owner != id);
            if owners.is_empty() {
                self.owners.remove(&key);
            }
        }
    }
}
