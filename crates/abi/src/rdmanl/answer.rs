//! The answers to `RDMA_NL_NLDEV`'s reading commands about devices, ports and used resources
//! (`rdma/rdma_netlink.h`).

use polypath_ipc::Client;
use polypath_ipc::status::{ProcessStatus, Status};
use polypath_topology::{DeviceSpec, PortSpec, Table, devices};

use super::ask_kernel;
use super::message::{Answer, Attributes, Request, kind, messages, readdress};
use crate::broker;

// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_…)`.
const NLDEV: u16 = 5 << 10;
const GET: u16 = NLDEV + 1;
const PORT_GET: u16 = NLDEV + 5;
const SYS_GET: u16 = NLDEV + 6;
const RES_GET: u16 = NLDEV + 9;

// `RDMA_NLDEV_ATTR_…`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const RES_SUMMARY: u16 = 15;
const RES_SUMMARY_ENTRY: u16 = 16;
const RES_SUMMARY_ENTRY_NAME: u16 = 17;
const RES_SUMMARY_ENTRY_CURR: u16 = 18;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const SYS_NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;
const SYS_COPY_ON_FORK: u16 = 93;

/// Our devices.
struct Ours {
    devices: Vec<DeviceSpec>,
    table: Table,
}

impl Ours {
    /// The broker's current devices; none if it can't be reached.
    fn now() -> Self {
        let asked = broker::ask(true, |client| {
            let table = client.table()?;
            let devices = devices(&table, client.selection());
            Ok(Self { devices, table })
        });
        asked.unwrap_or_else(|error| {
            crate::log::line(format_args!("NETLINK_RDMA without our devices: {error}"));
            Self { devices: Vec::new(), table: Table::default() }
        })
    }
}

/// The answer to a request of the socket with this address, as datagrams.
pub(super) fn to(request: &Request<'_>, port: u32) -> Vec<Vec<u8>> {
    let ours = Ours::now();
    let index = request.number(DEV_INDEX);
    let mut answer = Answer::new(request, port);
    match ours.devices.iter().find(|device| Some(device.index) == index) {
        Some(device) => about(&mut answer, request, &ours, device),
        None => beside(&mut answer, request, &ours, ask_kernel(request)),
    }
    answer.into_datagrams()
}

/// Answers a request about one of our devices.
fn about(answer: &mut Answer<'_>, request: &Request<'_>, ours: &Ours, device: &DeviceSpec) {
    let port = request.number(PORT_INDEX);
    match (request.kind(), port) {
        (GET, _) => answer.object(&description(device)),
        (PORT_GET, None) if request.is_dump() => {
            for (number, port) in device.numbered_ports() {
                answer.object(&port_of(device, number, port, &ours.table));
            }
        }
        (PORT_GET, number) => {
            let number = number.and_then(|number| u8::try_from(number).ok()).unwrap_or(0);
            match device.port(number) {
                Some(port) => answer.object(&port_of(device, number, port, &ours.table)),
                None => return answer.error(libc::EINVAL),
            }
        }
        (RES_GET, _) => match broker::ask(true, Client::status) {
            Ok(status) => answer.object(&summary(device, &status)),
            Err(error) => return answer.error(error.errno()),
        },
        _ => return answer.error(libc::EOPNOTSUPP),
    }
    end(answer, request);
}

fn end(answer: &mut Answer<'_>, request: &Request<'_>) {
    if request.is_dump() {
        answer.done();
    } else if request.wants_acknowledgement() {
        answer.error(0);
    }
}

/// Answers a request that is not about one of our devices, or is about all devices. The answer
/// combines the kernel's, if there is one, and ours.
fn beside(
    answer: &mut Answer<'_>,
    request: &Request<'_>,
    ours: &Ours,
    kernel: Option<Vec<Vec<u8>>>,
) {
    let all = request.is_dump() && request.number(DEV_INDEX).is_none();
    let adds = all && matches!(request.kind(), GET | RES_GET);
    let there = kernel.is_some();
    for datagram in kernel.unwrap_or_default() {
        for message in messages(&datagram) {
            if adds && libc::c_int::from(kind(message)) == libc::NLMSG_DONE {
                continue;
            }
            answer.add(readdress(message, answer.port()));
        }
    }
    match request.kind() {
        GET if adds => ours.devices.iter().for_each(|device| answer.object(&description(device))),
        RES_GET if adds => match broker::ask(true, Client::status) {
            Ok(status) => {
                let ours = ours.devices.iter();
                ours.for_each(|device| answer.object(&summary(device, &status)));
            }
            Err(error) => return answer.error(error.errno()),
        },
        _ if there => return,
        // Devices are visible in every network namespace (1), and a forked child has its own
        // memory.
        SYS_GET => {
            answer.object(&Attributes::default().u8(SYS_NETNS_MODE, 1).u8(SYS_COPY_ON_FORK, 1));
        }
        _ if request.number(DEV_INDEX).is_some() => return answer.error(libc::ENODEV),
        _ => return answer.error(libc::EOPNOTSUPP),
    }
    end(answer, request);
}

fn handle(device: &DeviceSpec) -> Attributes {
    Attributes::default().u32(DEV_INDEX, device.index).text(DEV_NAME, &device.name)
}

/// The attributes for `RDMA_NLDEV_CMD_GET`. The port number is that of the last port.
fn description(device: &DeviceSpec) -> Attributes {
    handle(device)
        .u32(PORT_INDEX, device.ports.len() as u32)
        .text(FW_VERSION, env!("CARGO_PKG_VERSION"))
        .u64(NODE_GUID, device.node_guid)
        .u64(SYS_IMAGE_GUID, device.node_guid)
        .u8(DEV_NODE_TYPE, 1) // RDMA_NODE_IB_CA
        .text(DEV_PROTOCOL, "roce")
}

