//! Queue pair 1: management datagrams over UDP.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use polypath_cm::{MadAddress, OutgoingMad};
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::mad::MAD_LEN;
use polypath_wire::{Bth, Headers, Opcode, Packet, Psn, QP1_QKEY, ROCE_PORT, ext::Deth};

use crate::drops::Drop;
use crate::host::{canonical, is_unicast};
use crate::sys::udp::{Datagram, UdpSocket};

/// The length of a packet: BTH, DETH, MAD, ICRC.
const PACKET_LEN: usize = BODY_LEN + 4;

/// The length of a packet without its ICRC, in bytes.
pub(crate) const BODY_LEN: usize = 12 + 8 + MAD_LEN;

/// The longest payload of a padded ping. With its headers, it is as long as the longest packet of a
/// device with a path MTU of 4096.
pub(crate) const PADDED_MAX: usize = 4096 + 64;

/// The longest packet that is read. Longer ones can be neither MADs nor padded pings.
pub(crate) const RECEIVE_LEN: usize = PACKET_LEN - MAD_LEN + PADDED_MAX;

pub(crate) const QP1: u32 = 1;

/// Source ports of RoCEv2 (IBTA A17.9.4 leaves the choice open; all stacks use the dynamic range).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 0xc000..=0xffff;

/// The number of ports that are tried.
const PORT_ATTEMPTS: u32 = 256;

/// The number of MADs that are remembered, to know those that are sent again.
const REMEMBERED: usize = 256;

/// The sending side.
///
/// A MAD that is sent again was lost, or its answer was: it leaves by a random source port, which most
/// likely leads another way through a fabric or another port of a bond. Everything else leaves by one port,
/// so that it stays in order.
#[derive(Debug)]
pub(crate) struct Qp1 {
    usual: Source,
    random: Random,
    sent: Sent,
    psn: Psn,
}

/// A socket and its port.
#[derive(Debug)]
struct Source {
    socket: UdpSocket,
    port: u16,
}

/// Where random numbers come from.
type Random = fn() -> u32;

impl Source {
    /// Opens a socket on a random source port.
    fn open(random: Random) -> std::io::Result<Self> {
        let socket = UdpSocket::new()?;
        socket.never_fragment()?;
        let mut attempts = 0;
        loop {
            let port = SOURCE_PORTS.start() | (random() & 0x3fff) as u16;
            match socket.bind(port) {
                Err(error) if attempts == PORT_ATTEMPTS => return Err(error),
                Err(_) => attempts += 1,
                Ok(()) => return Ok(Self { socket, port }),
            }
        }
    }

    /// Sends a MAD from one address to another.
    fn send(
        &self,
        psn: Psn,
        (local, remote): (IpAddr, IpAddr),
        through: u32,
        traffic_class: u8,
        mad: &[u8; MAD_LEN],
    ) -> std::io::Result<()> {
        let packet = build(&Flow::new(local, remote, self.port), psn, mad);
        let to = SocketAddr::new(remote, ROCE_PORT);
        self.socket.send(&packet, to, local, through, traffic_class)
    }
}

/// The MADs that were sent last: where to, and the transaction identifier and attribute (IBTA 13.4.3).
#[derive(Debug, Default)]
struct Sent(VecDeque<(IpAddr, [u8; 8], [u8; 2])>);

impl Sent {
    /// Whether this MAD was sent to that host before. It is remembered.
    fn is_again(&mut self, remote: IpAddr, mad: &[u8; MAD_LEN]) -> bool {
        let [_, _, _, _, _, _, _, _, tid @ .., a, b] = *mad.first_chunk::<18>().unwrap_or(&[0; 18]);
        let this = (remote, tid, [a, b]);
        if self.0.contains(&this) {
            return true;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(this);
        false
    }
}

impl Qp1 {
    /// Opens the sending socket on a random source port.
    pub(crate) fn new(random: Random) -> std::io::Result<Self> {
        let usual = Source::open(random)?;
        Ok(Self { usual, random, sent: Sent::default(), psn: Psn::new(random()) })
    }

    /// Sends the answer to a ping.
    pub(crate) fn answer(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        through: u32,
        mad: &[u8; MAD_LEN],
    ) -> std::io::Result<()> {
        let psn = self.next_psn();
        self.usual.send(psn, (local, remote), through, 0, mad)
    }

    /// Sends a packet that is none of the broker's own. It has no ICRC yet.
    pub(crate) fn pass_on(
        &self,
        local: IpAddr,
        remote: IpAddr,
        through: u32,
        packet: &[u8],
    ) -> std::io::Result<()> {
        let icrc = FlowCrc::new(&Flow::new(local, remote, self.usual.port)).compute(0, packet);
        let to = SocketAddr::new(remote, ROCE_PORT);
        self.usual.socket.send(&[packet, &icrc].concat(), to, local, through, 0)
    }

