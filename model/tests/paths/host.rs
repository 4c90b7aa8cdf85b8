//! One host of the checker: memory, and the lane that ships, with one queue pair.
//!
//! Everything in it can be copied, and all of it shows in its `Debug` text, which tells states apart.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_lane::{Arrival, Lane, LaneConfig, NotSent, Outside, Overrun, QpTable, Taken, Visit};
use polypath_paths::{
    Config, ControlOut, Handled, LaneIdentity, LocalAddress, PathAddress, PathEvent, PathKind,
    PathManager, PathOptions,
};
use polypath_transport::{
    Burst, Completion, CqSide, Explanation, FlatMemory, FlatSegment, Memory, QpEvent, QueuePair,
    RecvWr,
};
use polypath_wire::ICRC_LEN;
use polypath_wire::packet::Packet;

/// A datagram between two addresses; the ICRC is zero.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The address of a host on a link.
pub(crate) fn address(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link as u8 + 1, host as u8 + 1])
}

/// The key of all of a host's memory, local and remote.
pub(crate) const KEY: u32 = 0x1234_5678;
/// The protection domain of everything.
pub(crate) const PD: u32 = 1;

/// What of a host its queue pair and lane see.
#[derive(Clone, Debug)]
pub(crate) struct Io {
    /// The time of the current call.
    pub(crate) now: Duration,
    /// The host's memory; addresses are indexes.
    pub(crate) memory: Vec<u8>,
    /// Datagrams to send.
    pub(crate) out: Vec<Datagram>,
    /// Completions so far, in order, by queue pair and side.
    pub(crate) completions: Vec<(CqSide, Completion)>,
    /// What queue pairs said of errors.
    pub(crate) explanations: Vec<String>,
    /// Asynchronous events.
    pub(crate) events: Vec<(u32, QpEvent)>,
    /// Atomics executed.
    pub(crate) atomics: u64,
    /// Bytes charged to paths and not given back, all together.
    pub(crate) charged: i64,
    /// What the path manager reported, with the time.
    pub(crate) path_events: Vec<(Duration, PathEvent)>,
}

impl Outside<u32> for Io {
    type Segment = FlatSegment;

    fn memory<'a>(&'a mut self, _own: &'a u32) -> impl Memory<Segment = FlatSegment> + 'a {
        FlatMemory { bytes: &mut self.memory, key: KEY, atomics: &mut self.atomics }
    }

    fn take_srq(&mut self, _own: &u32) -> Option<RecvWr> {
        None
    }

    fn complete(
        &mut self,
        _own: &u32,
        side: CqSide,
        completion: Completion,
    ) -> Result<(), Overrun> {
        self.completions.push((side, completion));
        Ok(())
    }

    fn event(&mut self, own: &u32, event: QpEvent) {
        self.events.push((*own, event));
    }

    fn explain(&mut self, _own: &u32, _paths: &PathManager, explanation: Explanation) {
        self.explanations.push(format!("{:?}: {explanation}", self.now));
    }

    fn charged(&mut self, _own: &u32, bytes: i64) {
        self.charged += bytes;
    }

    fn transmit(
        &mut self,
        own: &u32,
        address: Option<&PathAddress>,
        burst: &Burst<'_, FlatSegment>,
    ) -> Result<(), NotSent> {
        let Some(a) = address else { return Err(NotSent::NoWay) };
        let (src, dst) = (a.local, a.remote);
        let payload = burst.copy_payload(&mut self.memory(own)).expect("all memory is there");
        for i in 0..burst.packets {
            let range = burst.range(i);
            let mut bytes =
                burst.headers(i).packet(&payload[range.start as usize..range.end as usize]);
            bytes.resize(bytes.len() + ICRC_LEN, 0);
            self.out.push(Datagram { src, dst, bytes });
        }
        Ok(())
    }

    fn control(&mut self, out: ControlOut) {
        let mut bytes = out.packet;
        bytes.resize(bytes.len() + ICRC_LEN, 0);
        let (src, dst) = (out.address.local, out.address.remote);
        self.out.push(Datagram { src, dst, bytes });
    }

