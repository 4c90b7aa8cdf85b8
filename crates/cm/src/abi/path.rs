//! The answers to queries: addresses, and path records in the kernel's and the SA's layout.

use super::address::{Address, STORAGE_LEN};
use super::{Reader, Writer};
use crate::env::Device;
use crate::errno;
use crate::path::Path;

/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`.
const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;
/// `IB_PATH_ALTERNATE`.
const PATH_ALTERNATE: u32 = 4;
/// `IB_PATH_ALTERNATE | IB_PATH_BIDIRECTIONAL`.
const ALTERNATE_FLAGS: u32 = PATH_ALTERNATE | 8 | 32;
/// Size of `struct ib_path_rec_data`.
const PATH_DATA_LEN: usize = 72;
/// Size of `struct rdma_ucm_query_addr_resp`, and the part of it that every version has.
const QUERY_ADDR_LEN: usize = 280;
const QUERY_ADDR_MIN_LEN: usize = 272;
/// Size of `struct rdma_ucm_query_route_resp`, and the part of it that every version has.
const QUERY_ROUTE_LEN: usize = 208;
const QUERY_ROUTE_MIN_LEN: usize = 200;

/// The two addresses of an id and its device: the answer to `QUERY` of addresses and of GIDs.
pub(crate) fn query_addr(
    device: Option<&Device>,
    source: Option<&Address>,
    destination: Option<&Address>,
    out_len: usize,
) -> Result<Vec<u8>, i32> {
    if out_len < QUERY_ADDR_MIN_LEN {
        return Err(errno::ENOSPC);
    }
    let mut w = Writer::new(QUERY_ADDR_LEN);
    if let Some(device) = device {
        w.put(0, &device.node_guid);
        w.put_u8(8, device.port_num);
        w.put(10, &polypath_wire::DEFAULT_PKEY.to_be_bytes());
        w.put_u32(272, device.ibdev_index);
    }
    for (size_at, at, address) in [(12, 16, source), (14, 16 + STORAGE_LEN, destination)] {
        if let Some(address) = address {
            w.put_u16(size_at, address.len() as u16);
            w.put(at, &address.encode());
        }
    }
    Ok(clipped(w, out_len))
}

/// The answer to `QUERY` of paths, the primary one and the alternate one: as many path records as
/// there is room for.
pub(crate) fn query_path(
    paths: (Option<&Path>, Option<&Path>),
    out_len: usize,
) -> Result<Vec<u8>, i32> {
    if out_len < 8 {
        return Err(errno::ENOSPC);
    }
    let records = [(paths.0, PATH_FLAGS), (paths.1, ALTERNATE_FLAGS)];
    let records = records.into_iter().map_while(|(path, flags)| Some((path?, flags)));
    let mut w = Writer::new(8 + records.clone().count() * PATH_DATA_LEN);
    w.put_u32(0, records.clone().count() as u32);
    let room = (out_len - 8) / PATH_DATA_LEN;
    for (i, (path, flags)) in records.clone().take(room).enumerate() {
        w.put_u32(8 + i * PATH_DATA_LEN, flags);
        w.put(16 + i * PATH_DATA_LEN, &pack(path));
    }
    Ok(clipped(w, 8 + records.count().min(room) * PATH_DATA_LEN))
}

/// The answer to `QUERY_ROUTE`. librdmacm asks this if the kernel does not know native addresses.
pub(crate) fn query_route(
    device: Option<&Device>,
    source: Option<&Address>,
    destination: Option<&Address>,
    gids: ([u8; 16], [u8; 16]),
    paths: (Option<&Path>, Option<&Path>),
    out_len: usize,
) -> Result<Vec<u8>, i32> {
    if out_len < QUERY_ROUTE_MIN_LEN {
        return Err(errno::ENOSPC);
    }
    let mut w = Writer::new(QUERY_ROUTE_LEN);
    for (at, address) in [(136, source), (164, destination)] {
        // The structure has room for IP addresses only.
        if let Some(address) = address.filter(|a| !matches!(a, Address::Ib(_))) {
            w.put(at, &address.encode());
        }
    }
    if let Some(device) = device {
        w.put_u32(200, device.ibdev_index);
        w.put(0, &device.node_guid);
        w.put_u8(196, device.port_num);
        w.put(8, &gids.1);
        w.put(24, &gids.0);
        w.put(60, &polypath_wire::DEFAULT_PKEY.to_be_bytes());
        let both = [paths.0, paths.1].into_iter().map_while(|path| path);
        w.put_u32(192, both.clone().count() as u32);
        for (i, path) in both.enumerate() {
            put_user_path(&mut w, 8 + i * USER_PATH_LEN, path);
        }
    }
    Ok(clipped(w, out_len))
}

/// Size of `struct ib_user_path_rec`.
const USER_PATH_LEN: usize = 64;

fn put_user_path(w: &mut Writer, at: usize, p: &Path) {
    w.put(at, &p.dgid);
    w.put(at + 16, &p.sgid);
    w.put(at + 40, &p.flow_label.to_be_bytes());
    w.put_u32(at + 44, 1); // reversible
    w.put_u32(at + 48, p.mtu.into());
    w.put(at + 52, &p.pkey.to_be_bytes());
    w.put_u8(at + 54, p.hop_limit);
    w.put_u8(at + 55, p.traffic_class);
    w.put_u8(at + 57, p.sl);
    w.put_u8(at + 58, SELECT_EXACTLY);
    w.put_u8(at + 59, SELECT_EXACTLY);
    w.put_u8(at + 60, p.rate);
    w.put_u8(at + 61, SELECT_EXACTLY);
    w.put_u8(at + 62, p.packet_life_time);
}

/// Selector of a path record's component: exactly this value (IBTA 15.2.5.16).
const SELECT_EXACTLY: u8 = 2;

/// A path record as the subnet administrator would send it (IBTA 15.2.5.16).
fn pack(p: &Path) -> [u8; 64] {
    let mut rec = [0; 64];
    rec[0..8].copy_from_slice(&p.service_id.to_be_bytes());
    rec[8..24].copy_from_slice(&p.dgid);
    rec[24..40].copy_from_slice(&p.sgid);
    let flow_and_hops = (p.flow_label & 0xf_ffff) << 8 | u32::from(p.hop_limit);
    rec[44..48].copy_from_slice(&flow_and_hops.to_be_bytes());
    rec[48] = p.traffic_class;
    rec[49] = 0x80; // reversible
    rec[50..52].copy_from_slice(&p.pkey.to_be_bytes());
    rec[53] = p.sl & 0xf;
    rec[54] = SELECT_EXACTLY << 6 | p.mtu & 0x3f;
    rec[55] = SELECT_EXACTLY << 6 | p.rate & 0x3f;
    rec[56] = SELECT_EXACTLY << 6 | p.packet_life_time & 0x3f;
    rec
}

/// Parses the paths that the application sets (`RDMA_OPTION_IB_PATH`): the first primary path of the
/// value, and the first alternate one, if there is one. The kernel ignores the latter.
pub(crate) fn parse_option(value: &[u8]) -> Result<(Path, Option<Path>), i32> {
    if value.is_empty() || !value.len().is_multiple_of(PATH_DATA_LEN) {
        return Err(errno::EINVAL);
    }
    let first = |has: &dyn Fn(u32) -> bool| {
        value
            .chunks_exact(PATH_DATA_LEN)
            .map(Reader::new)
            .find_map(|r| r.u32(0).is_ok_and(has).then(|| unpack(r)).and_then(Result::ok))
    };
    let primary = first(&|flags| flags == PATH_FLAGS).ok_or(errno::EINVAL)?;
    Ok((primary, first(&|flags| flags & PATH_ALTERNATE != 0)))
}

fn unpack(r: Reader<'_>) -> Result<Path, i32> {
    let at = 8;
    let flow_and_hops = r.array(at + 44).map(u32::from_be_bytes)?;
    Ok(Path {
        service_id: r.array(at).map(u64::from_be_bytes)?,
        dgid: r.array(at + 8)?,
        sgid: r.array(at + 24)?,
        flow_label: flow_and_hops >> 8 & 0xf_ffff,
        hop_limit: flow_and_hops as u8,
        traffic_class: r.u8(at + 48)?,
        pkey: r.array(at + 50).map(u16::from_be_bytes)?,
        sl: r.u8(at + 53)? & 0xf,
        mtu: r.u8(at + 54)? & 0x3f,
        rate: r.u8(at + 55)? & 0x3f,
        packet_life_time: r.u8(at + 56)? & 0x3f,
    })
}

fn clipped(w: Writer, out_len: usize) -> Vec<u8> {
    let mut bytes = w.into_bytes();
    bytes.truncate(out_len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        Path {
            service_id: 0x0106_1c06,
            sgid: [1; 16],
            dgid: [2; 16],
            flow_label: 0xabcde,
            hop_limit: 64,
            traffic_class: 0x68,
            pkey: 0xffff,
            sl: 3,
            mtu: 5,
            rate: 3,
            packet_life_time: 16,
        }
    }

    #[test]
    fn a_path_record_survives_the_round_trip() {
        let bytes = query_path((Some(&path()), None), 8 + 6 * PATH_DATA_LEN).unwrap();
        assert_eq!(bytes.len(), 8 + PATH_DATA_LEN);
        assert_eq!(parse_option(&bytes[8..]), Ok((path(), None)));
        let other = Path { sgid: [3; 16], ..path() };
        let bytes = query_path((Some(&path()), Some(&other)), 8 + 6 * PATH_DATA_LEN).unwrap();
        assert_eq!(parse_option(&bytes[8..]), Ok((path(), Some(other))));
        let short = query_path((Some(&path()), Some(&other)), 8 + PATH_DATA_LEN).unwrap();
        assert_eq!((short.len(), short[0]), (8 + PATH_DATA_LEN, 2));
    }

    #[test]
    fn older_applications_get_the_shorter_structures() {
        assert_eq!(query_addr(None, None, None, 271), Err(errno::ENOSPC));
        assert_eq!(query_addr(None, None, None, 272).unwrap().len(), 272);
        assert_eq!(query_addr(None, None, None, 400).unwrap().len(), 280);
        let gids = ([0; 16], [0; 16]);
        assert_eq!(query_route(None, None, None, gids, (None, None), 200).unwrap().len(), 200);
    }

    #[test]
    fn an_option_without_a_primary_path_is_refused() {
        assert_eq!(parse_option(&[]), Err(errno::EINVAL));
        assert_eq!(parse_option(&[0; 71]), Err(errno::EINVAL));
        assert_eq!(parse_option(&[0; 72]), Err(errno::EINVAL));
    }
}
