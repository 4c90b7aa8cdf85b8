//! Programs that move to another host with their ids.

mod common;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use common::pairs::*;
use common::*;
use polypath_cm::{CantMove, MovedFile};
use polypath_wire::cm::CmMessage;

const MOVED: usize = 2;

/// Two hosts with a connection, and a third one, to which the client or the server can move.
fn three(seed: u64) -> (World, Client, Client, (u32, u32)) {
    let mut w = World::with_config(3, seed, &polypath_cm::CmConfig::default());
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.listener(b, 0x100, PS_TCP, any());
    let ids = establish(&mut w, a, b, server());
    (w, a, b, ids)
}

/// What the two managers say to each other.
fn over_the_wire(moved: &MovedFile) -> MovedFile {
    let text = serde_json::to_vec(moved).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn put(w: &mut World, moved: &MovedFile) -> Result<Client, CantMove> {
    put_on(w, MOVED, 1, moved)
}

fn put_on(w: &mut World, at: usize, file: u32, moved: &MovedFile) -> Result<Client, CantMove> {
    let c = w.open(at, file);
    let host = &mut w.hosts[at];
    host.cm.put_file(w.now, c.file, over_the_wire(moved), &mut host.env)?;
    Ok(c)
}

fn take(w: &mut World, c: Client) -> Option<MovedFile> {
    let host = &mut w.hosts[c.host];
    host.cm.take_file(c.file, &mut host.env)
}

/// Moves a program to the third host.
fn move_away(w: &mut World, c: Client) -> Client {
    let moved = take(w, c).expect("nothing is under way");
    put(w, &moved).expect("the third host has nothing")
}

fn is_empty(w: &World, host: usize) -> bool {
    let sizes = w.hosts[host].cm.table_sizes();
    let of_ids = sizes.ids + sizes.ports + sizes.memberships;
    of_ids + sizes.connections + sizes.by_peer + sizes.timers == 0
}

/// Whoever moves, and whoever ends the connection then, both learn of it.
#[test]
fn connections_end_properly_after_a_move() {
    for seed in 0..40 {
        let (mut w, mut a, mut b, (id, child)) = three(seed + 1);
        w.link_faults.loss = seed % 4 * 10;
        let (client_moves, client_ends) = (seed & 1 == 0, seed & 2 == 0);
        let former = if client_moves { a.host } else { b.host };
        let mover = if client_moves { &mut a } else { &mut b };
        *mover = move_away(&mut w, *mover);
        assert!(is_empty(&w, former), "seed {seed}");
        w.run_for(Duration::from_secs(20));
        let (ender, other) =
            if client_ends { ((a, id), (b, child)) } else { ((b, child), (a, id)) };
        end(&mut w, ender, other);
    }
}

#[test]
fn a_message_to_the_new_address_is_all_that_the_peer_needs() {
    let (mut w, a, b, (id, child)) = three(1);
    let sent = w.sent.len();
    let b = move_away(&mut w, b);
    w.run_for(Duration::from_secs(100));
    // The first message was answered, so it was not repeated.
    let to: Vec<_> = w.sent[sent..].iter().map(|mad| mad.remote).collect();
    assert_eq!(to, [v4(0), v4(MOVED)]);
    w.disconnect(a, id).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
    assert_eq!(w.sent[sent + 2].remote, v4(MOVED));
}

/// Its peer is told of both moves.
#[test]
fn a_program_moves_again() {
    let (mut w, a, b, (id, child)) = three(3);
    let b = move_away(&mut w, b);
    w.run_for(Duration::from_secs(1));
    let moved = take(&mut w, b).unwrap();
    assert!(is_empty(&w, MOVED));
    let back = put_on(&mut w, 1, 2, &moved).unwrap();
    w.run_for(Duration::from_secs(1));
    w.disconnect(a, id).unwrap();
    assert_eq!(w.expect(back, DISCONNECTED).id, child);
}

/// One moves while the other one is away, too, to the same host.
#[test]
fn both_ends_move_one_after_the_other() {
    let (mut w, a, b, (first, first_child)) = three(4);
    // The hosts count from 0, and in turn.
    let others: Vec<u32> = (0..4).map(|_| w.create(a, 0x55, PS_TCP)).collect();
    let (id, child) = establish(&mut w, a, b, server());
    for other in others.into_iter().chain([first]) {
        w.destroy(a, other).unwrap();
    }
    assert_eq!(w.expect(b, DISCONNECTED).id, first_child);
    w.destroy(b, first_child).unwrap();
    let a = move_away(&mut w, a);
    w.run_for(Duration::from_secs(1));
    let moved = take(&mut w, b).unwrap();
    let b = put_on(&mut w, MOVED, 2, &moved).unwrap();
    w.run_for(Duration::from_secs(1));
    w.disconnect(a, id).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
}

#[test]
fn a_listener_listens_where_it_has_moved_to() {
    let (mut w, a, b, _) = three(5);
    let b = move_away(&mut w, b);
    let to = SocketAddr::new(v4(MOVED), PORT);
    let (id, child) = establish(&mut w, a, b, to);
    w.disconnect(b, child).unwrap();
    assert_eq!(w.expect(a, DISCONNECTED).id, id);
}

#[test]
fn what_is_under_way_does_not_move() {
    let (mut w, a, b, (id, child)) = three(6);
    let immobile = |w: &mut World, c: Client| {
        let client = polypath_cm::ClientId(u64::from(c.file.0));
        assert!(take(w, c).is_none());
        w.hosts[c.host].cm.immobile_ids(client)
    };
    let new = w.resolved(a, 0xc, PS_TCP, server());
    w.connect(a, new, &Param::new(0x10_0009, b"")).unwrap();
    assert_eq!(immobile(&mut w, a), 1, "a request waits for its answer");
    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(immobile(&mut w, b), 1, "a request waits for the program");
    w.reject(b, request.id, b"").unwrap();
    w.destroy(b, request.id).unwrap();
    w.expect(a, REJECTED);
    w.disconnect(a, id).unwrap();
    assert_eq!(immobile(&mut w, a), 1, "a connection ends");
    w.expect(b, DISCONNECTED);
    w.disconnect(b, child).unwrap();
    w.expect(a, DISCONNECTED);
    w.expect(a, TIMEWAIT_EXIT);
    w.expect(b, TIMEWAIT_EXIT);
    for c in [a, b] {
        assert!(take(&mut w, c).is_some());
    }
}

#[test]
fn what_is_in_use_on_the_new_host_is_refused_and_changes_nothing() {
    let (mut w, _, b, _) = three(7);
    let moved = take(&mut w, b).unwrap();
    let other = w.open(MOVED, 9);
    let id = w.create(other, 0x55, PS_TCP);
    assert_eq!(put(&mut w, &moved).err(), Some(CantMove::Number), "the id");
    // Ids are numbered in turn, so these are others.
    let same_port: Vec<u32> = (0..4).map(|_| w.create(other, 0x56, PS_TCP)).collect();
    w.bind(other, *same_port.last().unwrap(), any()).unwrap();
    for id in same_port[..3].iter().chain([&id]) {
        w.destroy(other, *id).unwrap();
    }
    assert_eq!(put(&mut w, &moved).err(), Some(CantMove::Port(PORT)));
    let before = w.hosts[MOVED].cm.table_sizes();
    assert_eq!((before.ids, before.connections, before.ports), (1, 0, 1));
    w.destroy(other, *same_port.last().unwrap()).unwrap();
    put(&mut w, &moved).unwrap();
    assert_eq!(put(&mut w, &moved).err(), Some(CantMove::Number), "twice");
}

/// Linux's connection manager ignores RTUs of established connections.
#[test]
fn a_peer_that_knows_nothing_of_it_is_not_asked_for_ever() {
    let (mut w, _, b, _) = three(8);
    w.filter = Box::new(|mad| !matches!(mad.message, CmMessage::Rtu(_)));
    let b = move_away(&mut w, b);
    w.run_for(Duration::from_secs(200));
    let sent = w.sent.len();
    w.run_for(Duration::from_secs(200));
    assert_eq!(w.sent.len(), sent);
    assert!(w.try_event(b).is_none());
    assert_eq!(w.hosts[MOVED].cm.connection_count(), 1);
}

/// The peer has ended the connection while nobody was there to be told.
#[test]
fn a_connection_that_the_peer_has_ended_meanwhile_ends() {
    let (mut w, a, b, (id, child)) = three(9);
    let moved = take(&mut w, b).unwrap();
    w.disconnect(a, id).unwrap();
    w.expect(a, DISCONNECTED);
    w.destroy(a, id).unwrap();
    w.run_for(Duration::from_secs(60));
    let b = put(&mut w, &moved).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
}

/// The interface has another number there.
#[test]
fn groups_are_left_here_and_joined_there() {
    let (mut w, a, _, _) = three(10);
    w.hosts[MOVED].env.addresses.iter_mut().for_each(|(_, ifindex)| *ifindex = 7);
    let id = w.create(a, 0x55, PS_UDP);
    w.bind(a, id, SocketAddr::new(v4(0), 0)).unwrap();
    let groups: Vec<IpAddr> = (1..40).map(|n| IpAddr::from([239, 1, 1, n])).collect();
    let numbers: Vec<u32> = groups.iter().map(|g| w.join(a, id, 0x77, *g).unwrap()).collect();
    assert!(take(&mut w, a).is_none(), "the program has not heard that it has joined");
    for _ in &groups {
        w.expect(a, MULTICAST_JOIN);
    }
    let moved = take(&mut w, a).unwrap();
    assert!(is_empty(&w, 0) && w.hosts[0].env.groups.is_empty());

    let other = w.open(MOVED, 9);
    let theirs: Vec<u32> = (0..4).map(|_| w.create(other, 0x56, PS_UDP)).collect();
    w.bind(other, theirs[3], SocketAddr::new(v4(MOVED), 0)).unwrap();
    let number = w.join(other, theirs[3], 0x78, groups[0]).unwrap();
    assert_eq!(number, numbers[0], "both managers count from the same number here");
    theirs[..3].iter().for_each(|id| assert!(w.destroy(other, *id).is_ok()));
    assert_eq!(put(&mut w, &moved).err(), Some(CantMove::Number));
    w.destroy(other, theirs[3]).unwrap();

    let a = put(&mut w, &moved).unwrap();
    let joined: Vec<_> = w.hosts[MOVED].env.groups.iter().copied().collect();
    let by_its_interface: Vec<_> = groups.iter().map(|group| (7, *group)).collect();
    assert_eq!(joined, by_its_interface);
    assert_eq!(w.leave(a, numbers[3]), Ok(1), "it was told of one event, on the other host");
    w.destroy(a, id).unwrap();
    assert!(w.hosts[MOVED].env.groups.is_empty());
}
