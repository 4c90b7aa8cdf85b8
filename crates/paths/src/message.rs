//! The path manager's packets, byte by byte.
//!
//! All numbers are big-endian, all lengths multiples of four; addresses take 16 bytes (IPv4 as
//! `::ffff:a.b.c.d`). Each packet begins with a BTH (P_Key 0xFFFF, PSN 0) and ends with the ICRC, which
//! the tables leave out.
//!
//! # Handshake
//!
//! UD SEND-Only (0x64) to the *connected* queue pair of the peer, DETH with Q_Key [`HELLO_QKEY`] and
//! the sender's queue pair number. An RC or UC queue pair that knows nothing of it drops a UD packet
//! silently (IBTA 9.6: transport service and queue pair do not match). Payload:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | magic "PPTH" |
//! | 4 | version, 1 |
//! | 5 | kind: 1 HELLO, 2 HELLO_ACK, 3 HELLO_DONE, 4 ENDED |
//! | 6 | slot of the sender |
//! | 7 | number of addresses, at most 8 |
//! | 8 | instance of the sender's lane (8) |
//! | 16 | nonce of the sender (16) |
//! | 32 | nonce of the receiver (16); HELLO: zero |
//! | 48 | queue pair of the sender (4) |
//! | 52 | queue pair of the receiver (4) |
//! | 56 | the sender's number for the association (4); HELLO: zero |
//! | 60 | bytes of payload that the sender's receive buffer takes (4) |
//! | 64 | capabilities (4), see below: bits 0 path sets; 1 joins READs; 2, 16 to 18 ports; 3 local paths; |
//! |    | 4 echoes marks; 5 TCP paths; 6 drops copies of datagrams; 8 to 12 reach |
//! | 68 | version of the address list (4) |
//! | 72 | addresses: 20 bytes each, see below |
//! | end | HELLO: 16 zero bytes; else authentication code (16) |
//!
//! An address: 0 address (16), 16 prefix length (1), 17 flags (1, zero), 18 interface (2). Addresses
//! with equal interface numbers are on one interface of the sender.
//!
//! The reach *e* says that the sender keeps packets that arrive early within 2^e bytes, which are 2^e /
//! path MTU PSNs (256 to 65,536), and that it understands the blocks of an acknowledgement. 0: 256
//! PSNs, no blocks.
//!
//! Source ports: the sender understands the index of a port in a TABLE, and wants so many paths between each
//! pair of addresses, less one, as bits 16 to 18 say. ADDRESSES says how many it wants now; 0: as before,
//! which an older version says.
//!
//! # Probes and control
//!
//! Opcodes 0xD8 PROBE, 0xD9 PROBE_REPLY, 0xDA CONTROL, to the management address of the peer's lane
//! (slot << 16). No further header; payload:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | number of the path that this is sent on |
//! | 2 | generation of that path (2) |
//! | 4 | the receiver's number for the association (4) |
//! | 8 | the sender's number for the association (4) |
//! | 12 | kind: PROBE and PROBE_REPLY 0; CONTROL 1 ADDRESSES, 2 TABLE, 3 NOTICE, 4 BYE |
//! | 13 | flags: bit 0 answer wanted (with a NOTICE) |
//! | 14 | number of path states, at most 8 |
//! | 15 | zero |
//! | 16 | sequence number (8), from 1, per direction and association |
//! | 24 | number of the probe (4); CONTROL: zero |
//! | 28 | zero (4) |
//! | 32 | latest version of the receiver's address list that the sender has (4) |
//! | 36 | latest version of the path table that the sender has (4) |
//! | 40 | path states: path number (1), state (1), generation (2) |
//! | | ADDRESSES: version (4), count (1), source ports (1), zero (2), addresses as above |
//! | | TABLE: version (4), count (1), zero (3), entries as below |
//! | end | authentication code (16) |
//!
//! An entry of a TABLE, 36 bytes: path number (1), kind and port (1), lowest generation (2), address of the
//! leader (16), address of the other (16). The kind is in the high four bits: 0 UDP, 1 shared memory, 2
//! TCP; the index of the source port is in the low four.
//!
//! States: 0 probing, 1 up, 2 suspect, 3 dead, 4 recovering, 5 down.
//!
//! # Keys
//!
//! Both lanes' instances and nonces, the smaller nonce (then instance) first, instance (8) before
//! nonce (16), are hashed by SipHash-2-4-128 with the key "polypath paths 1" (16 bytes); the result
//! is the association's key. An authentication code is SipHash-2-4-128 with that key over: instance
//! of the sender (8), BTH opcode (1), source address (16), destination address (16), payload up to
//! the code. Hashes are written as the algorithm's reference implementation does: little-endian.
//!
//! The leader, who numbers the paths, is the lane with the smaller nonce.

