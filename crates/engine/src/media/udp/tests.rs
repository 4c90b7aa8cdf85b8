//! Tests of sender and receiver over the loopback interface. It delivers within the system call
//! that sends, so what was sent can be received at once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use polypath_transport::{Burst, PathId, Payload, Unread};
use polypath_wire::ext::{Feth, Reth};
use polypath_wire::{Bth, Headers, Opcode, Packet, Psn};

use super::*;
use crate::memory::Segment;

mod destinations;
mod refusals;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A datagram that was received.
#[derive(Debug, Clone)]
struct Got {
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    datagram: Vec<u8>,
    good: bool,
}

impl Got {
    fn psn(&self) -> u32 {
        Packet::parse(&self.datagram).unwrap().headers.bth.psn.get()
    }
    fn payload(&self) -> &[u8] {
        Packet::parse(&self.datagram).unwrap().payload
    }
}

/// A receiver on a port of its own, and a sender to that port.
fn pair() -> (Receiver, Sender) {
    let fd = udp_socket(true).unwrap();
    sys::set_int(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0).unwrap();
    sys::bind(&fd, &"[::]:0".parse().unwrap()).unwrap();
    let port = sys::local_port(&fd).unwrap();
    (Receiver::new(fd).unwrap(), Sender::to_port(port))
}

fn key(local: IpAddr, remote: IpAddr) -> FlowKey {
    FlowKey { local, remote, ifindex: None, source_port: 0xc123, traffic_class: 0, hop_limit: 0 }
}

/// Flushes. Returns how many packets were sent, and how many were dropped.
fn flush(sender: &mut Sender) -> (u32, u32) {
    let done = sender.flush();
    (done.sent, done.dropped)
}

fn drain(receiver: &mut Receiver) -> Vec<Got> {
    let mut all = Vec::new();
    while receiver
        .receive(&mut |r| {
            all.push(Got {
                src: r.src,
                src_port: r.src_port,
                dst: r.dst,
                traffic_class: r.traffic_class,
                hop_limit: r.hop_limit,
                datagram: r.datagram.to_vec(),
                good: r.verify(),
            });
        })
        .unwrap()
        > 0
    {}
    all
}

fn headers(opcode: Opcode, psn: u32) -> Headers {
    let mut h = Headers::new(Bth { dest_qpn: 0x12_3456, psn: Psn::new(psn), ..Bth::new(opcode) });
    if opcode.has_reth() {
        h.reth = Some(Reth { va: 1, rkey: 2, len: 3 });
    }
    h
}

/// A WRITE.
struct Write<'a> {
    first: Headers,
    middle: Headers,
    last: Headers,
    packets: u32,
    mtu: u32,
    payload: Payload<'a, Segment>,
}

impl Write<'_> {
    fn burst(&self) -> Burst<'_, Segment> {
        let Self { first, middle, last, packets, mtu, payload } = self;
        let (packets, mtu, payload) = (*packets, *mtu, *payload);
        let changing = false;
        let covered_twice = false;
        Burst {
            path: PathId(0),
            first,
            middle,
            last,
            packets,
            mtu,
            payload,
            covered_twice,
            changing,
        }
    }
}

/// A WRITE from PSN `psn` on, split at `mtu`.
fn write(psn: u32, mtu: u32, payload: Payload<'_, Segment>) -> Write<'_> {
    let packets = payload.len().div_ceil(mtu).max(1);
    let make = |opcode, psn, len: u32| {
        let mut headers = headers(opcode, psn);
        headers.bth.pad = polypath_wire::packet::pad_for(len as usize);
        headers
    };
    let last_len = payload.len() - (packets - 1) * mtu;
    let (first, last) = if packets == 1 {
        let only = || make(Opcode::RC_WRITE_ONLY, psn, last_len);
        (only(), only())
    } else {
        let last = make(Opcode::RC_WRITE_LAST, psn + packets - 1, last_len);
        (make(Opcode::RC_WRITE_FIRST, psn, mtu), last)
    };
    let middle = make(Opcode::RC_WRITE_MIDDLE, psn + 1, mtu);
    Write { first, middle, last, packets, mtu, payload }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8 ^ seed).collect()
}

