use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use polypath_paths::PathAddress;

use super::*;
use crate::lane::{still_io, still_paths};
use crate::media::pair::Pair;
use crate::media::{Capabilities, FlowHandle, Flushed, Halves, OpenFlows, Received, Rx, Seal, Tx};

#[test]
fn a_program_that_posts_and_does_not_poll_receives_now_and_then() {
    let mut state = State::new(still_paths(7), still_io(), None);
    let now = Duration::from_secs(1);
    for _ in 0..8 {
        (0..4).for_each(|_| assert!(!state.collector.keeps(now, 64, 0)));
        state.collector.polled(now, 0);
    }
    assert!(!state.collector.keeps(now, 64, 0));
    assert!(!state.posts_without_polls(now), "a single message leaves at once");
    assert!(state.collector.keeps(now, 64, 0));
    assert!(state.posts_without_polls(now));
    state.received_at = now;
    assert!(!state.posts_without_polls(now), "somebody has just received");
    assert!(state.posts_without_polls(now + COLLECT_MAX));
    state.collector.leaves();
    assert!(!state.posts_without_polls(now + COLLECT_MAX), "nothing waits any more");
}

/// What is on its way from one host to the other.
#[derive(Debug, Default)]
struct Way {
    packets: VecDeque<Vec<u8>>,
    /// The largest batch.
    largest: usize,
    /// Whether the receiving host is in a batch, and how often it sent something there.
    in_batch: bool,
    sent_within: usize,
}

/// One end of a medium that hands out all that was sent as one batch.
#[derive(Debug)]
struct Batches {
    host: usize,
    ways: Arc<[Mutex<Way>; 2]>,
    bell: UnixStream,
    flows: OpenFlows<()>,
    queued: Vec<Vec<u8>>,
}

impl Batches {
    fn pair(ways: &Arc<[Mutex<Way>; 2]>) -> [Halves; 2] {
        let end = |host, bell: &UnixStream| Self {
            host,
            ways: ways.clone(),
            bell: bell.try_clone().unwrap(),
            flows: OpenFlows::new(),
            queued: Vec::new(),
        };
        let (a, b) = UnixStream::pair().unwrap();
        [(0, a), (1, b)].map(|(host, bell)| -> Halves {
            bell.set_nonblocking(true).unwrap();
            (Box::new(end(host, &bell)), Box::new(end(host, &bell)))
        })
    }

    /// What goes to a host.
    fn to(&self, host: usize) -> std::sync::MutexGuard<'_, Way> {
        self.ways[host].lock().unwrap()
    }
}

impl Tx for Batches {
    fn capabilities(&self) -> Capabilities {
        let (ordered, lossless, verified) = (true, true, true);
        Capabilities { name: "batches", packet_bytes: 4352, ordered, lossless, verified }
    }

    fn carries(&self, _address: &PathAddress) -> bool {
        true
    }

    fn open(&mut self, _address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        Ok(self.flows.open((), tag))
    }

    fn close(&mut self, flow: FlowHandle) {
        self.flows.close(flow);
    }

    fn send_packet(&mut self, _now: Duration, flow: FlowHandle, packet: &[u8], _seal: Seal) {
        self.flows.sent(flow, packet.len());
        self.queued.push(packet.to_vec());
    }

    fn has_queued(&self) -> bool {
        self.flows.has_queued()
    }

    fn flush(&mut self, _now: Duration) -> Flushed {
        if !self.queued.is_empty() {
            let queued = std::mem::take(&mut self.queued);
            self.to(1 - self.host).packets.extend(queued);
            let mut way = self.to(self.host);
            way.sent_within += usize::from(way.in_batch);
            let _ = (&self.bell).write(&[1]);
        }
        self.flows.take_queued()
    }

    fn sent_bytes(&self, flow: FlowHandle) -> u64 {
        self.flows.sent_bytes(flow)
    }
}

impl Rx for Batches {
    fn receive(&mut self, _now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let _ = (&self.bell).read(&mut [0; 4096]);
        let [src, dst] = [Pair::ADDRESSES[1 - self.host], Pair::ADDRESSES[self.host]];
        let batch: Vec<_> = {
            let mut way = self.to(self.host);
            (way.largest, way.in_batch) = (way.largest.max(way.packets.len()), true);
            way.packets.drain(..).collect()
        };
        batch.iter().for_each(|packet| f(&Received::verified(src, dst, packet)));
        self.to(self.host).in_batch = false;
        Ok(batch.len())
    }

    fn more(&self) -> bool {
        false
    }

    fn wait_on(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

#[test]
fn a_large_batch_is_acknowledged_before_its_end() {
    let ways = Arc::<[Mutex<Way>; 2]>::default();
    let mut pair = Pair::over(Batches::pair(&ways));
    let data: Vec<u8> = (0..1 << 18).map(|n| (n >> 5) as u8).collect();
    // In a window of this size, a burst ends before the last turn. If a thread was stopped for so long that
    // packets were sent again, the window is small for a while.
    let large = 2 * TURN_PACKETS as usize;
    for _ in 0..20 {
        assert!(pair.write(&data) == data);
        if ways[1].lock().unwrap().largest > large {
            break;
        }
    }
    drop(pair);
    let way = ways[1].lock().unwrap();
    assert!(way.largest > large && way.sent_within > 0, "{way:?}");
}
