//! The sending half of UDP: flows, and the results of sending their packets.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use polypath_transport::{Burst, Unread};
use polypath_wire::ROCE_PORT;
use polypath_wire::icrc::{self, FlowCrc};

use super::batch::{Added, Batch, SENDS, Send, Style};
use super::socket::{self, DEFAULT_HOP_LIMIT, Socket, SocketKey};
use super::sys::{self, Control};
use super::{
    FLOWS_MAX, FlowError, FlowFault, FlowHandle, FlowKey, Flushed, SOCKETS_ENOUGH, SOCKETS_MAX,
    SOCKETS_PER_SOURCE, Seal, limit,
};
use crate::media::payload::Cursor;
use crate::memory::Segment;

/// The largest number of errors kept for [`Sender::take_flow_errors`].
const ERRORS_MAX: usize = 1024;

/// The sending half of a lane's UDP.
///
/// # Packets that are dropped
///
/// If the kernel has no room (`EAGAIN`, `ENOBUFS`), packets are dropped and counted, and the flow
/// is reported as [`FlowFault::Congested`]. To keep the packets, addresses of application memory
/// would have to be kept longer than the lane's lock is held, and waiting would stop the other
/// paths. The reliable services recover from loss anyway, and their windows are much smaller than
/// the send buffer.
///
/// # Packets that are too large
///
/// A queue pair's packets keep the size that both ends agreed on. If an interface's MTU is set
/// below that size, the kernel rejects the packets (DF is set), and they are sent once more, in
/// fragments. Such packets have no DF, and an identification that we cannot know; IPv4's ICRC
/// covers both fields. They carry the ICRC of the whole packet with DF. A Polypath peer, which sees
/// neither field, accepts it. IPv6 has no such fields, so over IPv6 every peer that reassembles
/// fragments accepts them.
///
/// # The UDP checksum
///
/// The UDP checksum stays enabled: `UDP_SEGMENT` rejects sockets without one (`SO_NO_CHECK`), and
/// interfaces compute it. The ICRC does not cover it.
#[derive(Debug)]
pub struct Sender {
    flows: Slots<Flow>,
    sockets: Slots<Socket>,
    by_key: HashMap<SocketKey, u32>,
    batch: Batch,
    total: Flushed,
    errors: Vec<FlowError>,
    serial: u32,
    /// The destination port of all packets: [`ROCE_PORT`], except in tests.
    port: u16,
    /// The error of opening a socket, as if the system had no resources left.
    #[cfg(test)]
    pub(crate) shortage: Option<i32>,
}

#[derive(Debug)]
struct Flow {
    serial: u32,
    tag: u32,
    key: FlowKey,
    socket: u32,
    name: libc::sockaddr_in6,
    name_len: libc::socklen_t,
    crc: FlowCrc,
    /// Whether UDP_SEGMENT works on this way. It does not on an interface without checksum offload.
    segmentation: bool,
    /// UDP payload in bytes of the largest packet that was not rejected for its size.
    fits: u16,
    /// UDP payload sent, in bytes.
    sent_bytes: u64,
}

