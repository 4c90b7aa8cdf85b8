//! The state for sending that a lane's queue pairs share: paths, sockets, counters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use polypath_lane::{NotSent, Overrun};
use polypath_paths::{ControlOut, Lag, PathAddress, PathKind, PathManager};
use polypath_telemetry::{
    Errno, Event, InterfaceName, LaneCounters, LaneDrops, PathName, QpCounters,
};
use polypath_topology::Table;
use polypath_transport::{Burst, Completion, PathId};
use polypath_verbs::{Error, Result};

use crate::address::Resolved;
use crate::cq::Cq;
use crate::deferrals::Deferrals;
use crate::lane::datagrams::Datagrams;
use crate::lane::journal::Journal;
use crate::lane::path_book::PathBook;
use crate::lane::send_errors::{SendErrors, Way};
use crate::media::local::Exchange;
use crate::media::tcp::Streams;
use crate::media::{Flow, FlowError, FlowFault, Senders};
use crate::memory::Segment;

/// The largest number of flows that are kept open for control packets. Flows share sockets, so
/// these are not as many sockets.
const MAX_CONTROL_FLOWS: usize = 4096;
/// Pauses between attempts to open a socket: the shortest and the longest.
const REOPEN_FIRST: Duration = Duration::from_millis(10);
const REOPEN_LAST: Duration = Duration::from_secs(1);
/// The tag of flows that belong to no path: those of control packets.
const NO_PATH: u32 = u32::MAX;
/// The number of former interfaces whose names are kept.
const MAX_INTERFACES: usize = 1024;

/// A flow of a path, and the addresses that it was opened for.
#[derive(Debug)]
struct PathFlow {
    address: PathAddress,
    /// `None` if it could not be opened.
    handle: Option<Flow>,
    /// When to try again, and how long to wait after that.
    retry_at: Duration,
    pause: Duration,
    /// UDP payload in bytes that was sent before it was opened again.
    sent_before: u64,
}

/// What a path keeps while its source port and interface change.
fn line(address: &PathAddress) -> (PathKind, IpAddr, IpAddr) {
    (address.kind, address.local, address.remote)
}

impl PathFlow {
    fn close(&mut self, sender: &mut Senders) {
        if let Some(handle) = self.handle.take() {
            self.sent_before += sender.sent_bytes(handle);
            sender.close(handle);
        }
    }
}

/// A flow of control packets.
#[derive(Clone, Copy, Debug)]
struct ControlFlow {
    handle: Flow,
    /// The value of a counter of all uses, at the last use.
    used: u64,
}

impl ControlFlow {
    /// Closes it. What it has sent stays counted, unless there are too many.
    fn close(
        self,
        address: &PathAddress,
        sender: &mut Senders,
        before: &mut BTreeMap<PathAddress, u64>,
    ) {
        if before.len() < MAX_CONTROL_FLOWS || before.contains_key(address) {
            *before.entry(*address).or_default() += sender.sent_bytes(self.handle);
        }
        sender.close(self.handle);
    }
}

