//! What an end tells about its own path in every LAP, APR, SAP and SPR.
//!
//! Both ends migrate by themselves, and a message may overtake the packet that makes the other end
//! follow. So the private data of these messages, which RDMA CM does not use, says how often the
//! sender has migrated and between which addresses it is now: the eight bytes `Polypath`, the version
//! (1), three zeros, the number of migrations (4), the sender's GID (16) and the receiver's (16), and the
//! flow label (4) with its highest bit set, which earlier versions leave zero and don't read.

use core::net::IpAddr;

use polypath_wire::Gid;

use super::super::endpoints::Endpoints;

const MAGIC: [u8; 8] = *b"Polypath";
const VERSION: [u8; 4] = [1, 0, 0, 0];
/// The flow label is told.
const LABELLED: u32 = 1 << 31;
/// The length in bytes.
pub(super) const LEN: usize = 52;

/// The path of the sender of a message, seen from the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) epoch: u32,
    /// The receiver's address.
    pub(crate) local: IpAddr,
    /// The sender's address.
    pub(crate) remote: IpAddr,
    /// The flow label; `None` if an earlier version does not tell it.
    pub(crate) flow_label: Option<u32>,
}

impl Told {
    /// The bytes with which an end tells its own path.
    pub(super) fn bytes(epoch: u32, at: &Endpoints, flow_label: u32) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION);
        bytes[12..16].copy_from_slice(&epoch.to_be_bytes());
        bytes[16..32].copy_from_slice(&Gid::from_ip(at.local).0);
        bytes[32..48].copy_from_slice(&Gid::from_ip(at.remote).0);
        bytes[48..52].copy_from_slice(&(LABELLED | flow_label & 0xf_ffff).to_be_bytes());
        bytes
    }

    /// What a peer tells; `None` if the private data does not begin like this.
    pub(super) fn parse(private_data: &[u8]) -> Option<Self> {
        let rest = private_data.strip_prefix(&MAGIC)?.strip_prefix(&VERSION)?;
        let (epoch, rest) = rest.split_first_chunk::<4>()?;
        let (theirs, rest) = rest.split_first_chunk::<16>()?;
        let (ours, rest) = rest.split_first_chunk::<16>()?;
        let label = rest.first_chunk::<4>().map_or(0, |label| u32::from_be_bytes(*label));
        Some(Self {
            epoch: u32::from_be_bytes(*epoch),
            local: Gid(*ours).to_ip(),
            remote: Gid(*theirs).to_ip(),
            flow_label: (label & LABELLED != 0).then_some(label & 0xf_ffff),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_tells_the_other_sees_mirrored() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let at = Endpoints {
            local: ip("10.0.1.1"),
            remote: ip("fd00::2"),
            ifindex: 2,
            traffic_class: 0,
        };
        let bytes = Told::bytes(7, &at, 0xa_bcde);
        let (local, remote) = (ip("fd00::2"), ip("10.0.1.1"));
        let told = Told { epoch: 7, local, remote, flow_label: Some(0xa_bcde) };
        let mut field = [0; 148];
        field[..LEN].copy_from_slice(&bytes);
        assert_eq!(Told::parse(&field), Some(told));
        // Earlier versions tell no label.
        field[48..].fill(0);
        let without = Told { flow_label: None, ..told };
        assert_eq!(Told::parse(&field), Some(without));
        assert_eq!(Told::parse(&bytes[..48]), Some(without));
        assert_eq!(Told::parse(&bytes[..47]), None);
        for at in [0, 8, 11] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Told::parse(&other), None);
        }
        assert_eq!(Told::parse(&[0; 168]), None);
    }
}
