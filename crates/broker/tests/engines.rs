//! Engines as handles: several in one process with different devices, and what remains of one that
//! is dropped.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PATIENCE, client, in_namespace};
use polypath_engine::{Config, Engine, Selection};
use polypath_verbs::{
    Access, AhAttr, AsyncKind, CompletionQueue, Context, CqRequest, MemoryRegion, MrRequest,
    PagesRequest, QpAttr, QpAttrMask as M, QpRequest, QpState, QpType, QueuePair, RecvWr, SendData,
    SendFlags, SendOp, SendRequest, Sge, SrqAttr, SrqRequest, ThawRequest, WcStatus,
};

const AREA: usize = 1 << 16;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

fn engine(devices: &str) -> Engine {
    let devices = Selection::parse(devices).unwrap();
    Engine::open(Config { devices, ..Config::default() }).unwrap()
}

/// An open device, with memory and a queue pair.
struct End {
    context: Arc<dyn Context>,
    pd: u32,
    cq: Arc<dyn CompletionQueue>,
    region: Arc<dyn MemoryRegion>,
    qp: Arc<dyn QueuePair>,
    area: Box<[u64]>,
}

fn qp_request(pd: u32, cq: &Arc<dyn CompletionQueue>) -> QpRequest {
    QpRequest {
        pd: Some(pd),
        qp_type: QpType::Rc,
        send_cq: Some(cq.clone()),
        recv_cq: Some(cq.clone()),
        srq: None,
        xrcd: None,
        sq_sig_all: true,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        token: 1,
    }
}

fn thaw_request(pd: u32, cq: &Arc<dyn CompletionQueue>) -> ThawRequest {
    let cq = Some(cq.clone());
    ThawRequest { pd, send_cq: cq.clone(), recv_cq: cq, srq: None, token: 1 }
}

impl End {
    fn new(engine: &Engine) -> Self {
        Self::with_number(engine, None)
    }

    fn with_number(engine: &Engine, number: Option<u32>) -> Self {
        let context = engine.devices().remove(0).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let request = CqRequest { cqe: 256, channel: None, token: 2, ignore_overrun: false };
        let cq = context.create_cq(&request).unwrap();
        let area = vec![0u64; AREA / 8].into_boxed_slice();
        let addr = area.as_ptr().expose_provenance();
        let request = MrRequest { pd, addr, len: AREA, iova: 0, access: ACCESS };
        // SAFETY: the area outlives the region, and is only read between messages.
        let region = unsafe { context.reg_mr(&request) }.unwrap();
        let request = qp_request(pd, &cq);
        let qp = match number {
            None => context.create_qp(&request),
            Some(number) => context.create_qp_with_number(&request, number),
        };
        let qp = qp.unwrap();
        Self { context, pd, cq, region, qp, area }
    }

    /// Moves this end to another engine: its memory gets the same key, and its queue pair
    /// continues.
    fn moved(self, engine: &Engine, frozen: &[u8]) -> Self {
        let context = engine.devices().remove(0).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let request = CqRequest { cqe: 256, channel: None, token: 2, ignore_overrun: false };
        let cq = context.create_cq(&request).unwrap();
        let addr = self.area.as_ptr().expose_provenance();
        let request = MrRequest { pd, addr, len: AREA, iova: 0, access: ACCESS };
        // SAFETY: the same as for the first one.
        let region = unsafe { context.reg_mr_with_key(&request, self.region.lkey()) }.unwrap();
        let qp = context.thaw_qp(&thaw_request(pd, &cq), frozen).unwrap();
        assert_eq!((qp.number(), region.rkey()), (self.qp.number(), self.region.rkey()));
        Self { context, pd, cq, region, qp, area: self.area }
    }