fn segment(of: &[u8]) -> Segment {
    // SAFETY: the tests keep what they send.
    unsafe { Segment::assume(of.as_ptr(), of.len() as u32) }
}

#[test]
fn message_arrives_packet_by_packet_with_right_icrc_whatever_its_sizes() {
    for ip in [V4, V6] {
        let (mut receiver, mut sender) = pair();
        let flow = sender.open(key(ip, ip)).unwrap();
        let port = sender.source_port(flow).unwrap();
        for mtu in [256, 1024, 4096] {
            for len in [0, 1, 3, 255, 256, 257, 511, 1025, 4096, 4100, 60_001, 90_000] {
                let data = bytes(len, mtu as u8);
                let segments = [segment(&data)];
                let payload = Payload::Memory { segments: &segments, skip: 0, len: len as u32 };
                let message = write(0xff_fff0, mtu, payload);
                let burst = message.burst();
                sender.queue(flow, &burst).unwrap();
                assert_eq!(flush(&mut sender), (burst.packets, 0));
                let got = drain(&mut receiver);
                assert_eq!(got.len(), burst.packets as usize, "{ip} {mtu} {len}");
                assert!(got.iter().all(|g| g.good), "{ip} {mtu} {len}");
                let joined: Vec<u8> = got.iter().flat_map(|g| g.payload().to_vec()).collect();
                assert!(joined == data, "{ip} {mtu} {len}");
                for (i, g) in got.iter().enumerate() {
                    assert_eq!(g.psn(), (0xff_fff0 + i as u32) & 0xff_ffff);
                    assert_eq!((g.src, g.dst, g.src_port), (ip, ip, port));
                }
            }
        }
    }
}

#[test]
fn segmented_send_is_received_coalesced() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let data = bytes(14 * 4096, 1);
    let segments = [segment(&data)];
    let payload = Payload::Memory { segments: &segments, skip: 0, len: data.len() as u32 };
    let message = write(0, 4096, payload);
    let mut burst = message.burst();
    // All packets have the same size, so that they form one run.
    burst.first = burst.middle;
    burst.last = burst.middle;
    let mut second = *burst.middle;
    second.bth.psn = Psn::new(2);
    burst.middle = &second;
    sender.queue(flow, &burst).unwrap();
    sender.flush();
    let mut batches = Vec::new();
    loop {
        match receiver.receive(&mut |r| assert!(r.verify())).unwrap() {
            0 => break,
            n => batches.push(n),
        }
    }
    assert_eq!(batches, [14]);
}

#[test]
fn sends_of_a_habitual_size_do_not_cut_others() {
    for ip in [V4, V6] {
        let (mut receiver, mut sender) = pair();
        let flow = sender.open(key(ip, ip)).unwrap();
        // The sizes of payloads sent at once, and how often in a row: first a message and an
        // acknowledgement back and forth, then sends that are smaller, larger, split into other
        // pieces, or single.
        let script: &[(&[usize], usize)] = &[
            (&[64, 0], 40),
            (&[64], 1),
            (&[64, 0], 20),
            (&[4096], 2),
            (&[64, 64, 0], 20),
            (&[0], 1),
            (&[1024, 0], 30),
            (&[0, 64], 20),
            (&[64, 0], 17),
            (&[8], 40),
        ];
        let mut psn = 0;
        for (sizes, times) in script {
            for _ in 0..*times {
                let first = psn;
                for len in *sizes {
                    let data = bytes(*len, psn as u8);
                    let message = write(psn, 4096, Payload::Bytes(&data));
                    let mut burst = message.burst();
                    burst.packets = 1;
                    sender.queue(flow, &burst).unwrap();
                    psn += 1;
                }
                assert_eq!(flush(&mut sender), (psn - first, 0));
                let got = drain(&mut receiver);
                let lens: Vec<usize> = got.iter().map(|g| g.payload().len()).collect();
                assert_eq!(lens, *sizes, "{ip} {psn}");
                assert!(got.iter().all(|g| g.good), "{ip} {psn}");
                assert!(got.iter().map(Got::psn).eq(first..psn), "{ip} {psn}");
            }
        }
    }
}

