//! An interface of the network namespace, and its addresses.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::kernel_bond::{KernelBond, KernelSlave};

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The kernel's index, at least 1.
    pub ifindex: u32,
    /// The kernel's name, up to 15 bytes.
    pub name: String,
    /// The hardware address; all zero if it has none.
    pub mac: [u8; 6],
    /// The link MTU in bytes: the largest length of an IP packet.
    pub mtu: u32,
    /// Whether packets can be sent: the interface is administratively up (`IFF_UP`) and has a carrier
    /// (`IFF_LOWER_UP`).
    pub link_up: bool,
    /// The speed in Mbit/s, if the driver reports one.
    pub speed_mbps: Option<u32>,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Whether its link-layer type is Ethernet (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// Whether it is a port of a bridge, bond or team. Addresses then belong to the master.
    pub enslaved: bool,
    /// Whether it leads out of this host, as far as the kernel's tables tell: hardware does; `docker0`
    /// and the host's ends of containers' links do not. The broker decides this (`uplinks.rs`). Once
    /// true, it stays true while the interface exists.
    pub uplink: bool,
    /// The NUMA node of the hardware, if it has one.
    pub numa_node: Option<u32>,
    /// The number N in the name `roceN`. It is given once and kept while the interface exists. `None`
    /// for an interface that has a device only if it is asked for by name.
    pub device_number: Option<u16>,
    /// Whether LACP lets it carry traffic, as `polypath lacp` says; `None` if that does not speak there.
    pub lacp: Option<bool>,
    /// What the kernel tells of it, if it is a bond or team.
    pub bond: Option<KernelBond>,
    /// What the kernel tells of it, if it is a port of a bond or team.
    pub slave: Option<KernelSlave>,
    /// The index of the bond or team that all it sends leaves by, if it is a VLAN, a macvlan, an ipvlan or a
    /// bridge above one.
    pub above: Option<u32>,
    /// The addresses, in the kernel's order.
    pub addresses: Vec<Address>,
}

impl Port {
    /// An Ethernet interface for tests and examples, with a link, an MTU of 1,500 bytes and no address,
    /// which leads out of the host. The last byte of its MAC address is the low byte of its index.
    ///
    /// ```
    /// use polypath_topology::Port;
    /// let jumbo = Port { mtu: 9000, ..Port::ethernet(2, "eth0") };
    /// assert!(jumbo.usable() && jumbo.link_up);
    /// ```
    #[must_use]
    pub fn ethernet(ifindex: u32, name: &str) -> Self {
        Self {
            ifindex,
            name: name.to_owned(),
            mac: [2, 0, 0, 0, 0, ifindex.to_le_bytes()[0]],
            mtu: 1500,
            link_up: true,
            speed_mbps: None,
            loopback: false,
            ethernet: true,
            enslaved: false,
            uplink: true,
            numa_node: None,
            device_number: None,
            lacp: None,
            bond: None,
            slave: None,
            above: None,
            addresses: Vec::new(),
        }
    }

    /// Whether it can carry a device: it is Ethernet-like (physical, veth, bridge, bond, VLAN …), has a
    /// hardware address, and is not a port of a bridge or bond. The link need not be up, because a
    /// device survives the loss of its link. While there is any [`uplink`](Self::uplink), other
    /// interfaces are used only if they are named.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.ethernet && !self.loopback && !self.enslaved && self.mac != [0; 6]
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of the network prefix in bits: 0..=32 or 0..=128.
    pub prefix_len: u8,
    /// Whether it is valid on its link only (`fe80::/10`, `169.254.0.0/16`).
    pub link_local: bool,
    /// Whether duplicate address detection still runs or has failed, so that it can't be used as a
    /// source.
    pub tentative: bool,
}