    fn connect(&self, peer: &Self) {
        let gids = self.context.gid_table();
        let own = gids.iter().find(|gid| gid.ip.to_string() == "127.0.0.1").unwrap();
        let mut attr = QpAttr::new(QpState::Init);
        attr.port_num = 1;
        attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        self.qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
        attr.state = QpState::Rtr;
        attr.path_mtu = 1024;
        attr.dest_qpn = peer.qp.number();
        attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 1;
        attr.ah = AhAttr {
            dgid: own.gid,
            sgid_index: u8::try_from(own.index).unwrap(),
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC;
        self.qp.modify(&attr, M::STATE | rtr | M::MIN_RNR_TIMER).unwrap();
        attr.state = QpState::Rts;
        attr.timeout = 16;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 4;
        let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, M::STATE | rts).unwrap();
    }

    fn sge(&self, len: u32) -> Sge {
        Sge { addr: 0, len, lkey: self.region.lkey() }
    }

    fn post(&self, op: SendOp, len: u32) {
        let sges = [self.sge(len)];
        let request = SendRequest {
            wr_id: 7,
            op,
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: None,
            xrc_srqn: 0,
        };
        self.qp.post_send(&[request], false).unwrap();
    }

    fn receive(&self, wr_id: u64) {
        let sges = [self.sge(u32::try_from(AREA).unwrap())].into_iter().collect();
        self.qp.post_recv(&[RecvWr { wr_id, sges }]).unwrap();
    }

    /// The next completions. The other end works meanwhile.
    fn wait(&self, count: usize) -> Vec<WcStatus> {
        let until = Instant::now() + PATIENCE;
        let mut done = Vec::new();
        while done.len() < count {
            assert!(Instant::now() < until, "{} of {count} completions came", done.len());
            self.cq.poll(16, &mut |wc| done.push(wc.completion.status)).unwrap();
        }
        done
    }

    fn fill(&mut self, seed: u64) {
        for (at, word) in (0u64..).zip(&mut *self.area) {
            *word = seed << 32 | at;
        }
    }
}

/// Performs a SEND, a WRITE and a READ of the whole area between `from` and `to`, which are
/// connected.
fn exchange(from: &mut End, to: &mut End, seed: u64) {
    let len = u32::try_from(AREA).unwrap();
    from.fill(seed);
    to.receive(1);
    from.post(SendOp::Send, len);
    assert_eq!((from.wait(1), to.wait(1)), (vec![WcStatus::Success], vec![WcStatus::Success]));
    assert_eq!(from.area, to.area);
    from.fill(seed + 1);
    from.post(SendOp::Write { va: 0, rkey: to.region.rkey() }, len);
    assert_eq!(from.wait(1), [WcStatus::Success]);
    assert_eq!(from.area, to.area);
    to.fill(seed + 2);
    from.post(SendOp::Read { va: 0, rkey: to.region.rkey() }, len);
    assert_eq!(from.wait(1), [WcStatus::Success]);
    assert_eq!(from.area, to.area);
}

fn connect(a: &End, b: &End) {
    a.connect(b);
    b.connect(a);
}

fn threads() -> BTreeSet<String> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .collect()
}

/// The open descriptors, with what each refers to.
fn descriptors() -> Vec<String> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        Some(std::fs::read_link(&path).ok()?.display().to_string())
    };
    let mut all: Vec<String> = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(of).collect();
    // Leave out the descriptor of the directory itself.
    all.retain(|what| !what.starts_with("/proc/"));
    all.sort();
    all
}

/// Waits for threads to end, because a joined thread may be listed for a moment.
fn wait_for_threads(expected: &BTreeSet<String>) {
    let until = Instant::now() + PATIENCE;
    while threads() != *expected {
        assert!(Instant::now() < until, "threads are left: {:?}", threads());
        std::thread::yield_now();
    }
}

