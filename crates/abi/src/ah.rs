//! Address handles.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{AddressHandle, AhAttr, Error, Result};

use crate::context::{CContext, Tie};
use crate::guard::{self, null_argument};
use crate::layout::{ibv_ah, ibv_ah_attr, ibv_global_route, ibv_grh, ibv_wc};
use crate::ours::{Object, Ours};
use crate::pd::CPd;

/// An address handle.
#[repr(C)]
pub(crate) struct CAh {
    public: UnsafeCell<ibv_ah>,
    inner: Arc<AddressHandle>,
    _tie: Tie,
}

// SAFETY: the public structure is the first field, and `make` gives C its address.
unsafe impl Object for CAh {
    type Public = ibv_ah;
}

impl CAh {
    /// The traits' handle.
    pub(crate) fn inner(&self) -> &Arc<AddressHandle> {
        &self.inner
    }
}

/// An address handle of ours.
///
/// # Safety
/// `ah` must be one of ours, not destroyed.
pub(crate) unsafe fn ah_of<'a>(ah: *const ibv_ah) -> &'a CAh {
    // SAFETY: ours begin with the public structure.
    unsafe { &*ah.cast() }
}

/// Converts an address from the C structure.
pub(crate) fn address(attr: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        dgid: attr.grh.dgid,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
        port_num: attr.port_num,
    }
}

/// Converts an address to the C structure.
pub(crate) fn c_address(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: attr.dgid,
            flow_label: attr.flow_label,
            sgid_index: attr.sgid_index,
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: u8::from(attr.is_global),
        port_num: attr.port_num,
    }
}

/// Creates a handle.
fn make(pd: &CPd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    let inner = pd.context().inner().create_ah(pd.number(), &address(attr))?;
    let context = pd.context().public();
    let public = UnsafeCell::new(ibv_ah { context, pd: pd.public(), handle: 0 });
    Ok(Box::leak(Box::new(CAh { public, inner, _tie: Tie::new(pd.context()) })).public.get())
}

/// `ibv_create_ah`.
pub(crate) extern "C-unwind" fn create_ah(
    pd: Ours<CPd>,
    attr: Option<&ibv_ah_attr>,
) -> *mut ibv_ah {
    guard::pointer("ibv_create_ah", || make(&pd, attr.ok_or_else(|| null_argument("attr"))?))
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `ah` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    guard::errno_of("ibv_destroy_ah", || {
        // SAFETY: the trampoline passes only our handles, and the box is the one that `make`
        // leaked.
        drop(unsafe { Box::from_raw(ah.cast::<CAh>()) });
        Ok(())
    })
}

/// The sender of a received datagram, as its network header tells.
#[derive(Debug, PartialEq, Eq)]
struct Sender {
    source: [u8; 16],
    destination: [u8; 16],
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
}