    /// Sends a MAD. `through` is the interface to use, or 0 to follow the kernel's routes.
    pub(crate) fn send(&mut self, mad: &OutgoingMad, through: u32) -> std::io::Result<()> {
        let psn = self.next_psn();
        let again = self.sent.is_again(mad.remote, &mad.mad);
        let another = again.then(|| Source::open(self.random).ok()).flatten();
        let source = another.as_ref().unwrap_or(&self.usual);
        source.send(psn, (mad.local, mad.remote), through, mad.traffic_class, &mad.mad)
    }

    /// The sequence number of the next packet.
    pub(crate) fn next_psn(&mut self) -> Psn {
        let next = Psn::new(self.psn.get().wrapping_add(1));
        core::mem::replace(&mut self.psn, next)
    }
}

/// Builds a MAD to queue pair 1 from its own port, followed by zeroes.
pub(crate) fn build_padded(
    local: IpAddr,
    remote: IpAddr,
    port: u16,
    mad: &[u8; MAD_LEN],
    padding: usize,
) -> Vec<u8> {
    let flow = Flow::new(local, remote, port);
    let mut packet = build(&flow, Psn::new(0), mad).to_vec();
    if padding > 0 {
        let end = PACKET_LEN - 4;
        packet.truncate(end);
        packet.resize(end + padding, 0);
        let icrc = FlowCrc::new(&flow).compute(0, &packet);
        packet.extend_from_slice(&icrc);
    }
    packet
}

/// The address in the form for a socket of both families.
pub(crate) fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        v6 @ SocketAddr::V6(_) => v6,
    }
}

fn build(flow: &Flow, psn: Psn, mad: &[u8; MAD_LEN]) -> [u8; PACKET_LEN] {
    let mut packet = [0; PACKET_LEN];
    let (body, icrc) = packet.split_at_mut(BODY_LEN);
    body.copy_from_slice(&build_body(psn, mad));
    icrc.copy_from_slice(&FlowCrc::new(flow).compute(0, body));
    packet
}

/// A MAD in its packet, without the ICRC.
pub(crate) fn build_body(psn: Psn, mad: &[u8; MAD_LEN]) -> [u8; BODY_LEN] {
    let bth = Bth { dest_qpn: QP1, psn, ..Bth::new(Opcode::UD_SEND_ONLY) };
    let deth = Deth { qkey: QP1_QKEY, src_qpn: QP1 };
    let mut packet = [0; BODY_LEN];
    let at = Headers { deth: Some(deth), ..Headers::new(bth) }.emit(&mut packet);
    packet[at..].copy_from_slice(mad);
    packet
}

/// Parses a packet of the broker's own socket. Returns its source and the MAD.
///
/// # Errors
/// The reason for dropping it.
pub(crate) fn parse<'a>(
    datagram: &Datagram,
    buffer: &'a [u8],
) -> Result<(MadAddress, &'a [u8]), Drop> {
    let bytes = buffer.get(..datagram.len).ok_or(Drop::TooLong)?;
    let (from, to) = (canonical(datagram.from.ip()), canonical(datagram.to));
    if !is_unicast(from) || !is_unicast(to) {
        return Err(Drop::NotUnicast);
    }
    let packet = Packet::parse(bytes).map_err(|_| Drop::Malformed)?;
    let flow = Flow::new(from, to, datagram.from.port());
    FlowCrc::new(&flow).verify(bytes, 0).ok_or(Drop::IcrcWrong)?;
    let (source_qpn, mad) = mad_in(&packet)?;
    let address = MadAddress { local: to, remote: from, ifindex: datagram.ifindex, source_qpn };
    Ok((address, mad))
}

