//! Media whose packets are lost, duplicated, damaged, delayed or reordered, to test programs.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::thread;
use std::time::{Duration, Instant};

use polypath_paths::PathAddress;
use polypath_telemetry::{Counters as _, FaultCounters};
use polypath_topology::Table;
use polypath_transport::{Burst, Unread};

use super::Halves;
use super::delay_queue::DelayQueue;
use super::flow::{Capabilities, FlowError, FlowHandle, Flushed, Seal};
use super::gather::packets;
use super::judge::{Fate, Judge};
use super::medium::{Rx, Tx};
use super::names::Names;
use super::received::Received;
use crate::memory::Segment;
use crate::notify::lock;

/// A packet to send.
#[derive(Clone, Debug)]
struct Outgoing {
    flow: FlowHandle,
    packet: Vec<u8>,
    seal: Seal,
}

/// The faults of packets that are sent.
#[derive(Debug)]
pub(super) struct FaultsTx {
    inner: Box<dyn Tx>,
    judge: Judge,
    names: Names,
    /// The local addresses of the flows.
    locals: HashMap<FlowHandle, IpAddr>,
    delayed: DelayQueue<Outgoing>,
}

impl FaultsTx {
    pub(super) fn new(inner: Box<dyn Tx>, judge: Judge, names: Names) -> Self {
        Self { inner, judge, names, locals: HashMap::new(), delayed: DelayQueue::default() }
    }

    fn fate(&mut self, now: Duration, flow: FlowHandle) -> Fate {
        match self.locals.get(&flow) {
            Some(local) => self.judge.fate(now, *local),
            None => Fate::default(),
        }
    }

    fn befall(&mut self, now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal, fate: Fate) {
        if fate.lost {
            return;
        }
        if self.delayed.is_full() {
            lock(&self.judge.counts).lost += 1;
            return;
        }
        let seal = if fate.corrupt { Seal::Wrong } else { seal };
        let outgoing = Outgoing { flow, packet: packet.to_vec(), seal };
        let mut out = Vec::new();
        if fate.twice {
            self.delayed.enter(now, 0, fate.delay, outgoing.clone(), &mut out);
        }
        self.delayed.enter(now, fate.overtakers, fate.delay, outgoing, &mut out);
        self.go_on(now, out);
    }

    fn go_on(&mut self, now: Duration, out: Vec<Outgoing>) {
        for Outgoing { flow, packet, seal } in out {
            self.inner.send_packet(now, flow, &packet, seal);
        }
    }
}

impl Tx for FaultsTx {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        let ordered = inner.ordered && !self.judge.reorders();
        Capabilities { ordered, lossless: false, ..inner }
    }

    fn carries(&self, address: &PathAddress) -> bool {
        self.inner.carries(address)
    }

    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        let flow = self.inner.open(address, tag)?;
        self.locals.insert(flow, address.local);
        Ok(flow)
    }

    fn close(&mut self, flow: FlowHandle) {
        self.locals.remove(&flow);
        self.inner.close(flow);
    }

    fn send_packet(&mut self, now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal) {
        let fate = self.fate(now, flow);
        self.befall(now, flow, packet, seal, fate);
    }

    fn send(
        &mut self,
        now: Duration,
        flow: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        let fates: Vec<Fate> = (0..burst.packets).map(|_| self.fate(now, flow)).collect();
        if self.delayed.is_idle() && fates.iter().all(|fate| *fate == Fate::default()) {
            return self.inner.send(now, flow, burst);
        }
        packets(burst, |n, packet, seal| {
            self.befall(now, flow, packet, seal, fates[n as usize]);
        })
    }

    fn has_queued(&self) -> bool {
        self.inner.has_queued()
    }

    fn flush(&mut self, now: Duration) -> Flushed {
        let mut out = Vec::new();
        self.delayed.take_due(now, &mut out);
        self.go_on(now, out);
        self.inner.flush(now)
    }

    /// A network delivers what it delays, also if the sender has ended meanwhile.
    fn finish(&mut self, now: Duration) {
        let began = Instant::now();
        while let Some(at) = self.delayed.next_deadline() {
            thread::sleep(at.saturating_sub(now + began.elapsed()));
            self.flush(now + began.elapsed());
        }
        self.inner.finish(now + began.elapsed());
    }

    fn take_errors(&mut self) -> Vec<FlowError> {
        self.inner.take_errors()
    }

    fn sent_bytes(&self, flow: FlowHandle) -> u64 {
        self.inner.sent_bytes(flow)
    }

    fn source_port(&self, flow: FlowHandle) -> Option<u16> {
        self.inner.source_port(flow)
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.delayed.next_deadline().into_iter().chain(self.inner.next_deadline()).min()
    }

    fn interfaces_changed(&mut self, table: &Table) {
        self.names.learn(table);
        self.inner.interfaces_changed(table);
    }

    fn faults(&self) -> FaultCounters {
        let mut faults = *lock(&self.judge.counts);
        faults.add(&self.inner.faults());
        faults
    }
}

