//! A host with one lane, memory, and lists instead of sockets and queues.

use core::net::IpAddr;
use core::time::Duration;

use polypath_lane::{
    Arrival, Lane, LaneConfig, NotSent, Outside, Overrun, QpTable, Refusal, Taken, Visit,
};
use polypath_paths::{
    Config, ControlOut, LaneIdentity, LocalAddress, PathAddress, PathEvent, PathKind, PathManager,
    PathOptions,
};
use polypath_transport::{
    Access, AhAttr, Burst, Completion, CqSide, Explanation, FlatMemory, FlatSegment, Memory,
    MigState, QpAttr, QpAttrMask as M, QpConfig, QpEvent, QpState, QpType, QueuePair, RecvWr,
    SendData, SendFlags, SendOp, SendWr, Sge,
};
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::{ICRC_LEN, Opcode};

/// The key of all memory.
pub(crate) const KEY: u32 = 0x1234_5678;
/// The Q_Key of all datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1122_3344;
const MTU: u32 = 1024;

pub(crate) fn ip(host: u8) -> IpAddr {
    on(0, host)
}

/// The address of a host in a network.
pub(crate) fn on(net: u8, host: u8) -> IpAddr {
    IpAddr::from([10, 0, net, host])
}

/// A packet on its way; the ICRC is zero.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) control: bool,
    pub(crate) traffic_class: u8,
    /// From where to where.
    pub(crate) ends: (IpAddr, IpAddr),
    pub(crate) src_port: u16,
    pub(crate) bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn opcode(&self) -> Opcode {
        Packet::parse(&self.bytes).expect("what a lane sends can be parsed").headers.bth.opcode
    }
}

/// The outside of the lane.
#[derive(Debug, Default)]
pub(crate) struct Io {
    pub(crate) memory: Vec<u8>,
    pub(crate) atomics: u64,
    pub(crate) out: Vec<Sent>,
    pub(crate) completions: Vec<(CqSide, Completion)>,
    pub(crate) events: Vec<PathEvent>,
    /// Asynchronous events of queue pairs.
    pub(crate) raised: Vec<QpEvent>,
    /// Whether completion queues are full.
    pub(crate) full: bool,
    /// Queue pairs that entered the error state because a completion was lost.
    pub(crate) overrun: Vec<u32>,
    /// Whether nothing can be sent.
    pub(crate) mute: bool,
    /// What queue pairs send from these source ports is lost.
    pub(crate) dead: Vec<u16>,
    pub(crate) qkey_violations: u32,
    /// Bytes charged to paths and not given back.
    pub(crate) charged: i64,
}

impl Outside<()> for Io {
    type Segment = FlatSegment;

    fn memory<'a>(&'a mut self, _own: &'a ()) -> impl Memory<Segment = FlatSegment> + 'a {
        FlatMemory { bytes: &mut self.memory, key: KEY, atomics: &mut self.atomics }
    }

    fn take_srq(&mut self, _own: &()) -> Option<RecvWr> {
        None
    }

    fn complete(&mut self, _own: &(), side: CqSide, completion: Completion) -> Result<(), Overrun> {
        if self.full {
            return Err(Overrun);
        }
        self.completions.push((side, completion));
        Ok(())
    }

    fn event(&mut self, _own: &(), event: QpEvent) {
        self.raised.push(event);
    }

    fn explain(&mut self, _own: &(), _paths: &PathManager, _explanation: Explanation) {}

    fn overran(&mut self, _own: &(), qpn: u32) {
        self.overrun.push(qpn);
    }

    fn qkey_violation(&mut self, _own: &()) {
        self.qkey_violations += 1;
    }

    fn charged(&mut self, _own: &(), bytes: i64) {
        self.charged += bytes;
    }

    fn transmit(
        &mut self,
        own: &(),
        address: Option<&PathAddress>,
        burst: &Burst<'_, FlatSegment>,
    ) -> Result<(), NotSent> {
        let Some(address) = address.filter(|_| !self.mute) else { return Err(NotSent::NoWay) };
        let (traffic_class, ends) = (address.traffic_class, (address.local, address.remote));
        let src_port = address.source_port;
        let payload = burst.copy_payload(&mut self.memory(own)).expect("all memory is there");
        for i in 0..burst.packets {
            let range = burst.range(i);
            let data = &payload[range.start as usize..range.end as usize];
            let bytes = encode(&burst.headers(i), data);
            if !self.dead.contains(&src_port) {
                self.out.push(Sent { control: false, traffic_class, ends, src_port, bytes });
            }
        }
        Ok(())
    }

