//! The speed and duplex of an interface, by ethtool's ioctl.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSET: u32 = 1;
const DUPLEX_HALF: u8 = 0;

/// `struct ethtool_cmd` of linux/ethtool.h. It is deprecated there, but works for every driver and
/// has a fixed size.
#[repr(C)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    phy_address: u8,
    transceiver: u8,
    autoneg: u8,
    mdio_support: u8,
    maxtxpkt: u32,
    maxrxpkt: u32,
    speed_hi: u16,
    eth_tp_mdix: u8,
    eth_tp_mdix_ctrl: u8,
    lp_advertising: u32,
    reserved: [u32; 2],
}

/// The speed in Mbit/s, if the driver reports one. `socket` may be any socket of the namespace.
pub(crate) fn speed_mbps(socket: BorrowedFd<'_>, interface: &str) -> Option<u32> {
    settings(socket, interface).map(|(speed, _)| speed)
}

/// The speed in Mbit/s, and whether the link is full duplex, which it is if the driver does not say.
pub(crate) fn settings(socket: BorrowedFd<'_>, interface: &str) -> Option<(u32, bool)> {
    // SAFETY: both are plain data, for which all zeroes is a valid value.
    let (mut command, mut request) = unsafe {
        (
            MaybeUninit::<EthtoolCmd>::zeroed().assume_init(),
            MaybeUninit::<libc::ifreq>::zeroed().assume_init(),
        )
    };
    command.cmd = ETHTOOL_GSET;
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut command).cast();
    // SAFETY: the request names an interface and points to a structure of the size that this
    // command fills. Both live during the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        return None;
    }
    let speed = u32::from(command.speed_hi) << 16 | u32::from(command.speed);
    // This is SPEED_UNKNOWN, also in the 16-bit form of old drivers.
    let full = command.duplex != DUPLEX_HALF;
    (speed != 0 && speed != u32::MAX && speed != 0xffff).then_some((speed, full))
}