/// The attributes for `RDMA_NLDEV_CMD_PORT_GET`. A port has one network interface there; for an mp
/// device it is the first member.
fn port_of(device: &DeviceSpec, number: u8, port: &PortSpec, table: &Table) -> Attributes {
    // IB_PORT_ACTIVE and LINK_UP, or IB_PORT_DOWN and DISABLED.
    let (state, physical) = if port.is_active(table) { (4, 5) } else { (1, 3) };
    let about = handle(device)
        .u32(PORT_INDEX, number.into())
        .u8(PORT_STATE, state)
        .u8(PORT_PHYS_STATE, physical);
    match port.interfaces(table).next() {
        Some(first) => about.u32(NDEV_INDEX, first.ifindex).text(NDEV_NAME, &first.name),
        None => about,
    }
}

/// The attributes for `RDMA_NLDEV_CMD_RES_GET`: what is counted by device. Only the processes know
/// their protection domains, completion queues and memory regions.
fn summary(device: &DeviceSpec, status: &Status) -> Attributes {
    let open = |process: &ProcessStatus| {
        process.devices.iter().filter(|name| **name == device.name).count()
    };
    let qps =
        |process: &ProcessStatus| process.qps.iter().filter(|qp| qp.device == device.name).count();
    let sum = |count: &dyn Fn(&ProcessStatus) -> usize| -> u64 {
        status.processes.iter().map(|process| count(process) as u64).sum()
    };
    let mut entries = Attributes::default();
    for (name, count) in [("qp", sum(&qps)), ("ctx", sum(&open))] {
        let entry = Attributes::default()
            .text(RES_SUMMARY_ENTRY_NAME, name)
            .u64(RES_SUMMARY_ENTRY_CURR, count);
        entries = entries.nest(RES_SUMMARY_ENTRY, &entry);
    }
    handle(device).nest(RES_SUMMARY, &entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_topology::MP;

    fn request(kind: u16, flags: libc::c_int, attributes: &[(u16, u32)]) -> Vec<u8> {
        let length = 16 + 8 * attributes.len() as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        bytes.extend(9_u32.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
        }
        bytes
    }

    fn ours() -> Ours {
        let device = DeviceSpec {
            name: "mp0".into(),
            kind: MP.kind(),
            node_guid: 5,
            index: 0x10_0000,
            uverbs: 900,
            ports: vec![PortSpec::new(vec![2], "mp".into())],
        };
        Ours { devices: vec![device], table: Table::default() }
    }

    /// The types of the messages in an answer, and all of its bytes.
    fn answer_to(bytes: &[u8], kernel: Option<Vec<Vec<u8>>>) -> (Vec<u16>, Vec<u8>) {
        let ours = ours();
        let request = Request::all(bytes).next().unwrap();
        let mut answer = Answer::new(&request, 42);
        match request.number(DEV_INDEX) {
            Some(0x10_0000) => about(&mut answer, &request, &ours, &ours.devices[0]),
            _ => beside(&mut answer, &request, &ours, kernel),
        }
        let datagrams = answer.into_datagrams();
        let kinds = datagrams.iter().flat_map(|datagram| messages(datagram).map(kind)).collect();
        (kinds, datagrams.concat())
    }

    const DONE: u16 = libc::NLMSG_DONE as u16;
    const ERROR: u16 = libc::NLMSG_ERROR as u16;

    #[test]
    fn a_dump_has_the_kernels_devices_and_ours_and_one_end() {
        let ask = request(GET, libc::NLM_F_DUMP | libc::NLM_F_ACK, &[]);
        assert_eq!(answer_to(&ask, None).0, [GET, DONE]);
        let theirs = [request(GET, 0, &[(DEV_INDEX, 0)]), request(DONE, 0, &[])].concat();
        let (kinds, bytes) = answer_to(&ask, Some(vec![theirs]));
        assert_eq!(kinds, [GET, GET, DONE]);
        assert!(messages(&bytes).all(|message| message[12..16] == 42_u32.to_ne_bytes()));
        assert!(bytes.windows(4).any(|part| part == b"mp0\0"));
    }

    #[test]
    fn a_question_about_one_port_is_answered_and_acknowledged() {
        let ask = |port| {
            request(PORT_GET, libc::NLM_F_ACK, &[(DEV_INDEX, 0x10_0000), (PORT_INDEX, port)])
        };
        assert_eq!(answer_to(&ask(1), None).0, [PORT_GET, ERROR]);
        let (kinds, bytes) = answer_to(&ask(2), None);
        assert_eq!(kinds, [ERROR]);
        assert_eq!(bytes[16..20], (-libc::EINVAL).to_ne_bytes());
    }

    #[test]
    fn what_changes_devices_is_refused() {
        let set = request(NLDEV + 2, 0, &[(DEV_INDEX, 0x10_0000)]);
        let (kinds, bytes) = answer_to(&set, None);
        assert_eq!((kinds, &bytes[16..20]), (vec![ERROR], &(-libc::EOPNOTSUPP).to_ne_bytes()[..]));
        let other = request(GET, 0, &[(DEV_INDEX, 7)]);
        let (kinds, bytes) = answer_to(&other, None);
        assert_eq!((kinds, &bytes[16..20]), (vec![ERROR], &(-libc::ENODEV).to_ne_bytes()[..]));
    }

    #[test]
    fn a_truncated_request_is_no_request() {
        let whole = request(GET, 0, &[(DEV_INDEX, 7)]);
        for length in 0..whole.len() {
            assert_eq!(Request::all(&whole[..length]).count(), 0);
        }
        let mut lies = whole;
        lies[16] = 200;
        assert_eq!(Request::all(&lies).next().unwrap().number(DEV_INDEX), None);
    }
}
