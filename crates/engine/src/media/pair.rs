//! Two hosts in one test, each with a real lane and a queue pair, connected by the medium under
//! test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polypath_telemetry::{Counters as _, FaultCounters};
use polypath_topology::{Address, Port, ROCE, Selection, Table};
use polypath_transport::{
    Access, AhAttr, QpAttr, QpAttrMask as M, QpState, QpType, SendData, SendFlags, SendOp, Sge,
};
use polypath_verbs::{
    CompletionQueue, Context, CqRequest, MemoryRegion, MrRequest, QpRequest, QueuePair,
    SendRequest, Wc,
};

use super::{Halves, Receivers, Senders, udp};
use crate::devices;
use crate::engine_inner::EngineInner;
use crate::lane::Lane;

/// The size of each host's memory region in bytes.
const AREA: usize = 1 << 20;
/// The time that a test waits for something that must happen. It is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the hosts.
#[derive(Debug)]
struct Host {
    lane: Arc<Lane>,
    cq: Arc<dyn CompletionQueue>,
    region: Arc<dyn MemoryRegion>,
    area: Box<[u64]>,
    qp: Arc<dyn QueuePair>,
}

/// Two hosts, each with one address, and an RC queue pair between them.
#[derive(Debug)]
pub(crate) struct Pair([Host; 2]);

impl Pair {
    /// Addresses for documentation (RFC 5737). Only the medium under test carries packets between
    /// them.
    pub(crate) const ADDRESSES: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))];

    /// The interface of both hosts.
    pub(crate) const INTERFACE: &str = "toy0";

    /// Connects two hosts, each of which has one end of the medium.
    pub(crate) fn over([a, b]: [Halves; 2]) -> Self {
        let pair = Self([Host::new(0, a), Host::new(1, b)]);
        for (own, peer) in [(0, 1), (1, 0)] {
            pair.0[own].connect(Self::ADDRESSES[peer], pair.0[peer].qp.number());
        }
        pair
    }

    /// Writes data into the second host's memory, and returns what is there when the first host's
    /// request has completed.
    pub(crate) fn write(&mut self, data: &[u8]) -> Vec<u8> {
        let [own, peer] = &mut self.0;
        for (word, bytes) in own.area.iter_mut().zip(data.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let len = u32::try_from(data.len()).expect("a message");
        let sges = [Sge { addr: 0, len, lkey: own.region.lkey() }];
        let request = SendRequest {
            wr_id: 1,
            op: SendOp::Write { va: 0, rkey: peer.region.rkey() },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: None,
            xrc_srqn: 0,
        };
        own.qp.post_send(&[request], false).expect("posted");
        let since = Instant::now();
        let mut status = None;
        while status.is_none() {
            assert!(since.elapsed() < PATIENCE, "no completion: {:?}", self.drops());
            for host in &self.0 {
                let mut take = |done: &Wc| status = Some(done.completion.status);
                host.cq.poll(usize::MAX, &mut take).expect("no overrun");
            }
        }
        assert_eq!(status, Some(polypath_transport::WcStatus::Success));
        let bytes = self.0[1].area.iter().flat_map(|word| word.to_ne_bytes());
        bytes.take(data.len()).collect()
    }

    /// The number of bytes that a host's lane has sent.
    pub(crate) fn sent_bytes(&self, host: usize) -> u64 {
        self.0[host].lane.enter(|state| state.io.counters.sent_bytes)
    }

    /// The fault counters of a host's media.
    pub(crate) fn faults(&self, host: usize) -> FaultCounters {
        self.0[host].lane.enter(|state| state.io.sender.faults())
    }

    /// The reasons for which packets were dropped, and how often.
    pub(crate) fn drops(&self) -> Vec<String> {
        let of = |host: &Host| host.lane.enter(|state| state.io.drops);
        let counted = self.0.iter().map(of).flat_map(|drops| drops.iter().collect::<Vec<_>>());
        let some = counted.filter(|(_, count)| *count > 0);
        some.map(|(drop, count)| format!("{}: {count}", drop.name)).collect()
    }
}