#[test]
fn random_traffic_arrives_whole_and_in_order_per_flow() {
    let (mut receiver, mut sender) = pair();
    let flows: Vec<FlowHandle> = [0xc200, 0xc201, 0xc202]
        .map(|source_port| sender.open(FlowKey { source_port, ..key(V4, V4) }).unwrap())
        .into();
    let data = bytes(1 << 16, 7);
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut psns = [0u32; 3];
    for _ in 0..200 {
        let mut expected: [Vec<(u32, Vec<u8>)>; 3] = Default::default();
        // The total fits into the receive buffer.
        for _ in 0..1 + random(12) {
            let which = random(3) as usize;
            let mtu = [256, 512, 1024, 2048][random(4) as usize];
            let len = if random(2) == 0 { random(80) } else { random(6000) } as usize;
            let skip = random(50_000) as usize;
            let cut = skip + random(len as u64 + 1) as usize;
            let segments = [segment(&data[..cut]), segment(&data[cut..])];
            let payload =
                Payload::Memory { segments: &segments, skip: skip as u32, len: len as u32 };
            let message = write(psns[which], mtu, payload);
            let burst = message.burst();
            sender.queue(flows[which], &burst).unwrap();
            for i in 0..burst.packets {
                let core::ops::Range { start, end } = burst.range(i);
                let size = end - start;
                let at = skip + start as usize;
                expected[which].push((psns[which] + i, data[at..at + size as usize].to_vec()));
            }
            psns[which] += burst.packets;
        }
        assert_eq!(sender.flush().dropped, 0);
        let got = drain(&mut receiver);
        assert!(got.iter().all(|g| g.good));
        for (flow, expected) in flows.iter().zip(expected) {
            let port = sender.source_port(*flow).unwrap();
            let of_flow: Vec<(u32, Vec<u8>)> = got
                .iter()
                .filter(|g| g.src_port == port)
                .map(|g| (g.psn(), g.payload().to_vec()))
                .collect();
            assert!(of_flow == expected);
        }
    }
}

#[test]
fn more_than_any_limit_of_a_batch_is_sent_in_several() {
    let (mut receiver, mut sender) = pair();
    let flows = [V4, V6].map(|ip| sender.open(key(ip, ip)).unwrap());
    // First sends of one packet each, because the flows alternate; then runs of more than 64.
    let mut n = 0;
    for i in 0..200 {
        sender
            .queue(flows[i % 2], &write(i as u32, 256, Payload::Bytes(&[i as u8; 8])).burst())
            .unwrap();
        n += 1;
    }
    for i in 0..200 {
        sender.queue_raw(flows[0], &headers_only(i));
        n += 1;
    }
    assert_eq!(flush(&mut sender), (n, 0));
    let got = drain(&mut receiver);
    assert_eq!(got.len(), n as usize);
    assert!(got.iter().all(|g| g.good));
}

fn headers_only(psn: u32) -> Vec<u8> {
    let mut out = [0; 64];
    let n = headers(Opcode::RC_SEND_ONLY, psn).emit(&mut out);
    out[..n].to_vec()
}

#[test]
fn payload_in_very_many_pieces_is_gathered() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let data = bytes(20_000, 3);
    for pieces in [2, 63, 64, 65, 2000] {
        let segments: Vec<Segment> = data.chunks(data.len() / pieces).map(segment).collect();
        let payload = Payload::Memory { segments: &segments, skip: 0, len: 20_000 };
        sender.queue(flow, &write(0, 4096, payload).burst()).unwrap();
        sender.flush();
        let got = drain(&mut receiver);
        assert!(got.iter().all(|g| g.good));
        assert!(got.iter().flat_map(|g| g.payload().to_vec()).eq(data.iter().copied()));
    }
}