impl Flow {
    fn style(&self, index: u32) -> Style {
        let longest = if self.segmentation { self.fits } else { 0 };
        Style { flow: index, crc: self.crc, longest }
    }
}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl Sender {
    /// Creates a sender without flows.
    pub fn new() -> Self {
        Self {
            flows: Slots::new(),
            sockets: Slots::new(),
            by_key: HashMap::new(),
            batch: Batch::new(),
            total: Flushed::default(),
            errors: Vec::new(),
            serial: 0,
            port: ROCE_PORT,
            #[cfg(test)]
            shortage: None,
        }
    }

    /// Creates a sender for tests, which cannot all use the RoCE port.
    #[cfg(test)]
    pub(super) fn to_port(port: u16) -> Self {
        Self { port, ..Self::new() }
    }

    /// Calls [`Sender::open_for`] without a tag.
    ///
    /// # Errors
    /// The same.
    pub fn open(&mut self, key: FlowKey) -> io::Result<FlowHandle> {
        self.open_for(key, u32::MAX)
    }

    /// Opens a flow. `tag` is returned with its errors. Flows with the same local address,
    /// interface and source port share a socket. When an address has [`SOCKETS_PER_SOURCE`] sockets
    /// or all have [`SOCKETS_ENOUGH`], a flow with a new source port gets one of the existing
    /// sockets instead.
    ///
    /// # Errors
    /// The addresses are of different families; the local address is not this host's
    /// (`AddrNotAvailable`); there are [`FLOWS_MAX`] flows or [`SOCKETS_MAX`] sockets
    /// (`OutOfMemory`); no source port is free (`AddrInUse`); and those of `socket` and
    /// `setsockopt`.
    pub fn open_for(&mut self, key: FlowKey, tag: u32) -> io::Result<FlowHandle> {
        let key = FlowKey {
            local: key.local.to_canonical(),
            remote: key.remote.to_canonical(),
            hop_limit: if key.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { key.hop_limit },
            ..key
        };
        if key.local.is_ipv4() != key.remote.is_ipv4() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "source and destination are of different address families",
            ));
        }
        if self.flows.len() >= FLOWS_MAX {
            return Err(limit("too many flows in one lane"));
        }
        let socket = self.socket(&key)?;
        let port = self.sockets.get_mut(socket).map_or(0, |s| {
            s.flows += 1;
            s.port
        });
        let (name, name_len) = sys::raw_addr(&sys::socket_addr(key.remote, self.port, key.ifindex));
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let crc = FlowCrc::new(&icrc::Flow {
            src: key.local,
            dst: key.remote,
            src_port: port,
            dst_port: self.port,
        });
        let index = self.flows.insert(Flow {
            serial,
            tag,
            key,
            socket,
            name,
            name_len,
            crc,
            segmentation: true,
            fits: u16::MAX,
            sent_bytes: 0,
        });
        Ok(FlowHandle { index, serial })
    }

    /// The socket for a flow: an existing one, or a new one.
    fn socket(&mut self, key: &FlowKey) -> io::Result<u32> {
        let socket_key = SocketKey::new(key);
        if let Some(index) = self.by_key.get(&socket_key) {
            return Ok(*index);
        }
        if let Some(index) = self.shared_socket(&socket_key) {
            return Ok(index);
        }
        if self.sockets.len() >= SOCKETS_MAX {
            return Err(limit("too many source addresses in one lane"));
        }
        #[cfg(test)]
        if let Some(errno) = self.shortage {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let index =
            self.sockets.insert(Socket::open(socket_key, key.traffic_class, key.hop_limit)?);
        self.by_key.insert(socket_key, index);
        Ok(index)
    }

    /// One of the sockets of this source, chosen by the requested port, if there are enough
    /// sockets.
    fn shared_socket(&self, key: &SocketKey) -> Option<u32> {
        let crowded = self.sockets.len() >= SOCKETS_ENOUGH;
        if !crowded && self.sockets.len() < SOCKETS_PER_SOURCE {
            return None;
        }
        let mut source: Vec<(u16, u32)> = self
            .by_key
            .iter()
            .filter(|(other, _)| other.same_source(key))
            .map(|(other, index)| (other.port, *index))
            .collect();
        if source.is_empty() || !(crowded || source.len() >= SOCKETS_PER_SOURCE) {
            return None;
        }
        source.sort_unstable();
        Some(source[usize::from(key.port) % source.len()].1)
    }

    /// Closes a flow after sending what is queued. This and all other methods ignore a handle that
    /// is no longer open.
    pub fn close(&mut self, flow: FlowHandle) {
        if self.get(flow).is_none() {
            return;
        }
        self.send_batch();
        let Some(closed) = self.flows.remove(flow.index) else { return };
        if let Some(socket) = self.sockets.get_mut(closed.socket) {
            socket.flows -= 1;
            if socket.flows == 0 {
                self.by_key.remove(&socket.key);
                self.sockets.remove(closed.socket);
            }
        }
        self.errors.retain(|error| error.flow != flow);
    }

    /// The UDP source port that a flow actually has.
    pub fn source_port(&self, flow: FlowHandle) -> Option<u16> {
        self.sockets.get(self.get(flow)?.socket).map(|socket| socket.port)
    }

    /// The UDP payload of a flow that the kernel took, in bytes.
    pub fn sent_bytes(&self, flow: FlowHandle) -> u64 {
        self.get(flow).map_or(0, |flow| flow.sent_bytes)
    }

    /// The key that a flow was opened with. IPv4 addresses are not mapped.
    pub fn key(&self, flow: FlowHandle) -> Option<&FlowKey> {
        self.get(flow).map(|flow| &flow.key)
    }

    fn get(&self, flow: FlowHandle) -> Option<&Flow> {
        self.flows.get(flow.index).filter(|open| open.serial == flow.serial)
    }

    /// Queues the packets of a burst, and sends them when enough packets are queued. Payload in
    /// memory is read until [`Sender::flush`] returns, which must be before the lane's lock is
    /// released.
    ///
    /// # Errors
    /// The payload of the next packet, after those that are queued, can't be read.
    pub fn queue(&mut self, flow: FlowHandle, burst: &Burst<'_, Segment>) -> Result<(), Unread> {
        let Some(style) = self.get(flow).map(|f| f.style(flow.index)) else { return Ok(()) };
        let (mut cursor, mut next) = (Cursor::new(&burst.payload), 0);
        loop {
            match self.batch.add_burst(&style, burst, &mut cursor, &mut next) {
                Added::All => return Ok(()),
                Added::Full => self.send_batch(),
                Added::Unread => return Err(Unread { sent: next }),
            }
        }
    }

    /// Queues one packet that lacks only its ICRC.
    pub fn queue_raw(&mut self, flow: FlowHandle, packet_without_icrc: &[u8]) {
        self.queue_sealed(flow, packet_without_icrc, Seal::Right);
    }

    /// Queues one packet with the given trailer.
    pub(super) fn queue_sealed(&mut self, flow: FlowHandle, packet: &[u8], seal: Seal) {
        let Some(style) = self.get(flow).map(|f| f.style(flow.index)) else { return };
        while !self.batch.add_raw(&style, packet, seal) {
            self.send_batch();
        }
    }

    /// Whether packets wait for [`Sender::flush`].
    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Sends everything that is queued. The result also counts packets that were sent before
    /// because enough were queued. Nothing is queued afterwards.
    #[inline]
    pub fn flush(&mut self) -> Flushed {
        self.send_batch();
        std::mem::take(&mut self.total)
    }

    /// Forgets which sizes were too large and where UDP_SEGMENT failed, because interfaces have
    /// changed.
    pub fn forget_refusals(&mut self) {
        for flow in self.flows.iter_mut() {
            flow.fits = u16::MAX;
            flow.segmentation = true;
        }
    }

    /// The number of open sockets.
    #[cfg(test)]
    pub(super) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Handles the first queued send as if the kernel had rejected it. Returns the number of sends
    /// that were queued. Nothing is queued afterwards.
    #[cfg(test)]
    pub(super) fn refuse_queued(&mut self, errno: i32) -> usize {
        let (first, count) = (self.batch.sends()[0], self.batch.sends().len());
        self.refused(&first, errno);
        self.batch.clear();
        count
    }

    /// The packets that are queued, one by one.
    #[cfg(test)]
    pub(super) fn queued_packets(&self) -> Vec<Vec<libc::iovec>> {
        let sends = self.batch.sends().iter();
        sends.flat_map(|send| (0..send.packets).map(|n| self.batch.packet(send, n))).collect()
    }

    /// The errors since the last call, at most one of a kind per flow.
    pub fn take_flow_errors(&mut self) -> Vec<FlowError> {
        std::mem::take(&mut self.errors)
    }

    /// Whether [`Sender::take_flow_errors`] would return an error.
    #[inline]
    pub fn has_flow_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    fn send_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut at = 0;
        while at < self.batch.sends().len() {
            match self.send_some(at) {
                Ok(n) => {
                    for send in &self.batch.sends()[at..at + n] {
                        let bytes = send.bytes as u64;
                        self.total.sent += u32::from(send.packets);
                        self.total.sent_bytes += bytes;
                        let Some(flow) = self.flows.get_mut(send.flow) else { continue };
                        flow.sent_bytes += bytes;
                        if send.segment > flow.fits {
                            self.total.fragmented += u32::from(send.packets);
                        }
                    }
                    at += n;
                }
                Err(errno) => {
                    let send = self.batch.sends()[at];
                    if errno == libc::EINTR {
                        continue;
                    }
                    if errno != libc::EMSGSIZE || !self.send_fragmented(&send) {
                        self.refused(&send, errno);
                    }
                    at += 1;
                }
            }
        }
        self.batch.clear();
    }

    /// Passes the sends from number `at` on that use one socket to the kernel. Returns how many it
    /// took, or the errno of the first.
    fn send_some(&mut self, at: usize) -> Result<usize, i32> {
        let sends = &self.batch.sends()[at..];
        let Some(first) = self.flows.get(sends[0].flow) else { return Err(libc::ENOTCONN) };
        let fragments = sends[0].segment > first.fits;
        let count = sends
            .iter()
            .take_while(|s| {
                self.flows
                    .get(s.flow)
                    .is_some_and(|f| f.socket == first.socket && (s.segment > f.fits) == fragments)
            })
            .count();
        let Some(socket) = self.sockets.get_mut(first.socket) else { return Err(libc::ENOTCONN) };
        socket.expect_fragments(fragments).map_err(|e| sys::errno(&e))?;
        let segment = if count == 1 && sends[0].packets > 1 { sends[0].segment } else { 0 };
        socket.expect_segment(segment).map_err(|e| sys::errno(&e))?;
        let socket = &*socket;
        if count == 1 {
            let mut control = Control::new();
            let msg = message(&self.batch, &sends[0], first, socket, &mut control);
            if msg.msg_iovlen == 1 && msg.msg_controllen == 0 {
                // SAFETY: the message has one element in its gather list, in the arena, and the
                // flow's address; all live.
                let sent = unsafe {
                    sys::sendto(socket.fd(), &*msg.msg_iov, msg.msg_name, msg.msg_namelen)
                };
                return sent.map(|_| 1).map_err(|e| sys::errno(&e));
            }
            return sys::sendmsg(socket.fd(), &msg).map(|_| 1).map_err(|e| sys::errno(&e));
        }
        let mut controls = [Control::new(); SENDS];
        let mut msgs = [sys::NO_MESSAGE; SENDS];
        for ((msg, control), send) in msgs.iter_mut().zip(&mut controls).zip(&sends[..count]) {
            if let Some(flow) = self.flows.get(send.flow) {
                msg.msg_hdr = message(&self.batch, send, flow, socket, control);
            }
        }
        sys::sendmmsg(socket.fd(), &mut msgs[..count]).map_err(|e| sys::errno(&e))
    }

    /// Sends packets that were rejected for their size again, one by one and in fragments. Returns
    /// `false` if they were rejected although fragments were allowed.
    #[cold]
    fn send_fragmented(&mut self, send: &Send) -> bool {
        let Some(flow) = self.flows.get_mut(send.flow) else { return true };
        if send.segment > flow.fits {
            return false;
        }
        flow.fits = send.segment - 1;
        let (flow, index) = (&*flow, flow.socket);
        let Some(socket) = self.sockets.get_mut(index) else { return true };
        let ready = socket.expect_segment(0).and_then(|()| socket.expect_fragments(true));
        let (mut sent, mut bytes, mut failed) = (0, 0, ready.err().map(|e| sys::errno(&e)));
        for n in 0..send.packets {
            if failed.is_some() {
                break;
            }
            let mut pieces = self.batch.packet(send, n);
            let mut control = Control::new();
            let mut msg = message(&self.batch, &send.alone(), flow, socket, &mut control);
            msg.msg_iov = pieces.as_mut_ptr();
            msg.msg_iovlen = pieces.len();
            match sys::sendmsg(socket.fd(), &msg) {
                Ok(len) => {
                    sent += 1;
                    bytes += len as u64;
                }
                Err(e) => failed = Some(sys::errno(&e)),
            }
        }
        self.total.sent += sent;
        self.total.sent_bytes += bytes;
        self.total.fragmented += sent;
        let flow = FlowHandle { index: send.flow, serial: flow.serial };
        if let Some(flow) = self.flows.get_mut(send.flow) {
            flow.sent_bytes += bytes;
        }
        self.report(flow, FlowFault::TooBig(send.segment), sent);
        if let Some(errno) = failed {
            let dropped = u32::from(send.packets) - sent;
            self.total.dropped += dropped;
            self.report(flow, socket::fault(errno), dropped);
        }
        true
    }

    /// Counts and reports a send that the kernel rejected.
    fn refused(&mut self, send: &Send, errno: i32) {
        self.total.dropped += u32::from(send.packets);
        let Some(flow) = self.flows.get_mut(send.flow) else { return };
        // The interface has no checksum offload (EIO), or the packets don't fit it (EINVAL on older
        // kernels). From now on packets are sent one by one, which either works or gives a clear
        // error.
        if send.packets > 1 && matches!(errno, libc::EIO | libc::EINVAL) {
            flow.segmentation = false;
        }
        let flow = FlowHandle { index: send.flow, serial: flow.serial };
        self.report(flow, socket::fault(errno), u32::from(send.packets));
    }

    fn report(&mut self, flow: FlowHandle, kind: FlowFault, packets: u32) {
        if let Some(known) = self.errors.iter_mut().find(|e| e.flow == flow && e.kind == kind) {
            known.packets += packets;
        } else if self.errors.len() < ERRORS_MAX {
            let tag = self.get(flow).map_or(0, |flow| flow.tag);
            self.errors.push(FlowError { flow, tag, kind, packets });
        }
    }
}