impl Host {
    fn new(number: u8, (tx, rx): Halves) -> Self {
        let mut senders = Senders::new(udp::Sender::new());
        senders.add(tx);
        let mut receivers = Receivers::none();
        receivers.add(rx).expect("a descriptor");
        let lane = Lane::by(number + 1, senders, receivers).expect("a lane");
        let engine = EngineInner::alone(table(number), Selection::of(ROCE), lane.clone());
        let context = devices::first(&engine);
        let pd = context.alloc_pd().expect("a protection domain");
        let request = CqRequest { cqe: 16, channel: None, token: 1, ignore_overrun: false };
        let cq = context.create_cq(&request).expect("a completion queue");
        let area = vec![0u64; AREA / 8].into_boxed_slice();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let addr = area.as_ptr() as usize;
        let request = MrRequest { pd, addr, len: AREA, iova: 0, access };
        // SAFETY: the area lives as long as the region, and is looked at only while nobody is in the
        // lane.
        #[allow(unsafe_code)]
        let region = unsafe { context.reg_mr(&request) }.expect("a memory region");
        let request = QpRequest {
            pd: Some(pd),
            qp_type: QpType::Rc,
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            srq: None,
            xrcd: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            sq_sig_all: true,
            token: 2,
        };
        let qp = context.create_qp(&request).expect("a queue pair");
        Self { lane, cq, region, area, qp }
    }

    fn connect(&self, peer: IpAddr, qpn: u32) {
        let mut attr = QpAttr::new(QpState::Init);
        attr.port_num = 1;
        attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        self.qp.modify(&attr, mask).expect("INIT");
        attr.state = QpState::Rtr;
        attr.path_mtu = 1024;
        attr.dest_qpn = qpn;
        attr.max_dest_rd_atomic = 4;
        attr.max_rd_atomic = 4;
        attr.min_rnr_timer = 12;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        let IpAddr::V4(to) = peer else { unreachable!("documentation addresses are IPv4") };
        attr.ah = AhAttr {
            dgid: to.to_ipv6_mapped().octets(),
            sgid_index: 1,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let receive = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let address = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        self.qp.modify(&attr, M::STATE | address | receive).expect("RTR");
        attr.state = QpState::Rts;
        let send = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, M::STATE | send).expect("RTS");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for host in &self.0 {
            host.qp.destroy().expect("destroyed once");
            host.cq.destroy().expect("nobody uses it");
            host.region.deregister().expect("no windows");
        }
    }
}

/// The interfaces of a host.
pub(crate) fn table(host: u8) -> Table {
    let port = Port {
        mac: [2, 0, 0, 0, 0, host + 1],
        speed_mbps: Some(1000),
        device_number: Some(0),
        addresses: vec![Address {
            ip: Pair::ADDRESSES[usize::from(host)],
            prefix_len: 24,
            link_local: false,
            tentative: false,
        }],
        ..Port::ethernet(2, Pair::INTERFACE)
    };
    Table { generation: 1, ports: vec![port], ..Table::default() }
}

/// Checks docs/extend/path-kind.md.
#[test]
fn the_page_quotes_the_toy_as_it_is() {
    let page = include_str!("../../../../docs/extend/path-kind.md");
    assert_quotes(page, include_str!("toy.rs"));
}

/// Checks docs/extend/device.md.
#[test]
fn the_page_quotes_the_toy_device_as_it_is() {
    let page = include_str!("../../../../docs/extend/device.md");
    assert_quotes(page, include_str!("../toy_device.rs"));
}

/// Checks that the code blocks of a page are the contents of a Rust file, beginning with its
/// imports.
#[track_caller]
fn assert_quotes(page: &str, file: &str) {
    let blocks: String = page
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(code, _)| code)
        .collect();
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, code) = file.split_once("\n\nuse ").expect("imports");
    assert_eq!(squeeze(&blocks), squeeze(&format!("use {code}")));
}
