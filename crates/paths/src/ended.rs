//! A peer's host says that the peer's process has ended.
//!
//! Nothing comes by any path then, as if the network was gone. But nobody has to wait for a path: the
//! association ends, and the queue pairs' own timers find out that nobody answers.
//!
//! The answer has no authentication code, because the key was the process's. It repeats the nonce of this
//! end, which is known to those that have seen the handshake, and counts only while the peer is silent on all
//! paths. So who forges it ends a wait that the paths have begun, and no more.

use crate::manager::PathManager;
use crate::message::Hello;
use crate::types::Refused;
use polypath_types::PeerId;

impl PathManager {
    /// Takes the answer of a peer's host.
    pub(crate) fn on_ended(&mut self, peer: PeerId, hello: &Hello) -> Result<(), Refused> {
        let p = self.peers.get(peer).ok_or(Refused::NoQueuePair)?;
        let index = p.association.ok_or(Refused::NoAssociation)?;
        let a = self.associations.get(index).ok_or(Refused::NoAssociation)?;
        if hello.echo != a.local_nonce || hello.slot != a.remote_slot {
            return Err(Refused::Authentication);
        }
        if p.outage.is_none() {
            return Err(Refused::Unsolicited);
        }
        self.remove_association(index);
        Ok(())
    }
}