#[test]
fn engines_of_one_process_have_their_own_devices_and_talk_to_each_other() {
    in_namespace("engines_of_one_process_have_their_own_devices_and_talk_to_each_other", || {
        let (one, two) = (engine("roce:lo"), engine("mp:lo"));
        let names = |engine: &Engine| -> Vec<String> {
            engine.devices().iter().map(|device| device.info().name.clone()).collect()
        };
        assert_eq!((names(&one), names(&two)), (vec!["roce0".into()], vec!["mp0".into()]));
        let (mut a, mut b) = (End::new(&one), End::new(&two));
        let slots = client("").status().unwrap().broker.slots;
        assert_eq!(slots.len(), 2, "each has a slot: {slots:?}");
        assert_ne!(a.qp.number() >> 16, b.qp.number() >> 16);
        connect(&a, &b);
        exchange(&mut a, &mut b, 1);
        exchange(&mut b, &mut a, 10);
        // The status is that of the process, with the lanes of both engines.
        let processes = client("").status().unwrap().processes;
        let own: Vec<_> = processes.iter().filter(|p| p.pid == std::process::id()).collect();
        assert_eq!(own.len(), 1);
        assert_eq!((own[0].lanes.len(), own[0].qps.len()), (2, 2));
    });
}

#[test]
fn objects_of_one_engine_are_refused_by_another() {
    in_namespace("objects_of_one_engine_are_refused_by_another", || {
        let (one, two) = (engine("roce:lo"), engine("roce:lo"));
        let (a, b) = (End::new(&one), End::new(&two));
        let error = b.context.create_qp(&qp_request(b.pd, &a.cq)).unwrap_err();
        assert_eq!(error.errno, libc::EINVAL, "{error}");
        let error = b.context.create_qp(&qp_request(a.pd, &b.cq)).unwrap_err();
        assert_eq!(error.errno, libc::EINVAL, "{error}");
        assert_eq!(b.context.import_mr(a.pd, a.region.lkey()).unwrap_err().errno, libc::EINVAL);
    });
}

#[test]
fn a_queue_pair_has_the_number_that_it_is_to_have() {
    in_namespace("a_queue_pair_has_the_number_that_it_is_to_have", || {
        let (one, two) = (engine("roce:lo"), engine("roce:lo"));
        let (a, mut b) = (End::new(&one), End::new(&two));
        let refused = |end: &End, number: u32| {
            let made = end.context.create_qp_with_number(&qp_request(end.pd, &end.cq), number);
            made.unwrap_err().errno
        };
        assert_eq!(refused(&a, a.qp.number()), libc::EADDRINUSE, "of another queue pair");
        assert_eq!(refused(&b, a.qp.number() ^ 1), libc::EADDRINUSE, "of another engine's slot");
        assert_eq!(refused(&b, 1), libc::EINVAL, "of connection management");
        assert_eq!(refused(&b, 0x1234), libc::EADDRNOTAVAIL, "of the broker's slot");

        // This one is beside the first one, on the same lane.
        let number = a.qp.number() ^ 2;
        let made = a.context.create_qp_with_number(&qp_request(a.pd, &a.cq), number).unwrap();
        assert_eq!(made.number(), number);
        made.destroy().unwrap();

        // This one replaces a queue pair that is gone with its engine.
        let number = a.qp.number();
        drop((a, one));
        let mut c = End::with_number(&two, Some(number));
        assert_eq!(c.qp.number(), number);
        connect(&b, &c);
        exchange(&mut b, &mut c, 1);
        exchange(&mut c, &mut b, 10);
        let slots = client("").status().unwrap().broker.slots;
        assert_eq!(slots.len(), 2, "two lanes of one engine: {slots:?}");
    });
}