/// The state of this process that a lane's queue pairs share: sockets, names, and records for the
/// user.
#[derive(Debug)]
pub(crate) struct LaneIo {
    pub(crate) now: Duration,
    pub(crate) sender: Senders,
    /// Shared memory with other lanes, if it is used.
    pub(crate) exchange: Option<Arc<Exchange>>,
    /// TCP streams to other lanes, if they are used.
    pub(crate) streams: Option<Arc<Streams>>,
    pub(crate) counters: LaneCounters,
    /// Counters of dropped packets, by reason.
    pub(crate) drops: LaneDrops,
    /// The sum of the counters of queue pairs that are gone.
    pub(crate) ended: QpCounters,
    /// The names of interfaces. They are kept, because asking the kernel takes system calls, and a
    /// fail-over must be fast.
    interfaces: HashMap<u32, InterfaceName>,
    /// The bonds, which say by which interface packets of an address leave.
    lags: Vec<Lag>,
    /// The record of what happened.
    pub(crate) journal: Journal,
    flows: Vec<Option<PathFlow>>,
    control_flows: BTreeMap<PathAddress, ControlFlow>,
    /// The bytes that were sent by flows for control packets that are closed.
    control_before: BTreeMap<PathAddress, u64>,
    control_uses: u64,
    /// Counters of packets that could not be sent.
    pub(crate) send_errors: SendErrors,
    /// The errno of the last failed receive.
    receive_error: Option<i32>,
    pub(crate) datagrams: Datagrams,
    /// What is remembered of paths for the connection manager.
    pub(crate) paths: PathBook,
    /// The number of completions since the lane was entered.
    pub(crate) completions: u32,
    /// Whether the reader of one of these completions asked for an event, and sleeps until it.
    pub(crate) awaited: bool,
    /// Completion queues that defer an event.
    pub(crate) deferrals: Deferrals,
    /// Copies of control packets.
    #[cfg(any(test, fuzzing))]
    pub(crate) tapped: Vec<ControlOut>,
}

impl LaneIo {
    pub(crate) fn new(sender: Senders) -> Self {
        Self {
            now: Duration::ZERO,
            sender,
            exchange: None,
            streams: None,
            counters: LaneCounters::default(),
            drops: LaneDrops::default(),
            ended: QpCounters::default(),
            interfaces: HashMap::new(),
            lags: Vec::new(),
            journal: Journal::default(),
            flows: Vec::new(),
            control_flows: BTreeMap::new(),
            control_before: BTreeMap::new(),
            control_uses: 0,
            send_errors: SendErrors::default(),
            receive_error: None,
            datagrams: Datagrams::default(),
            paths: PathBook::default(),
            completions: 0,
            awaited: false,
            deferrals: Deferrals::default(),
            #[cfg(any(test, fuzzing))]
            tapped: Vec::new(),
        }
    }

    /// The flow of a path. It is opened at its first use, and again when its addresses change. If
    /// that fails, it is tried again after a while.
    fn flow(&mut self, path: PathId, address: &PathAddress) -> Option<Flow> {
        let at = path.0 as usize;
        if let Some(Some(flow)) = self.flows.get(at)
            && flow.address == *address
            && (flow.handle.is_some() || self.now < flow.retry_at)
        {
            return flow.handle;
        }
        self.open_flow(path, *address)
    }

    #[cold]
    fn open_flow(&mut self, path: PathId, address: PathAddress) -> Option<Flow> {
        let at = path.0 as usize;
        if self.flows.len() <= at {
            self.flows.resize_with(at + 1, || None);
        }
        let (mut pause, mut sent_before) = (REOPEN_FIRST, 0);
        if let Some(old) = self.flows[at].take() {
            sent_before = old.sent_before;
            if let Some(handle) = old.handle {
                sent_before += self.sender.sent_bytes(handle);
                self.sender.close(handle);
            }
            // The number may have been that of a path to another peer.
            if line(&old.address) != line(&address) {
                sent_before = 0;
            }
            if old.address == address {
                pause = (old.pause * 2).min(REOPEN_LAST);
            }
        }
        let handle = self.open(&address, path.0);
        let retry_at = self.now + pause;
        self.flows[at] = Some(PathFlow { address, handle, retry_at, pause, sent_before });
        handle
    }

    /// The interface that a path's packets leave by while it carries, if it shares the address with the one
    /// that has it.
    pub(crate) fn own_port(&self, address: &PathAddress) -> Option<u32> {
        shared_by(&self.lags, address, Lag::own_port)
    }