use core::net::IpAddr;

use polypath_wire::bth::Bth;
use polypath_wire::ext::Deth;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Headers;

use crate::bytes::{Reader, ip_bytes, is_unicast};
use crate::key::{Ends, Key, MAC_LEN, Nonce};
use crate::types::{MAX_PATHS, MAX_PORTS, PathState, Refused};
use polypath_types::PeerAbilities;

pub use polypath_wire::ended::HELLO_QKEY;

/// The most addresses in a list.
pub const MAX_ADDRESSES: usize = 8;

const MAGIC: [u8; 4] = *b"PPTH";
const VERSION: u8 = 1;
const CAPABILITY_PATH_SETS: u32 = 1;
const CAPABILITY_JOINS_READS: u32 = 1 << 1;
const CAPABILITY_ECHOES_MARKS: u32 = 1 << 4;
const CAPABILITY_PORTS: u32 = 1 << 2;
const CAPABILITY_LOCAL: u32 = 1 << 3;
const CAPABILITY_TCP: u32 = 1 << 5;
const CAPABILITY_DROPS_COPIES: u32 = 1 << 6;
const REACH_SHIFT: u32 = 8;
const REACH_MASK: u32 = 0x1f;
const PORTS_SHIFT: u32 = 16;
const PORTS_MASK: u32 = 7;
/// The bits of a table entry's second byte that hold the index of the source port.
const PORT_BITS: u8 = 0x0f;
/// The receive window in ADDRESSES counts these, bytes.
const WINDOW_UNIT: u32 = 4096;
const FLAG_ANSWER: u8 = 1;
/// Where the kind is in the second byte of a table's entry.
const KIND_SHIFT: u32 = 4;

/// An address as its owner announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) ip: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) interface: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HelloKind {
    Hello = 1,
    Ack = 2,
    Done = 3,
    /// The sender's host says that its process has ended ([`polypath_wire::ended`]).
    Ended = polypath_wire::ended::KIND,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: HelloKind,
    pub(crate) slot: u8,
    pub(crate) instance: u64,
    pub(crate) nonce: Nonce,
    pub(crate) echo: Nonce,
    pub(crate) qpn: u32,
    pub(crate) peer_qpn: u32,
    pub(crate) association: u32,
    pub(crate) receive_window: u32,
    pub(crate) abilities: PeerAbilities,
    /// The source ports that it wants for each pair of addresses; 0 if it knows of one only.
    pub(crate) ports: u8,
    pub(crate) addresses_version: u32,
    pub(crate) addresses: Vec<Announced>,
}

