use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::{PathAddress, PathKind};
use polypath_transport::{Burst, Segment as _, Unread};
use rustix::fs::SealFlags;

use super::channel::Channel;
use super::hostile::{file, sealed};
use super::memory::SharedMemory;
use super::ring::{BYTES, Broken, CHANNEL_BYTES, Consumer, Producer, Ring};
use super::*;
use crate::lane::Waker;
use crate::media::gather::packets;
use crate::media::run::{Run, then_gone};
use crate::media::{FlowFault, FlowHandle, Seal};
use crate::memory::Segment;

const NOW: Duration = Duration::from_secs(1);

/// Both ends of a channel between the lanes with the slots 1 and 2.
fn channel() -> [Channel; 2] {
    let memory = file(CHANNEL_BYTES, sealed());
    let (a, b) = polypath_ipc::socket::pair().unwrap();
    [
        Channel::new(2, false, memory.as_fd(), a).unwrap(),
        Channel::new(1, true, memory.as_fd(), b).unwrap(),
    ]
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

/// A lane's end: its halves, and where its channels come in.
struct End {
    tx: Box<dyn crate::media::Tx>,
    rx: Box<dyn crate::media::Rx>,
    exchange: Arc<Exchange>,
    slot: u8,
}

impl End {
    fn new(slot: u8) -> Self {
        let ((tx, rx), exchange) = halves();
        Self { tx, rx, exchange, slot }
    }

    fn pair() -> [Self; 2] {
        let ends = [Self::new(1), Self::new(2)];
        for (end, channel) in ends.iter().zip(channel()) {
            end.exchange.add(channel).unwrap();
        }
        ends
    }

    /// Opens a flow to the lane with the other slot.
    fn open(&mut self) -> FlowHandle {
        let address = PathAddress {
            kind: PathKind::Local { slot: 3 - self.slot },
            local: ip(self.slot),
            remote: ip(3 - self.slot),
            ifindex: 0,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        self.tx.open(&address, 7).unwrap()
    }

    /// Sends a packet to the lane with the other slot.
    fn send(&mut self, packet: &[u8]) -> crate::media::Flushed {
        let flow = self.open();
        self.tx.send_packet(NOW, flow, packet, Seal::Right);
        let done = self.tx.flush(NOW);
        assert_eq!(self.tx.sent_bytes(flow), done.sent_bytes);
        self.tx.close(flow);
        done
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let slot = 3 - self.slot;
        self.rx
            .receive(NOW, &mut |received| {
                assert_eq!(received.kind, PathKind::Local { slot });
                assert_eq!((received.src, received.dst), (ip(slot), ip(3 - slot)));
                got.push(received.datagram.to_vec());
            })
            .unwrap();
        got
    }
}

#[test]
fn packets_arrive_in_order_and_whole_between_two_threads() {
    let [one, other] = channel();
    let packet = |n: u32| {
        let len = (n.wrapping_mul(0x9e37_79b9) >> 16) as usize % (PACKET_BYTES + 1);
        vec![n as u8; len]
    };
    const COUNT: u32 = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = Producer::new(one.writes);
            for n in 0..COUNT {
                while !producer.push(&one.memory, ip(1), ip(2), &packet(n)).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(other.reads);
        let mut out = Box::new([0; PACKET_BYTES]);
        for n in 0..COUNT {
            let len = loop {
                if let Some((src, dst, len)) = consumer.pop(&other.memory, &mut out).unwrap() {
                    assert_eq!((src, dst), (ip(1), ip(2)));
                    break len;
                }
                std::thread::yield_now();
            };
            consumer.tell(&other.memory);
            assert_eq!(out[..len], packet(n), "packet {n}");
        }
        assert_eq!(consumer.pop(&other.memory, &mut out), Ok(None));
    });
}

#[test]
fn a_full_ring_takes_nothing_until_something_was_read() {
    let [one, other] = channel();
    let mut producer = Producer::new(one.writes);
    let packet = [7; PACKET_BYTES];
    let mut push = |memory: &SharedMemory| producer.push(memory, ip(1), ip(2), &packet).unwrap();
    let mut count = 0;
    while push(&one.memory) {
        count += 1;
    }
    assert_eq!(count, BYTES / (PACKET_BYTES + 40));
    let mut consumer = Consumer::new(other.reads);
    let mut out = Box::new([0; PACKET_BYTES]);
    assert!(consumer.pop(&other.memory, &mut out).unwrap().is_some());
    assert!(!push(&one.memory), "nothing was given back");
    consumer.tell(&other.memory);
    // The rest of the ring's end and the room of one packet do not hold one more at first.
    while !push(&one.memory) {
        assert!(consumer.pop(&other.memory, &mut out).unwrap().is_some());
        consumer.tell(&other.memory);
    }
}

#[test]
fn a_packet_that_is_too_long_is_not_sent() {
    let memory = hostile::memory();
    let mut producer = Producer::new(Ring::of(false));
    let long = [0; PACKET_BYTES + 1];
    assert_eq!(producer.push(&memory, ip(1), ip(2), &long), Ok(false));
    assert_eq!(Ring::of(false).tail(&memory), 0);
}

/// What a reader says of a ring whose writer has set the tail, and written these bytes.
fn read(tail: u64, bytes: &[u8]) -> Result<usize, Broken> {
    let memory = hostile::memory();
    memory.write(4096, bytes);
    memory.word(0).store(tail, std::sync::atomic::Ordering::Release);
    let mut consumer = Consumer::new(Ring::of(false));
    let mut out = Box::new([0; PACKET_BYTES]);
    let mut packets = 0;
    while consumer.pop(&memory, &mut out)?.is_some() {
        packets += 1;
    }
    Ok(packets)
}

#[test]
fn impossible_numbers_of_the_writer_break_the_ring() {
    let len = |len: u32| len.to_ne_bytes();
    assert_eq!(read(40, &len(0)), Ok(1));
    assert_eq!(read(48, &len(8)), Ok(1));
    assert_eq!(read(0, &len(9)), Ok(0));
    let whole = BYTES as u64;
    for (tail, first) in [
        (39, 0),
        (8, 0),
        (40, 1),
        (48, 9),
        (32, u32::MAX),
        (whole, u32::MAX),
        (whole, PACKET_BYTES as u32 + 1),
        (whole, u32::MAX - 1),
        (whole + 8, 0),
        (u64::MAX, 0),
        (u64::MAX - 7, 0),
    ] {
        assert_eq!(read(tail, &len(first)), Err(Broken), "{tail} {first:#x}");
    }
}

#[test]
fn impossible_numbers_of_the_reader_break_the_ring() {
    for head in [8, u64::MAX, u64::MAX - 8] {
        let memory = hostile::memory();
        let mut producer = Producer::new(Ring::of(false));
        memory.word(128).store(head, std::sync::atomic::Ordering::Release);
        let packet = [0; PACKET_BYTES];
        let broken = (0..BYTES).find_map(|_| match producer.push(&memory, ip(1), ip(2), &packet) {
            Ok(true) => None,
            other => Some(other),
        });
        // The reader may claim to have read something that was written by now.
        assert!(broken == Some(Err(Broken)) || head == 8, "{head}: {broken:?}");
    }
}

#[test]
fn whatever_is_written_into_a_ring_nothing_but_packets_or_an_end_comes_of_it() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut packets, mut broken) = (0, 0);
    for _ in 0..200 {
        let script: Vec<u8> = (0..12 * 40).flat_map(|_| draw().to_le_bytes()).collect();
        let (read, ends) = crate::fuzz::hostile_ring(&script);
        (packets, broken) = (packets + read, broken + ends);
    }
    assert!(packets > 100 && broken > 100, "{packets} {broken}");
}

