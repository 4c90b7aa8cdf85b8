use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, StreamEnds};
use polypath_transport::Unread;

use super::*;
use crate::lane::Waker;
use crate::media::gather::packets;
use crate::media::run::{Run, then_gone};
use crate::media::{FlowFault, FlowHandle, Flushed, Seal};
use crate::memory::Segment;

const NOW: Duration = Duration::from_secs(1);

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn ends(slot: u8) -> StreamEnds {
    StreamEnds { local: ip(slot), remote: ip(3 - slot), slot: 3 - slot }
}

/// The two ends of a connection.
fn sockets() -> [OwnedFd; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [caller.into(), listener.accept().unwrap().0.into()]
}

/// A lane's end: its halves, and where its streams come in.
struct End {
    tx: Box<dyn crate::media::Tx>,
    rx: Box<dyn crate::media::Rx>,
    streams: Arc<Streams>,
    slot: u8,
    flow: FlowHandle,
    now: Duration,
}

impl End {
    fn new(slot: u8) -> Self {
        let ((mut tx, rx), streams) = halves();
        let address = PathAddress {
            kind: ends(slot).kind(),
            local: ip(slot),
            remote: ip(3 - slot),
            ifindex: 2,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        assert!(tx.carries(&address));
        let flow = tx.open(&address, 7).unwrap();
        Self { tx, rx, streams, slot, flow, now: NOW }
    }

    fn pair() -> [Self; 2] {
        let both = [Self::new(1), Self::new(2)];
        for (end, socket) in both.iter().zip(sockets()) {
            end.add(socket);
        }
        both
    }

    fn add(&self, socket: OwnedFd) {
        self.streams.add(Stream::new(ends(self.slot), socket).unwrap()).unwrap();
    }

    fn send(&mut self, packet: &[u8]) -> Flushed {
        self.tx.send_packet(self.now, self.flow, packet, Seal::Right);
        self.flush()
    }

    fn flush(&mut self) -> Flushed {
        self.now += Duration::from_millis(1);
        self.tx.flush(self.now)
    }

    /// What has arrived, and whether the stream was found broken.
    fn receive(&mut self) -> (Vec<Vec<u8>>, bool) {
        let mut got = Vec::new();
        self.now += Duration::from_millis(1);
        let slot = 3 - self.slot;
        let result = self.rx.receive(self.now, &mut |received| {
            assert_eq!(received.kind, ends(3 - slot).kind());
            assert_eq!((received.src, received.dst), (ip(slot), ip(3 - slot)));
            assert!(received.verify());
            got.push(received.datagram.to_vec());
        });
        (got, result.is_err())
    }

    /// Receives until there are so many, or the stream is over.
    fn receive_all(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < count {
            let (mut got, broken) = self.receive();
            all.append(&mut got);
            if broken || !self.streams.has(ends(self.slot)) {
                break;
            }
        }
        all
    }

    /// Waits until the end of the stream is noticed.
    fn wait_over(&mut self) {
        while self.streams.take_over() != [ends(self.slot)] {
            let (got, _) = self.receive();
            assert!(got.is_empty());
        }
    }
}

fn packet(n: u32) -> Vec<u8> {
    let len = 12 + (n.wrapping_mul(0x9e37_79b9) >> 16) as usize % (PACKET_BYTES - 12) / 4 * 4;
    vec![n as u8; len]
}

#[test]
fn packets_arrive_in_order_and_whole_in_both_directions() {
    let [mut one, mut other] = End::pair();
    for round in 0..200 {
        let sent: Vec<_> = (round..round + 60).map(packet).collect();
        for packet in &sent {
            one.tx.send_packet(NOW, one.flow, packet, Seal::Right);
            other.tx.send_packet(NOW, other.flow, packet, Seal::Right);
        }
        let bytes: usize = sent.iter().map(Vec::len).sum();
        for end in [&mut one, &mut other] {
            let flushed = Flushed { sent: 60, sent_bytes: bytes as u64, ..Flushed::default() };
            assert_eq!(end.flush(), flushed);
        }
        for end in [&mut one, &mut other] {
            assert_eq!(end.receive_all(60), sent);
        }
    }
    assert!(one.tx.sent_bytes(one.flow) > 1_000_000);
}

const BURST_MTU: u32 = 4096;

#[test]
#[allow(unsafe_code)]
fn a_burst_arrives_as_its_packets_whether_or_not_there_is_room_for_it() {
    const PACKETS: u32 = 300;
    let data: Vec<u8> = (0..PACKETS * BURST_MTU - 3).map(|n| (n >> 3) as u8).collect();
    // SAFETY: within `data`, which stays.
    let segments = [(0, 5000), (5000, data.len() - 5000)]
        .map(|(at, len)| unsafe { Segment::assume(data[at..].as_ptr(), len as u32) });
    let run = Run::new(PACKETS, BURST_MTU, 3);
    let burst = run.burst(&segments);
    let mut expected = Vec::new();
    packets(&burst, |_, packet, _| expected.push(packet.to_vec())).unwrap();
    let [mut one, mut other] = End::pair();
    // More than the kernel takes, so that most of it waits here, and is moved there.
    let mut taken = 0;
    for _ in 0..8 {
        one.tx.send(NOW, one.flow, &burst).unwrap();
        taken += one.flush().sent as usize;
    }
    assert_eq!(one.streams.take_over(), []);
    let mut got = Vec::new();
    while got.len() < taken {
        got.append(&mut other.receive().0);
        one.flush();
    }
    assert!(got.iter().eq(expected.iter().cycle().take(taken)), "{taken}");
    assert!(taken > PACKETS as usize, "{taken}");
    assert_eq!(one.tx.next_deadline(), None);
}

#[test]
#[allow(unsafe_code)]
fn what_can_t_be_read_is_left_out_and_the_stream_goes_on() {
    let [mut one, mut other] = End::pair();
    let data = [7; 100];
    // SAFETY: `data` stays.
    let segments = unsafe { then_gone(&data, 100) };
    let run = Run::new(2, 100, 0);
    let burst = run.burst(&segments);
    assert_eq!(one.tx.send(NOW, one.flow, &burst), Err(Unread { sent: 1 }));
    assert_eq!(one.flush().sent, 1);
    assert_eq!(one.send(&packet(9)).sent, 1);
    let got = other.receive_all(2);
    assert_eq!((got[0].len(), &got[1]), (112, &packet(9)));
}

#[test]
#[allow(unsafe_code)]
fn a_burst_ends_before_a_page_that_is_gone() {
    let [mut one, mut other] = End::pair();
    let data: Vec<u8> = (0..2 * BURST_MTU + 100).map(|n| (n >> 3) as u8).collect();
    // SAFETY: `data` stays.
    let segments = unsafe { then_gone(&data, BURST_MTU - 100) };
    let run = Run::new(3, BURST_MTU, 0);
    let burst = run.burst(&segments);
    // What is small goes before it.
    one.tx.send_packet(NOW, one.flow, &packet(8), Seal::Right);
    assert_eq!(one.tx.send(NOW, one.flow, &burst), Err(Unread { sent: 2 }));
    one.tx.send_packet(NOW, one.flow, &packet(9), Seal::Right);
    assert_eq!(one.flush().sent, 4);
    let got = other.receive_all(4);
    assert_eq!((&got[0], &got[3]), (&packet(8), &packet(9)));
    assert_eq!(got[1][12..], data[..BURST_MTU as usize]);
    assert_eq!(got[2][12..], data[BURST_MTU as usize..][..BURST_MTU as usize]);
}

#[test]
#[allow(unsafe_code)]
fn a_burst_is_sent_to_its_end_by_the_flush() {
    let [mut one, mut other] = End::pair();
    let data = vec![7; 16 << 10];
    // SAFETY: within `data`, which stays.
    let segments = [unsafe { Segment::assume(data.as_ptr(), data.len() as u32) }];
    let run = Run::new(16, 1024, 0);
    let burst = run.burst(&segments);
    for _ in 0..100 {
        one.tx.send(NOW, one.flow, &burst).unwrap();
        assert_eq!(one.flush().sent, 16);
        assert_eq!(other.receive_all(16).len(), 16);
    }
}

#[test]
fn a_stream_that_does_not_drain_loses_whole_packets_and_goes_on() {
    let [mut one, mut other] = End::pair();
    let (mut taken, mut dropped) = (Vec::new(), 0);
    for n in 0.. {
        let mut packet = packet(n);
        packet[..4].copy_from_slice(&n.to_be_bytes());
        let done = one.send(&packet);
        match done.sent {
            1 => taken.push(packet),
            _ => dropped += done.dropped,
        }
        if dropped == 100 {
            break;
        }
    }
    let errors = one.tx.take_errors();
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].kind, errors[0].packets), (FlowFault::Congested(libc::ENOBUFS), 100));
    assert!(one.tx.next_deadline().is_some(), "it is tried again");
    assert!(one.streams.has(ends(1)), "it is full, not over");
    let mut got = Vec::new();
    while got.len() < taken.len() {
        got.append(&mut other.receive().0);
        one.flush();
    }
    assert!(got == taken, "what was taken arrives, and nothing else");
    assert_eq!(one.tx.next_deadline(), None);
    assert_eq!(one.send(&packet(7)).sent, 1);
    assert_eq!(other.receive_all(1), [packet(7)]);
}