#[test]
fn a_frozen_queue_pair_goes_on_in_another_engine_and_its_peer_sees_a_pause() {
    in_namespace("a_frozen_queue_pair_goes_on_in_another_engine_and_its_peer_sees_a_pause", || {
        for devices in ["roce:lo", "mp:lo"] {
            let (one, two) = (engine(devices), engine(devices));
            let (mut a, mut b) = (End::new(&one), End::new(&two));
            connect(&a, &b);
            exchange(&mut a, &mut b, 1);

            // A SEND that finds no receive, a receive, and a message that arrives while nobody is
            // there.
            let len = u32::try_from(AREA).unwrap();
            a.fill(100);
            a.post(SendOp::Send, len);
            a.receive(11);
            let frozen = a.qp.freeze().unwrap();
            assert_eq!(a.qp.freeze().unwrap_err().errno, libc::EINVAL, "it is gone");
            assert_eq!(a.qp.query().unwrap_err().errno, libc::EINVAL, "it is gone");
            b.post(SendOp::Send, 8);

            drop(one);
            let three = engine(devices);
            let mut a = a.moved(&three, &frozen);
            b.receive(1);
            assert_eq!(a.wait(2), [WcStatus::Success; 2], "the SEND, and the receive");
            assert_eq!(b.wait(2), [WcStatus::Success; 2], "the SEND, and the receive");
            assert_eq!(a.area[1..], b.area[1..], "behind what the other SEND brought");
            exchange(&mut a, &mut b, 2);
            exchange(&mut b, &mut a, 10);

            // The same inside one engine.
            let frozen = b.qp.freeze().unwrap();
            let again = b.context.thaw_qp(&thaw_request(b.pd, &b.cq), &frozen).unwrap();
            let refused = b.context.thaw_qp(&thaw_request(b.pd, &b.cq), &frozen).unwrap_err();
            assert_eq!(refused.errno, libc::EADDRINUSE, "there is one of that number: {refused}");
            b.qp = again;
            exchange(&mut a, &mut b, 20);
            exchange(&mut b, &mut a, 30);
            b.qp.destroy().unwrap();
            drop((two, three));
        }
    });
}

#[test]
fn what_can_not_be_thawed_leaves_nothing() {
    in_namespace("what_can_not_be_thawed_leaves_nothing", || {
        let one = engine("roce:lo");
        let a = End::new(&one);
        let b = End::new(&one);
        connect(&a, &b);
        let frozen = a.qp.freeze().unwrap();
        let request = thaw_request(a.pd, &a.cq);
        let refused = |request: &ThawRequest, bytes: &[u8]| {
            a.context.thaw_qp(request, bytes).unwrap_err().errno
        };
        assert_eq!(refused(&request, b"a letter"), libc::EINVAL);
        assert_eq!(refused(&request, &frozen[..frozen.len() - 1]), libc::EINVAL);
        let no_queue = ThawRequest { recv_cq: None, ..request.clone() };
        assert_eq!(refused(&no_queue, &frozen), libc::EINVAL);
        assert_eq!(refused(&thaw_request(a.pd + 1000, &a.cq), &frozen), libc::EINVAL);
        let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
        let srq = SrqRequest { pd: a.pd, attr, xrc: None, token: 3 };
        let srq = Some(a.context.create_srq(&srq).unwrap());
        assert_eq!(refused(&ThawRequest { srq, ..request.clone() }, &frozen), libc::EINVAL);
        // The attempt left nothing behind: the bytes can still be used.
        let thawed = a.context.thaw_qp(&request, &frozen).unwrap();
        let mut a = End { qp: thawed, ..a };
        let mut b = b;
        exchange(&mut a, &mut b, 1);
    });
}