    fn control(&mut self, out: ControlOut) {
        let mut bytes = out.packet;
        bytes.resize(bytes.len() + ICRC_LEN, 0);
        let (traffic_class, ends) =
            (out.address.traffic_class, (out.address.local, out.address.remote));
        let src_port = out.address.source_port;
        self.out.push(Sent { control: true, traffic_class, ends, src_port, bytes });
    }

    fn path_event(&mut self, _now: Duration, _paths: &PathManager, event: &PathEvent) {
        self.events.push(*event);
    }
}

pub(crate) fn encode(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = headers.packet(payload);
    bytes.resize(bytes.len() + ICRC_LEN, 0);
    bytes
}

/// A host. Its number, 1 or 2, is its lane's slot and the last byte of its address.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) number: u8,
    pub(crate) lane: Lane<()>,
    pub(crate) io: Io,
    pub(crate) now: Duration,
}

impl Host {
    pub(crate) fn new(number: u8) -> Self {
        let identity = LaneIdentity { instance: u64::from(number), slot: number };
        let paths = PathManager::new(Config::default(), identity, [number; 16]);
        let mut lane = Lane::new(paths, LaneConfig::default());
        let now = Duration::from_secs(1);
        lane.begin(now);
        let io = Io { memory: vec![0; 1 << 20], ..Io::default() };
        let mut host = Self { number, lane, io, now };
        host.set_links(&[true]);
        host
    }

    /// Gives it a link in each of so many networks, which are up or not.
    pub(crate) fn set_links(&mut self, up: &[bool]) {
        let links = (0..).zip(up).map(|(net, &link_up)| LocalAddress {
            ip: on(net, self.number),
            prefix_len: 24,
            ifindex: u32::from(net) + 2,
            link_up,
            usable: true,
            speed_mbps: 10_000,
        });
        self.lane.set_local(&links.collect::<Vec<_>>());
    }

    pub(crate) fn peer(&self) -> u8 {
        3 - self.number
    }

    pub(crate) fn qpn(&self, index: u16) -> u32 {
        self.lane.qps().number(index)
    }

    /// Adds a queue pair, and connects it with the one of the same index at the other host.
    pub(crate) fn add(&mut self, index: u16, qp_type: QpType, multipath: bool) {
        let (peer, qpn) = (self.peer(), self.qpn(index));
        let config = QpConfig {
            qpn,
            qp_type,
            pd: 1,
            sq_sig_all: true,
            srq: false,
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        self.lane.insert(QueuePair::new(config), ());
        let remote = u32::from(peer) << 16 | u32::from(index);
        self.connect(index, (remote, ip(peer)), multipath);
    }

    /// Connects a queue pair that is new, or reset, with the one of this number at this address.
    pub(crate) fn connect(&mut self, index: u16, (remote, at): (u32, IpAddr), multipath: bool) {
        let peer = self.peer();
        let attr = QpAttr {
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            port_num: 1,
            ah: AhAttr { is_global: true, port_num: 1, ..AhAttr::default() },
            path_mtu: MTU,
            dest_qpn: remote,
            rq_psn: 100 + u32::from(peer),
            sq_psn: 100 + u32::from(self.number),
            qkey: QKEY,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::new(QpState::Init)
        };
        let ud = self.with(index, |visit| visit.qp.config().qp_type) == QpType::Ud;
        let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rc = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let steps = [
            (QpState::Init, M::PKEY_INDEX | M::PORT | if ud { M::QKEY } else { M::ACCESS_FLAGS }),
            (
                QpState::Rtr,
                if ud { M::empty() } else { connected | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER },
            ),
            (QpState::Rts, M::SQ_PSN | if ud { M::empty() } else { rc }),
        ];
        for (state, mask) in steps {
            let local = ip(self.number);
            self.with(index, |visit| {
                if state == QpState::Rtr && !ud {
                    let options = PathOptions { multipath, ..PathOptions::default() };
                    visit.attach(remote, local, at, options).expect("there is room");
                }
                let attr = QpAttr { state, cur_state: visit.qp.state(), ..attr };
                visit.qp.modify(&attr, mask | M::STATE, &mut visit.host).expect("it is legal");
            });
        }
    }

    pub(crate) fn with<R>(
        &mut self,
        index: u16,
        work: impl FnOnce(&mut Visit<'_, (), Io>) -> R,
    ) -> R {
        self.lane.with(index, &mut self.io, work).expect("the queue pair is there")
    }

    pub(crate) fn state(&self, index: u16) -> QpState {
        self.lane.qps().get(index).expect("the queue pair is there").qp.state()
    }

    /// Posts a WRITE of the first `len` bytes of memory to the same place at the other host.
    pub(crate) fn post_write(&mut self, index: u16, len: u32) {
        self.post(index, SendOp::Write { va: 0, rkey: KEY }, len);
    }

    /// Posts a READ of the first `len` bytes of the other host's memory.
    pub(crate) fn post_read(&mut self, index: u16, len: u32) {
        self.post(index, SendOp::Read { va: 0, rkey: KEY }, len);
    }

    fn post(&mut self, index: u16, op: SendOp, len: u32) {
        let sge = [Sge { addr: 0, len, lkey: KEY }];
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sge));
        let wr = SendWr { wr_id: 7, op, flags, data, ud: None };
        self.with(index, |visit| visit.qp.post_send(&wr)).expect("there is room");
    }