/// UC and UD requests complete as soon as they are queued, so their memory may be reused. READ
/// responses may come from memory that is written all the time.
#[test]
fn payload_that_may_change_is_taken_when_queued() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let opcodes = [Opcode::UC_SEND_ONLY, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::UC_SEND_MIDDLE];
    for opcode in opcodes {
        let mut data = bytes(4096, 3);
        let before = data.clone();
        let segments = [segment(&data)];
        let payload = Payload::Memory { segments: &segments, skip: 0, len: 4096 };
        let only = headers(opcode, 1);
        let message = write(0, 4096, payload);
        let burst = Burst { first: &only, middle: &only, last: &only, ..message.burst() };
        sender.queue(flow, &burst).unwrap();
        data.fill(0);
        sender.flush();
        let got = drain(&mut receiver);
        assert!(got[0].good && got[0].payload() == before, "{opcode}");
    }
}

#[test]
fn traffic_class_and_hop_limit_are_the_flows_own_even_on_a_shared_socket() {
    for ip in [V4, V6] {
        let (mut receiver, mut sender) = pair();
        receiver.tell_header_fields(true).unwrap();
        let values = [(0, 64), (0x20, 7), (0xb8, 255)];
        let flows = values.map(|(traffic_class, hop_limit)| {
            sender.open(FlowKey { traffic_class, hop_limit, ..key(ip, ip) }).unwrap()
        });
        let ports = flows.map(|flow| sender.source_port(flow).unwrap());
        assert!(ports.iter().all(|port| *port == ports[0]));
        for flow in flows {
            sender.queue_raw(flow, &headers_only(0));
        }
        sender.flush();
        let got = drain(&mut receiver);
        assert!(got.iter().all(|g| g.good));
        let seen: Vec<(u8, u8)> = got.iter().map(|g| (g.traffic_class, g.hop_limit)).collect();
        assert_eq!(seen, values);
    }
}

#[test]
fn ipv4_packets_need_not_say_what_they_were_sent_to_if_there_is_only_one_address() {
    let (mut receiver, mut sender) = pair();
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    receiver.set_sole_ipv4(Some((Ipv4Addr::LOCALHOST, 7))).unwrap();
    let mut send = |receiver: &mut Receiver, ip| {
        let flow = sender.open(key(ip, ip)).unwrap();
        sender.queue_raw(flow, &headers_only(0));
        sender.flush();
        drain(receiver).remove(0)
    };
    for ip in [V4, V6] {
        let got = send(&mut receiver, ip);
        assert!(got.good && got.dst == ip);
    }
    // The packet was sent to another address, so its ICRC is wrong.
    assert!(!send(&mut receiver, other).good);
    // Now there is another address.
    receiver.set_sole_ipv4(None).unwrap();
    for ip in [V4, V6, other] {
        let got = send(&mut receiver, ip);
        assert!(got.good && got.dst == ip);
    }
    // Datagram services get every destination reported, even if there is only one address.
    receiver.tell_header_fields(true).unwrap();
    receiver.set_sole_ipv4(Some((Ipv4Addr::LOCALHOST, 7))).unwrap();
    let got = send(&mut receiver, other);
    assert!(got.good && got.dst == other);
}

#[test]
fn taken_source_port_is_replaced_and_the_icrc_follows() {
    let (mut receiver, mut sender) = pair();
    let other = UdpSocket::bind((V4, 0xc555));
    let flow = sender.open(FlowKey { source_port: 0xc555, ..key(V4, V4) }).unwrap();
    let port = sender.source_port(flow).unwrap();
    assert!(port >= 0xc000 && port != 0xc555, "{port:#x}");
    sender.queue_raw(flow, &headers_only(0));
    sender.flush();
    let got = drain(&mut receiver);
    assert!(got[0].good);
    assert_eq!(got[0].src_port, port);
    drop(other);
}

