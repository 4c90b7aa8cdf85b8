//! Binding, ports, resolving, queries, options, files.

mod common;

use core::net::SocketAddr;
use core::time::Duration;

use common::*;
use polypath_cm::{ClientId, CmConfig};
use polypath_wire::Gid;

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn bound(w: &mut World, c: Client, address: SocketAddr) -> Result<u32, i32> {
    let id = w.create(c, 1, PS_TCP);
    w.bind(c, id, address).map(|()| id).inspect_err(|_| {
        w.destroy(c, id).unwrap();
    })
}

#[test]
fn a_port_has_one_holder_per_address() {
    let mut w = World::new(1);
    let (c, d) = (w.open(0, 1), w.open(0, 2));
    let first = bound(&mut w, c, at("10.77.0.1", 5000)).unwrap();
    assert_eq!(bound(&mut w, d, at("10.77.0.1", 5000)), Err(EADDRINUSE));
    assert_eq!(bound(&mut w, d, at("0.0.0.0", 5000)), Err(EADDRNOTAVAIL));
    bound(&mut w, d, at("fd77::1", 5000)).unwrap();
    bound(&mut w, d, at("10.77.0.1", 5001)).unwrap();
    let datagrams = w.create(c, 1, PS_UDP);
    w.bind(c, datagrams, at("10.77.0.1", 5000)).unwrap();
    w.destroy(c, first).unwrap();
    bound(&mut w, d, at("10.77.0.1", 5000)).unwrap();
}

#[test]
fn reusing_an_address_must_be_agreed_by_all_and_one_listens() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let reusing = |w: &mut World| {
        let id = w.create(c, 1, PS_TCP);
        w.set_option(c, id, 0, 1, &1i32.to_ne_bytes()).unwrap();
        w.bind(c, id, at("10.77.0.1", 5000)).map(|()| id)
    };
    let first = reusing(&mut w).unwrap();
    let second = reusing(&mut w).unwrap();
    assert_eq!(bound(&mut w, c, at("10.77.0.1", 5000)), Err(EADDRINUSE));
    assert_eq!(w.listen(c, first, 1), Err(EADDRINUSE), "the other one is bound too");
    w.destroy(c, second).unwrap();
    w.listen(c, first, 1).unwrap();
    assert_eq!(reusing(&mut w), Err(EADDRINUSE), "no id may share the port of a listener");
}

#[test]
fn an_ipv6_wildcard_takes_both_families_unless_told_otherwise() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let both = w.listener(b, 0x100, PS_TCP, at("::", 5000));
    for to in [v4(1), v6(1)] {
        let id = w.resolved(a, 0xa, PS_TCP, SocketAddr::new(to, 5000));
        w.connect(a, id, &Param::new(1 + id, b"")).unwrap();
        let request = w.expect(b, CONNECT_REQUEST);
        let answer = w.query(b, request.id, 0, 280).unwrap();
        let family = if to.is_ipv4() { 2 } else { 10 };
        assert_eq!(u16_at(&answer, 16), family);
    }
    w.destroy(b, both).unwrap();

    let only6 = w.create(b, 0x100, PS_TCP);
    w.set_option(b, only6, 0, 2, &1i32.to_ne_bytes()).unwrap();
    w.bind(b, only6, at("::", 5000)).unwrap();
    w.listen(b, only6, 5).unwrap();
    let only4 = w.listener(b, 0x200, PS_TCP, at("0.0.0.0", 5000));
    for (to, uid) in [(v4(1), 0x200), (v6(1), 0x100)] {
        let id = w.resolved(a, 0xa, PS_TCP, SocketAddr::new(to, 5000));
        w.connect(a, id, &Param::new(100 + id, b"")).unwrap();
        assert_eq!(w.expect(b, CONNECT_REQUEST).uid, uid);
    }
    w.destroy(b, only4).unwrap();
    let id = w.resolved(a, 0xa, PS_TCP, SocketAddr::new(v4(1), 5000));
    w.connect(a, id, &Param::new(200, b"")).unwrap();
    while w.event(a).kind != REJECTED {}
}

