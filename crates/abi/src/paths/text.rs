//! The contents of the made-up files.

use polypath_topology::{DeviceSpec, PortSpec, Table, width_and_speed};

use super::counters;
use super::directories::{directory_of, port_of};

/// A file: its path below the made-up root, and its contents.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

/// The contents of the made-up directory.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) files: Vec<File>,
    /// Directories that may be empty.
    pub(super) directories: Vec<String>,
    /// Links with path and target.
    pub(super) links: Vec<(String, String)>,
}

impl Contents {
    fn file(&mut self, path: String, text: impl Into<String>) {
        self.files.push(File { path, text: text.into() });
    }

    /// A number that changes whenever anything in the contents does.
    pub(super) fn fingerprint(&self) -> u64 {
        // FNV-1a is good enough, because it only has to tell one user's trees apart.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |text: &str| {
            for byte in text.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for file in &self.files {
            add(&file.path);
            add(&file.text);
        }
        self.directories.iter().for_each(|path| add(path));
        for (path, target) in &self.links {
            add(path);
            add(target);
        }
        hash
    }
}

/// A GUID or GID in the form of sysfs: groups of four digits.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":") + "\n"
}

/// The kernel's own entries.
pub(super) struct Real {
    /// Real devices, each with its place, because a listing must show them too.
    pub(super) devices: Vec<(String, String)>,
    /// The same for `/dev/infiniband`.
    pub(super) nodes: Vec<(String, String)>,
    /// Whether `/sys/class/net` has an interface of this name. In a container it may be another
    /// namespace's.
    pub(super) interface: fn(&str) -> bool,
}

/// The contents for these devices. As with real devices, `/sys/class/infiniband` has links to the
/// devices' places, and their `device` links lead to the hardware.
pub(super) fn contents(devices: &[DeviceSpec], table: &Table, real: &Real) -> Contents {
    let mut all = Contents::default();
    for (name, place) in &real.devices {
        all.links.push((format!("sys/class/infiniband/{name}"), place.clone()));
    }
    for (name, place) in real.nodes.iter().filter(|(name, _)| name != "rdma_cm") {
        all.links.push((format!("dev/infiniband/{name}"), place.clone()));
    }
    all.directories.push("sys/class/infiniband".to_owned());
    for device in devices {
        one(&mut all, device, table, real.interface);
        let name = &device.name;
        let node = device.uverbs_name();
        let verbs = format!("sys/class/infiniband_verbs/{node}");
        all.file(format!("{verbs}/ibdev"), format!("{name}\n"));
        all.file(format!("{verbs}/abi_version"), "1\n");
        let target = format!("../../../devices/virtual/polypath/{name}");
        all.links.push((format!("{verbs}/device"), target));
        all.links.push((format!("dev/infiniband/{node}"), "/dev/null".to_owned()));
    }
    all.links.push(("dev/infiniband/rdma_cm".to_owned(), "/dev/null".to_owned()));
    all.file("sys/class/misc/rdma_cm/abi_version".to_owned(), "4\n");
    all
}

/// A rate in the kernel's form: width times the speed of a lane.
fn rate(mbps: u32) -> String {
    let (width, speed) = width_and_speed(mbps);
    let lanes = if width == 2 { 4 } else { 1 };
    let (name, tenths) = match speed {
        2 => ("DDR", 50),
        4 => ("QDR", 100),
        8 => ("FDR10", 100),
        32 => ("EDR", 250),
        _ => ("SDR", 25),
    };
    let tenths = tenths * lanes;
    let fraction = if tenths % 10 == 0 { "" } else { ".5" };
    format!("{}{fraction} Gb/sec ({lanes}X {name})\n", tenths / 10)
}

