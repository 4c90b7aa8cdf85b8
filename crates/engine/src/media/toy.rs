//! A toy medium: packets between two addresses of one machine, through a pair of Unix sockets.
//!
//! `docs/extend/path-kind.md` explains it and quotes this file.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use polypath_paths::PathAddress;

use super::{
    Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Halves, Received, Rx, Seal, Tx,
};

/// The largest packet, in bytes: a path MTU of 4096 and all headers fit.
const PACKET_BYTES: usize = 4352;

/// The sending half of one end of the toy wire.
#[derive(Debug)]
pub(crate) struct ToyTx {
    socket: UnixDatagram,
    local: IpAddr,
    remote: IpAddr,
    /// The tags of the flows, by their handles' indexes; `None` after a flow was closed.
    flows: Vec<Option<u32>>,
    queued: Vec<(FlowHandle, Vec<u8>)>,
    errors: Vec<FlowError>,
    sent_bytes: u64,
}

/// The receiving half of the same end.
#[derive(Debug)]
pub(crate) struct ToyRx {
    socket: UnixDatagram,
    local: IpAddr,
    remote: IpAddr,
    more: bool,
}

/// A wire between two addresses: the end at `a`, and the end at `b`.
pub(crate) fn wire(a: IpAddr, b: IpAddr) -> io::Result<[Halves; 2]> {
    let (at_a, at_b) = UnixDatagram::pair()?;
    Ok([end(at_a, a, b)?, end(at_b, b, a)?])
}

fn end(socket: UnixDatagram, local: IpAddr, remote: IpAddr) -> io::Result<Halves> {
    // Nothing in a lane may wait.
    socket.set_nonblocking(true)?;
    let tx = ToyTx {
        socket: socket.try_clone()?,
        local,
        remote,
        flows: Vec::new(),
        queued: Vec::new(),
        errors: Vec::new(),
        sent_bytes: 0,
    };
    Ok((Box::new(tx), Box::new(ToyRx { socket, local, remote, more: false })))
}

impl Tx for ToyTx {
    fn capabilities(&self) -> Capabilities {
        // A full socket drops packets, so the medium is not lossless.
        let (ordered, lossless, verified) = (true, false, true);
        Capabilities { name: "toy", packet_bytes: PACKET_BYTES, ordered, lossless, verified }
    }

    fn carries(&self, address: &PathAddress) -> bool {
        address.local == self.local && address.remote == self.remote
    }

    fn open(&mut self, _address: &PathAddress, tag: u32) -> io::Result<FlowHandle> {
        self.flows.push(Some(tag));
        Ok(FlowHandle { index: self.flows.len() as u32 - 1, serial: 0 })
    }

    fn close(&mut self, flow: FlowHandle) {
        if let Some(open) = self.flows.get_mut(flow.index as usize) {
            *open = None;
        }
    }

    fn send_packet(&mut self, _now: Duration, flow: FlowHandle, packet: &[u8], seal: Seal) {
        // A packet that is damaged on its way must not arrive as valid.
        if seal != Seal::Wrong {
            self.queued.push((flow, packet.to_vec()));
        }
    }

    fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    fn flush(&mut self, _now: Duration) -> Flushed {
        let mut done = Flushed::default();
        for (flow, packet) in self.queued.drain(..) {
            match self.socket.send(&packet) {
                Ok(bytes) => {
                    done.sent += 1;
                    done.sent_bytes += bytes as u64;
                }
                Err(error) => {
                    done.dropped += 1;
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    let full = error.kind() == io::ErrorKind::WouldBlock;
                    let kind =
                        if full { FlowFault::Congested(errno) } else { FlowFault::Refused(errno) };
                    if let Some(Some(tag)) = self.flows.get(flow.index as usize) {
                        self.errors.push(FlowError { flow, tag: *tag, kind, packets: 1 });
                    }
                }
            }
        }
        self.sent_bytes += done.sent_bytes;
        done
    }

    fn take_errors(&mut self) -> Vec<FlowError> {
        std::mem::take(&mut self.errors)
    }

    fn sent_bytes(&self, _flow: FlowHandle) -> u64 {
        self.sent_bytes
    }
}

impl Rx for ToyRx {
    fn receive(&mut self, _now: Duration, f: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let mut packet = [0; PACKET_BYTES];
        match self.socket.recv(&mut packet) {
            Ok(len) => {
                self.more = true;
                f(&Received::verified(self.remote, self.local, &packet[..len]));
                Ok(1)
            }
            Err(error) => {
                self.more = false;
                if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) }
            }
        }
    }

    fn more(&self) -> bool {
        self.more
    }

    fn wait_on(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

mod tests {
    use super::super::pair::Pair;
    use super::*;

    #[test]
    fn a_lane_carries_data_over_the_toy_wire() {
        let mut pair = Pair::over(wire(Pair::ADDRESSES[0], Pair::ADDRESSES[1]).unwrap());
        let data: Vec<u8> = (0..100_000).map(|n| (n % 251) as u8).collect();
        assert_eq!(pair.write(&data), data, "what lies in the peer's memory");
        // All data and their acknowledgements were sent over the toy.
        assert!(pair.sent_bytes(0) > 100_000 && pair.sent_bytes(1) > 0);
        assert_eq!(pair.drops(), [] as [String; 0]);
    }
}