#[test]
fn ephemeral_ports_are_unique_until_there_are_no_more() {
    let config = CmConfig { ephemeral_ports: 40_000..=40_099, ..CmConfig::default() };
    let mut w = World::with_config(1, 1, &config);
    let c = w.open(0, 1);
    let mut ports = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let id = bound(&mut w, c, at("10.77.0.1", 0)).unwrap();
        assert!(ports.insert(w.local_port(c, id)));
    }
    assert_eq!(bound(&mut w, c, at("10.77.0.1", 0)), Err(EADDRNOTAVAIL));
    // A connection to one destination can share a port with a connection to another.
    let config = CmConfig { ephemeral_ports: 40_000..=40_001, ..CmConfig::default() };
    let mut w = World::with_config(1, 1, &config);
    let c = w.open(0, 1);
    for port in 1..20 {
        w.resolved(c, 1, PS_TCP, at("10.77.0.2", port));
    }
}

#[test]
fn addresses_without_a_device_can_not_be_bound() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    assert_eq!(bound(&mut w, c, at("172.16.0.1", 0)), Err(ENODEV));
    assert_eq!(bound(&mut w, c, at("10.77.0.9", 0)), Err(EADDRNOTAVAIL));
    assert_eq!(bound(&mut w, c, at("fe80::1", 0)), Err(EINVAL), "which interface?");
    let scoped: SocketAddr = "[fe80::1%2]:0".parse().unwrap();
    bound(&mut w, c, scoped).unwrap();
}

#[test]
fn without_a_route_there_is_no_address() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let id = w.create(c, 1, PS_TCP);
    assert_eq!(w.resolve_addr(c, id, None, SocketAddr::new(UNROUTABLE, 1)), Err(101));
    // The id is bound by now and can be tried again, with another destination.
    w.resolve_addr(c, id, None, at("10.77.0.2", 1)).unwrap();
    w.expect(c, ADDR_RESOLVED);
    assert_eq!(w.resolve_addr(c, id, None, at("10.77.0.2", 1)), Err(EINVAL));
}

#[test]
fn link_local_connections_go_by_interface() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.listener(b, 0x100, PS_TCP, "[fe80::2%2]:5000".parse().unwrap());
    let id = w.resolved(a, 0xa, PS_TCP, "[fe80::2%2]:5000".parse().unwrap());
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(w.qp_attr(b, request.id, 2).unwrap().dgid(), Gid::from_ip(link_local(0)).0);
}

#[test]
fn queries_show_addresses_device_and_path() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let id = w.create(c, 1, PS_TCP);
    let empty = w.query(c, id, 0, 280).unwrap();
    assert!(empty.iter().all(|b| *b == 0));
    w.bind(c, id, at("10.77.0.1", 0)).unwrap();
    w.resolve_addr(c, id, None, at("10.77.0.2", 7174)).unwrap();
    let port = w.local_port(c, id);

    let addr = w.query(c, id, 0, 280).unwrap();
    assert_eq!(addr[..8], [0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 1], "node GUID");
    assert_eq!(addr[8], 1, "port");
    assert_eq!((u16_at(&addr, 12), u16_at(&addr, 14)), (16, 16));
    assert_eq!(addr[20..24], [10, 77, 0, 1]);
    assert_eq!(addr[146..152], [0x1c, 0x06, 10, 77, 0, 2]);
    assert_eq!(u32_at(&addr, 272), 7, "device index");

    let gid = w.query(c, id, 2, 280).unwrap();
    assert_eq!((u16_at(&gid, 12), u16_at(&gid, 16)), (48, 27));
    assert_eq!(gid[24..40], Gid::from_ip(v4(0)).0);
    assert_eq!(gid[40..48], (0x0106_0000u64 | u64::from(port)).to_be_bytes());
    assert_eq!(gid[152..168], Gid::from_ip(v4(1)).0);

    assert_eq!(w.query(c, id, 1, 8 + 6 * 72).unwrap(), [0; 8], "no path yet");
    w.resolve_route(c, id).unwrap();
    let path = w.query(c, id, 1, 8 + 6 * 72).unwrap();
    assert_eq!((path.len(), u32_at(&path, 0)), (80, 1));
    assert_eq!(path[24..40], Gid::from_ip(v4(1)).0, "destination GID of the record");
    assert_eq!(path[16 + 54], 2 << 6 | 5, "MTU is exactly 4096");

    let route = w.write(c, QUERY_ROUTE, &fields(&[&[0; 8], &id.to_ne_bytes(), &[0; 4]]), 208, &[]);
    let route = route.unwrap();
    assert_eq!(route[8..24], Gid::from_ip(v4(1)).0);
    assert_eq!(route[24..40], Gid::from_ip(v4(0)).0);
    assert_eq!((u32_at(&route, 192), route[196], u32_at(&route, 56)), (1, 1, 5));
}