/// A packet that arrived.
#[derive(Clone, Debug)]
struct Incoming {
    /// Everything about the packet except its datagram.
    fields: Received<'static>,
    datagram: Vec<u8>,
}

/// The faults of packets that arrive.
#[derive(Debug)]
pub(super) struct FaultsRx {
    inner: Box<dyn Rx>,
    judge: Judge,
    delayed: DelayQueue<Incoming>,
}

impl FaultsRx {
    pub(super) fn new(inner: Box<dyn Rx>, judge: Judge) -> Self {
        Self { inner, judge, delayed: DelayQueue::default() }
    }
}

impl Rx for FaultsRx {
    fn receive(&mut self, now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let (judge, delayed) = (&mut self.judge, &mut self.delayed);
        let mut out = Vec::new();
        delayed.take_due(now, &mut out);
        let due = out.len();
        hand_out(&mut out, f);
        let got = self.inner.receive(now, &mut |received| {
            let fate = judge.fate(now, received.dst);
            if fate == Fate::default() && delayed.is_idle() {
                return f(received);
            }
            if fate.lost {
                return;
            }
            // A medium that verifies packets never delivers a damaged one.
            if fate.corrupt && received.crc.is_none() {
                return;
            }
            if delayed.is_full() {
                lock(&judge.counts).lost += 1;
                return;
            }
            let mut datagram = received.datagram.to_vec();
            if fate.corrupt {
                // This is what a sender does for `Seal::Wrong`.
                datagram.iter_mut().rev().take(4).for_each(|byte| *byte = !*byte);
            }
            let incoming = Incoming { fields: Received { datagram: &[], ..*received }, datagram };
            if fate.twice {
                delayed.enter(now, 0, fate.delay, incoming.clone(), &mut out);
            }
            delayed.enter(now, fate.overtakers, fate.delay, incoming, &mut out);
            hand_out(&mut out, f);
        })?;
        Ok(due + got)
    }

    fn more(&self) -> bool {
        self.inner.more()
    }

    fn wait_on(&self) -> RawFd {
        self.inner.wait_on()
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.delayed.next_deadline().into_iter().chain(self.inner.next_deadline()).min()
    }
}

fn hand_out(out: &mut Vec<Incoming>, f: &mut dyn FnMut(&Received<'_>)) {
    for Incoming { fields, datagram } in out.drain(..) {
        f(&Received { datagram: &datagram, ..fields });
    }
}

/// Wraps both halves of a medium, so that it has faults.
pub(super) fn wrap((tx, rx): Halves, names: &Names, mut judge: impl FnMut(u64) -> Judge) -> Halves {
    let tx = FaultsTx::new(tx, judge(0), names.clone());
    (Box::new(tx), Box::new(FaultsRx::new(rx, judge(1))))
}
