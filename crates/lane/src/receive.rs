//! Finds the queue pair that a packet is for.

use core::net::IpAddr;

use polypath_paths::{Found, Handled, PathManager, PathTag, is_marked};
use polypath_transport::CameBy;
use polypath_types::{PathId, PathKind, QpType};
use polypath_wire::grh::Grh;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;
use polypath_wire::{DEFAULT_PKEY, MULTICAST_QPN, UDP_HEADER_LEN};

use crate::host::Shared;
use crate::lane::Lane;
use crate::outside::Outside;
use crate::table::QpTable;

/// The path of datagrams. They have none of their own, because nothing acknowledges them.
const NO_PATH: PathId = PathId(u32::MAX);

/// How a packet arrived, according to the IP header and the socket.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// What it came by.
    pub kind: PathKind,
    /// UDP source port; 0 if it is not known, or if what it came by has none.
    pub src_port: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 if it is not known.
    pub flow_label: u32,
    /// Length of the UDP payload in bytes, including the ICRC.
    pub len: usize,
}

/// The receiver of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The path manager, which rejects packets that it can't use.
    Control(Handled),
    /// A queue pair, which counts the packets that it drops.
    QueuePair,
    /// Nobody yet, because the packet is for a multicast group. [`Lane::deliver`] gives it to each
    /// queue pair that listens.
    Multicast,
}

/// The reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No queue pair has the destination's number.
    UnknownQp,
    /// The source does not belong to the queue pair's path set.
    WrongSource,
    /// The P_Key is not ours.
    WrongPkey,
    /// The other copy of a datagram that was sent by two paths has come before.
    Copy,
}

impl<Q> Lane<Q> {
    /// Gives a packet, whose ICRC is correct, to its receiver.
    ///
    /// # Errors
    /// Nobody takes the packet; it is dropped.
    #[inline]
    pub fn handle_packet<O: Outside<Q>>(
        &mut self,
        arrival: &Arrival,
        packet: &Packet<'_>,
        out: &mut O,
    ) -> Result<Taken, Refusal> {
        if PathManager::is_control(packet) {
            let (now, paths) = (self.shared.now, &mut self.shared.paths);
            let Arrival { src, dst, kind, .. } = *arrival;
            return Ok(Taken::Control(paths.handle_control(now, src, dst, kind, packet)));
        }
        let bth = &packet.headers.bth;
        if bth.pkey & 0x7fff != DEFAULT_PKEY & 0x7fff {
            return Err(Refusal::WrongPkey);
        }
        if bth.dest_qpn == MULTICAST_QPN {
            return Ok(Taken::Multicast);
        }
        if self.qps.by_qpn(bth.dest_qpn).is_none() {
            return Err(Refusal::UnknownQp);
        }
        self.deliver(QpTable::<Q>::index_of(bth.dest_qpn), arrival, packet, out)?;
        Ok(Taken::QueuePair)
    }

    /// Gives a packet to a queue pair.
    ///
    /// # Errors
    /// The queue pair does not take it.
    #[inline]
    pub fn deliver<O: Outside<Q>>(
        &mut self,
        index: u16,
        arrival: &Arrival,
        packet: &Packet<'_>,
        out: &mut O,
    ) -> Result<(), Refusal> {
        let entry = self.qps.get_mut(index).ok_or(Refusal::UnknownQp)?;
        let now = self.shared.now;
        if entry.qp.config().qp_type == QpType::Ud {
            // Datagrams have no path. Shared memory is only for those that know theirs.
            if arrival.kind != PathKind::Udp {
                return Err(Refusal::WrongSource);
            }
            if packet.headers.mp.is_some()
                && self.shared.paths.is_datagram_copy(arrival.src, packet)
            {
                return Err(Refusal::Copy);
            }
            let grh = Grh {
                src: arrival.src,
                dst: arrival.dst,
                traffic_class: arrival.traffic_class,
                flow_label: arrival.flow_label,
                payload_len: u16::try_from(UDP_HEADER_LEN + arrival.len).unwrap_or(u16::MAX),
                hop_limit: arrival.hop_limit,
            }
            .to_bytes();
            let before = entry.qp.counters().dropped_qkey;
            let mut visit = entry.visit(&mut self.shared, out);
            visit.qp.handle_packet(now, packet, NO_PATH, Some(&grh), &mut visit.host);
            if entry.qp.counters().dropped_qkey != before {
                out.qkey_violation(&entry.own);
            }
        } else {
            let peer = entry.peer.ok_or(Refusal::WrongSource)?;
            let tag = packet.headers.mp;
            let tag = tag.map(|mp| PathTag { id: mp.path_id, generation: mp.generation });
            let paths = &mut self.shared.paths;
            let (path, by) = match entry.qp.alternate() {
                None => paths
                    .classify(peer, arrival.src, arrival.dst, arrival.kind, tag, arrival.len)
                    .map(|path| (path, CameBy::PRIMARY)),
                Some(alternate) => paths
                    .classify_with(
                        (peer, alternate),
                        (arrival.src, arrival.dst, arrival.kind, arrival.src_port),
                        tag,
                        arrival.len,
                    )
                    .map(|Found { path, primary, alternate, by_port, other_port }| {
                        (path, CameBy { primary, alternate, by_port, other_port })
                    }),
            }
            .map_err(|_| Refusal::WrongSource)?;
            heed_marks(&mut self.shared, path, arrival, packet);
            if packet.opcode() == Opcode::CNP {
                return Ok(());
            }
            out.accepted(&entry.own, path, packet);
            let mut visit = entry.visit(&mut self.shared, out);
            visit.qp.handle_packet_by(now, packet, (path, by), None, &mut visit.host);
        }
        // A queue pair may answer even if its requests wait for a window.
        entry.blocked = false;
        self.schedule(index, false);
        Ok(())
    }
}

/// Takes note of what a packet says of congestion, by itself or by a mark on its way.
#[inline]
fn heed_marks(shared: &mut Shared, path: PathId, arrival: &Arrival, packet: &Packet<'_>) {
    let marked = is_marked(arrival.traffic_class);
    let said = packet.headers.mp.is_some_and(|mp| mp.is_marked());
    if marked || said || packet.opcode() == Opcode::CNP {
        heed(shared, path, [marked, said], packet);
    }
}

#[cold]
fn heed(shared: &mut Shared, path: PathId, [marked, said]: [bool; 2], packet: &Packet<'_>) {
    let (now, paths) = (shared.now, &mut shared.paths);
    let opcode = packet.opcode();
    let request = opcode.base().is_request();
    let told = opcode == Opcode::CNP || !request && said;
    // Who asked for an answer decides how much is on its way; acknowledgements fill no queue.
    let answer = marked && opcode.base().is_read_response();
    if told || answer && opcode.is_mp() {
        paths.marked(now, path);
    }
    match (marked && (request || answer), opcode.is_mp()) {
        (true, true) if request => paths.request_marked(path),
        (true, false) => paths.plain_marked(now, path, packet.headers.bth.dest_qpn),
        _ => {}
    }
}