/// One end's region consists of pages in reverse order, and begins within the last one.
#[test]
fn a_region_of_scattered_pages_is_one_range_to_peers_and_work_requests() {
    const PAGE: usize = 4096;
    const OFFSET: usize = 104;
    const LEN: usize = 10 * PAGE + 8;
    in_namespace("a_region_of_scattered_pages_is_one_range_to_peers_and_work_requests", || {
        let (one, two) = (engine("roce:lo"), engine("mp:lo"));
        let (mut a, b) = (End::new(&one), End::new(&two));
        connect(&a, &b);
        let aligned = (b.area.as_ptr().addr()).next_multiple_of(PAGE);
        let pages: Vec<usize> = (1..12).rev().map(|page| aligned + page * PAGE).collect();
        let word_at = |byte: usize| -> usize {
            let byte = OFFSET + byte;
            (pages[byte / PAGE] + byte % PAGE - b.area.as_ptr().addr()) / 8
        };
        let request = PagesRequest {
            pd: b.pd,
            pages: &pages,
            page_size: PAGE,
            offset: OFFSET,
            len: LEN,
            iova: 0x10_0000,
            access: ACCESS | Access::REMOTE_ATOMIC,
            key: Some(0x00ab_cd00),
        };
        // SAFETY: the same as for the area.
        let region = unsafe { b.context.reg_pages(&request) }.unwrap();
        assert_eq!((region.rkey(), region.len()), (0x00ab_cd00, LEN));
        let (va, rkey, len) = (0x10_0000, region.rkey(), u32::try_from(LEN).unwrap());
        let content = |b: &End| -> Vec<u64> {
            // SAFETY: these are words of the area, which a device may write.
            let word = |byte| unsafe { b.area.as_ptr().add(word_at(byte)).read_volatile() };
            (0..LEN).step_by(8).map(word).collect()
        };

        a.fill(1);
        a.post(SendOp::Write { va, rkey }, len);
        assert_eq!(a.wait(1), [WcStatus::Success]);
        assert_eq!(content(&b), a.area[..LEN / 8], "WRITE");
        let expected = a.area[1..LEN / 8].to_vec();
        a.area.fill(0);
        a.post(SendOp::Read { va: va + 8, rkey }, len - 8);
        assert_eq!(a.wait(1), [WcStatus::Success]);
        assert_eq!(a.area[..LEN / 8 - 1], expected, "READ");
        // From an odd byte, across pages.
        a.area.fill(0);
        a.post(SendOp::Read { va: va + 3993, rkey }, 7);
        assert_eq!(a.wait(1), [WcStatus::Success]);
        let bytes: Vec<u8> = content(&b).iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(a.area[0].to_ne_bytes()[..7], bytes[3993..4000], "READ of some bytes");
        a.post(SendOp::FetchAdd { va: va + 4000, rkey, add: 5 }, 8);
        assert_eq!(a.wait(1), [WcStatus::Success]);
        assert_eq!(content(&b)[500], a.area[0] + 5, "an atomic");

        // By its lkey: a receive into it, and a SEND out of it.
        a.fill(7);
        let whole = Sge { addr: va, len, lkey: region.lkey() };
        let sges = [whole].into_iter().collect();
        b.qp.post_recv(&[RecvWr { wr_id: 1, sges }]).unwrap();
        a.post(SendOp::Send, len);
        assert_eq!((a.wait(1), b.wait(1)), (vec![WcStatus::Success], vec![WcStatus::Success]));
        assert_eq!(content(&b), a.area[..LEN / 8], "a receive");
        a.area.fill(0);
        a.receive(2);
        let sges = [Sge { addr: va + 8, len: len - 8, ..whole }];
        let send = SendRequest {
            wr_id: 3,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: None,
            xrc_srqn: 0,
        };
        b.qp.post_send(&[send], false).unwrap();
        assert_eq!((a.wait(1), b.wait(1)), (vec![WcStatus::Success], vec![WcStatus::Success]));
        assert_eq!(a.area[..LEN / 8 - 1], content(&b)[1..], "a SEND");

        // It does not reach a single byte further.
        a.post(SendOp::Write { va: va + 8, rkey }, len);
        assert_eq!(a.wait(1), [WcStatus::RemAccessErr]);
        region.deregister().unwrap();
    });
}