/// The message for the kernel. Its pointers are valid as long as the arguments live.
#[inline]
fn message(
    batch: &Batch,
    send: &Send,
    flow: &Flow,
    socket: &Socket,
    control: &mut Control<CONTROL>,
) -> libc::msghdr {
    let mut msg = sys::NO_MESSAGE.msg_hdr;
    msg.msg_name = (&raw const flow.name).cast_mut().cast();
    msg.msg_namelen = flow.name_len;
    (msg.msg_iov, msg.msg_iovlen) = batch.gather(send);
    let mut len = 0;
    if send.packets > 1 && send.segment != socket.segment {
        len = control.push(len, libc::SOL_UDP, sys::UDP_SEGMENT, &send.segment.to_ne_bytes());
    }
    if flow.key.traffic_class != socket.traffic_class {
        let value = i32::from(flow.key.traffic_class).to_ne_bytes();
        len = match flow.key.local {
            IpAddr::V4(_) => control.push(len, libc::IPPROTO_IP, libc::IP_TOS, &value),
            IpAddr::V6(_) => control.push(len, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value),
        };
    }
    if flow.key.hop_limit != socket.hop_limit {
        let value = i32::from(flow.key.hop_limit).to_ne_bytes();
        len = match flow.key.local {
            IpAddr::V4(_) => control.push(len, libc::IPPROTO_IP, libc::IP_TTL, &value),
            IpAddr::V6(_) => control.push(len, libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &value),
        };
    }
    if len > 0 {
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = len;
    }
    msg
}

/// Room for segment size, traffic class and hop limit.
const CONTROL: usize = 72;

/// A vector whose elements keep their indexes.
#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(value);
            return index;
        }
        self.slots.push(Some(value));
        (self.slots.len() - 1) as u32
    }

    fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    #[inline]
    fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }
}