#[test]
fn memory_that_could_be_taken_away_is_not_used() {
    let map = |fd: OwnedFd| SharedMemory::map(fd.as_fd(), CHANNEL_BYTES).map(drop);
    assert!(map(file(CHANNEL_BYTES, sealed())).is_ok());
    for seals in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        assert!(map(file(CHANNEL_BYTES, sealed() - seals)).is_err(), "{seals:?}");
    }
    assert!(map(file(CHANNEL_BYTES - 4096, sealed())).is_err());
    assert!(map(file(CHANNEL_BYTES + 4096, sealed())).is_err());
    let (socket, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
    assert!(map(socket.into()).is_err());
}

#[test]
fn a_lane_that_sleeps_is_woken_and_one_that_does_not_is_left_alone() {
    let [mut one, mut other] = End::pair();
    let waker = Waker::new().unwrap();
    let fd = other.rx.wait_on();
    let rings = || waker.wait(Some(fd), Duration::ZERO);
    assert_eq!(one.send(b"first").sent, 1);
    assert!(!rings(), "it does not sleep");
    assert!(!other.exchange.arm(), "there is something to read");
    other.exchange.disarm();
    assert_eq!(other.receive(), [b"first"]);
    assert!(other.exchange.arm(), "all was read");
    assert!(!rings());
    one.send(b"second");
    one.send(b"third");
    assert!(rings());
    other.exchange.disarm();
    assert!(!rings());
    assert_eq!(other.receive(), [&b"second"[..], b"third"]);
}