#[test]
fn librdmacm_finds_native_addresses_supported() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    // librdmacm's probe: an id without a type, bound to any port of the TCP port space.
    let id = w.try_create(c, 1, PS_IB, 0).unwrap();
    let mut sib = vec![0; 128];
    sib[0..2].copy_from_slice(&27u16.to_ne_bytes());
    sib[24..32].copy_from_slice(&0x0106_0000u64.to_be_bytes());
    sib[32..40].copy_from_slice(&0xffff_ffff_ffff_0000u64.to_be_bytes());
    let payload = fields(&[&id.to_ne_bytes(), &48u16.to_ne_bytes(), &[0; 2], &sib]);
    w.write(c, BIND, &payload, 0, &[]).unwrap();
    let address = w.query(c, id, 0, 280).unwrap();
    assert_ne!(address[46..48], [0, 0], "a port was chosen");
    w.destroy(c, id).unwrap();
}

#[test]
fn native_addresses_connect_without_the_ip_header() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let sib = |gid: [u8; 16], port: u64| {
        let mut s = vec![0; 128];
        s[0..2].copy_from_slice(&27u16.to_ne_bytes());
        s[8..24].copy_from_slice(&gid);
        s[24..32].copy_from_slice(&(0x0106_0000 | port).to_be_bytes());
        s[32..40].copy_from_slice(&u64::MAX.to_be_bytes());
        s
    };
    let listener = w.create(b, 0x100, PS_TCP);
    let address = sib([0; 16], 5000);
    let payload = fields(&[&listener.to_ne_bytes(), &48u16.to_ne_bytes(), &[0; 2], &address]);
    w.write(b, BIND, &payload, 0, &[]).unwrap();
    w.listen(b, listener, 5).unwrap();

    let id = w.create(a, 0xa, PS_TCP);
    let to = sib(Gid::from_ip(v4(1)).0, 5000);
    let payload = fields(&[
        &id.to_ne_bytes(),
        &[0; 4],
        &[0; 2],
        &48u16.to_ne_bytes(),
        &[0; 4],
        &[0; 128],
        &to,
    ]);
    w.write(a, RESOLVE_ADDR, &payload, 0, &[]).unwrap();
    w.expect(a, ADDR_RESOLVED);
    w.resolve_route(a, id).unwrap();
    w.expect(a, ROUTE_RESOLVED);
    w.connect(a, id, &Param::new(1, &[9; 92])).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(request.conn_private(), [9; 92]);
    w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
}

#[test]
fn the_older_commands_do_the_same() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let id = w.create(c, 1, PS_TCP);
    let (_, src) = storage(at("10.77.0.1", 5000));
    let (_, dst) = storage(at("10.77.0.2", 7174));
    let bind = fields(&[&[0; 8], &src[..28], &id.to_ne_bytes()]);
    w.write(c, BIND_IP, &bind, 0, &[]).unwrap();
    let resolve = fields(&[&[0; 28], &dst[..28], &id.to_ne_bytes(), &[0; 4]]);
    w.write(c, RESOLVE_IP, &resolve, 0, &[]).unwrap();
    assert_eq!(w.expect(c, ADDR_RESOLVED).id, id);
    assert_eq!(w.local_port(c, id), 5000);
}