    /// Opens a flow. A failure is counted and reported.
    fn open(&mut self, address: &PathAddress, tag: u32) -> Option<Flow> {
        if self.sender.is_away() {
            return None;
        }
        let ifindex = bound_to(&self.lags, address).unwrap_or(address.ifindex);
        let by_it = PathAddress { ifindex, ..*address };
        match self.sender.open(&by_it, tag) {
            Ok(handle) => Some(handle),
            Err(e) => {
                self.drops.flows_failed += 1;
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                if self.send_errors.note(self.now, way_of(address), errno, 0) {
                    let path = self.path_name(address);
                    self.note(Event::NoSocket { path, errno: Errno(errno) });
                }
                None
            }
        }
    }

    #[inline]
    pub(crate) fn send(
        &mut self,
        address: Option<&PathAddress>,
        burst: &Burst<'_, Segment>,
    ) -> std::result::Result<(), NotSent> {
        let Some(flow) = address.and_then(|address| self.flow(burst.path, address)) else {
            self.drops.unsendable += u64::from(burst.packets);
            return Err(NotSent::NoWay);
        };
        Ok(self.sender.send(self.now, flow, burst)?)
    }

    /// Sends what is queued, and handles the results.
    #[inline]
    pub(crate) fn flush(&mut self, paths: &mut PathManager) {
        let done = self.sender.flush(self.now);
        self.counters.sent_packets += u64::from(done.sent);
        self.counters.sent_bytes += done.sent_bytes;
        self.counters.fragmented_packets += u64::from(done.fragmented);
        self.drops.unsent += u64::from(done.dropped);
        if self.sender.has_errors() {
            self.heed_send_errors(paths);
        }
    }

    #[cold]
    fn heed_send_errors(&mut self, paths: &mut PathManager) {
        for (flow, FlowError { tag, kind, packets, .. }) in self.sender.take_errors() {
            let Some(way) = self.address_of(flow, tag).map(way_of) else { continue };
            let Way { local, remote, ifindex } = way;
            let path = PathName { local, remote, interface: self.interface(ifindex) };
            match kind {
                FlowFault::TooBig(bytes) => {
                    self.note(Event::Fragmented { path, bytes: bytes as u64 });
                }
                FlowFault::Congested(errno) | FlowFault::Refused(errno) => {
                    if self.send_errors.note(self.now, way, errno, packets.into()) {
                        self.note(Event::SendRefused { path, errno: Errno(errno) });
                    }
                    if tag != NO_PATH && matches!(kind, FlowFault::Refused(_)) {
                        paths.send_failed(self.now, PathId(tag));
                    }
                }
            }
        }
    }

    /// The address that packets of a path were last sent to.
    pub(super) fn last_address(&self, path: PathId) -> Option<&PathAddress> {
        Some(&self.flows.get(path.0 as usize)?.as_ref()?.address)
    }

    /// The address that a flow with this tag is for.
    fn address_of(&self, flow: Flow, tag: u32) -> Option<&PathAddress> {
        if let Some(Some(path)) = self.flows.get(tag as usize) {
            return (path.handle == Some(flow)).then_some(&path.address);
        }
        self.control_flows.iter().find(|(_, open)| open.handle == flow).map(|(address, _)| address)
    }

    /// Handles an error of receiving. It is reported if it differs from the last one.
    #[cold]
    pub(crate) fn receive_failed(&mut self, error: &std::io::Error) {
        let errno = error.raw_os_error();
        if core::mem::replace(&mut self.receive_error, errno) != errno {
            let errno = Errno(errno.unwrap_or(libc::EIO));
            self.note(Event::ReceiveFailed { errno });
        }
    }

    /// The recent error that kept packets of a path from being sent, to explain another error.
    pub(crate) fn obstacle(&self, paths: &PathManager, path: PathId) -> Option<Errno> {
        let address = paths.path(path)?;
        self.send_errors.recent(self.now, &way_of(address)).map(Errno)
    }