#[test]
fn an_engine_that_is_dropped_leaves_nothing_and_the_others_at_work() {
    in_namespace("an_engine_that_is_dropped_leaves_nothing_and_the_others_at_work", || {
        let (before_threads, before_fds) = (threads(), descriptors());
        let (one, two, three) = (engine("roce:lo"), engine("mp:lo"), engine("roce:lo"));
        let (mut a, mut b) = (End::new(&one), End::new(&two));
        let (mut c, b2) = (End::new(&three), End::new(&one));
        connect(&a, &b);
        connect(&c, &b2);
        exchange(&mut a, &mut b, 1);
        a.receive(1);
        a.receive(2);

        drop(one);
        // As with an adapter that is removed, posted requests are flushed, and the program is told.
        assert_eq!(a.wait(2), [WcStatus::WrFlushErr; 2]);
        let events: Vec<AsyncKind> =
            std::iter::from_fn(|| a.context.take_async_event()).map(|event| event.kind).collect();
        let fatal = [AsyncKind::QpFatal, AsyncKind::PortErr, AsyncKind::DeviceFatal];
        assert_eq!(events, fatal);
        let sges = [a.sge(8)].into_iter().collect();
        let refused = a.qp.post_recv(&[RecvWr { wr_id: 1, sges }]).unwrap_err();
        assert_eq!(refused.error.errno, libc::ENODEV);
        assert_eq!(a.qp.query().unwrap_err().errno, libc::ENODEV);
        let refused = a.context.create_qp(&qp_request(a.pd, &a.cq)).unwrap_err();
        assert_eq!(refused.errno, libc::ENODEV);
        assert_eq!(client("").status().unwrap().broker.slots.len(), 2, "the slot was given back");
        a.qp.destroy().unwrap();

        // The others continue, and the peers of the dropped one receive nothing more from it.
        drop(b2);
        let mut b3 = End::new(&two);
        let c_again = End::new(&three);
        connect(&c_again, &b3);
        drop(std::mem::replace(&mut c, c_again));
        exchange(&mut c, &mut b3, 20);
        exchange(&mut b3, &mut c, 30);

        drop((two, three));
        wait_for_threads(&before_threads);
        drop((a, b, b3, c));
        assert_eq!(descriptors(), before_fds);
        let mut control = client("");
        assert!(control.status().unwrap().broker.slots.is_empty());
    });
}

#[test]
fn engines_leave_their_host_and_come_back_with_their_numbers() {
    in_namespace("engines_leave_their_host_and_come_back_with_their_numbers", || {
        let before = threads();
        let (one, two) = (engine("mp:lo"), engine("roce:lo"));
        let [mut a, mut b] = [End::new(&one), End::new(&one)];
        // A queue pair that nothing is known of elsewhere.
        let mut c = End::new(&two);
        let mut d = End::new(&one);
        connect(&a, &b);
        connect(&c, &d);
        exchange(&mut a, &mut b, 1);
        exchange(&mut c, &mut d, 10);
        let slots = || -> Vec<u8> {
            client("").status().unwrap().broker.slots.iter().map(|slot| slot.slot).collect()
        };
        let had = slots();
        assert_eq!(had.len(), 2);
        for round in 0..3 {
            client("").take_off(std::process::id(), Duration::ZERO, false).unwrap();
            // What is posted meanwhile waits.
            exchange(&mut a, &mut b, 20 * round + 20);
            exchange(&mut c, &mut d, 20 * round + 30);
            assert_eq!(slots(), had);
        }
        let refused = client("").take_off(1, Duration::ZERO, false).unwrap_err();
        assert_eq!(refused.errno(), libc::ESRCH);
        // It closes also while it is away.
        client("").take_off(std::process::id(), Duration::from_secs(3600), false).unwrap();
        assert!(slots().is_empty());
        drop((one, two));
        wait_for_threads(&before);
        drop((a, b, c, d));
    });
}

#[test]
fn an_engine_closes_while_its_broker_is_dead() {
    in_namespace("an_engine_closes_while_its_broker_is_dead", || {
        let before = threads();
        let one = engine("roce:lo");
        let a = End::new(&one);
        let broker = client("").broker_pid();
        common::run(&format!("kill -KILL {broker}"));
        common::wait_for_end(broker);
        let started = Instant::now();
        drop(one);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        wait_for_threads(&before);
        let mut control = client("");
        assert!(control.status().unwrap().broker.slots.is_empty(), "its successor was told");
        drop(a);
    });
}

#[test]
fn an_engine_dropped_in_a_child_is_the_parents_still() {
    in_namespace("an_engine_dropped_in_a_child_is_the_parents_still", || {
        let (one, two) = (engine("roce:lo"), engine("roce:lo"));
        let (mut a, mut b) = (End::new(&one), End::new(&two));
        connect(&a, &b);
        // SAFETY: the child drops the handle, which touches no lock and no thread, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(one);
            // SAFETY: this ends the child without the test harness.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        exchange(&mut a, &mut b, 1);
        drop((one, two));
    });
}
