//! An interface of the network namespace, and its addresses.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The kernel's index, ≥ 1.
    pub ifindex: u32,
    /// The kernel's name, up to 15 bytes.
    pub name: String,
    /// Hardware address; zero if it has none.
    pub mac: [u8; 6],
    /// Link MTU in bytes (what an IP packet may have).
    pub mtu: u32,
    /// Whether packets can be sent: administratively up (`IFF_UP`) with carrier (`IFF_LOWER_UP`).
    pub link_up: bool,
    /// Speed in Mbit/s, if the driver tells one.
    pub speed_mbps: Option<u32>,
    /// The loopback interface.
    pub loopback: bool,
    /// Ethernet by its link-layer type (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// Port of a bridge, bond or team: addresses belong to its master.
    pub enslaved: bool,
    /// Leads out of this host, as far as the kernel's tables tell: hardware does, `docker0` and the
    /// host's ends of containers' links do not. The rule is the broker's (`uplinks.rs`). Once true
    /// it stays so while the interface exists.
    pub uplink: bool,
    /// NUMA node of the hardware, if it has any.
    pub numa_node: Option<u32>,
    /// The number N in the name `roceN`, given once and kept while the interface exists. `None` for
    /// an interface that has no device unless asked for by name.
    pub device_number: Option<u16>,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<Address>,
}

impl Port {
    /// An Ethernet interface with a link and an MTU of 1,500 bytes, which leads out of the host and has no
    /// address: what tests and examples begin with. Its MAC address ends in the low byte of its index.
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
            addresses: Vec::new(),
        }
    }

    /// Whether a device can stand on it: Ethernet-like (physical, veth, bridge, bond, VLAN …) with a
    /// hardware address, and not a port of a bridge or bond. The link need not be up: a device
    /// survives the loss of its link. Those that are not [`uplink`](Self::uplink)s have to be asked
    /// for by name while any uplink is there.
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
    /// Length of the network prefix in bits: 0..=32 or 0..=128.
    pub prefix_len: u8,
    /// Valid on its link only (`fe80::/10`, `169.254.0.0/16`).
    pub link_local: bool,
    /// Duplicate address detection still runs or has failed: it can't be used as a source.
    pub tentative: bool,
}
