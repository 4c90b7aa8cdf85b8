//! Ids are created, destroyed, and moved to other files.

use core::time::Duration;

use polypath_wire::cm::PortSpace;

use crate::abi::command::CreateId;
use crate::abi::u32_response;
use crate::env::{ClientId, Environment, FileId};
use crate::files::Queued;
use crate::ids::{CmId, QpType};
use crate::{Cm, errno};

impl Cm {
    pub(super) fn create_id(&mut self, file: FileId, command: &CreateId) -> Result<Vec<u8>, i32> {
        let port_space = PortSpace::from_code(command.port_space).ok_or(errno::EINVAL)?;
        let qp_type = match port_space {
            PortSpace::Tcp => QpType::Rc,
            PortSpace::Udp | PortSpace::Ipoib => QpType::Ud,
            // librdmacm probes with a type of 0. It must not connect with that id.
            PortSpace::Ib => QpType::from_raw(command.qp_type).unwrap_or(QpType::Rc),
        };
        let client = self.files.client(file).ok_or(errno::EINVAL)?;
        let id = self.new_id(file, client, port_space, qp_type)?;
        id.uid = Some(command.uid);
        Ok(u32_response(id.id))
    }

    /// Creates an id of a file, within the limits.
    pub(super) fn new_id(
        &mut self,
        file: FileId,
        client: ClientId,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Result<&mut CmId, i32> {
        if self.ids.len() >= self.config.max_ids
            || self.files.id_count(file) >= self.config.max_ids_per_file
        {
            return Err(errno::ENOMEM);
        }
        let first_psn = self.ib.random() & 0xff_ffff;
        let id = self.ids.insert(file, client, port_space, qp_type, first_psn)?;
        self.files.id_added(file);
        Ok(id)
    }

    pub(super) fn destroy_id(
        &mut self,
        now: Duration,
        file: FileId,
        id: u32,
        env: &mut dyn Environment,
    ) -> Result<Vec<u8>, i32> {
        let id = self.ids.named(file, id)?.id;
        let events_reported = self.destroy(now, id, env);
        Ok(u32_response(events_reported))
    }

    /// Destroys an id and all that it holds, including connection requests that the application has
    /// not seen yet. Returns how many of its events were reported.
    pub(crate) fn destroy(&mut self, now: Duration, id: u32, env: &mut dyn Environment) -> u32 {
        let Some(cm_id) = self.ids.remove(id) else { return 0 };
        self.neighbours.forget(id);
        self.files.id_removed(cm_id.file);
        if let Some(key) = cm_id.port {
            self.ports.release(key, id);
        }
        for membership in &cm_id.memberships {
            let _ = self.end_membership(*membership, env);
        }
        if let Some(connection) = cm_id.connection {
            self.ib.release(now, connection);
        }
        let unseen = self.files.remove_events(cm_id.file, |e| e.owner == id || e.child == Some(id));
        for event in unseen {
            match event.child {
                Some(child) if child != id => {
                    self.destroy(now, child, env);
                }
                Some(_) => self.make_room(event.owner),
                None => {}
            }
        }
        cm_id.events_reported
    }

    /// A connection request stops waiting for the listening id's application, so the backlog has
    /// room for one more.
    pub(super) fn make_room(&mut self, listener: u32) {
        if let Some(listener) = self.ids.get_mut(listener) {
            listener.backlog += 1;
        }
    }

    /// Closes a file and destroys its ids, in any order. No message is handled meanwhile, so no
    /// listening id can get another child.
    pub(crate) fn close(&mut self, now: Duration, file: FileId, env: &mut dyn Environment) {
        let ids: Vec<u32> = self.ids.iter().filter(|i| i.file == file).map(|i| i.id).collect();
        for id in ids {
            self.destroy(now, id, env);
        }
        self.files.close(file);
    }

    /// Moves an id to the file of the command, with its events that the application has not seen
    /// and the new connections that these events announce.
    pub(super) fn migrate_id(
        &mut self,
        new: FileId,
        id: u32,
        current: FileId,
    ) -> Result<Vec<u8>, i32> {
        let client = self.files.client(new).ok_or(errno::EINVAL)?;
        if self.files.client(current) != Some(client) {
            return Err(errno::ENOENT);
        }
        let id = self.ids.named(current, id)?.id;
        if new != current {
            let events = self.files.remove_events(current, |e| e.owner == id);
            let moved = events.iter().filter_map(|e: &Queued| e.child).chain([id]);
            for id in moved {
                if let Some(cm_id) = self.ids.get_mut(id) {
                    cm_id.file = new;
                    self.files.id_removed(current);
                    self.files.id_added(new);
                }
            }
            for event in events {
                self.files.push(new, event);
            }
        }
        Ok(u32_response(self.ids.named(new, id)?.events_reported))
    }
}
