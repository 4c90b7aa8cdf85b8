//! Who holds which port of which port space, and who may hold it too.

use core::ops::RangeInclusive;
use std::collections::HashMap;

use polypath_wire::cm::PortSpace;

use crate::abi::address::{Address, Family};
use crate::errno;
use crate::ids::{CmId, IdState, IdTable};

/// The ports in use. The addresses that go with them are the ids' own.
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

    /// Finds the port for an id whose source address (and destination, if it is about to be
    /// resolved) are set: the one it asks for, or any free one if that is 0.
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
            // A port just given up rests: the peer may still know it.
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

    /// Whether every other holder of the port talks to another destination, or from another source.
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

    /// Whether an id may hold a port beside its holders.
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

    /// How many ports are held.
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
