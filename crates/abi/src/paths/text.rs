//! What the made-up files say.

use polypath_ipc::{DeviceKind, DeviceSpec, Table};

/// A file: its path below the made-up root, and its contents.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

/// Everything that the made-up directory has.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) files: Vec<File>,
    /// Directories that may be empty.
    pub(super) directories: Vec<String>,
    /// Links: path and target.
    pub(super) links: Vec<(String, String)>,
}

impl Contents {
    fn file(&mut self, path: String, text: impl Into<String>) {
        self.files.push(File { path, text: text.into() });
    }

    /// A number that is another whenever anything in here is.
    pub(super) fn fingerprint(&self) -> u64 {
        // FNV-1a: it only has to tell trees of one user from each other.
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

/// Bytes of a GUID or GID as sysfs writes them: groups of four digits.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":") + "\n"
}

/// What there is to say of these devices. `real` are the names of real devices, which a listing has
/// to show too.
pub(super) fn contents(
    devices: &[DeviceSpec],
    table: &Table,
    real: &[String],
    uverbs: impl Fn(&str) -> String,
) -> Contents {
    let mut all = Contents::default();
    for name in real {
        let target = format!("/sys/class/infiniband/{name}");
        all.links.push((format!("sys/class/infiniband/{name}"), target));
    }
    for device in devices {
        one(&mut all, device, table);
        let node = uverbs(&device.name);
        let verbs = format!("sys/class/infiniband_verbs/{node}");
        all.file(format!("{verbs}/ibdev"), format!("{}\n", device.name));
        all.file(format!("{verbs}/abi_version"), "1\n");
        let target = "/dev/null".to_owned();
        all.links.push((format!("dev/infiniband/{node}"), target));
    }
    all.links.push(("dev/infiniband/rdma_cm".to_owned(), "/dev/null".to_owned()));
    all.file("sys/class/misc/rdma_cm/abi_version".to_owned(), "4\n");
    all
}

fn one(all: &mut Contents, device: &DeviceSpec, table: &Table) {
    let root = format!("sys/class/infiniband/{}", device.name);
    let guid = groups(&device.node_guid.to_be_bytes());
    let members: Vec<_> = device.members.iter().filter_map(|&index| table.port(index)).collect();
    let up = members.iter().any(|port| port.link_up);
    let kind = match device.kind {
        DeviceKind::Roce => "roce",
        DeviceKind::Mp => "mp",
    };
    for (name, text) in [
        ("node_type", "1: CA\n".to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", format!("Polypath {kind}\n")),
        ("board_id", format!("polypath-{kind}\n")),
        ("hca_type", "polypath\n".to_owned()),
        ("hw_rev", "0x0\n".to_owned()),
        ("fw_ver", concat!(env!("CARGO_PKG_VERSION"), "\n").to_owned()),
    ] {
        all.file(format!("{root}/{name}"), text);
    }

    let node = members.first().and_then(|port| port.numa_node);
    let node = node.map_or_else(|| "-1\n".to_owned(), |node| format!("{node}\n"));
    all.file(format!("{root}/device/numa_node"), node);
    for port in &members {
        all.directories.push(format!("{root}/device/net/{}", port.name));
    }

    let port = format!("{root}/ports/1");
    let gbits = members.iter().filter_map(|p| p.speed_mbps).sum::<u32>() / 1000;
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
    all.file(format!("{port}/rate"), format!("{gbits} Gb/sec\n"));
    all.file(format!("{port}/pkeys/0"), "0xffff\n");
    for (index, entry) in device.gids.iter().enumerate() {
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
    use polypath_ipc::GidEntry;

    fn device() -> DeviceSpec {
        DeviceSpec {
            name: "roce0".into(),
            kind: DeviceKind::Roce,
            members: vec![2],
            node_guid: 0x5054_00ff_fe00_0002,
            index: 2,
            gids: vec![GidEntry::new("10.0.0.1".parse().unwrap(), 2, true)],
        }
    }

    fn find<'a>(all: &'a Contents, path: &str) -> &'a str {
        &all.files.iter().find(|file| file.path == path).unwrap().text
    }

    #[test]
    fn guids_and_gids_are_written_as_sysfs_writes_them() {
        let all = contents(&[device()], &Table::default(), &[], |_| "uverbs1000".into());
        let root = "sys/class/infiniband/roce0";
        assert_eq!(find(&all, &format!("{root}/node_guid")), "5054:00ff:fe00:0002\n");
        let gid = find(&all, &format!("{root}/ports/1/gids/0"));
        assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(find(&all, "sys/class/infiniband_verbs/uverbs1000/ibdev"), "roce0\n");
    }

    #[test]
    fn another_address_gives_another_fingerprint() {
        let print = |device: DeviceSpec| {
            contents(&[device], &Table::default(), &[], |_| String::new()).fingerprint()
        };
        let mut other = device();
        other.gids.push(GidEntry::new("10.0.0.2".parse().unwrap(), 2, true));
        assert_eq!(print(device()), print(device()));
        assert_ne!(print(device()), print(other));
    }
}