fn one(all: &mut Contents, device: &DeviceSpec, table: &Table, interface: fn(&str) -> bool) {
    let name = &device.name;
    let link = format!("../../devices/virtual/polypath/{name}/infiniband/{name}");
    all.links.push((format!("sys/class/infiniband/{name}"), link));
    let root = directory_of(name);
    let guid = groups(&device.node_guid.to_be_bytes());
    let kind = device.kind.prefix;
    for (file, text) in [
        ("node_type", "1: CA\n".to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", format!("Polypath {kind}\n")),
        ("board_id", format!("polypath-{kind}\n")),
        ("hca_type", "polypath\n".to_owned()),
        ("hw_rev", "0x0\n".to_owned()),
        ("fw_ver", concat!(env!("CARGO_PKG_VERSION"), "\n").to_owned()),
        ("uevent", format!("NAME={name}\n")),
    ] {
        all.file(format!("{root}/{file}"), text);
    }
    all.links.push((format!("{root}/device"), format!("../../../{name}")));
    let class = "../../../../../../class/infiniband".to_owned();
    all.links.push((format!("{root}/subsystem"), class));

    let hardware = format!("sys/devices/virtual/polypath/{name}");
    let node = device.interfaces(table).next().and_then(|port| port.numa_node);
    let node = node.map_or_else(|| "-1\n".to_owned(), |node| format!("{node}\n"));
    all.file(format!("{hardware}/numa_node"), node);
    // There is no PCI vendor, so that programs that look for a vendor's quirks find none.
    all.file(format!("{hardware}/vendor"), "0xffff\n");
    all.file(format!("{hardware}/device"), "0x0000\n");
    for port in device.interfaces(table) {
        let net = format!("{hardware}/net/{}", port.name);
        if interface(&port.name) {
            all.links.push((net, format!("/sys/class/net/{}", port.name)));
        } else {
            all.directories.push(net);
        }
    }
    for (number, spec) in device.numbered_ports() {
        port(all, spec, table, &port_of(name, number));
    }
}

/// Adds everything of a port. Its directory is `port`.
fn port(all: &mut Contents, spec: &PortSpec, table: &Table, port: &str) {
    let up = spec.is_active(table);
    for (name, text) in [
        ("state", if up { "4: ACTIVE\n" } else { "1: DOWN\n" }),
        ("phys_state", if up { "5: LinkUp\n" } else { "3: Disabled\n" }),
        ("link_layer", "Ethernet\n"),
        ("lid", "0x0\n"),
        ("sm_lid", "0x0\n"),
        ("sm_sl", "0\n"),
        ("lid_mask_count", "0\n"),
        ("cap_mask", "0x04010000\n"),
    ] {
        all.file(format!("{port}/{name}"), text);
    }
    all.file(format!("{port}/rate"), rate(spec.speed_mbps(table)));
    all.file(format!("{port}/pkeys/0"), "0xffff\n");
    for name in counters::names() {
        all.file(format!("{port}/counters/{name}"), "0\n");
    }
    for (index, entry) in spec.gids.iter().enumerate() {
        let gid = if entry.is_empty() { [0; 16] } else { entry.gid };
        all.file(format!("{port}/gids/{index}"), groups(&gid));
        if entry.is_empty() {
            continue;
        }
        all.file(format!("{port}/gid_attrs/types/{index}"), "RoCE v2\n");
        let name = table.port(entry.ifindex).map_or("", |port| port.name.as_str());
        all.file(format!("{port}/gid_attrs/ndevs/{index}"), format!("{name}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_topology::{GidEntry, ROCE};

    fn device() -> DeviceSpec {
        DeviceSpec {
            name: "roce0".into(),
            kind: ROCE.kind(),
            node_guid: 0x5054_00ff_fe00_0002,
            index: 2,
            uverbs: 1000,
            ports: vec![PortSpec {
                gids: vec![GidEntry::new("10.0.0.1".parse().unwrap(), 2, true)],
                ..PortSpec::new(vec![2], "roce:2".into())
            }],
        }
    }

    const NOTHING_REAL: Real =
        Real { devices: Vec::new(), nodes: Vec::new(), interface: |_| false };

    #[test]
    fn rates_are_those_of_the_ports_width_and_speed() {
        for (mbps, text) in [
            (1000, "2.5 Gb/sec (1X SDR)"),
            (10_000, "10 Gb/sec (1X QDR)"),
            (20_000, "20 Gb/sec (4X DDR)"),
            (25_000, "25 Gb/sec (1X EDR)"),
            (40_000, "40 Gb/sec (4X FDR10)"),
            (100_000, "100 Gb/sec (4X EDR)"),
        ] {
            assert_eq!(rate(mbps).trim_end(), text);
        }
    }

    #[test]
    fn the_class_has_links_to_devices_and_devices_to_their_hardware() {
        let real = Real {
            devices: vec![("mlx5_0".into(), "/sys/devices/pci0000:00/infiniband/mlx5_0".into())],
            ..NOTHING_REAL
        };
        let all = contents(&[device()], &Table::default(), &real);
        let link = |path: &str| &all.links.iter().find(|link| link.0 == path).unwrap().1;
        let place = "../../devices/virtual/polypath/roce0/infiniband/roce0";
        assert_eq!(link("sys/class/infiniband/roce0"), place);
        let root = "sys/devices/virtual/polypath/roce0/infiniband/roce0";
        assert_eq!(link(&format!("{root}/device")), "../../../roce0");
        assert!(link("sys/class/infiniband/mlx5_0").starts_with("/sys/devices/pci"));
    }

    fn find<'a>(all: &'a Contents, path: &str) -> &'a str {
        &all.files.iter().find(|file| file.path == path).unwrap().text
    }

    #[test]
    fn guids_and_gids_are_written_as_sysfs_writes_them() {
        let all = contents(&[device()], &Table::default(), &NOTHING_REAL);
        let root = "sys/devices/virtual/polypath/roce0/infiniband/roce0";
        assert_eq!(find(&all, &format!("{root}/node_guid")), "5054:00ff:fe00:0002\n");
        let gid = find(&all, &format!("{root}/ports/1/gids/0"));
        assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(find(&all, "sys/class/infiniband_verbs/uverbs1000/ibdev"), "roce0\n");
    }

    #[test]
    fn another_address_gives_another_fingerprint() {
        let print = |device: DeviceSpec| {
            contents(&[device], &Table::default(), &NOTHING_REAL).fingerprint()
        };
        let mut other = device();
        other.ports[0].gids.push(GidEntry::new("10.0.0.2".parse().unwrap(), 2, true));
        assert_eq!(print(device()), print(device()));
        assert_ne!(print(device()), print(other));
    }
}