#[test]
fn an_acknowledge_timeout_set_by_the_application_is_used() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.listener(b, 0x100, PS_TCP, at("0.0.0.0", 5000));
    let id = w.resolved(a, 0xa, PS_TCP, at("10.77.0.2", 5000));
    w.set_option(a, id, 0, 3, &[14]).unwrap();
    assert_eq!(w.set_option(a, id, 0, 3, &[32]), Err(EINVAL));
    assert_eq!(w.set_option(a, id, 0, 77, &[1]), Err(38));
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
    assert_eq!(w.qp_attr(a, id, 3).unwrap().numbers()[4], 14);
}

#[test]
fn an_id_moves_to_another_file_with_what_waits_for_it() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let listener = w.listener(b, 0x100, PS_TCP, at("0.0.0.0", 5000));
    // The same process opens the device again.
    let host = &mut w.hosts[1];
    host.cm.open_file(polypath_cm::FileId(2), ClientId(1));
    let b2 = Client { host: 1, file: polypath_cm::FileId(2) };
    let id = w.resolved(a, 0xa, PS_TCP, at("10.77.0.2", 5000));
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    w.run_unread(Duration::from_millis(1));
    assert_eq!(w.migrate(b2, listener, b), Ok(0));
    assert!(w.try_event(b).is_none());
    let request = w.expect(b2, CONNECT_REQUEST);
    w.accept(b2, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
    w.confirm(a, id).unwrap();
    w.expect(b2, ESTABLISHED);
    assert_eq!(w.migrate(b, listener, b2), Ok(1));
    assert_eq!(w.listen(b2, listener, 5), Err(EINVAL), "it is elsewhere");
    let stranger = w.open(1, 9);
    assert_eq!(w.migrate(stranger, listener, b), Err(ENOENT), "another process's");
}

#[test]
fn events_can_be_asked_for_by_command_too() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let get = |w: &mut World, out| w.write(c, GET_EVENT, &[0; 8], out, &[]);
    assert_eq!(get(&mut w, 336), Err(EAGAIN));
    let id = w.create(c, 0xa, PS_TCP);
    w.resolve_addr(c, id, None, at("10.77.0.2", 1)).unwrap();
    assert_eq!(get(&mut w, 300), Err(28));
    assert_eq!(Event::parse(&get(&mut w, 336).unwrap()).kind, ADDR_RESOLVED);
    assert_eq!(w.destroy(c, id), Ok(1));
}

#[test]
fn an_application_can_wake_itself() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let id = w.create(c, 0xa, PS_TCP);
    let event = |kind: u32| {
        fields(&[
            &id.to_ne_bytes(),
            &[0; 4],
            &kind.to_ne_bytes(),
            &3u32.to_ne_bytes(),
            &0x1122_3344_5566_7788u64.to_ne_bytes(),
        ])
    };
    w.write(c, WRITE_CM_EVENT, &event(USER), 0, &[]).unwrap();
    let woken = w.expect(c, USER);
    assert_eq!((woken.uid, woken.status), (0xa, 3));
    assert_eq!(u64_at(&woken.bytes, 20), 0x1122_3344_5566_7788);
    assert_eq!(w.write(c, WRITE_CM_EVENT, &event(ESTABLISHED), 0, &[]), Err(EINVAL));
    assert_eq!(w.write(c, RESOLVE_IB_SERVICE, &event(0), 0, &[]), Err(95));
}

#[test]
fn an_address_that_loses_its_device_is_told_once_to_those_not_connected() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let id = bound(&mut w, c, at("10.77.0.1", 0)).unwrap();
    let all = w.hosts[0].env.addresses.clone();
    for (addresses, told) in [(all.clone(), false), (vec![], true), (vec![], false), (all, false)] {
        let host = &mut w.hosts[0];
        host.env.addresses = addresses;
        host.cm.handle_address_change(w.now, &mut host.env);
        assert_eq!(w.try_event(c).map(|e| (e.kind, e.id)), told.then_some((ADDR_CHANGE, id)));
    }
}