impl Hello {
    /// Builds the whole packet. `key`: needed for all kinds but HELLO.
    pub(crate) fn encode(&self, key: Option<&Key>, ends: Ends) -> Vec<u8> {
        let bth = Bth { dest_qpn: self.peer_qpn, ..Bth::new(Opcode::UD_SEND_ONLY) };
        let deth = Deth { qkey: HELLO_QKEY, src_qpn: self.qpn };
        let headers = Headers { deth: Some(deth), ..Headers::new(bth) };
        let mut out = emit(&headers);
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        let count = self.addresses.len().min(MAX_ADDRESSES);
        out.extend_from_slice(&[VERSION, self.kind as u8, self.slot, count as u8]);
        out.extend_from_slice(&self.instance.to_be_bytes());
        out.extend_from_slice(&self.nonce.0);
        out.extend_from_slice(&self.echo.0);
        for word in [
            self.qpn,
            self.peer_qpn,
            self.association,
            self.receive_window,
            CAPABILITY_PATH_SETS | bits_of(self.abilities) | ports_bits(self.ports),
            self.addresses_version,
        ] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        put_addresses(&mut out, &self.addresses[..count]);
        let mac = key.map_or([0; MAC_LEN], |k| {
            k.mac(self.instance, Opcode::UD_SEND_ONLY.0, ends, &out[start..])
        });
        out.extend_from_slice(&mac);
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Refused> {
        let (body, _) = payload.split_last_chunk::<MAC_LEN>().ok_or(Refused::Malformed)?;
        let mut r = Reader(body);
        if r.take() != Some(MAGIC) {
            return Err(Refused::Malformed);
        }
        if r.u8() != Some(VERSION) {
            return Err(Refused::Version);
        }
        Self::fields(r).ok_or(Refused::Malformed)
    }

    fn fields(mut r: Reader<'_>) -> Option<Self> {
        let kind = match r.u8()? {
            1 => HelloKind::Hello,
            2 => HelloKind::Ack,
            3 => HelloKind::Done,
            polypath_wire::ended::KIND => HelloKind::Ended,
            _ => return None,
        };
        let slot = r.u8()?;
        let count = r.u8()?;
        let instance = r.u64()?;
        let nonce = Nonce(r.take()?);
        let echo = Nonce(r.take()?);
        let (qpn, peer_qpn) = (r.u32()?, r.u32()?);
        let (association, receive_window) = (r.u32()?, r.u32()?);
        let capabilities = r.u32()?;
        let (abilities, ports) = (abilities_of(capabilities), ports_of(capabilities));
        let addresses_version = r.u32()?;
        let addresses = take_addresses(&mut r, count)?;
        r.0.is_empty().then_some(Self {
            kind,
            slot,
            instance,
            nonce,
            echo,
            qpn,
            peer_qpn,
            association,
            receive_window,
            abilities,
            ports,
            addresses_version,
            addresses,
        })
    }

    /// Checks the authentication code of an encoded payload.
    pub(crate) fn authentic(&self, key: &Key, ends: Ends, payload: &[u8]) -> bool {
        key.check(self.instance, Opcode::UD_SEND_ONLY.0, ends, payload)
    }
}

/// What a peer tells of its abilities, as bits of its capabilities.
fn bits_of(abilities: PeerAbilities) -> u32 {
    let joins_reads = if abilities.joins_reads { CAPABILITY_JOINS_READS } else { 0 };
    let echoes_marks = if abilities.echoes_marks { CAPABILITY_ECHOES_MARKS } else { 0 };
    let drops_copies = if abilities.drops_copies { CAPABILITY_DROPS_COPIES } else { 0 };
    let local = if abilities.local { CAPABILITY_LOCAL } else { 0 };
    let tcp = if abilities.tcp { CAPABILITY_TCP } else { 0 };
    let reach = abilities.reach.checked_ilog2().unwrap_or(0) << REACH_SHIFT;
    joins_reads | echoes_marks | drops_copies | local | tcp | reach
}

fn abilities_of(capabilities: u32) -> PeerAbilities {
    let reach = match capabilities >> REACH_SHIFT & REACH_MASK {
        0 => 0,
        exponent => 1 << exponent,
    };
    PeerAbilities {
        reach,
        joins_reads: capabilities & CAPABILITY_JOINS_READS != 0,
        echoes_marks: capabilities & CAPABILITY_ECHOES_MARKS != 0,
        drops_copies: capabilities & CAPABILITY_DROPS_COPIES != 0,
        local: capabilities & CAPABILITY_LOCAL != 0,
        tcp: capabilities & CAPABILITY_TCP != 0,
    }
}

fn ports_bits(ports: u8) -> u32 {
    match ports.min(MAX_PORTS) {
        0 => 0,
        ports => CAPABILITY_PORTS | (u32::from(ports) - 1) << PORTS_SHIFT,
    }
}

fn ports_of(capabilities: u32) -> u8 {
    if capabilities & CAPABILITY_PORTS == 0 {
        return 0;
    }
    (capabilities >> PORTS_SHIFT & PORTS_MASK) as u8 + 1
}

/// The kind of a path as a table names it. Both ends know the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EntryKind {
    Udp = 0,
    Local = 1,
    Tcp = 2,
}

