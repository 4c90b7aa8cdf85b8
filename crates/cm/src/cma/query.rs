//! Queries of an id: its addresses, device and path.

use crate::abi::address::{Address, IbAddress, gid_of};
use crate::abi::path;
use crate::env::FileId;
use crate::ibcm::Connections;
use crate::ids::CmId;
use crate::path::Path;
use crate::{Cm, errno};

const QUERY_ADDR: u32 = 0;
const QUERY_PATH: u32 = 1;
const QUERY_GID: u32 = 2;

impl Cm {
    pub(super) fn query(
        &mut self,
        file: FileId,
        id: u32,
        option: u32,
        out_len: usize,
    ) -> Result<Vec<u8>, i32> {
        let id = self.ids.named(file, id)?;
        let alternate = alternate_of(id, &self.ib);
        let device = id.attachment.as_ref().map(|a| &a.device);
        match option {
            QUERY_ADDR => {
                let (source, destination) = (id.source.as_ref(), id.destination.as_ref());
                path::query_addr(device, source, destination, out_len)
            }
            QUERY_PATH => path::query_path((id.path.as_ref(), alternate.as_ref()), out_len),
            QUERY_GID => {
                let gids = id.gids();
                let source = native(id, id.source.as_ref(), gids.0);
                let destination = native(id, id.destination.as_ref(), gids.1);
                path::query_addr(device, Some(&source), Some(&destination), out_len)
            }
            _ => Err(errno::ENOSYS),
        }
    }

    pub(super) fn query_route(
        &mut self,
        file: FileId,
        id: u32,
        out_len: usize,
    ) -> Result<Vec<u8>, i32> {
        let id = self.ids.named(file, id)?;
        let alternate = alternate_of(id, &self.ib);
        let paths = (id.path.as_ref(), alternate.as_ref());
        let device = id.attachment.as_ref().map(|a| &a.device);
        let (source, destination) = (id.source.as_ref(), id.destination.as_ref());
        path::query_route(device, source, destination, id.gids(), paths, out_len)
    }
}

/// The path that the id's queue pair would migrate to.
fn alternate_of(id: &CmId, connections: &Connections) -> Option<Path> {
    let alternate = connections.get(id.connection?)?.migration.alternate?;
    Some(Path {
        sgid: gid_of(alternate.local),
        dgid: alternate.remote_gid,
        flow_label: alternate.flow_label,
        hop_limit: alternate.hop_limit,
        traffic_class: alternate.traffic_class,
        ..id.path?
    })
}

/// Converts an address to a native one: its GID and service id.
fn native(id: &CmId, address: Option<&Address>, gid: [u8; 16]) -> Address {
    if let Some(address @ Address::Ib(_)) = address {
        return *address;
    }
    Address::Ib(IbAddress {
        pkey: if id.attachment.is_some() { polypath_wire::DEFAULT_PKEY } else { 0 },
        flowinfo: 0,
        gid,
        sid: address.map_or(0, |a| id.service_id(a)),
        sid_mask: 0,
        scope_id: 0,
    })
}
