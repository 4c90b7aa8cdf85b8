//! UDP as a medium.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use polypath_paths::{PathAddress, PathKind};
use polypath_topology::Table;
use polypath_transport::{Burst, Unread};
use polypath_wire::MAX_HEADERS_LEN;

use super::{FlowKey, Receiver, Sender};
use crate::media::{Capabilities, FlowError, FlowHandle, Flushed, Received, Rx, Seal, Tx};
use crate::memory::Segment;

impl From<&PathAddress> for FlowKey {
    fn from(address: &PathAddress) -> Self {
        Self {
            local: address.local,
            remote: address.remote,
            ifindex: (address.ifindex != 0).then_some(address.ifindex),
            source_port: address.source_port,
            traffic_class: address.traffic_class,
            hop_limit: address.hop_limit,
        }
    }
}

impl Tx for Sender {
    fn capabilities(&self) -> Capabilities {
        // MTUs are at most 4096, and the padding is at most 3.
        let packet_bytes = MAX_HEADERS_LEN + 4096 + 3;
        Capabilities { name: "udp", packet_bytes, ordered: false, lossless: false, verified: false }
    }

    fn carries(&self, address: &PathAddress) -> bool {
        address.kind == PathKind::Udp
    }

    fn open(&mut self, address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        self.open_for(address.into(), tag)
    }

    fn close(&mut self, flow: FlowHandle) {
        self.close(flow);
    }

    fn send_packet(&mut self, _now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal) {
        self.queue_sealed(flow, packet, seal);
    }

    fn send(
        &mut self,
        _now: Duration,
        flow: FlowHandle,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), Unread> {
        self.queue(flow, burst)
    }

    fn has_queued(&self) -> bool {
        self.has_queued()
    }

    fn flush(&mut self, _now: Duration) -> Flushed {
        self.flush()
    }

    fn take_errors(&mut self) -> Vec<FlowError> {
        self.take_flow_errors()
    }

    fn sent_bytes(&self, flow: FlowHandle) -> u64 {
        self.sent_bytes(flow)
    }

    fn source_port(&self, flow: FlowHandle) -> Option<u16> {
        self.source_port(flow)
    }

    fn interfaces_changed(&mut self, _table: &Table) {
        self.forget_refusals();
    }
}

impl Rx for Receiver {
    fn receive(
        &mut self,
        _now: Duration,
        mut f: &mut dyn FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        self.receive(&mut f)
    }

    fn more(&self) -> bool {
        self.more()
    }

    fn wait_on(&self) -> RawFd {
        self.fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use polypath_wire::icrc::{Flow, FlowCrc};

    /// [`Seal::Wrong`](crate::media::Seal::Wrong) relies on this: an IPv4 packet's ICRC is correct
    /// for one of 65,536 identifications, or for none.
    #[test]
    fn a_right_icrc_with_all_bits_turned_is_wrong_for_all_lengths() {
        let local = IpAddr::from([127, 0, 0, 1]);
        let crc = FlowCrc::new(&Flow::new(local, local, 0xc000));
        let mut packet = vec![0; 4400];
        for len in (12..4396).step_by(4) {
            let right = crc.compute(0, &packet[..len]);
            packet[len..len + 4].copy_from_slice(&right.map(|byte| !byte));
            assert_eq!(crc.verify(&packet[..len + 4], 0), None, "{len} bytes");
            packet[len..len + 4].fill(0);
        }
    }
}
