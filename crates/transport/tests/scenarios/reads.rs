//! A READ returns the memory as it was before any later request of its queue pair was executed.

use std::cell::RefCell;
use std::rc::Rc;

use polypath_transport::*;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;

use crate::host::PD;
use crate::pair::{ALL, MS, Pair, Setup, US, pattern, sge};

const READ: SendOp = SendOp::Read { va: 0, rkey: ALL };
/// Where READs put their answers, and where new data lies.
const LANDING: u64 = 0x40000;
const NEWS: u64 = 0x80000;

/// Requests that may follow a READ and change the same place, and their length.
#[derive(Clone, Copy, Debug)]
enum Later {
    Write,
    /// Through another key, which has other addresses.
    WriteByWindow,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Send,
}

const LATER: [Later; 6] = [
    Later::Write,
    Later::WriteByWindow,
    Later::FetchAdd,
    Later::CompareSwap,
    Later::AtomicWrite,
    Later::Send,
];

/// The addresses of the other key, whose region is the same memory.
const WINDOW: u32 = 0x77;

fn pair(setup: Setup) -> Pair {
    let mut p = Pair::new(setup);
    p.nodes[1].host.alias(WINDOW, 0x7000_0000, 0, 0x40000);
    p
}

fn setups() -> [Setup; 4] {
    let plain = Setup { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..Setup::default() };
    let several = Setup { multipath: true, paths: 2, ..plain };
    let few = Setup { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..several };
    let joined = Setup { joins_reads: true, reach: 1 << 20, ..few };
    [plain, several, joined, Setup { mtu: 256, max_rd_atomic: 2, max_dest_rd_atomic: 2, ..plain }]
}

/// Posts a READ of `len` bytes and the requests that change them, at once.
fn post(p: &mut Pair, len: u32, later: Later) {
    p.nodes[1].write_memory(0, &pattern(len as usize, 1));
    p.nodes[0].write_memory(NEWS as usize, &pattern(len as usize, 2));
    p.nodes[1].recv(7, 0, len);
    p.nodes[0].post(1, READ, LANDING, len);
    let (op, at, len) = match later {
        Later::Write => (SendOp::Write { va: 0, rkey: ALL }, NEWS, len),
        Later::WriteByWindow => (SendOp::Write { va: 0x7000_0000, rkey: WINDOW }, NEWS, len),
        Later::FetchAdd => (SendOp::FetchAdd { va: 0, rkey: ALL, add: 1 }, 0x30000, 8),
        Later::CompareSwap => {
            let compare = u64::from_ne_bytes(pattern(8, 1).try_into().unwrap());
            (SendOp::CompareSwap { va: 0, rkey: ALL, compare, swap: 5 }, 0x30000, 8)
        }
        Later::AtomicWrite => (SendOp::AtomicWrite { va: 0, rkey: ALL }, NEWS, 8),
        Later::Send => (SendOp::Send, NEWS, len),
    };
    p.nodes[0].post(2, op, at, len);
}

#[track_caller]
fn check(p: &Pair, len: u32, what: &dyn std::fmt::Debug) {
    let good = WcStatus::Success;
    assert_eq!(p.nodes[0].host.statuses(), [(1, good), (2, good)], "{what:?}");
    let got = p.nodes[0].memory(LANDING as usize, len as usize);
    let first = got.iter().zip(&pattern(len as usize, 1)).position(|(a, b)| a != b);
    assert_eq!(first, None, "{what:?}: the READ brought something newer");
    assert_ne!(p.nodes[1].memory(0, 8), &pattern(8, 1)[..], "{what:?}: nothing was changed");
    p.assert_settled();
}

#[test]
fn a_read_brings_what_was_there_before_a_later_request() {
    for setup in setups() {
        for later in LATER {
            for len in [8, 16 << 10, 200 << 10] {
                let mut p = pair(setup);
                post(&mut p, len, later);
                p.run();
                check(&p, len, &(later, len, setup.multipath, setup.mtu));
            }
        }
    }
}

/// The same for an answer that is asked for again, whole or in part.
#[test]
fn a_repeated_read_brings_what_was_there_before_a_later_request() {
    for setup in setups() {
        for later in LATER {
            for len in [8, 16 << 10, 200 << 10] {
                for loss in [300, 30] {
                    let mut p = pair(setup);
                    for link in &mut p.links {
                        (link.loss, link.duplicate) = (loss, 50);
                    }
                    post(&mut p, len, later);
                    p.run();
                    check(&p, len, &(later, len, setup.multipath, setup.mtu, loss));
                }
            }
        }
    }
}