impl EntryKind {
    fn from(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Udp),
            1 => Some(Self::Local),
            2 => Some(Self::Tcp),
            _ => None,
        }
    }
}

/// One path of the leader's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) id: u8,
    pub(crate) kind: EntryKind,
    /// Which of the paths between the two addresses it is.
    pub(crate) port: u8,
    pub(crate) generation: u16,
    pub(crate) leader: IpAddr,
    pub(crate) follower: IpAddr,
}

/// What a sender reports about one of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) id: u8,
    pub(crate) state: PathState,
    pub(crate) generation: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Probe {
        number: u32,
    },
    Reply {
        number: u32,
    },
    /// `ports`: as in [`Hello::ports`]; `window`: as [`Hello::receive_window`], in whole units of
    /// [`WINDOW_UNIT`]. 0 says nothing of either.
    Addresses {
        version: u32,
        ports: u8,
        window: u32,
        list: Vec<Announced>,
    },
    Table {
        version: u32,
        entries: Vec<TableEntry>,
    },
    Notice,
    Bye,
}

impl Body {
    fn opcode(&self) -> Opcode {
        match self {
            Self::Probe { .. } => Opcode::MP_PROBE,
            Self::Reply { .. } => Opcode::MP_PROBE_REPLY,
            _ => Opcode::MP_CONTROL,
        }
    }
    fn kind(&self) -> u8 {
        match self {
            Self::Probe { .. } | Self::Reply { .. } => 0,
            Self::Addresses { .. } => 1,
            Self::Table { .. } => 2,
            Self::Notice => 3,
            Self::Bye => 4,
        }
    }
}

/// A probe, its reply or a control packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) path: u8,
    pub(crate) generation: u16,
    pub(crate) to: u32,
    pub(crate) from: u32,
    pub(crate) answer: bool,
    pub(crate) sequence: u64,
    pub(crate) addresses_seen: u32,
    pub(crate) table_seen: u32,
    pub(crate) reports: Vec<Report>,
    pub(crate) body: Body,
}