#[test]
fn closed_flow_is_gone_and_the_last_one_takes_the_socket_along() {
    let (mut receiver, mut sender) = pair();
    let key = FlowKey { source_port: 0xc777, ..key(V4, V4) };
    let first = sender.open(key).unwrap();
    let second = sender.open(key).unwrap();
    let port = sender.source_port(first).unwrap();
    sender.queue_raw(first, &headers_only(0));
    sender.close(first);
    assert_eq!(drain(&mut receiver).len(), 1, "what was queued left before");
    sender.close(first);
    sender.queue_raw(first, &headers_only(1));
    assert_eq!(sender.source_port(first), None);
    sender.queue_raw(second, &headers_only(2));
    sender.flush();
    assert_eq!(drain(&mut receiver).len(), 1, "only the open flow's");
    assert!(UdpSocket::bind((V4, port)).is_err());
    sender.close(second);
    assert!(UdpSocket::bind((V4, port)).is_ok());
    let third = sender.open(key).unwrap();
    assert_ne!(third, first);
}

#[test]
fn a_thousand_peers_share_a_few_sockets() {
    let (mut receiver, mut sender) = pair();
    let remote = |n: u32| IpAddr::V4(Ipv4Addr::from(0x7f01_0000 + n));
    let key = |n: u32| FlowKey { source_port: (n * 37 % 0x4000) as u16, ..key(V4, remote(n)) };
    let flows: Vec<FlowHandle> = (0..2000).map(|n| sender.open(key(n)).unwrap()).collect();
    assert_eq!(sender.sockets(), SOCKETS_PER_SOURCE);
    for batch in flows.chunks(50) {
        for flow in batch {
            sender.queue_raw(*flow, &headers_only(0));
        }
        assert_eq!(flush(&mut sender), (50, 0));
        let got = drain(&mut receiver);
        assert_eq!((got.len(), got.iter().all(|g| g.good)), (50, true));
        // Enough source ports remain to spread flows over the network's ways.
        let mut ports: Vec<u16> = got.iter().map(|g| g.src_port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() > SOCKETS_PER_SOURCE / 4, "{} ports", ports.len());
    }
    // Other sources get sockets of their own; in the end one each.
    for n in 2..100 {
        let local = IpAddr::V4(Ipv4Addr::from(0x7f00_0000 + n));
        for m in 0..50 {
            sender.open(FlowKey { local, ..key(m) }).unwrap();
        }
    }
    assert!(sender.sockets() < SOCKETS_ENOUGH + 100, "{} sockets", sender.sockets());
    for flow in flows {
        sender.close(flow);
    }
}

#[test]
fn a_run_of_packets_is_taken_apart_packet_by_packet() {
    let (_, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let data = bytes(5000, 3);
    let segments = [segment(&data[..3000]), segment(&data[3000..])];
    let payload = Payload::Memory { segments: &segments, skip: 0, len: 5000 };
    sender.queue(flow, &write(0, 1024, payload).burst()).unwrap();
    let text = |list: Vec<libc::iovec>| -> Vec<u8> {
        let of = |piece: &libc::iovec| {
            // SAFETY: the pieces belong to the batch's arena and to `data`, both of which live.
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
        };
        list.iter().flat_map(|piece| of(piece).to_vec()).collect()
    };
    let packets = sender.queued_packets().into_iter().map(text).collect::<Vec<_>>();
    assert_eq!(packets.len(), 5);
    let payloads: Vec<u8> =
        packets.iter().flat_map(|p| Packet::parse(p).unwrap().payload.to_vec()).collect();
    assert_eq!(payloads, data);
    sender.flush();
}

#[test]
fn corrupt_packet_is_delivered_but_not_verified() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    sender.queue(flow, &write(0, 256, Payload::Bytes(b"right")).burst()).unwrap();
    sender.flush();
    let mut wrong = drain(&mut receiver)[0].datagram.clone();
    wrong[20] ^= 1;
    let plain = UdpSocket::bind((V4, 0)).unwrap();
    let to = (V4, receiver.port());
    for datagram in [&wrong[..], &[], &[1, 2, 3]] {
        plain.send_to(datagram, to).unwrap();
    }
    let got = drain(&mut receiver);
    assert_eq!(got.iter().map(|g| g.datagram.len()).collect::<Vec<_>>(), [wrong.len(), 0, 3]);
    assert!(got.iter().all(|g| !g.good));
}