#[test]
fn the_end_of_a_stream_is_noticed_and_what_came_before_it_counts() {
    let [mut one, mut other] = End::pair();
    one.send(&packet(1));
    one.streams.close();
    assert_eq!(other.receive_all(1), [packet(1)]);
    other.wait_over();
    assert_eq!(other.send(&packet(2)).dropped, 1);
    assert_eq!(other.tx.take_errors()[0].kind, FlowFault::Refused(libc::ENOTCONN));
}

#[test]
fn a_frame_that_is_cut_by_a_reset_is_never_handed_out() {
    let mut end = End::new(1);
    let [here, there] = sockets();
    end.add(here);
    let frame = [&frames::header(400)[..], &[9; 200]].concat();
    rustix::net::send(&there, &frame, rustix::net::SendFlags::empty()).unwrap();
    // The kernel sends a reset instead of the end.
    rustix::net::sockopt::set_socket_linger(&there, Some(Duration::ZERO)).unwrap();
    drop(there);
    end.wait_over();
    // A new one begins with a frame of its own.
    let [here, there] = sockets();
    end.add(here);
    let frame = [&frames::header(16)[..], &[1; 16]].concat();
    rustix::net::send(&there, &frame, rustix::net::SendFlags::empty()).unwrap();
    assert_eq!(end.receive_all(1), [[1; 16]]);
}