impl Frame {
    /// Builds the whole packet to the lane with `slot`, sent by the lane `instance`.
    pub(crate) fn encode(&self, slot: u8, instance: u64, key: &Key, ends: Ends) -> Vec<u8> {
        let opcode = self.body.opcode();
        let bth = Bth { dest_qpn: u32::from(slot) << 16, ..Bth::new(opcode) };
        let mut out = emit(&Headers::new(bth));
        let start = out.len();
        out.extend_from_slice(&[VERSION, self.path]);
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.to.to_be_bytes());
        out.extend_from_slice(&self.from.to_be_bytes());
        let reports = &self.reports[..self.reports.len().min(MAX_PATHS)];
        let flags = if self.answer { FLAG_ANSWER } else { 0 };
        out.extend_from_slice(&[self.body.kind(), flags, reports.len() as u8, 0]);
        out.extend_from_slice(&self.sequence.to_be_bytes());
        let number = match self.body {
            Body::Probe { number } | Body::Reply { number } => number,
            _ => 0,
        };
        for word in [number, 0, self.addresses_seen, self.table_seen] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        for r in reports {
            out.extend_from_slice(&[r.id, state_code(r.state)]);
            out.extend_from_slice(&r.generation.to_be_bytes());
        }
        match &self.body {
            Body::Addresses { version, ports, window, list } => {
                let units = u16::try_from(window / WINDOW_UNIT).unwrap_or(u16::MAX);
                let list = &list[..list.len().min(MAX_ADDRESSES)];
                out.extend_from_slice(&version.to_be_bytes());
                out.extend_from_slice(&[list.len() as u8, *ports]);
                out.extend_from_slice(&units.to_be_bytes());
                put_addresses(&mut out, list);
            }
            Body::Table { version, entries } => {
                let entries = &entries[..entries.len().min(MAX_PATHS)];
                out.extend_from_slice(&version.to_be_bytes());
                out.extend_from_slice(&[entries.len() as u8, 0, 0, 0]);
                for e in entries {
                    let kind_and_port = (e.kind as u8) << KIND_SHIFT | e.port & PORT_BITS;
                    out.extend_from_slice(&[e.id, kind_and_port]);
                    out.extend_from_slice(&e.generation.to_be_bytes());
                    out.extend_from_slice(&ip_bytes(e.leader));
                    out.extend_from_slice(&ip_bytes(e.follower));
                }
            }
            _ => {}
        }
        let mac = key.mac(instance, opcode.0, ends, &out[start..]);
        out.extend_from_slice(&mac);
        out
    }

    /// Reads the receiver's association number. It finds the key, without which nothing in the packet
    /// is trusted.
    pub(crate) fn destination(payload: &[u8]) -> Result<u32, Refused> {
        if *payload.first().ok_or(Refused::Malformed)? != VERSION {
            return Err(Refused::Version);
        }
        Reader(payload.get(4..).ok_or(Refused::Malformed)?).u32().ok_or(Refused::Malformed)
    }

    pub(crate) fn decode(opcode: Opcode, payload: &[u8]) -> Result<Self, Refused> {
        let (body, _) = payload.split_last_chunk::<MAC_LEN>().ok_or(Refused::Malformed)?;
        Self::fields(opcode, Reader(body)).ok_or(Refused::Malformed)
    }

    fn fields(opcode: Opcode, mut r: Reader<'_>) -> Option<Self> {
        let (_version, path) = (r.u8()?, r.u8()?);
        let generation = r.u16()?;
        let (to, from) = (r.u32()?, r.u32()?);
        let (kind, flags, count, _) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        let sequence = r.u64()?;
        let number = r.u32()?;
        let _reserved = r.u32()?;
        let (addresses_seen, table_seen) = (r.u32()?, r.u32()?);
        if usize::from(count) > MAX_PATHS || usize::from(path) >= MAX_PATHS {
            return None;
        }
        let mut reports = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let id = r.u8()?;
            let state = state_from(r.u8()?)?;
            reports.push(Report { id, state, generation: r.u16()? });
        }
        let body = match (opcode, kind) {
            (Opcode::MP_PROBE, 0) => Body::Probe { number },
            (Opcode::MP_PROBE_REPLY, 0) => Body::Reply { number },
            (Opcode::MP_CONTROL, 1) => {
                let (version, count, ports) = (r.u32()?, r.u8()?, r.u8()?.min(MAX_PORTS));
                let window = u32::from(r.u16()?) * WINDOW_UNIT;
                Body::Addresses { version, ports, window, list: take_addresses(&mut r, count)? }
            }
            (Opcode::MP_CONTROL, 2) => {
                let (version, count, _) = (r.u32()?, r.u8()?, r.take::<3>()?);
                Body::Table { version, entries: take_table(&mut r, count)? }
            }
            (Opcode::MP_CONTROL, 3) => Body::Notice,
            (Opcode::MP_CONTROL, 4) => Body::Bye,
            _ => return None,
        };
        r.0.is_empty().then_some(Self {
            path,
            generation,
            to,
            from,
            answer: flags & FLAG_ANSWER != 0,
            sequence,
            addresses_seen,
            table_seen,
            reports,
            body,
        })
    }
}

