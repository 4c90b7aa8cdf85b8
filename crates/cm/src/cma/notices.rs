//! Handles the host's notices about its devices and addresses.

use core::time::Duration;

use crate::Cm;
use crate::abi::event::{Event, Kind};
use crate::env::{ClientId, Environment};
use crate::ids::IdState;

impl Cm {
    /// Tells ids that are not connected yet that their address has lost its device; each is told
    /// once. Connected ids are not told, because their queue pairs may have other paths.
    pub(crate) fn addresses_changed(&mut self, env: &mut dyn Environment) {
        self.ib.set_own_addresses(|client| env.addresses(client));
        let mut told = Vec::new();
        for id in self.ids.iter_mut() {
            let Some(attachment) = id.attachment else { continue };
            if matches!(id.state, IdState::Connect | IdState::Disconnect | IdState::Removed) {
                continue;
            }
            let now = env.device_for(id.client, attachment.local, id.bound_if);
            let is_lost = now.map(|(d, _)| d.node_guid) != Some(attachment.device.node_guid);
            if is_lost && !id.address_lost {
                told.push(id.id);
            }
            id.address_lost = is_lost;
        }
        for id in told {
            self.emit(id, &Event::new(Kind::AddrChange));
        }
    }

    /// Handles a device that is gone for a client. From now on its ids can only be destroyed. New
    /// connections that nobody has accepted are destroyed right here.
    pub(crate) fn device_removed(
        &mut self,
        now: Duration,
        client: ClientId,
        node_guid: [u8; 8],
        env: &mut dyn Environment,
    ) {
        let gone: Vec<(u32, bool)> = self
            .ids
            .iter()
            .filter(|id| id.client == client && id.state != IdState::Removed)
            .filter(|id| id.attachment.is_some_and(|a| a.device.node_guid == node_guid))
            .map(|id| (id.id, id.uid.is_some()))
            .collect();
        for (id, is_accepted) in gone {
            if !is_accepted {
                self.destroy(now, id, env);
                continue;
            }
            if let Some(cm_id) = self.ids.get_mut(id) {
                cm_id.state = IdState::Removed;
            }
            self.emit(id, &Event::new(Kind::DeviceRemoval));
        }
    }
}