    /// The UDP payload in bytes that was sent on a path, including its control packets.
    pub(crate) fn sent_bytes(&self, path: PathId, address: &PathAddress) -> u64 {
        let flow = self.flows.get(path.0 as usize).and_then(Option::as_ref);
        let data = flow.map_or(0, |flow| {
            flow.sent_before + flow.handle.map_or(0, |handle| self.sender.sent_bytes(handle))
        });
        let control = self.control_flows.get(address);
        let before = self.control_before.get(address).copied().unwrap_or(0);
        data + before + control.map_or(0, |flow| self.sender.sent_bytes(flow.handle))
    }

    /// The UDP source port of a path's packets. It is another one than asked for if that was taken, or if
    /// flows share sockets.
    pub(crate) fn source_port(&self, path: PathId, address: &PathAddress) -> u16 {
        let data = self.flows.get(path.0 as usize).and_then(Option::as_ref);
        let data = data.filter(|flow| flow.address == *address).and_then(|flow| flow.handle);
        let control = || self.control_flows.get(address).map(|flow| flow.handle);
        let actual = data.or_else(control).and_then(|flow| self.sender.source_port(flow));
        actual.unwrap_or(address.source_port)
    }

    /// Sends a packet of the path manager.
    pub(crate) fn send_control(&mut self, out: &ControlOut) {
        match self.control_flow(&out.address) {
            Some(flow) => {
                self.counters.control_sent += 1;
                self.sender.send_packet(self.now, flow, &out.packet);
            }
            None => self.drops.unsendable += 1,
        }
        #[cfg(any(test, fuzzing))]
        self.tapped.push(out.clone());
    }

    /// The flow for control packets to an address. Flows that were used recently stay open.
    fn control_flow(&mut self, address: &PathAddress) -> Option<Flow> {
        self.control_uses += 1;
        let used = self.control_uses;
        if let Some(flow) = self.control_flows.get_mut(address) {
            flow.used = used;
            return Some(flow.handle);
        }
        let handle = self.open(address, NO_PATH)?;
        if self.control_flows.len() >= MAX_CONTROL_FLOWS {
            // Close half of them at once, because finding the oldest requires looking at all.
            let mut uses: Vec<u64> = self.control_flows.values().map(|flow| flow.used).collect();
            let (_, &mut middle, _) = uses.select_nth_unstable(MAX_CONTROL_FLOWS / 2);
            let (sender, before) = (&mut self.sender, &mut self.control_before);
            self.control_flows.retain(|address, flow| {
                let stays = flow.used > middle;
                if !stays {
                    flow.close(address, sender, before);
                }
                stays
            });
        }
        self.control_flows.insert(*address, ControlFlow { handle, used });
        Some(handle)
    }

    /// A path has another source port than in this address: the flow for control packets that was opened for
    /// that one is closed, so that its socket is.
    pub(super) fn port_changed(&mut self, path: PathId, from: &PathAddress) {
        let before = self.control_before.remove(from).unwrap_or(0);
        let flow = self.control_flows.remove(from);
        let sent = before + flow.map_or(0, |flow| self.sender.sent_bytes(flow.handle));
        if let Some(Some(data)) = self.flows.get_mut(path.0 as usize) {
            data.sent_before += sent;
        }
        if let Some(flow) = flow {
            self.sender.close(flow.handle);
        }
    }

    /// Handles a change of links or addresses: sockets that are bound to a former interface could not send.
    pub(crate) fn interfaces_changed(&mut self) {
        for (address, flow) in std::mem::take(&mut self.control_flows) {
            flow.close(&address, &mut self.sender, &mut self.control_before);
        }
    }

    /// Closes all flows, and opens none until [`open_again`](Self::open_again): the program leaves this host.
    pub(crate) fn shut(&mut self) {
        self.interfaces_changed();
        for flow in self.flows.iter_mut().flatten() {
            flow.close(&mut self.sender);
        }
        self.sender.set_away(true);
    }

    /// Opens flows again, on another host or the same.
    pub(crate) fn open_again(&mut self) {
        self.sender.set_away(false);
        for flow in self.flows.iter_mut().flatten() {
            (flow.retry_at, flow.pause) = (self.now, REOPEN_FIRST);
        }
    }