#[test]
fn a_removed_device_leaves_ids_that_can_only_be_destroyed() {
    let mut w = World::new(1);
    let c = w.open(0, 1);
    let id = w.resolved(c, 0xa, PS_TCP, at("10.77.0.2", 1));
    let now = w.now;
    let host = &mut w.hosts[0];
    let guid = host.env.node_guid;
    host.cm.handle_device_removal(now, ClientId(1), guid, &mut host.env);
    assert_eq!(w.expect(c, DEVICE_REMOVAL).id, id);
    assert_eq!(w.connect(c, id, &Param::new(1, b"")), Err(ENODEV));
    assert_eq!(w.destroy(c, id), Ok(3));
}

#[test]
fn ids_are_limited_per_file_and_in_all() {
    let config = CmConfig { max_ids: 5, max_ids_per_file: 3, ..CmConfig::default() };
    let mut w = World::with_config(1, 1, &config);
    let (c, d) = (w.open(0, 1), w.open(0, 2));
    for _ in 0..3 {
        w.create(c, 1, PS_TCP);
    }
    assert_eq!(w.try_create(c, 1, PS_TCP, 2), Err(12));
    w.create(d, 1, PS_TCP);
    w.create(d, 1, PS_TCP);
    assert_eq!(w.try_create(d, 1, PS_TCP, 2), Err(12));
    w.close(c);
    w.create(d, 1, PS_TCP);
    assert_eq!(w.try_create(d, 1, 0x0107, 2), Err(EINVAL));
}

#[test]
fn an_address_is_resolved_when_its_neighbour_is_there() {
    let (mut w, c, id) = asking();
    w.run_for(Duration::from_millis(500));
    assert!(w.try_event(c).is_none());
    assert_eq!(w.resolve_addr(c, id, None, at("10.77.0.2", 1)), Err(EINVAL));
    assert_eq!(w.resolve_route(c, id), Err(EINVAL));
    let asked = w.hosts[0].env.silent.remove(&v4(1)).unwrap();
    assert!((8..20).contains(&asked), "{asked}");
    assert_eq!(w.expect(c, ADDR_RESOLVED).id, id);
    w.resolve_route(c, id).unwrap();
    w.expect(c, ROUTE_RESOLVED);
    w.destroy(c, id).unwrap();
    assert!(w.hosts[0].cm.table_sizes().is_empty());
}

#[test]
fn a_neighbour_that_does_not_answer_in_time_is_an_error_and_may_be_asked_for_again() {
    let (mut w, c, id) = asking();
    let start = w.now;
    assert_eq!(w.expect(c, ADDR_ERROR).status, -ETIMEDOUT);
    assert_eq!(w.now - start, Duration::from_secs(2));
    // Another one is looked for by the route to it.
    w.resolve_addr(c, id, None, at("10.77.0.3", 7174)).unwrap();
    assert_eq!(w.expect(c, ADDR_RESOLVED).id, id);
}

#[test]
fn an_id_that_waits_for_a_neighbour_may_go() {
    let (mut w, c, id) = asking();
    w.destroy(c, id).unwrap();
    assert!(w.hosts[0].cm.table_sizes().is_empty());
    assert_eq!(w.hosts[0].cm.next_deadline(), None);
}

#[test]
fn a_way_that_goes_while_its_neighbour_is_awaited_is_an_error() {
    let (mut w, c, id) = asking();
    let own = w.hosts[0].env.addresses.clone();
    w.hosts[0].env.addresses.clear();
    w.hosts[0].env.silent.clear();
    assert_eq!(w.expect(c, ADDR_ERROR).status, -101);
    w.hosts[0].env.addresses = own;
    w.resolve_addr(c, id, None, at("10.77.0.2", 7174)).unwrap();
    w.expect(c, ADDR_RESOLVED);
}

/// An id that waits for a neighbour.
fn asking() -> (World, Client, u32) {
    let mut w = World::new(3);
    let c = w.open(0, 1);
    w.hosts[0].env.silent.insert(v4(1), 0);
    let id = w.create(c, 1, PS_TCP);
    w.resolve_addr(c, id, None, at("10.77.0.2", 7174)).unwrap();
    (w, c, id)
}
