//! Programs whose connection manager is killed, and go on with another one on the same host.

mod common;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use common::pairs::*;
use common::*;
use polypath_cm::{CantMove, Cm, CmConfig, KeptId};

const SECOND: Duration = Duration::from_secs(1);

fn config() -> CmConfig {
    CmConfig { keeps: true, ..CmConfig::default() }
}

/// Two hosts whose managers note changes, with a connection from the first to the second.
fn two(seed: u64) -> (World, Client, Client, (u32, u32)) {
    let mut w = World::with_config(2, seed, &config());
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.listener(b, 0x100, PS_TCP, any());
    let ids = establish(&mut w, a, b, server());
    (w, a, b, ids)
}

/// What a host has written down of each id.
#[derive(Default)]
struct Written(BTreeMap<u32, Vec<u8>>);

impl Written {
    fn note(&mut self, cm: &mut Cm) {
        for id in cm.take_changed_ids() {
            match cm.kept_id(id) {
                Some(kept) => drop(self.0.insert(id, serde_json::to_vec(&kept).unwrap())),
                None => drop(self.0.remove(&id)),
            }
        }
    }
}

/// Another manager takes the place of a client's, with what was written down until now.
fn kill(w: &mut World, c: Client) -> Result<(), CantMove> {
    let mut written = Written::default();
    let host = &mut w.hosts[c.host];
    written.note(&mut host.cm);
    let decode = |bytes: &Vec<u8>| -> KeptId { serde_json::from_slice(bytes).unwrap() };
    let mut kept: Vec<KeptId> = written.0.values().map(decode).collect();
    kept.retain(|id| id.file() == c.file);
    let mut rng = Rng::new(w.rng.next());
    host.cm = Cm::new(config(), move || (rng.next() >> 32) as u32);
    host.env.groups.clear();
    w.open(c.host, c.file.0);
    let host = &mut w.hosts[c.host];
    host.cm.restore_file(w.now, c.file, kept, &mut host.env)
}

/// Whichever manager is killed, and whoever ends the connection then, both learn of it.
#[test]
fn connections_end_properly_after_a_manager_was_killed() {
    for seed in 0..40 {
        let (mut w, a, b, (id, child)) = two(seed + 1);
        w.link_faults.loss = seed % 4 * 10;
        let client_ends = seed & 1 == 0;
        for (n, c) in [a, b].into_iter().enumerate() {
            if seed % 3 != n as u64 {
                kill(&mut w, c).unwrap();
            }
        }
        let sent = w.sent.len();
        w.run_for(SECOND * 20);
        assert_eq!(w.sent.len(), sent, "nothing has changed for a peer");
        let (ender, other) =
            if client_ends { ((a, id), (b, child)) } else { ((b, child), (a, id)) };
        end(&mut w, ender, other);
    }
}