/// Linux rxe sends a FLUSH this way, and expects it.
#[test]
fn flush_that_is_covered_twice_is_verified_and_other_packets_are_not() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let message = write(0, 256, Payload::Bytes(b""));
    for (opcode, covered_twice, good) in [
        (Opcode::RC_FLUSH, false, true),
        (Opcode::RC_FLUSH, true, true),
        (Opcode::RC_WRITE_ONLY, true, false),
    ] {
        let mut only = headers(opcode, 1);
        only.feth = opcode.has_feth().then(Feth::default);
        let burst =
            Burst { first: &only, middle: &only, last: &only, covered_twice, ..message.burst() };
        sender.queue(flow, &burst).unwrap();
        sender.flush();
        let got = drain(&mut receiver);
        assert_eq!(got.iter().map(|g| g.good).collect::<Vec<_>>(), [good], "{opcode}");
    }
}

#[test]
fn nothing_there_is_no_error() {
    let (mut receiver, mut sender) = pair();
    assert_eq!(receiver.receive(&mut |_| panic!("nothing was sent")).unwrap(), 0);
    assert_eq!(sender.flush(), Flushed::default());
}

#[test]
fn a_payload_that_changes_before_it_leaves_has_the_right_icrc_if_it_was_copied() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    for changing in [true, false] {
        let mut data = bytes(3000, 1);
        let before = data.clone();
        let segments = [segment(&data)];
        let message = write(0, 1500, Payload::Memory { segments: &segments, skip: 0, len: 3000 });
        sender.queue(flow, &Burst { changing, ..message.burst() }).unwrap();
        data.fill(9);
        assert_eq!(flush(&mut sender), (2, 0));
        let got = drain(&mut receiver);
        assert_eq!(got.len(), 2);
        // Without `changing` it is dropped, and sent again as a copy.
        assert!(got.iter().all(|g| g.good == changing));
        if changing {
            let joined: Vec<u8> = got.iter().flat_map(|g| g.payload().to_vec()).collect();
            assert!(joined == before);
        }
    }
}

#[test]
fn a_payload_that_is_gone_leaves_what_came_before_it_and_the_next_message_whole() {
    let (mut receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let table = crate::memory::MemoryTable::new();
    table.register(1, 0, 0, 0, polypath_transport::Access::empty()).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: this is a new mapping, whose second page is unmapped.
    let at = unsafe {
        let at = libc::mmap(crate::memory::place::place(), 8192, libc::PROT_READ, flags, -1, 0);
        assert_eq!(libc::munmap(at.byte_add(4096), 4096), 0);
        at
    };
    for changing in [true, false] {
        // SAFETY: the pages belong to this test. That one is missing is what the test checks.
        let segments = [unsafe { Segment::assume(at.cast(), 8192) }];
        let message = write(0, 1024, Payload::Memory { segments: &segments, skip: 0, len: 8192 });
        let burst = Burst { changing, ..message.burst() };
        assert_eq!(sender.queue(flow, &burst), Err(Unread { sent: 4 }));
        sender.queue(flow, &write(40, 1024, Payload::Bytes(&[5; 3000])).burst()).unwrap();
        assert_eq!(flush(&mut sender), (7, 0));
        let got = drain(&mut receiver);
        assert!(got.iter().all(|g| g.good));
        let psns: Vec<u32> = got.iter().map(Got::psn).collect();
        assert_eq!(psns, [0, 1, 2, 3, 40, 41, 42]);
    }
    // SAFETY: this is the mapping from above.
    unsafe { libc::munmap(at, 4096) };
}
