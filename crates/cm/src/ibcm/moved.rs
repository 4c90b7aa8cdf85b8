//! Connections whose end has moved to another host, with its ids and queue pairs.
//!
//! The manager there takes the connection over, and tells the peer's by an RTU, which comes from the new
//! address: RDMA CM does not use the private data of an RTU, and other managers ignore an RTU of a connection
//! that is established. The peer's manager sends what follows to that address, and answers with an RTU of the
//! same form. The first one is repeated until the answer comes.
//!
//! The private data consists of the eight bytes `PolyMove`, the version (1), 1 for the first RTU or 2 for
//! the answer, the number of the sender's addresses (at most 13), and each address as a GID.
//!
//! As all messages of the connection manager, it is believed because it names both communication ids.

use core::net::IpAddr;
use core::time::Duration;

use super::alternates::{addresses, put_addresses};
use super::connection::{Connection, Pending, State};
use super::endpoints::Endpoints;
use super::table::{Connections, DREQ_FIRST_TIMEOUT};
use super::{alternates, mad};
use crate::env::{ClientId, MadAddress};

const MAGIC: [u8; 8] = *b"PolyMove";
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Moved = 1,
    Heard = 2,
}

/// What such an RTU says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    kind: Kind,
    addresses: Vec<IpAddr>,
}

/// `None` if the private data says nothing of it.
pub(super) fn parse(private_data: &[u8]) -> Option<Word> {
    let [VERSION, kind, rest @ ..] = private_data.strip_prefix(&MAGIC)? else { return None };
    let kind = match kind {
        1 => Kind::Moved,
        2 => Kind::Heard,
        _ => return None,
    };
    Some(Word { kind, addresses: addresses(rest)? })
}

fn rtu(c: &Connection, kind: Kind) -> mad::Mad {
    let mut data = MAGIC.to_vec();
    data.extend([VERSION, kind as u8]);
    put_addresses(&mut data, c.alternates.own());
    mad::rtu_with(c, &data)
}

impl Connection {
    /// Whether the peer owes it no answer that it needs, and it owes none.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.state, State::Established | State::Idle)
    }

    /// Whether the peer owes it no answer that it needs.
    pub(crate) fn needs_no_answer(&self) -> bool {
        self.is_quiet() || self.state == State::DreqRcvd
    }
}

impl Connections {
    /// Whether a connection can move: nothing of it is under way.
    pub(crate) fn can_move(&self, local_id: u32) -> bool {
        self.get(local_id)
            .is_none_or(|c| c.is_quiet() && c.answer.is_none() && !c.migration.is_on())
    }

    /// Whether a connection with these numbers could be taken over.
    pub(crate) fn has_place_for(&self, c: &Connection) -> bool {
        let known = [
            self.by_remote_id(c.remote_guid, c.remote_id),
            self.by_remote_qpn(c.remote_guid, c.qp.remote_qpn),
        ];
        let new = c.state == State::Idle || known == [None; 2];
        new && self.get(c.local_id).is_none() && self.has_room()
    }

    /// Takes a connection over, whose messages go between these addresses from now on. If it `moved`, the
    /// peer is told.
    pub(crate) fn put(
        &mut self,
        now: Duration,
        connection: Connection,
        client: ClientId,
        local: Option<(IpAddr, u32)>,
        own: &[(IpAddr, u32)],
        moved: bool,
    ) {
        let mut c = connection;
        let local_id = c.local_id;
        c.client = Some(client);
        // Where the peer was heard last, if it has moved itself.
        c.endpoints.remote = c.heard_at.remote;
        if let Some((local, ifindex)) = local {
            c.endpoints = Endpoints { local, ifindex, ..c.endpoints };
        }
        c.heard_at = c.endpoints;
        let ends = c.endpoints;
        let told = if own.is_empty() { &[(ends.local, ends.ifindex)][..] } else { own };
        c.alternates.set_own(told);
        let established = c.state == State::Established;
        self.insert(c);
        if established {
            self.index_peer(local_id);
            if moved {
                self.tell_that_it_moved(now, local_id);
            }
        }
    }

    fn tell_that_it_moved(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.get_mut(local_id) else { return };
        let (mad, timeout) = (rtu(c, Kind::Moved), DREQ_FIRST_TIMEOUT.min(c.timeout));
        c.pending = Some(Pending { mad, timeout, attempt: 0, since: now, refused: false });
        let ends = c.endpoints;
        self.set_deadline(local_id, Some(now + timeout));
        self.send(ends, mad, Some(local_id), 0);
    }

    /// An end of this connection has moved, or has heard that this end has.
    pub(super) fn moved_received(&mut self, from: &MadAddress, local_id: u32, word: Word) {
        let Some(c) = self.get_mut(local_id) else { return };
        // A DREQ that is on its way to the old host is repeated to the new one.
        if !matches!(c.state, State::Established | State::DreqSent) || c.migration.is_on() {
            self.counters.mads_unmatched += 1;
            return;
        }
        let usable = word.addresses.into_iter().filter(|ip| alternates::is_global(*ip));
        c.alternates.set_peer(usable.collect());
        match word.kind {
            Kind::Moved => {
                let traffic_class = c.endpoints.traffic_class;
                c.endpoints = Endpoints::answering(from, traffic_class);
                let heard = rtu(c, Kind::Heard);
                self.send(Endpoints::answering(from, 0), heard, None, 0);
            }
            Kind::Heard if c.state == State::Established => {
                c.pending = None;
                self.set_deadline(local_id, None);
            }
            Kind::Heard => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_of_moving_is_none() {
        let whole = b"PolyMove\x01\x02\x01\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01";
        let word = Word { kind: Kind::Heard, addresses: vec![[10, 0, 0, 1].into()] };
        assert_eq!(parse(whole), Some(word));
        for (at, byte) in [(0, b'p'), (8, 2), (9, 3), (9, 0), (10, 14)] {
            let mut other = whole.to_vec();
            other[at] = byte;
            assert_eq!(parse(&other), None, "{at}");
        }
        assert_eq!((parse(&whole[..10]), parse(b"PolyMove"), parse(&[0; 224])), (None, None, None));
    }
}