#[test]
fn packets_go_both_ways_and_damaged_ones_do_not_arrive() {
    let [mut one, mut other] = End::pair();
    one.send(b"there");
    other.send(b"back");
    assert_eq!((one.receive(), other.receive()), (vec![b"back".to_vec()], vec![b"there".to_vec()]));
}

/// Sends a burst to the lane with the other slot.
fn send_burst(end: &mut End, burst: &Burst<'_, Segment>) -> Result<(), Unread> {
    let flow = end.open();
    let sent = end.tx.send(NOW, flow, burst);
    end.tx.close(flow);
    sent
}

#[test]
#[allow(unsafe_code)]
fn a_burst_arrives_as_its_packets_as_far_as_there_is_room_for_it() {
    const PACKETS: u32 = 300;
    let data: Vec<u8> = (0..PACKETS * 4096 - 3).map(|n| (n >> 3) as u8).collect();
    // SAFETY: within `data`, which stays.
    let segments = [(0, 5000), (5000, data.len() - 5000)]
        .map(|(at, len)| unsafe { Segment::assume(data[at..].as_ptr(), len as u32) });
    let run = Run::new(PACKETS, 4096, 3);
    let mut expected = Vec::new();
    packets(&run.burst(&segments), |_, packet, _| expected.push(packet.to_vec())).unwrap();
    let [mut one, mut other] = End::pair();
    for round in 0..8 {
        assert_eq!(send_burst(&mut one, &run.burst(&segments)), Ok(()));
        let done = one.tx.flush(NOW);
        assert_eq!((done.sent + done.dropped, done.sent > 200), (PACKETS, true), "{round}");
        let mut got = Vec::new();
        while got.len() < done.sent as usize {
            got.append(&mut other.receive());
        }
        assert!(got == expected[..got.len()], "{round}");
    }
    // A shorter one fits.
    let run = Run::new(2, 4096, 0);
    let segments = [segments[0].part(0, 4100)];
    assert_eq!(send_burst(&mut one, &run.burst(&segments)), Ok(()));
    assert_eq!(one.tx.flush(NOW).sent, 2);
    let got = other.receive();
    assert_eq!((&got[0][12..], &got[1][12..]), (&data[..4096], &data[4096..4100]));
}

#[test]
#[allow(unsafe_code)]
fn what_can_t_be_read_is_left_out_and_the_ring_goes_on() {
    let [mut one, mut other] = End::pair();
    let data = [7; 100];
    // SAFETY: `data` stays.
    let segments = unsafe { then_gone(&data, 100) };
    let run = Run::new(2, 100, 0);
    assert_eq!(send_burst(&mut one, &run.burst(&segments)), Err(Unread { sent: 1 }));
    assert_eq!(one.tx.flush(NOW).sent, 1);
    assert_eq!(one.send(&[9; 20]).sent, 1);
    let got = other.receive();
    assert_eq!((got.len(), got[0].len(), &got[1][..]), (2, 112, &[9; 20][..]));
}

#[test]
#[allow(unsafe_code)]
fn a_burst_without_a_channel_or_into_a_broken_ring_has_failed_as_a_whole() {
    let data = [7; 200];
    // SAFETY: within `data`, which stays.
    let segments = [unsafe { Segment::assume(data.as_ptr(), 200) }];
    let run = Run::new(2, 100, 0);
    let sent = |end: &mut End| {
        let flow = end.open();
        assert_eq!(end.tx.send(NOW, flow, &run.burst(&segments)), Ok(()));
        let (done, errors) = (end.tx.flush(NOW), end.tx.take_errors());
        end.tx.close(flow);
        (done.sent, done.dropped, errors.first().map(|error| (error.kind, error.packets)))
    };
    let refused = |errno| (0, 2, Some((FlowFault::Refused(errno), 2)));
    let mut end = End::new(1);
    assert_eq!(sent(&mut end), refused(libc::ENOTCONN));
    let [one, other] = channel();
    end.exchange.add(one).unwrap();
    // The other end says that it has read more than there was, which counts when the ring seems full.
    other.memory.word(128).store(1 << 40, std::sync::atomic::Ordering::Release);
    let fits = (0..BYTES).find(|_| sent(&mut end).0 < 2);
    assert!(fits.is_some_and(|count| count > 1000), "{fits:?}");
    assert_eq!(end.exchange.take_over(), [2]);
    assert_eq!(sent(&mut end), refused(libc::ENOTCONN));
}