#[test]
fn listeners_listen_and_ids_that_are_not_connected_go_on() {
    let (mut w, a, b, _) = two(2);
    let resolved = w.resolved(a, 0xd, PS_TCP, server());
    kill(&mut w, a).unwrap();
    kill(&mut w, b).unwrap();
    assert_eq!(w.hosts[1].cm.table_sizes().ports, 1);
    w.connect(a, resolved, &Param::new(0x10_0009, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(request.uid, 0x100);
    w.accept(b, request.id, 0xe, &Param::new(0x20_0009, b"")).unwrap();
    assert_eq!(w.expect(a, CONNECT_RESPONSE).id, resolved);
    let (id, _) = establish_again(&mut w, a, b, resolved, request.id);
    assert_ne!(id, resolved);
}

/// Confirms one connection, and makes another.
fn establish_again(w: &mut World, a: Client, b: Client, id: u32, child: u32) -> (u32, u32) {
    w.confirm(a, id).unwrap();
    assert_eq!(w.expect(b, ESTABLISHED).id, child);
    establish(w, a, b, server())
}

#[test]
fn what_was_under_way_ends() {
    let (mut w, a, b, (id, child)) = two(3);
    let connecting = w.resolved(a, 0xd, PS_TCP, server());
    w.connect(a, connecting, &Param::new(0x10_0009, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    kill(&mut w, a).unwrap();
    let told = w.expect(a, UNREACHABLE);
    assert_eq!((told.id, told.status), (connecting, -110));

    // The peer gets no RTU.
    w.accept(b, request.id, 0xe, &Param::new(0x20_0009, b"")).unwrap();
    kill(&mut w, b).unwrap();
    assert_eq!(w.expect(b, UNREACHABLE).id, request.id);

    // The first DREQ is lost.
    w.disconnect(a, id).unwrap();
    kill(&mut w, a).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
    kill(&mut w, b).unwrap();
    w.disconnect(b, child).unwrap();
    assert_eq!(w.expect(a, DISCONNECTED).status, 0);
    for id in [id, connecting] {
        w.destroy(a, id).unwrap();
    }
}

/// A request that the program has not accepted is lost, but the peer repeats it.
#[test]
fn a_request_that_nobody_had_accepted_comes_again() {
    let (mut w, a, b, _) = two(4);
    let id = w.resolved(a, 0xd, PS_TCP, server());
    w.connect(a, id, &Param::new(0x10_0009, b"again")).unwrap();
    let lost = w.expect(b, CONNECT_REQUEST);
    kill(&mut w, b).unwrap();
    assert!(w.accept(b, lost.id, 0xe, &Param::new(1, b"")).is_err());
    let request = w.expect(b, CONNECT_REQUEST);
    assert!(request.conn_private().starts_with(b"again"));
    w.accept(b, request.id, 0xe, &Param::new(0x20_0009, b"")).unwrap();
    assert_eq!(w.expect(a, CONNECT_RESPONSE).id, id);
}

/// They come in the order in which they were queued, and before what the successor tells itself.
#[test]
fn events_that_the_program_has_not_got_are_not_lost() {
    let (mut w, a, _, (id, _)) = two(6);
    let mut ids: Vec<u32> = (0..20).map(|uid| w.create(a, 0x20 + uid, PS_TCP)).collect();
    ids.reverse();
    ids.iter().for_each(|id| w.resolve_addr(a, *id, None, server()).unwrap());
    w.disconnect(a, id).unwrap();
    w.run_unread(SECOND * 600);
    for _ in 0..2 {
        kill(&mut w, a).unwrap();
        w.run_unread(SECOND);
    }
    let mut got: Vec<_> = (0..22).map(|_| w.event(a)).map(|e| (e.id, e.kind)).collect();
    let of_connection = got.split_off(20);
    assert_eq!(of_connection, [(id, DISCONNECTED), (id, TIMEWAIT_EXIT)]);
    assert_eq!(got, ids.iter().map(|id| (*id, ADDR_RESOLVED)).collect::<Vec<_>>());
    w.run_for(SECOND);
    assert!(w.try_event(a).is_none());
    kill(&mut w, a).unwrap();
    w.run_for(SECOND);
    assert!(w.try_event(a).is_none(), "they come once");
}

#[test]
fn requests_that_are_not_kept_take_no_place_in_the_backlog() {
    const BACKLOG: u32 = 4;
    let mut w = World::with_config(2, 7, &config());
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let listener = w.create(b, 0x100, PS_TCP);
    w.bind(b, listener, server()).unwrap();
    w.listen(b, listener, BACKLOG).unwrap();
    let resolve = |n| w.resolved(a, u64::from(n), PS_TCP, server());
    let ids: Vec<u32> = (0..BACKLOG).map(resolve).collect();
    for (n, id) in ids.into_iter().enumerate() {
        w.connect(a, id, &Param::new(0x10_0009 + n as u32, b"")).unwrap();
    }
    w.run_unread(Duration::from_millis(100));
    kill(&mut w, b).unwrap();
    for _ in 0..BACKLOG {
        w.expect(b, CONNECT_REQUEST);
    }
}

#[test]
fn groups_are_joined_again() {
    let mut w = World::with_config(1, 5, &config());
    let c = w.open(0, 1);
    let id = w.create(c, 0xa, PS_UDP);
    w.bind(c, id, SocketAddr::new(v4(0), 0)).unwrap();
    let groups: Vec<IpAddr> = (1..20).map(|n| IpAddr::from([239, 1, 1, n])).collect();
    let mut join = |group| w.join(c, id, 0x77, group).unwrap();
    let numbers: Vec<u32> = groups.iter().map(|group| join(*group)).collect();
    w.run_for(SECOND);
    kill(&mut w, c).unwrap();
    let joined: Vec<IpAddr> = w.hosts[0].env.groups.iter().map(|(_, group)| *group).collect();
    assert_eq!(joined, groups[..polypath_cm::KEPT_MEMBERSHIPS_MAX]);
    w.leave(c, numbers[0]).unwrap();
    assert!(w.leave(c, numbers[18]).is_err(), "there was no room for it");
    w.destroy(c, id).unwrap();
    assert!(w.hosts[0].env.groups.is_empty());
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut w = World::with_config(3, 6, &config());
    let (a, b, other) = (w.open(0, 1), w.open(1, 1), w.open(2, 1));
    w.listener(b, 0x100, PS_TCP, any());
    let (id, _) = establish(&mut w, a, b, server());
    let kept = w.hosts[0].cm.kept_id(id).unwrap();
    let host = &mut w.hosts[0];
    let restored = host.cm.restore_file(w.now, a.file, vec![kept.clone()], &mut host.env);
    assert_eq!(restored, Err(CantMove::Number), "the id is there");
    let host = &mut w.hosts[2];
    let twice = vec![kept.clone(), kept];
    let restored = host.cm.restore_file(w.now, other.file, twice, &mut host.env);
    assert_eq!(restored, Err(CantMove::Invalid));
    assert_eq!((w.hosts[0].cm.table_sizes().ids, w.hosts[2].cm.table_sizes().ids), (1, 0));
}

/// Whatever changes of an id is noted, by whichever message, command or timer.
#[test]
fn what_is_written_down_is_never_old() {
    for seed in 0..30 {
        let (mut w, a, b, (id, child)) = two(seed + 1);
        w.link_faults =
            LinkFaults { loss: 20, duplication: 20, jitter: Duration::from_millis(400) };
        let mut written = [Written::default(), Written::default()];
        let ids: Vec<u32> = (0..6).map(|n| w.resolved(a, 0xa0 + n, PS_TCP, server())).collect();
        for step in 0..400 {
            match (step, w.rng.below(6)) {
                (20..200, n) => {
                    let qpn = 0x10_0000 + n as u32;
                    let _ = w.connect(a, ids[n as usize], &Param::new(qpn, b""));
                }
                (300, 0..3) => w.disconnect(a, id).unwrap_or_default(),
                (300, _) => w.disconnect(b, child).unwrap_or_default(),
                (350.., n) => w.disconnect(a, ids[n as usize]).unwrap_or_default(),
                _ => {}
            }
            w.step(w.now + SECOND, true);
            while let Some(event) = w.try_event(b) {
                if event.kind == CONNECT_REQUEST {
                    let param = Param::new(0x20_0000 + event.id, b"");
                    let _ = w.accept(b, event.id, 0xb0, &param);
                }
            }
            while let Some(event) = w.try_event(a) {
                if event.kind == CONNECT_RESPONSE {
                    let _ = w.confirm(a, event.id);
                }
            }
            for (host, written) in w.hosts.iter_mut().zip(&mut written) {
                written.note(&mut host.cm);
                for number in 0..200 {
                    let now = host.cm.kept_id(number);
                    let now = now.map(|kept| serde_json::to_vec(&kept).unwrap());
                    assert_eq!(written.0.get(&number), now.as_ref(), "seed {seed} step {step}");
                }
            }
        }
    }
}