    /// Learns the names of interfaces, and which share addresses. Former names are kept, because reports may
    /// still name them.
    pub(crate) fn learn_interfaces(&mut self, table: &Table, lags: Vec<Lag>) {
        let before = std::mem::replace(&mut self.lags, lags);
        for flow in self.flows.iter_mut().flatten() {
            if bound_to(&before, &flow.address) != bound_to(&self.lags, &flow.address) {
                flow.close(&mut self.sender);
                (flow.retry_at, flow.pause) = (self.now, REOPEN_FIRST);
            }
        }
        self.sender.interfaces_changed(table);
        if self.interfaces.len() > MAX_INTERFACES {
            self.interfaces.clear();
        }
        self.interfaces
            .extend(table.ports.iter().map(|port| (port.ifindex, InterfaceName::new(&port.name))));
    }

    /// The name of an interface, or its number if the name is unknown.
    pub(crate) fn interface(&self, ifindex: u32) -> InterfaceName {
        let known = self.interfaces.get(&ifindex).copied();
        known.unwrap_or_else(|| InterfaceName::of_number("", ifindex))
    }

    /// The path to an address, which is created if there is none.
    pub(crate) fn datagram_path(
        &mut self,
        paths: &mut PathManager,
        to: &Resolved,
    ) -> Result<PathId> {
        if let Some(path) = self.datagrams.find(to) {
            return Ok(path);
        }
        if self.datagrams.room() == 0 {
            return Err(Error::no_memory(
                "too many datagrams to different addresses are posted and not sent",
            ));
        }
        let path = paths
            .ud_path(self.now, to.local, to.remote, to.options())
            .map_err(|e| Error::invalid(e.to_string()))?;
        self.datagrams.add(*to, path);
        Ok(path)
    }

    /// Makes room for other addresses. `keep` holds the paths of requests that are posted and not
    /// yet sent.
    pub(crate) fn forget_datagrams(&mut self, paths: &mut PathManager, keep: &HashSet<PathId>) {
        for path in self.datagrams.forget(keep) {
            paths.release_ud(path);
            let flow = self.flows.get_mut(path.0 as usize).and_then(Option::take);
            if let Some(PathFlow { handle: Some(handle), .. }) = flow {
                self.sender.close(handle);
            }
        }
    }

    /// Passes a completion to its completion queue.
    #[inline]
    pub(crate) fn hand_out(
        &mut self,
        cq: &Arc<Cq>,
        completion: Completion,
    ) -> std::result::Result<(), Overrun> {
        self.completions += 1;
        self.awaited |= cq.is_awaited();
        if let Some(at) = cq.push(completion, self.now)? {
            self.deferrals.add(at, cq);
        }
        Ok(())
    }

    /// Records an event.
    #[cold]
    pub(crate) fn note(&mut self, event: Event) {
        self.journal.note(self.now, event);
    }
}

/// The interface that packets are sent by if it shares the address with the one that has it.
fn bound_to(lags: &[Lag], address: &PathAddress) -> Option<u32> {
    shared_by(lags, address, Lag::bound_to)
}

fn shared_by(
    lags: &[Lag],
    address: &PathAddress,
    port: impl Fn(&Lag, IpAddr, IpAddr, u16) -> Option<u32>,
) -> Option<u32> {
    let shared = |lag: &&Lag| lag.ifindex == address.ifindex && address.kind == PathKind::Udp;
    let of = |lag| port(lag, address.local, address.remote, address.source_port);
    lags.iter().filter(shared).find_map(of)
}

/// The key under which errors of sending are recorded.
pub(crate) fn way_of(address: &PathAddress) -> Way {
    Way { local: address.local, remote: address.remote, ifindex: address.ifindex }
}