#[test]
fn what_was_written_before_the_end_is_read_and_then_the_channel_is_over() {
    let [mut one, mut other] = End::pair();
    one.send(b"last words");
    drop(one);
    other.exchange.disarm();
    assert_eq!(other.exchange.take_over(), []);
    assert_eq!(other.receive(), [b"last words"]);
    assert_eq!(other.receive(), [] as [Vec<u8>; 0]);
    assert_eq!(other.exchange.take_over(), [1]);
    assert_eq!(other.exchange.take_over(), [], "it is told once");
    let done = other.send(b"to nobody");
    assert_eq!((done.sent, done.dropped), (0, 1));
    let waker = Waker::new().unwrap();
    assert!(
        !waker.wait(Some(other.rx.wait_on()), Duration::ZERO),
        "its bell is not watched any more"
    );
}

#[test]
fn a_lane_that_only_polls_notices_the_end_too() {
    let [one, mut other] = End::pair();
    assert_eq!(other.receive(), [] as [Vec<u8>; 0]);
    drop(one);
    let polls = (0..10_000).position(|_| {
        other.receive();
        other.exchange.take_over() == [1]
    });
    assert!(polls.is_some());
}

#[test]
fn a_channel_takes_the_place_of_an_earlier_one_to_the_same_slot() {
    let [mut one, mut other] = End::pair();
    one.send(b"by the first");
    assert_eq!(other.receive(), [b"by the first"]);
    for (end, channel) in [&mut one, &mut other].into_iter().zip(channel()) {
        end.exchange.add(channel).unwrap();
    }
    one.send(b"by the second");
    assert_eq!(other.receive(), [b"by the second"]);
    one.receive();
    assert_eq!(other.exchange.take_over(), []);
    assert_eq!(one.exchange.take_over(), []);
}

#[test]
fn a_lane_that_is_closed_ends_its_channels_and_takes_no_more() {
    let [mut one, mut other] = End::pair();
    one.exchange.close();
    assert_eq!(one.send(b"x").sent, 0);
    let [another, _far] = channel();
    let error = one.exchange.add(another).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESHUTDOWN));
    // Its halves go with the lane's state, and the other end hears of it.
    drop(one);
    other.exchange.disarm();
    other.receive();
    assert_eq!(other.exchange.take_over(), [1]);
}

#[test]
fn a_broken_ring_is_an_error_once_and_the_channel_is_over() {
    let [one, other] = channel();
    let mut end = End::new(2);
    end.exchange.add(other).unwrap();
    one.memory.word(0).store(4, std::sync::atomic::Ordering::Release);
    let error = end.rx.receive(NOW, &mut |_| unreachable!()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPROTO));
    assert_eq!(end.exchange.take_over(), [1]);
    assert_eq!(end.receive(), [] as [Vec<u8>; 0]);
}

#[test]
fn packets_to_a_lane_without_a_channel_are_dropped_with_a_reason() {
    let mut end = End::new(1);
    assert_eq!(end.send(b"x").dropped, 1);
    let [one, _other] = channel();
    end.exchange.add(one).unwrap();
    let mut dropped = 0;
    for _ in 0..1000 {
        dropped += end.send(&[0; 1024]).dropped;
    }
    assert!(dropped > 0, "a ring that nobody reads becomes full");
    let faults = [FlowFault::Refused(libc::ENOTCONN), FlowFault::Congested(libc::ENOBUFS)];
    assert!(end.tx.take_errors().iter().all(|error| faults.contains(&error.kind)));
}

#[test]
fn a_child_does_not_use_its_parents_channel() {
    let [mut one, mut other] = End::pair();
    one.send(b"for the parent");
    assert!(one.exchange.fd().as_raw_fd() >= 0);
    // SAFETY: the child calls what a program's threads would call in it, and ends without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let nothing = other.receive().is_empty() && one.send(b"from the child").sent == 0;
        // SAFETY: it ends the child.
        unsafe { libc::_exit(if nothing { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and `status` is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child got the packet, or crashed");
    assert_eq!(other.receive(), [b"for the parent"]);
}

#[test]
fn the_brokers_message_is_checked() {
    let give = |bytes: &[u8], with_memory: bool| {
        let (a, b) = polypath_ipc::socket::pair().unwrap();
        let memory = file(CHANNEL_BYTES, sealed());
        let fd = with_memory.then(|| memory.as_fd());
        polypath_ipc::socket::send(b.as_fd(), bytes, fd).unwrap();
        from_broker(9, a).map(|channel| channel.slot)
    };
    assert_eq!(give(&[0], true).unwrap(), 9);
    assert_eq!(give(&[1], true).unwrap(), 9);
    for (bytes, with_memory) in [(&[2][..], true), (&[0], false), (&[0, 0], true), (&[0; 9], true)]
    {
        assert!(give(bytes, with_memory).is_err(), "{bytes:?}");
    }
    let (a, _b) = polypath_ipc::socket::pair().unwrap();
    assert!(from_broker(9, a).is_err(), "nothing was sent, and nobody waits");
}