#[test]
fn a_partly_written_frame_is_finished_by_another_stream_never() {
    let [mut one, mut other] = End::pair();
    while one.send(&packet(3)).dropped == 0 {}
    // The old stream has begun a frame. The new one gets none of its bytes.
    let [here, there] = sockets();
    one.add(here);
    other.add(there);
    assert_eq!(one.send(&packet(4)).sent, 1);
    assert_eq!(other.receive_all(1), [packet(4)]);
    assert_eq!(one.streams.take_over(), [], "it was replaced");
}

#[test]
fn what_is_no_frame_ends_the_stream() {
    for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 4], &[0xff; 100], &[0, 13, 0, 0, 1, 1]] {
        let mut end = End::new(1);
        let [here, there] = sockets();
        end.add(here);
        rustix::net::send(&there, bytes, rustix::net::SendFlags::empty()).unwrap();
        let broken = std::iter::repeat_with(|| end.receive()).find(|(got, broken)| {
            assert!(got.is_empty());
            *broken
        });
        assert!(broken.is_some());
        assert_eq!(end.streams.take_over(), [ends(1)]);
    }
}

#[test]
fn hostile_bytes_give_whole_packets_or_the_end() {
    let mut good = Vec::new();
    for n in 0..20 {
        good.extend(frames::header(packet(n).len()));
        good.extend(packet(n));
    }
    for piece in [1, 3, 4096, 100_000] {
        assert_eq!(hostile::run(&good, piece), (20, false), "{piece}");
    }
    let mut bad = good.clone();
    let last = good.len() - packet(19).len() - frames::HEADER;
    bad[last + 3] = 1;
    assert_eq!(hostile::run(&bad, 777), (19, true));
}

#[test]
fn a_lane_that_waits_is_woken() {
    let [mut one, mut other] = End::pair();
    let waker = Waker::new().unwrap();
    assert!(!waker.wait(Some(other.rx.wait_on()), Duration::ZERO));
    one.send(&packet(5));
    assert!(waker.wait(Some(other.rx.wait_on()), Duration::from_secs(60)));
    assert_eq!(other.receive_all(1), [packet(5)]);
    assert!(!waker.wait(Some(other.rx.wait_on()), Duration::ZERO));
    drop(one);
    assert!(waker.wait(Some(other.rx.wait_on()), Duration::from_secs(60)), "the end wakes it, too");
}

#[test]
fn a_lane_has_no_more_streams_than_it_may() {
    let end = End::new(1);
    let other = |n: u8| StreamEnds { slot: n, ..ends(1) };
    let add =
        |n| end.streams.add(Stream::new(other(n), sockets()[0].try_clone().unwrap()).unwrap());
    for n in 0..64 {
        add(n).unwrap();
    }
    assert_eq!(add(64).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    add(3).unwrap();
    end.streams.close();
    assert_eq!(add(5).unwrap_err().raw_os_error(), Some(libc::ESHUTDOWN));
}