    fn path_event(&mut self, now: Duration, _paths: &PathManager, event: &PathEvent) {
        self.path_events.push((now, *event));
    }
}

/// A host, with one lane.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Its queue pair, with its number beside it, and paths.
    pub(crate) lane: Lane<u32>,
    /// What they see of the host.
    pub(crate) io: Io,
    /// Addresses and links, as the broker would tell.
    pub(crate) local: Vec<LocalAddress>,
    /// The socket.
    pub(crate) inbox: VecDeque<Datagram>,
    /// Packets that were not for any queue pair, or refused.
    pub(crate) refused: u64,
}

impl Host {
    /// A host with an address on each link.
    pub(crate) fn new(
        number: usize,
        links: usize,
        config: Config,
        instance: u64,
        memory: usize,
    ) -> Self {
        let local: Vec<LocalAddress> = (0..links)
            .map(|link| LocalAddress {
                ip: address(link, number),
                prefix_len: 24,
                ifindex: link as u32 + 2,
                link_up: true,
                usable: true,
                speed_mbps: 10_000,
            })
            .collect();
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&instance.rotate_left(17).to_be_bytes());
        let identity = LaneIdentity { instance, slot: number as u8 + 1 };
        let paths = PathManager::new(config, identity, seed);
        let mut lane = Lane::new(paths, LaneConfig::default());
        lane.set_local(&local);
        Self {
            lane,
            io: Io {
                now: Duration::ZERO,
                memory: vec![0; memory],
                out: Vec::new(),
                completions: Vec::new(),
                explanations: Vec::new(),
                events: Vec::new(),
                atomics: 0,
                charged: 0,
                path_events: Vec::new(),
            },
            local,
            inbox: VecDeque::new(),
            refused: 0,
        }
    }

    /// Does something with a queue pair of that number, which there is.
    pub(crate) fn with<R>(
        &mut self,
        qpn: u32,
        work: impl FnOnce(&mut Visit<'_, u32, Io>) -> R,
    ) -> R {
        let done = self.lane.with(QpTable::<u32>::index_of(qpn), &mut self.io, work);
        done.expect("the queue pair was added")
    }

    /// All queue pairs.
    pub(crate) fn qps(&self) -> impl Iterator<Item = &QueuePair> {
        self.lane.qps().iter().map(|(_, entry)| &entry.qp)
    }

    /// Connects a queue pair with the other host.
    pub(crate) fn attach(&mut self, qpn: u32, remote_qpn: u32, link: usize, number: usize) {
        let options = PathOptions { multipath: true, ..PathOptions::default() };
        let (local, remote) = (address(link, number), address(link, 1 - number));
        self.with(qpn, |visit| visit.attach(remote_qpn, local, remote, options))
            .expect("there is room for a simulation's queue pairs");
    }

    /// It is so late now.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.io.now = now;
        self.lane.begin(now);
    }

    /// When it wants to run.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let inbox = (!self.inbox.is_empty()).then_some(Duration::ZERO);
        self.lane.next_deadline().into_iter().chain(inbox).min()
    }

    /// One round of the lane: receive, time out, send, acknowledge.
    pub(crate) fn run(&mut self, now: Duration) {
        self.begin(now);
        while let Some(datagram) = self.inbox.pop_front() {
            self.receive(&datagram);
        }
        self.lane.run(&mut self.io);
    }

    fn receive(&mut self, datagram: &Datagram) {
        let Ok(packet) = Packet::parse(&datagram.bytes) else {
            self.refused += 1;
            return;
        };
        let arrival = Arrival {
            src: datagram.src,
            dst: datagram.dst,
            kind: PathKind::Udp,
            src_port: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            len: datagram.bytes.len(),
        };
        let taken = self.lane.handle_packet(&arrival, &packet, &mut self.io);
        let accepted = matches!(taken, Ok(Taken::QueuePair | Taken::Control(Handled::Accepted)));
        self.refused += u64::from(!accepted);
    }
}