fn emit(headers: &Headers) -> Vec<u8> {
    let mut out = vec![0; headers.len()];
    headers.emit(&mut out);
    out
}

fn put_addresses(out: &mut Vec<u8>, list: &[Announced]) {
    for a in list {
        out.extend_from_slice(&ip_bytes(a.ip));
        out.extend_from_slice(&[a.prefix_len, 0]);
        out.extend_from_slice(&a.interface.to_be_bytes());
    }
}

/// Leaves out addresses that no single host can own, so that no peer makes us probe a multicast group.
fn take_addresses(r: &mut Reader<'_>, count: u8) -> Option<Vec<Announced>> {
    if usize::from(count) > MAX_ADDRESSES {
        return None;
    }
    let mut list = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let ip = r.ip()?;
        let (prefix_len, _flags, interface) = (r.u8()?, r.u8()?, r.u16()?);
        if is_unicast(ip) {
            list.push(Announced { ip, prefix_len, interface });
        }
    }
    Some(list)
}

fn take_table(r: &mut Reader<'_>, count: u8) -> Option<Vec<TableEntry>> {
    if usize::from(count) > MAX_PATHS {
        return None;
    }
    let mut entries: Vec<TableEntry> = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (id, kind_and_port) = (r.u8()?, r.u8()?);
        let kind = EntryKind::from(kind_and_port >> KIND_SHIFT)?;
        let port = kind_and_port & PORT_BITS;
        let (generation, leader, follower) = (r.u16()?, r.ip()?, r.ip()?);
        let entry = TableEntry { id, kind, port, generation, leader, follower };
        let fits = usize::from(id) < MAX_PATHS
            && port < MAX_PORTS
            && is_unicast(entry.leader)
            && is_unicast(entry.follower)
            && entry.leader.is_ipv4() == entry.follower.is_ipv4()
            && entries.iter().all(|e| e.id != id);
        if !fits {
            return None;
        }
        entries.push(entry);
    }
    Some(entries)
}

fn state_code(state: PathState) -> u8 {
    match state {
        PathState::Probing => 0,
        PathState::Up => 1,
        PathState::Suspect => 2,
        PathState::Dead => 3,
        PathState::Recovering => 4,
        PathState::Down => 5,
    }
}

fn state_from(code: u8) -> Option<PathState> {
    Some(match code {
        0 => PathState::Probing,
        1 => PathState::Up,
        2 => PathState::Suspect,
        3 => PathState::Dead,
        4 => PathState::Recovering,
        5 => PathState::Down,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An older version sends zero there, and ignores it.
    #[test]
    fn ports_and_the_window_are_behind_the_number_of_addresses() {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let ends = Ends { src: ip(1), dst: ip(2) };
        let key = Key::derive((1, Nonce([1; 16])), (2, Nonce([2; 16])));
        let windows = [(0, [0, 0], 0), (8 << 10, [0, 2], 8 << 10), (4095, [0, 0], 0)];
        let cases =
            [(0, 0), (1, 1), (8, 8), (200, 8)].into_iter().flat_map(|p| windows.map(|w| (p, w)));
        for ((ports, read), (window, [high, low], window_read)) in cases {
            let body = Body::Addresses { version: 7, ports, window, list: Vec::new() };
            let frame = Frame {
                path: 0,
                generation: 1,
                to: 3,
                from: 4,
                answer: false,
                sequence: 5,
                addresses_seen: 6,
                table_seen: 0,
                reports: Vec::new(),
                body,
            };
            let packet = frame.encode(2, 1, &key, ends);
            let payload = &packet[packet.len() - MAC_LEN - 48..];
            assert_eq!(payload[40..48], [0, 0, 0, 7, 0, ports, high, low]);
            let decoded = Frame::decode(Opcode::MP_CONTROL, payload).unwrap();
            let (ports, window) = (read, window_read);
            let wanted = Body::Addresses { version: 7, ports, window, list: Vec::new() };
            assert_eq!(decoded.body, wanted);
        }
    }
}