impl Resolved {
    /// The path options of this address.
    pub(crate) fn options(&self) -> polypath_paths::PathOptions {
        polypath_paths::PathOptions {
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            multipath: self.multipath,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use polypath_paths::{Hashed, LagMember};

    use super::*;
    use crate::lane::still_paths;
    use crate::media::udp::Sender;

    /// A path for datagrams from the loopback address.
    fn with_path_to(remote: Ipv4Addr) -> (LaneIo, PathManager, PathId) {
        let (io, mut paths) = (LaneIo::new(Senders::new(Sender::new())), still_paths(7));
        let (local, options) = (Ipv4Addr::LOCALHOST.into(), polypath_paths::PathOptions::default());
        let path = paths.ud_path(io.now, local, remote.into(), options).unwrap();
        (io, paths, path)
    }

    #[test]
    fn a_socket_that_could_not_be_opened_is_tried_again() {
        let (mut io, paths, path) = with_path_to(Ipv4Addr::LOCALHOST);
        let address = *paths.path(path).unwrap();
        io.sender.udp.shortage = Some(libc::EMFILE);
        assert_eq!((io.flow(path, &address), io.drops.flows_failed), (None, 1));
        let said = io.journal.errors().next().unwrap().news.to_string();
        assert!(said.contains("ulimit"), "{said}");
        // It does not try again for every packet.
        io.now += REOPEN_FIRST / 2;
        assert_eq!((io.flow(path, &address), io.drops.flows_failed), (None, 1));
        io.now += REOPEN_FIRST / 2;
        assert_eq!((io.flow(path, &address), io.drops.flows_failed), (None, 2));
        io.sender.udp.shortage = None;
        io.now += REOPEN_FIRST;
        assert_eq!((io.flow(path, &address), io.drops.flows_failed), (None, 2));
        io.now += REOPEN_FIRST;
        let flow = io.flow(path, &address);
        assert!(flow.is_some());
        assert_eq!((io.flow(path, &address), io.journal.errors().count()), (flow, 1));
    }

    #[test]
    fn what_was_sent_stays_counted_when_interfaces_change() {
        let (mut io, mut paths, path) = with_path_to(Ipv4Addr::LOCALHOST);
        let address = PathAddress { ifindex: 1, ..*paths.path(path).unwrap() };
        for turn in 1..4 {
            let (control, data) = (io.control_flow(&address), io.flow(path, &address));
            for flow in [control, data] {
                io.sender.send_packet(io.now, flow.unwrap(), &[0; 12]);
            }
            io.flush(&mut paths);
            assert_eq!(io.sent_bytes(path, &address), turn * 32);
            // From another interface, which shares the address.
            let members = vec![LagMember { ifindex: 1 + turn as u32 % 2, usable: true }];
            let lag = Lag { ifindex: 1, above: vec![], hashed: Hashed::Bound, members };
            io.interfaces_changed();
            io.learn_interfaces(&Table::default(), vec![lag]);
            assert_eq!(io.sent_bytes(path, &address), turn * 32);
            assert_eq!(io.own_port(&address), Some(1 + turn as u32 % 2));
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_counted_told_once_and_no_packet_sent() {
        // The loopback address cannot send to another host.
        let (mut io, mut paths, path) = with_path_to(Ipv4Addr::new(203, 0, 113, 7));
        let address = *paths.path(path).unwrap();
        assert_eq!(io.obstacle(&paths, path), None);
        for _ in 0..3 {
            let flow = io.flow(path, &address).unwrap();
            io.sender.send_packet(io.now, flow, &[0; 12]);
            io.flush(&mut paths);
        }
        assert_eq!((io.counters.sent_packets, io.drops.unsent), (0, 3));
        let errors = io.send_errors.counters(&way_of(&address)).to_vec();
        assert_eq!((errors.len(), errors[0].1), (1, 3), "{errors:?}");
        assert_eq!(io.journal.errors().count(), 1);
        assert_eq!(io.obstacle(&paths, path), Some(errors[0].0));
    }
}
