use std::net::Ipv6Addr;
use std::time::Duration;

use polypath_topology::gids::CHOSEN_TABLES_MAX;
use polypath_topology::rules::{DELAY_MAX, DEVICE_MAX, PROGRAM_MAX};
use polypath_topology::table::{ADDRESSES_MAX, DOWN_MAX, PORTS_MAX};
use polypath_topology::{
    Address, GID_TABLE_LEN, GidEntry, GidTable, KernelBond, KernelSlave, NamedGidTable, PROVIDERS,
    Port, RuleSource, Subnet,
};

use super::shape::shape;
use super::*;

#[test]
fn a_message_survives_the_wire() {
    let request = Request::CmCommand { file: 7, number: 9, bytes: vec![1, 2, 3] };
    let bytes = encode(&request).unwrap();
    assert_eq!(decode::<Request>(&bytes).unwrap(), request);
}

#[test]
fn every_truncation_is_an_error() {
    let request = Request::Hello(Hello::of_this_process("mp:eth0+eth1"));
    let bytes = encode(&request).unwrap();
    for len in 0..bytes.len() {
        assert!(decode::<Request>(&bytes[..len]).is_err(), "{len} bytes decoded");
    }
}

#[test]
fn bytes_left_over_are_an_error() {
    let mut bytes = encode(&Request::Ping).unwrap();
    bytes.push(0);
    assert!(decode::<Request>(&bytes).is_err());
}

#[test]
fn a_length_that_lies_does_not_allocate_it() {
    // CmCommand, file 0, number 0, "2^63 bytes follow".
    let bytes = [5, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert!(decode::<Request>(&bytes).is_err());
}

/// Both ends must have declared the same: what is declared otherwise decodes to something else.
#[test]
fn the_version_goes_up_with_what_is_declared() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for text in [shape::<Request>(), shape::<Reply>(), shape::<Push>()] {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    const DECLARED: (u32, u64) = (31, 7_612_550_831_799_171_633);
    assert_eq!((VERSION, hash), DECLARED, "count VERSION up, and write both here");
}

#[test]
fn too_long_a_message_is_not_encoded() {
    let request = Request::CmCommand { file: 0, number: 0, bytes: vec![0; MESSAGE_MAX] };
    assert!(matches!(encode(&request), Err(IpcError::TooLong(_))));
}

#[test]
fn the_largest_table_fits_into_a_message() {
    let ip = |n: usize| IpAddr::V6(Ipv6Addr::from_bits(u128::MAX - n as u128));
    let address = |n| Address { ip: ip(n), prefix_len: 128, link_local: false, tentative: false };
    let full = Port {
        ifindex: u32::MAX,
        name: "fifteen-letters".into(),
        mac: [2; 6],
        mtu: u32::MAX,
        link_up: true,
        speed_mbps: Some(u32::MAX),
        loopback: false,
        ethernet: true,
        enslaved: false,
        uplink: true,
        numa_node: Some(u32::MAX),
        device_number: Some(u16::MAX),
        lacp: Some(true),
        bond: Some(KernelBond { mode: Some(u8::MAX), xmit_hash_policy: u8::MAX }),
        slave: Some(KernelSlave { master: u32::MAX, usable: true, place: u16::MAX }),
        above: Some(u32::MAX),
        addresses: (0..ADDRESSES_MAX).map(address).collect(),
    };
    let gids = |key: &str, len: usize| {
        let entries: Vec<GidEntry> =
            (0..len).map(|n| GidEntry::new(ip(n), u32::MAX, true)).collect();
        let mut table = GidTable::default();
        table.update(&entries);
        NamedGidTable { key: key.into(), table }
    };
    let mut gid_tables = vec![gids("roce:4294967295", ADDRESSES_MAX + 1); PORTS_MAX];
    let chosen = format!("mp:{}", ["fifteen-letters"; 16].join("+"));
    // Every kind may have a table for what its prefix alone means; those of roce are of its interfaces,
    // and bond has that of mp.
    let standing = PROVIDERS.len() - 2;
    gid_tables.extend(vec![gids(&chosen, GID_TABLE_LEN); CHOSEN_TABLES_MAX + standing]);
    // Each interface may be a bond, or its addresses are those of the bond that it is above, too.
    gid_tables.extend(vec![gids("bond:4294967295", ADDRESSES_MAX + 1); PORTS_MAX]);
    let text = |len| Some("x".repeat(len));
    let delay = Some(DELAY_MAX - Duration::from_nanos(1));
    let rule = Rule {
        scope: RuleScope {
            queue_pair: Some(u32::MAX),
            peer: Some(Subnet { ip: ip(0), prefix_len: 128 }),
            process: Some(u32::MAX),
            program: text(PROGRAM_MAX),
            device: text(DEVICE_MAX),
        },
        settings: Bonding {
            primary: text(15),
            updelay: delay,
            downdelay: delay,
            ports: Some(8),
            ..Bonding::parse(
                "affinity,affinity=hash,primary_reselect=better,hold=86400,ecn=off,local=off",
            )
            .unwrap()
        },
        source: RuleSource::File { line: u32::MAX },
    };
    let mut rules = Vec::new();
    while rules_fit(&rules) {
        rules.push(rule.clone());
    }
    assert!(rules.pop().is_some());
    let table = Table {
        guid: Some(u64::MAX),
        generation: u64::MAX,
        ports: vec![full; PORTS_MAX],
        omitted: u32::MAX,
        gid_tables,
        down: vec![PathSelector::Pair(ip(0), ip(1)); DOWN_MAX],
        rules,
    };
    let push = Push::Table(Box::new(table));
    assert_eq!(decode::<Push>(&encode(&push).unwrap()).unwrap(), push);
}
