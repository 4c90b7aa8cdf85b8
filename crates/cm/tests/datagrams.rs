//! Datagram services: resolution of service ids, and multicast.

mod common;

use core::net::SocketAddr;
use core::time::Duration;

use common::*;
use polypath_cm::CmConfig;
use polypath_wire::Gid;
use polypath_wire::cm::CmMessage;

const UDP_QKEY: u32 = 0x0123_4567;

fn server() -> SocketAddr {
    SocketAddr::new(v4(1), 7174)
}

fn pair(seed: u64) -> (World, Client, Client) {
    let mut w = World::with_config(2, seed, &CmConfig::default());
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.listener(b, 0x100, PS_UDP, "[::]:7174".parse().unwrap());
    (w, a, b)
}

#[test]
fn a_service_tells_its_queue_pair() {
    let (mut w, a, b) = pair(1);
    let id = w.resolved(a, 0xa, PS_UDP, server());
    assert_eq!(w.qp_attr(a, id, 1).unwrap().qkey(), UDP_QKEY);
    w.connect(a, id, &Param::new(0x11, b"who?")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(request.ud_private().len(), 180);
    assert_eq!(&request.ud_private()[..5], b"who?\0");
    let attr = w.qp_attr(b, request.id, 1).unwrap();
    assert_eq!((attr.mask(), attr.qkey()), (0x71, UDP_QKEY));
    w.accept(b, request.id, 0xb, &Param::new(0x22, b"me")).unwrap();

    let resolved = w.expect(a, ESTABLISHED);
    assert_eq!((resolved.id, resolved.uid, resolved.status), (id, 0xa, 0));
    assert_eq!((resolved.qp_num(), resolved.qkey()), (0x22, UDP_QKEY));
    assert_eq!(resolved.ah_dgid(), Gid::from_ip(v4(1)).0);
    assert_eq!(resolved.ud_private().len(), 136);
    assert_eq!(&resolved.ud_private()[..3], b"me\0");
    assert_eq!(w.sent_names(), ["SIDR_REQ", "SIDR_REP"]);
    assert_eq!(w.disconnect(a, id), Ok(()));
    w.destroy(a, id).unwrap();
    w.destroy(b, request.id).unwrap();
    assert_eq!(w.hosts[0].cm.connection_count() + w.hosts[1].cm.connection_count(), 0);
}

#[test]
fn a_service_may_refuse_or_not_exist() {
    let (mut w, a, b) = pair(1);
    let id = w.resolved(a, 0xa, PS_UDP, server());
    w.connect(a, id, &Param::new(0x11, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.reject(b, request.id, b"no").unwrap();
    let refused = w.expect(a, UNREACHABLE);
    assert_eq!((refused.status, &refused.ud_private()[..3]), (2, &b"no\0"[..]));

    let id = w.resolved(a, 0xa, PS_UDP, SocketAddr::new(v4(1), 1));
    w.connect(a, id, &Param::new(0x11, b"")).unwrap();
    assert_eq!(w.expect(a, UNREACHABLE).status, 1);
}

#[test]
fn an_unread_request_is_refused_when_its_listener_goes() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let listener = w.listener(b, 0x100, PS_UDP, server());
    let id = w.resolved(a, 0xa, PS_UDP, server());
    w.connect(a, id, &Param::new(0x11, b"")).unwrap();
    w.run_unread(Duration::from_millis(10));
    w.destroy(b, listener).unwrap();
    assert_eq!(w.expect(a, UNREACHABLE).status, 2);
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
}

#[test]
fn silence_is_unreachable() {
    let (mut w, a, _) = pair(1);
    w.filter = Box::new(|_| false);
    let id = w.resolved(a, 0xa, PS_UDP, server());
    w.connect(a, id, &Param::new(0x11, b"")).unwrap();
    assert_eq!(w.expect(a, UNREACHABLE).status, -ETIMEDOUT);
    assert_eq!(w.sent_names().len(), 18);
}

#[test]
fn a_lost_answer_is_given_again_and_the_application_asked_once() {
    for seed in 0..200 {
        let (mut w, a, b) = pair(seed);
        w.link_faults = LinkFaults {
            loss: seed % 30,
            duplication: seed % 30,
            jitter: Duration::from_millis(seed % 7 * 1000),
        };
        if seed == 0 {
            let mut lost = 0;
            w.filter = Box::new(move |mad| {
                lost += i32::from(matches!(mad.message, CmMessage::SidrRep(_)));
                !matches!(mad.message, CmMessage::SidrRep(_)) || lost > 3
            });
        }
        let id = w.resolved(a, 0xa, PS_UDP, server());
        w.connect(a, id, &Param::new(0x11, b"")).unwrap();
        let request = w.expect(b, CONNECT_REQUEST);
        w.accept(b, request.id, 0xb, &Param::new(0x22, b"")).unwrap();
        w.expect(a, ESTABLISHED);
        w.run_for(Duration::from_secs(100));
        assert!(w.try_event(b).is_none(), "seed {seed}");
        assert!(w.try_event(a).is_none(), "seed {seed}");
    }
}

#[test]
fn a_group_is_joined_at_once_and_left() {
    let mut w = World::new(1);
    let a = w.open(0, 1);
    for (group, mgid) in [("239.1.1.1", "::ffff:239.1.1.1"), ("ff0e::101", "ff0e::101")] {
        let group: core::net::IpAddr = group.parse().unwrap();
        let local = if group.is_ipv4() { v4(0) } else { v6(0) };
        let id = w.create(a, 0xa, PS_UDP);
        assert_eq!(w.join(a, id, 0xc, group), Err(EINVAL), "no device yet");
        w.bind(a, id, SocketAddr::new(local, 0)).unwrap();
        let membership = w.join(a, id, 0xc, group).unwrap();
        assert!(w.hosts[0].env.groups.contains(&(2, group)));
        let joined = w.expect(a, MULTICAST_JOIN);
        assert_eq!((joined.uid, joined.id, joined.status), (0xc, membership, 0));
        assert_eq!((joined.qp_num(), joined.qkey()), (0xff_ffff, UDP_QKEY));
        let mgid: core::net::Ipv6Addr = mgid.parse().unwrap();
        assert_eq!(joined.ah_dgid(), mgid.octets());
        // is_global, port 1
        assert_eq!(joined.bytes[28 + 29..28 + 31], [1, 1]);
        assert_eq!(w.leave(a, membership), Ok(1));
        assert!(w.hosts[0].env.groups.is_empty());
        assert_eq!(w.leave(a, membership), Err(ENOENT));
        assert_eq!(w.destroy(a, id), Ok(1));
    }
}

#[test]
fn groups_are_left_with_their_id_and_their_file() {
    let mut w = World::new(1);
    let (a, other) = (w.open(0, 1), w.open(0, 2));
    let group = "239.1.1.1".parse().unwrap();
    let id = w.create(a, 0xa, PS_UDP);
    w.bind(a, id, SocketAddr::new(v4(0), 0)).unwrap();
    let membership = w.join(a, id, 0xc, group).unwrap();
    assert_eq!(w.leave(other, membership), Err(EINVAL), "another file's");
    assert_eq!(w.join(a, id, 0xc, v4(1)), Err(EINVAL), "not a group");
    w.close(a);
    assert!(w.hosts[0].env.groups.is_empty());

    let a = w.open(0, 3);
    let tcp = w.create(a, 0xa, PS_TCP);
    w.bind(a, tcp, SocketAddr::new(v4(0), 0)).unwrap();
    assert_eq!(w.join(a, tcp, 0xc, group), Err(EINVAL), "connected ids cannot join groups");
}