/// The same over another path, after the first has died with the answer on it.
#[test]
fn fail_over_brings_what_was_there_before_a_later_request() {
    for later in LATER {
        let mut p = pair(setups()[1]);
        p.links[0].cut[0] = true;
        post(&mut p, 16 << 10, later);
        p.run_for(US * 100);
        assert!(p.nodes[0].host.statuses().is_empty());
        p.set_path(0, 0, false);
        p.set_path(1, 0, false);
        p.run();
        check(&p, 16 << 10, &later);
    }
}

/// A READ of what one has just written.
#[test]
fn each_of_many_reads_brings_what_the_write_before_it_wrote() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        (p.links[0].loss, p.links[0].duplicate) = (50, 50);
        for i in 0..20 {
            p.nodes[0].write_memory((NEWS + i * 8) as usize, &(i + 1).to_be_bytes());
            let at = SendOp::Write { va: 0x100, rkey: ALL };
            p.nodes[0].post(i * 2, at, NEWS + i * 8, 8);
            p.nodes[0].post(i * 2 + 1, SendOp::Read { va: 0x100, rkey: ALL }, i * 8, 8);
        }
        p.run();
        let got: Vec<u8> = (0..20).map(|i| p.nodes[0].memory(i * 8, 8)[7]).collect();
        assert_eq!(got, (1..=20).collect::<Vec<u8>>());
    }
}

/// A key that a later SEND invalidates is valid until the answers through it have been sent.
#[test]
fn a_read_is_answered_before_a_later_send_invalidates_its_key() {
    for setup in setups() {
        let mut p = pair(setup);
        p.nodes[1].host.register(0x51, 0, 0x40000, Access::REMOTE_READ);
        p.nodes[1].write_memory(0, &pattern(200 << 10, 1));
        p.nodes[1].recv(7, 0x60000, 100);
        p.nodes[0].post(1, SendOp::Read { va: 0, rkey: 0x51 }, LANDING, 200 << 10);
        p.nodes[0].post(2, SendOp::SendInv { rkey: 0x51 }, NEWS, 100);
        p.run();
        let good = WcStatus::Success;
        assert_eq!(p.nodes[0].host.statuses(), [(1, good), (2, good)]);
        assert_eq!(p.nodes[0].memory(LANDING as usize, 200 << 10), pattern(200 << 10, 1));
        assert!(!p.nodes[1].host.regions.contains_key(&0x51));
    }
}

/// Memory of a region that has gone is not touched, although a READ would return it.
#[test]
fn a_later_write_does_not_look_at_a_region_that_has_gone() {
    let mut p = pair(Setup::default());
    p.nodes[1].host.register(0x51, 0, 0x1000, Access::REMOTE_READ);
    p.filter = Some(Box::new(|to, k: &Packet<'_>| to == 1 || !k.opcode().is_read_response()));
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: 0x51 }, LANDING, 100);
    p.run_for(US * 50);
    p.nodes[1].host.regions.remove(&0x51);
    p.nodes[0].post(2, SendOp::Write { va: 0, rkey: ALL }, NEWS, 100);
    p.run();
    assert_eq!(p.nodes[0].host.statuses()[0], (1, WcStatus::RemAccessErr));
}

