//! Two hosts, one of which listens.

use core::net::SocketAddr;

use super::{
    CONNECT_REQUEST, CONNECT_RESPONSE, Client, DISCONNECTED, ESTABLISHED, PS_TCP, Param, World, v4,
};

pub const PORT: u16 = 7174;

pub fn server() -> SocketAddr {
    SocketAddr::new(v4(1), PORT)
}

pub fn any() -> SocketAddr {
    "0.0.0.0:7174".parse().unwrap()
}

/// A server listening on host 1 and a client on host 0.
pub fn pair() -> (World, Client, Client, u32) {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let listener = w.listener(b, 0x100, PS_TCP, any());
    (w, a, b, listener)
}

/// One end ends a connection, and then the other one. Both hear of it.
pub fn end(w: &mut World, ender: (Client, u32), other: (Client, u32)) {
    let seed = w.seed;
    w.disconnect(ender.0, ender.1).unwrap();
    assert_eq!(w.expect(other.0, DISCONNECTED).id, other.1, "seed {seed}");
    w.disconnect(other.0, other.1).unwrap();
    assert_eq!(w.expect(ender.0, DISCONNECTED).status, 0, "seed {seed}");
}

/// Connects a new id of `a` to a listener of `b`; returns both ends' ids.
pub fn establish(w: &mut World, a: Client, b: Client, to: SocketAddr) -> (u32, u32) {
    let id = w.resolved(a, 0xa, PS_TCP, to);
    w.connect(a, id, &Param::new(0x10_0000 + id, b"ping")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.accept(b, request.id, 0xb, &Param::new(0x20_0000 + request.id, b"pong")).unwrap();
    assert_eq!(w.expect(a, CONNECT_RESPONSE).id, id);
    w.confirm(a, id).unwrap();
    let established = w.expect(b, ESTABLISHED);
    assert_eq!((established.id, established.uid), (request.id, 0xb));
    (id, request.id)
}