/// The MAD in a packet, and the queue pair that it is from.
///
/// # Errors
/// The reason for dropping it.
pub(crate) fn mad_in<'a>(packet: &Packet<'a>) -> Result<(u32, &'a [u8]), Drop> {
    let headers = packet.headers;
    if headers.bth.dest_qpn != QP1 {
        return Err(Drop::NoSuchQp);
    }
    let deth = headers.deth.filter(|_| headers.bth.opcode == Opcode::UD_SEND_ONLY);
    let deth = deth.ok_or(Drop::WrongService)?;
    if deth.qkey != QP1_QKEY {
        return Err(Drop::QkeyWrong);
    }
    // Membership in the default partition, full or limited (IBTA 10.9.3).
    if headers.bth.pkey & 0x7fff != 0x7fff {
        return Err(Drop::PkeyWrong);
    }
    // Longer ones are questions of `polypath ping`, padded with zeroes.
    let (mad, padding) = packet.payload.split_at_checked(MAD_LEN).ok_or(Drop::NotAMad)?;
    if padding.iter().any(|&byte| byte != 0)
        || (!padding.is_empty() && crate::pings::answer(mad).is_none())
    {
        return Err(Drop::NotAMad);
    }
    Ok((deth.src_qpn, mad))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "10.0.0.1";
    const REMOTE: &str = "10.0.0.2";

    fn datagram(len: usize) -> Datagram {
        Datagram {
            len,
            from: SocketAddr::new(REMOTE.parse().unwrap(), 0xc001),
            to: LOCAL.parse().unwrap(),
            ifindex: 3,
        }
    }

    fn packet() -> [u8; PACKET_LEN] {
        let flow = Flow::new(REMOTE.parse().unwrap(), LOCAL.parse().unwrap(), 0xc001);
        build(&flow, Psn::new(5), &[7; MAD_LEN])
    }

    /// Repairs the ICRC after a change.
    fn reseal(packet: &mut [u8]) {
        let flow = Flow::new(REMOTE.parse().unwrap(), LOCAL.parse().unwrap(), 0xc001);
        let (body, icrc) = packet.split_at_mut(packet.len() - 4);
        icrc.copy_from_slice(&FlowCrc::new(&flow).compute(0, body));
    }

    fn drop_after(change: impl Fn(&mut [u8; PACKET_LEN])) -> Drop {
        let mut packet = packet();
        change(&mut packet);
        reseal(&mut packet);
        parse(&datagram(packet.len()), &packet).unwrap_err()
    }

    #[test]
    fn a_mad_that_is_sent_again_is_known_for_a_while() {
        let mut sent = Sent::default();
        let mad = |tid: u16, attribute: u8| {
            let mut mad = [7; MAD_LEN];
            mad[8..10].copy_from_slice(&tid.to_be_bytes());
            mad[17] = attribute;
            mad
        };
        let (one, two) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert!(!sent.is_again(one, &mad(1, 0x10)));
        assert!(sent.is_again(one, &mad(1, 0x10)) && sent.is_again(one, &mad(1, 0x10)));
        assert!(!sent.is_again(one, &mad(1, 0x13)) && !sent.is_again(two, &mad(1, 0x10)));
        assert!((1000..1000 + REMEMBERED as u16).all(|tid| !sent.is_again(one, &mad(tid, 0x10))));
        assert_eq!(sent.0.len(), REMEMBERED);
        assert!(!sent.is_again(one, &mad(1, 0x10)));
    }

    #[test]
    fn what_is_built_is_understood() {
        let packet = packet();
        let (from, mad) = parse(&datagram(packet.len()), &packet).unwrap();
        assert_eq!((from.source_qpn, from.ifindex, mad), (1, 3, &[7; MAD_LEN][..]));
        assert_eq!(from.remote, REMOTE.parse::<IpAddr>().unwrap());
    }

    #[test]
    fn each_wrong_field_has_its_own_reason() {
        assert_eq!(drop_after(|p| p[7] = 2), Drop::NoSuchQp);
        assert_eq!(drop_after(|p| p[12] = 0), Drop::QkeyWrong);
        assert_eq!(drop_after(|p| p[3] = 0), Drop::PkeyWrong);
        assert_eq!(drop_after(|p| p[0] = 0x04), Drop::WrongService);
        assert_eq!(drop_after(|p| p[0] = 0xff), Drop::Malformed);
        let mut corrupt = packet();
        corrupt[100] ^= 1;
        assert_eq!(parse(&datagram(corrupt.len()), &corrupt).unwrap_err(), Drop::IcrcWrong);
    }

    #[test]
    fn truncated_and_oversized_packets_are_dropped() {
        let packet = packet();
        for len in 0..packet.len() {
            assert!(parse(&datagram(len), &packet).is_err(), "{len} bytes");
        }
        assert_eq!(parse(&datagram(9000), &packet).unwrap_err(), Drop::TooLong);
        let flow = Flow::new(REMOTE.parse().unwrap(), LOCAL.parse().unwrap(), 0xc001);
        let mut short = packet[..PACKET_LEN - 8].to_vec();
        short.extend(FlowCrc::new(&flow).compute(0, &packet[..PACKET_LEN - 8]));
        assert_eq!(parse(&datagram(short.len()), &short).unwrap_err(), Drop::NotAMad);
    }

    #[test]
    fn a_padded_question_of_ping_is_taken_and_nothing_else_that_long() {
        let (from, to) = (REMOTE.parse().unwrap(), LOCAL.parse().unwrap());
        let question = crate::pings::question(7);
        let packet = build_padded(from, to, 0xc001, &question, PADDED_MAX - MAD_LEN);
        assert_eq!(packet.len(), RECEIVE_LEN);
        assert_eq!(parse(&datagram(packet.len()), &packet).unwrap().1, question);
        let other = build_padded(from, to, 0xc001, &[7; MAD_LEN], 1000);
        assert_eq!(parse(&datagram(other.len()), &other).unwrap_err(), Drop::NotAMad);
    }

    #[test]
    fn multicast_reaches_no_queue_pair_1() {
        let packet = packet();
        let to_group = Datagram { to: "239.1.1.1".parse().unwrap(), ..datagram(packet.len()) };
        assert_eq!(parse(&to_group, &packet).unwrap_err(), Drop::NotUnicast);
    }
}