/// The first packet of the second READ's answer can't be stored. The READ waits for the one before it,
/// whose answer is lost, to complete; the rest of its answer is dropped.
#[test]
fn the_rest_of_an_answer_to_a_read_that_has_failed_is_counted() {
    let mut p = pair(Setup { mtu: 1024, ..Setup::default() });
    p.nodes[0].host.gone = LANDING..LANDING + 1;
    p.filter = Some(Box::new(|_, k: &Packet<'_>| k.opcode() != Opcode::RC_READ_RESPONSE_ONLY));
    p.nodes[0].post(1, READ, NEWS, 100);
    p.nodes[0].post(2, READ, LANDING, 3 * 1024);
    p.run_for(US * 50);
    assert_eq!(p.nodes[0].host.statuses(), []);
    assert_eq!(p.nodes[0].qp.counters().duplicate_responses, 2);
}

/// The scatter lists of receives are checked as well, piece by piece.
#[test]
fn a_receive_of_many_pieces_over_a_read_changes_nothing_of_its_answer() {
    let mut p = pair(Setup { mtu: 256, ..Setup::default() });
    p.links[0].loss = 200;
    let old = pattern(1024, 1);
    p.nodes[1].write_memory(0, &old);
    let pieces = [sge(1000, 24), sge(0x9000, 100), sge(3, 200), sge(500, 300)];
    let wr = RecvWr { wr_id: 7, sges: Sges::from_slice(&pieces) };
    p.nodes[1].qp.post_recv(wr).unwrap();
    p.nodes[0].post(1, READ, LANDING, 1024);
    p.nodes[0].post(2, SendOp::Send, NEWS, 624);
    p.run();
    assert_eq!(p.nodes[0].memory(LANDING as usize, 1024), old);
    assert_eq!(p.nodes[1].memory(500, 300), [0; 300]);
    assert_eq!(PD, p.nodes[1].qp.config().pd);
}

/// Nothing is kept where nothing overlaps: the answer of a repeated READ comes from memory.
#[test]
fn what_another_queue_pair_or_the_program_writes_is_not_held_back() {
    let mut p = pair(Setup::default());
    p.nodes[1].write_memory(0, &[1; 100]);
    let mut lost = false;
    p.filter = Some(Box::new(move |_, k: &Packet<'_>| {
        let hit = !lost && k.opcode() == Opcode::RC_READ_RESPONSE_ONLY;
        lost |= hit;
        !hit
    }));
    p.nodes[0].post(1, READ, LANDING, 100);
    p.nodes[0].post(2, SendOp::Write { va: 100, rkey: ALL }, NEWS, 100);
    p.run_for(US * 30);
    p.nodes[1].write_memory(0, &[2; 100]);
    p.run();
    assert_eq!(p.nodes[0].memory(LANDING as usize, 100), [2; 100]);
}

/// Each request costs the peer a wake-up and a send that is not full.
#[test]
fn a_long_read_asks_for_at_least_a_quarter_of_the_window_at_a_time() {
    let len = 0x40000;
    let mut p = Pair::new(Setup { mtu: 1024, ..Setup::default() });
    p.nodes[0].host.window = 128 << 10;
    p.nodes[1].write_memory(0, &pattern(len as usize, 1));
    let asked: Rc<RefCell<Vec<u32>>> = Rc::default();
    let log = Rc::clone(&asked);
    p.filter = Some(Box::new(move |to, packet| {
        if to == 1 && packet.opcode().is_read_request() {
            log.borrow_mut().extend(packet.headers.reth.map(|reth| reth.len));
        }
        true
    }));
    p.nodes[0].post(1, READ, LANDING, len);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.nodes[0].memory(LANDING as usize, len as usize), pattern(len as usize, 1));
    let asked = asked.borrow();
    assert_eq!(asked.iter().sum::<u32>(), len);
    let (_, long) = asked.split_last().unwrap();
    assert!(long.len() > 1 && long.iter().all(|n| *n >= 28 << 10), "{asked:?}");
    p.assert_settled();
}

/// What waits for the answer of a READ is not executed if that answer ends with a refusal, which the peer
/// must hear of (IBTA 9.9.3).
#[test]
fn nothing_is_executed_after_a_read_whose_memory_goes_while_it_is_answered() {
    let setup = Setup { multipath: true, reach: 1 << 20, ..Setup::default() };
    let mut p = Pair::new(setup);
    for node in &mut p.nodes {
        node.host.window = 8 << 20;
    }
    let key = 0x4321;
    let rights = Access::REMOTE_READ | Access::LOCAL_WRITE;
    p.nodes[1].host.register(key, 0, 1 << 20, rights);
    p.nodes[1].recv(77, 0x80000, 100);
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: key }, 0, 200_000);
    p.nodes[0].post(1, SendOp::SendInv { rkey: key }, 0, 10);
    let now = p.now;
    let [asks, answers] = &mut p.nodes;
    while asks.qp.wants_transmit() {
        asks.qp.poll_transmit(now, &mut asks.host);
    }
    for (path, bytes) in std::mem::take(&mut asks.host.out) {
        let packet = Packet::parse(&bytes).unwrap();
        answers.qp.handle_packet(now, &packet, path, None, &mut answers.host);
    }
    answers.qp.poll_transmit(now, &mut answers.host);
    // The program unmaps a page.
    answers.host.gone = 100_000..101_000;
    assert!(p.run_to_rest(MS * 20_000));
    let expected = [(0, WcStatus::RemAccessErr), (1, WcStatus::WrFlushErr)];
    assert_eq!(p.nodes[0].host.statuses(), expected);
    assert_eq!(p.nodes[1].qp.state(), QpState::Err);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(77, WcStatus::WrFlushErr)]);
}
