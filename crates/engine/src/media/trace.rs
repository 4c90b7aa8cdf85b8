//! Media whose packets are written to a file when they are sent and when they arrive.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use polypath_paths::PathAddress;
use polypath_telemetry::FaultCounters;
use polypath_topology::Table;
use polypath_transport::{Burst, Unread};
use polypath_wire::ROCE_PORT;
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::ip::IpFields;

use super::Halves;
use super::capture::Capture;
use super::flow::{Capabilities, FlowError, FlowHandle, Flushed, Seal};
use super::gather::packets;
use super::medium::{Rx, Tx};
use super::names::Names;
use super::received::Received;
use crate::clock;
use crate::memory::Segment;

/// The sending half, which records packets.
#[derive(Debug)]
pub(super) struct TraceTx {
    inner: Box<dyn Tx>,
    capture: Arc<Capture>,
    names: Names,
    /// The header fields of each flow, and its part of the ICRC.
    flows: HashMap<FlowHandle, (IpFields, FlowCrc)>,
}

impl TraceTx {
    fn record(&self, flow: FlowHandle, packet: &[u8], seal: Seal) {
        let Some((fields, crc)) = self.flows.get(&flow) else { return };
        // The kernel numbers the packets of one send. Each of these is a send of its own.
        let payload = sealed(crc, packet, seal);
        self.capture.add(realtime(), fields.flow.src, fields, &payload);
    }
}

impl Tx for TraceTx {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn carries(&self, address: &PathAddress) -> bool {
        self.inner.carries(address)
    }

    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        let handle = self.inner.open(address, tag)?;
        let src_port = self.inner.source_port(handle).unwrap_or(address.source_port);
        let (src, dst) = (address.local.to_canonical(), address.remote.to_canonical());
        let flow = Flow::new(src, dst, src_port);
        // `FlowKey::hop_limit` has the same default.
        let hop_limit = if address.hop_limit == 0 { 64 } else { address.hop_limit };
        let traffic_class = address.traffic_class;
        let fields = IpFields { flow, id: 0, traffic_class, hop_limit, flow_label: 0 };
        self.flows.insert(handle, (fields, FlowCrc::new(&flow)));
        Ok(handle)
    }

    fn close(&mut self, flow: FlowHandle) {
        self.flows.remove(&flow);
        self.inner.close(flow);
    }

    fn send_packet(&mut self, now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal) {
        self.record(flow, packet, seal);
        self.inner.send_packet(now, flow, packet, seal);
    }

    /// Sends the packets one by one, so that exactly what is recorded is sent, even if the program
    /// changes the payload meanwhile.
    fn send(
        &mut self,
        now: Duration,
        flow: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        packets(burst, |_, packet, seal| self.send_packet(now, flow, packet, seal))
    }

    fn has_queued(&self) -> bool {
        self.inner.has_queued()
    }

    fn flush(&mut self, now: Duration) -> Flushed {
        let done = self.inner.flush(now);
        self.capture.flush();
        done
    }

    fn finish(&mut self, now: Duration) {
        self.inner.finish(now);
        self.capture.flush();
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
        self.inner.next_deadline()
    }

    fn interfaces_changed(&mut self, table: &Table) {
        self.names.learn(table);
        self.inner.interfaces_changed(table);
    }

    fn faults(&self) -> FaultCounters {
        self.inner.faults()
    }
}

/// The receiving half, which records packets.
#[derive(Debug)]
pub(super) struct TraceRx {
    inner: Box<dyn Rx>,
    capture: Arc<Capture>,
}

impl Rx for TraceRx {
    fn receive(&mut self, now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let capture = &self.capture;
        let got = self.inner.receive(now, &mut |received| {
            record(capture, received);
            f(received);
        });
        capture.flush();
        got
    }

    fn more(&self) -> bool {
        self.inner.more()
    }

    fn wait_on(&self) -> RawFd {
        self.inner.wait_on()
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.inner.next_deadline()
    }
}

fn record(capture: &Capture, received: &Received<'_>) {
    let &Received { src, src_port, dst, traffic_class, hop_limit, datagram, id_guess, .. } =
        received;
    let flow = Flow { src, dst, src_port, dst_port: ROCE_PORT };
    let mut fields = IpFields { flow, id: id_guess, traffic_class, hop_limit, flow_label: 0 };
    let Some(crc) = received.crc else {
        let payload = sealed(&FlowCrc::new(&flow), datagram, Seal::Right);
        return capture.add(realtime(), dst, &fields, &payload);
    };
    // The socket does not tell the identification of the packet, but its ICRC shows it.
    fields.id = crc.verify(datagram, id_guess).unwrap_or(id_guess);
    capture.add(realtime(), dst, &fields, datagram);
}

/// A packet with its ICRC for identification 0.
fn sealed(crc: &FlowCrc, packet: &[u8], seal: Seal) -> Vec<u8> {
    let mut payload = Vec::with_capacity(packet.len() + 4);
    payload.extend(packet);
    payload.extend(seal.icrc(crc, packet, 0));
    payload
}

fn realtime() -> u64 {
    clock::realtime_ns(clock::now())
}

/// Wraps both halves of a medium, so that their packets are written to a file.
pub(super) fn wrap((tx, rx): Halves, names: &Names, capture: &Arc<Capture>) -> Halves {
    let (names, flows) = (names.clone(), HashMap::new());
    let tx = TraceTx { inner: tx, capture: capture.clone(), names, flows };
    (Box::new(tx), Box::new(TraceRx { inner: rx, capture: capture.clone() }))
}