    /// Takes a packet from the other host.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Taken, Refusal> {
        self.take_from(ip(self.peer()), bytes)
    }

    /// Takes a packet from the other host that was marked on its way.
    pub(crate) fn take_marked(&mut self, bytes: &[u8]) -> Result<Taken, Refusal> {
        let arrival = arrival(ip(self.peer()), ip(self.number), bytes);
        let packet = Packet::parse(bytes).expect("a packet");
        self.lane.handle_packet(&Arrival { traffic_class: 3, ..arrival }, &packet, &mut self.io)
    }

    pub(crate) fn take_from(&mut self, src: IpAddr, bytes: &[u8]) -> Result<Taken, Refusal> {
        self.take_between(src, ip(self.number), bytes)
    }

    pub(crate) fn take_between(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        bytes: &[u8],
    ) -> Result<Taken, Refusal> {
        let arrival = arrival(src, dst, bytes);
        let packet = Packet::parse(bytes).expect("a packet");
        self.lane.handle_packet(&arrival, &packet, &mut self.io)
    }

    pub(crate) fn take_sent(&mut self, sent: &Sent) -> Result<Taken, Refusal> {
        let (src, dst) = sent.ends;
        let arrival = Arrival { src_port: sent.src_port, ..arrival(src, dst, &sent.bytes) };
        let packet = Packet::parse(&sent.bytes).expect("a packet");
        self.lane.handle_packet(&arrival, &packet, &mut self.io)
    }

    /// Does the rest of a round, and checks the lane's lists.
    pub(crate) fn run(&mut self) {
        self.lane.run(&mut self.io);
        self.check();
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.lane.check(), Ok(()));
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.lane.begin(self.now);
    }
}

pub(crate) fn arrival(src: IpAddr, dst: IpAddr, bytes: &[u8]) -> Arrival {
    Arrival {
        src,
        dst,
        kind: PathKind::Udp,
        src_port: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        len: bytes.len(),
    }
}

/// Lets both hosts run until neither has anything to send now.
pub(crate) fn settle(hosts: &mut [Host; 2]) {
    for _ in 0..10_000 {
        let mut quiet = true;
        for from in 0..2 {
            hosts[from].run();
            for sent in core::mem::take(&mut hosts[from].io.out) {
                quiet = false;
                // The path manager counts the packets that it rejects.
                let _ = hosts[1 - from].take_sent(&sent);
            }
        }
        if quiet && hosts.iter().all(|host| host.lane.is_idle()) {
            return;
        }
    }
    panic!("the hosts do not come to rest");
}

/// The index of a queue pair number.
pub(crate) fn index_of(qpn: u32) -> u16 {
    QpTable::<()>::index_of(qpn)
}

/// What a program asks for that has loaded an alternate path: REARM.
pub(crate) fn rearmed() -> QpAttr {
    QpAttr {
        alt_ah: AhAttr { is_global: true, port_num: 1, ..AhAttr::default() },
        alt_port_num: 1,
        alt_timeout: 15,
        path_mig_state: MigState::Rearm,
        ..QpAttr::new(QpState::Rts)
    }
}