fn mapped(ip: &[u8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(ip);
    gid
}

/// Whether 20 bytes are an IPv4 header without options and with a correct checksum (RFC 791).
fn is_ipv4(header: &[u8]) -> bool {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Reads the 40 bytes in front of a received datagram: an IPv6 header (a GRH has the same form), or
/// 20 unused bytes and an IPv4 header (IBTA annex A17).
fn sender(header: &[u8; 40]) -> Option<Sender> {
    let v6 = header[0] >> 4 == 6;
    let v4 = &header[20..];
    if is_ipv4(v4) || (!v6 && v4[0] == 0x45) {
        return Some(Sender {
            source: mapped(&v4[12..16]),
            destination: mapped(&v4[16..20]),
            flow_label: 0,
            traffic_class: v4[1],
            hop_limit: v4[8],
        });
    }
    if !v6 {
        return None;
    }
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let gid = |at: usize| -> Option<[u8; 16]> { header[at..at + 16].try_into().ok() };
    Some(Sender {
        source: gid(8)?,
        destination: gid(24)?,
        flow_label: first & 0xf_ffff,
        traffic_class: (first >> 20) as u8,
        hop_limit: header[7],
    })
}

/// The address to send an answer to.
///
/// # Safety
/// `wc` and `grh` are readable where not null.
unsafe fn answer_to(
    context: &CContext,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr> {
    const WC_GRH: u32 = 1;
    // SAFETY: the caller promises that both are readable where not null. Both may lie at any
    // address.
    let (wc, header) = unsafe {
        let wc = if wc.is_null() { Err(null_argument("wc")) } else { Ok(wc.read_unaligned()) }?;
        if wc.wc_flags & WC_GRH == 0 || grh.is_null() {
            return Err(Error::invalid("the completion has no GRH, and RoCE needs one"));
        }
        (wc, grh.cast::<[u8; 40]>().read_unaligned())
    };
    let from = sender(&header).ok_or_else(|| Error::invalid("not an IPv4 or IPv6 header"))?;
    let table = context.inner().gid_table();
    let index = table
        .iter()
        .filter(|entry| entry.port == port)
        .find(|entry| entry.gid == from.destination)
        .map(|entry| entry.index);
    let index =
        index.ok_or_else(|| Error::invalid("the datagram was not sent to one of our GIDs"))?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: from.source,
            flow_label: from.flow_label,
            sgid_index: u8::try_from(index).unwrap_or(0),
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 1,
        port_num: port,
    })
}

/// `ibv_init_ah_from_wc`.
///
/// # Safety
/// `wc` and `grh` are readable where not null.
pub(crate) unsafe extern "C-unwind" fn init_ah_from_wc(
    context: Ours<CContext>,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    attr: Option<&mut MaybeUninit<ibv_ah_attr>>,
) -> c_int {
    guard::minus_one("ibv_init_ah_from_wc", || {
        let attr = attr.ok_or_else(|| null_argument("ah_attr"))?;
        // SAFETY: the caller promises that both are readable where not null.
        attr.write(unsafe { answer_to(&context, port, wc, grh)? });
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// `wc` and `grh` are readable where not null.
pub(crate) unsafe extern "C-unwind" fn create_ah_from_wc(
    pd: Ours<CPd>,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    guard::pointer("ibv_create_ah_from_wc", || {
        // SAFETY: the caller promises that both are readable where not null.
        make(&pd, &unsafe { answer_to(pd.context(), port, wc, grh)? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header in the form in which Linux rxe puts it before the payload.
    const V4: [u8; 20] = [
        0x45, 0x20, 0x00, 0x54, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x26, 0x77, 10, 0, 0, 1, 10, 0,
        0, 2,
    ];

    #[test]
    fn an_ipv4_header_is_found_behind_any_rubbish() {
        for rubbish in [0_u8, 0x60, 0x45] {
            let mut header = [rubbish; 40];
            header[20..].copy_from_slice(&V4);
            let found = sender(&header).unwrap();
            assert_eq!(found.source[10..], [0xff, 0xff, 10, 0, 0, 1]);
            assert_eq!(found.destination[12..], [10, 0, 0, 2]);
            assert_eq!((found.traffic_class, found.hop_limit), (0x20, 0x40));
        }
    }

    #[test]
    fn an_ipv6_header_whose_middle_looks_like_ipv4_stays_ipv6() {
        let mut header = [0_u8; 40];
        header[..4].copy_from_slice(&[0x61, 0x21, 0x23, 0x45]);
        header[7] = 64;
        header[20..].copy_from_slice(&V4);
        header[31] ^= 1; // the checksum is wrong now
        let found = sender(&header).unwrap();
        assert_eq!((found.flow_label, found.traffic_class, found.hop_limit), (0x1_2345, 0x12, 64));
        assert_eq!(found.source, header[8..24]);
    }

    #[test]
    fn neither_is_refused() {
        assert_eq!(sender(&[0; 40]), None);
    }
}
