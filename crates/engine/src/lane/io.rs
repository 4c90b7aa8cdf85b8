//! What a lane's queue pairs share for sending: paths, sockets, counters.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use polypath_ipc::Table;
use polypath_ipc::status::{EventStatus, FailoverStatus};
use polypath_paths::{PathAddress, PathManager};
use polypath_transport::{Burst, Completion, PathId, Unread};
use polypath_verbs::{Error, Result};

use crate::address::Resolved;
use crate::cq::{Cq, Overrun};
use crate::lane::counters::Counters;
use crate::lane::datagrams::Datagrams;
use crate::moderation::Holds;
use crate::udp::{FlowHandle, FlowKey, Sender};

/// Sockets kept open for control packets.
const MAX_CONTROL_FLOWS: usize = 32;
/// Names of interfaces kept beside those that there are.
const MAX_INTERFACES: usize = 1024;
/// Queue pairs that are known to have lost a completion. The others lose the next one too.
const MAX_BEREFT: usize = 4096;
/// Explanations kept for `polypath status`.
const MAX_EXPLANATIONS: usize = 64;

/// A flow that was opened for a path, and for which addresses.
#[derive(Debug)]
struct Flow {
    address: PathAddress,
    /// `None`: it could not be opened; tried again when the address changes.
    handle: Option<FlowHandle>,
}

/// What the queue pairs of a lane keep together of packets that arrived before their turn, in bytes.
const EARLY_MEMORY: u32 = 64 << 20;

#[derive(Debug)]
pub(crate) struct LaneIo {
    pub(crate) now: Duration,
    pub(crate) paths: PathManager,
    pub(crate) sender: Sender,
    pub(crate) counters: Counters,
    /// Names of interfaces: asking the kernel takes system calls, and a fail-over no time.
    interfaces: HashMap<u32, String>,
    /// The last errors in words, oldest first.
    pub(crate) explanations: VecDeque<EventStatus>,
    /// What else happened last, in words, oldest first.
    pub(crate) events: VecDeque<EventStatus>,
    /// The last fail-overs, oldest first.
    pub(crate) failovers: VecDeque<FailoverStatus>,
    flows: Vec<Option<Flow>>,
    /// Where control packets went lately, the latest last.
    control_flows: Vec<(PathAddress, FlowHandle)>,
    pub(crate) datagrams: Datagrams,
    /// An acknowledgement, or an event, may have opened a window.
    pub(crate) window_opened: bool,
    /// Completions were made since the lane was entered.
    pub(crate) completions: u32,
    /// Queue pairs that lost a completion.
    pub(crate) bereft: Vec<u32>,
    /// Completion queues that hold an event back.
    pub(crate) holds: Holds,
    /// Bytes that packets which arrive before their turn may still take.
    pub(crate) early_room: u32,
    /// Copies of control packets.
    #[cfg(any(test, fuzzing))]
    pub(crate) tapped: Vec<polypath_paths::ControlOut>,
}

impl LaneIo {
    pub(crate) fn new(paths: PathManager, sender: Sender) -> Self {
        Self {
            now: Duration::ZERO,
            paths,
            sender,
            counters: Counters::default(),
            interfaces: HashMap::new(),
            explanations: VecDeque::new(),
            events: VecDeque::new(),
            failovers: VecDeque::new(),
            flows: Vec::new(),
            control_flows: Vec::new(),
            datagrams: Datagrams::default(),
            window_opened: false,
            completions: 0,
            bereft: Vec::new(),
            holds: Holds::default(),
            early_room: EARLY_MEMORY,
            #[cfg(any(test, fuzzing))]
            tapped: Vec::new(),
        }
    }

    /// Of a lane without a socket: what it is and what it chooses is the same every time.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn still(slot: u8) -> Self {
        let lane = polypath_paths::LaneIdentity { instance: 7, slot };
        Self::new(PathManager::new(polypath_paths::Config::default(), lane, [7; 16]), Sender::new())
    }

    /// The socket for a path, opened when first used and again when its addresses change.
    fn flow(&mut self, path: PathId) -> Option<FlowHandle> {
        let at = path.0 as usize;
        let address = self.paths.path(polypath_paths::PathId(path.0))?;
        if let Some(Some(flow)) = self.flows.get(at)
            && flow.address == *address
        {
            return flow.handle;
        }
        let address = *address;
        if self.flows.len() <= at {
            self.flows.resize_with(at + 1, || None);
        }
        if let Some(Flow { handle: Some(old), .. }) = self.flows[at].take() {
            self.sender.close(old);
        }
        let key = key_of(&address);
        let handle = match self.sender.open(key) {
            Ok(handle) => Some(handle),
            Err(e) => {
                self.counters.flows_failed += 1;
                self.explain(format!(
                    "cannot send from {} to {}: {e}; is the address still there?",
                    address.local, address.remote
                ));
                None
            }
        };
        self.flows[at] = Some(Flow { address, handle });
        handle
    }

    pub(crate) fn transmit(&mut self, burst: &Burst<'_>) -> std::result::Result<(), Unread> {
        let Some(flow) = self.flow(burst.path) else {
            self.counters.unsendable += u64::from(burst.packets);
            return Ok(());
        };
        let queued = self.sender.queue(flow, burst);
        let (packets, bytes) = match queued {
            Ok(()) => (burst.packets, burst.payload.len()),
            Err(Unread { sent }) => (sent, sent * burst.mtu),
        };
        self.counters.sent_packets += u64::from(packets);
        self.counters.sent_bytes += u64::from(bytes);
        queued
    }

    /// Sends what the path manager has to say.
    pub(crate) fn transmit_control(&mut self) {
        while let Some(out) = self.paths.poll_transmit(self.now) {
            #[cfg(any(test, fuzzing))]
            self.tapped.push(out.clone());
            match self.control_flow(&out.address) {
                Some(flow) => {
                    self.counters.control_sent += 1;
                    self.sender.queue_raw(flow, &out.packet);
                }
                None => self.counters.unsendable += 1,
            }
        }
    }

    /// The socket for control packets to an address. Those used last stay open: a probe every few
    /// milliseconds is not worth a socket of its own.
    fn control_flow(&mut self, address: &PathAddress) -> Option<FlowHandle> {
        let known = self.control_flows.iter().rposition(|(known, _)| known == address);
        let flow = match known {
            Some(at) if at + 1 == self.control_flows.len() => {
                return Some(self.control_flows[at].1);
            }
            Some(at) => self.control_flows.remove(at).1,
            None => self.sender.open(key_of(address)).ok()?,
        };
        if self.control_flows.len() == MAX_CONTROL_FLOWS {
            let (_, oldest) = self.control_flows.remove(0);
            self.sender.close(oldest);
        }
        self.control_flows.push((*address, flow));
        Some(flow)
    }

    /// Links or addresses changed: sockets bound to what is gone would send nowhere.
    pub(crate) fn forget_control_flows(&mut self) {
        for (_, flow) in self.control_flows.drain(..) {
            self.sender.close(flow);
        }
    }

    /// Takes in the names of interfaces; those that are gone may still be spoken of.
    pub(crate) fn learn_interfaces(&mut self, table: &Table) {
        if self.interfaces.len() > MAX_INTERFACES {
            self.interfaces.clear();
        }
        self.interfaces.extend(table.ports.iter().map(|port| (port.ifindex, port.name.clone())));
    }

    /// The name of an interface, or its number if it was never heard of.
    pub(crate) fn interface(&self, ifindex: u32) -> String {
        self.interfaces.get(&ifindex).cloned().unwrap_or_else(|| ifindex.to_string())
    }

    /// The path to an address, made if there is none.
    pub(crate) fn datagram_path(&mut self, to: &Resolved) -> Result<PathId> {
        if let Some(path) = self.datagrams.find(to) {
            return Ok(path);
        }
        if self.datagrams.room() == 0 {
            return Err(Error::no_memory(
                "too many datagrams to different addresses are posted and not sent",
            ));
        }
        let path = self
            .paths
            .ud_path(self.now, to.local, to.remote, to.options())
            .map_err(|e| Error::invalid(e.to_string()))?;
        let path = PathId(path.0);
        self.datagrams.add(*to, path);
        Ok(path)
    }

    /// Makes room for other addresses; `keep`: paths of what is posted and not sent.
    pub(crate) fn forget_datagrams(&mut self, keep: &HashSet<PathId>) {
        for path in self.datagrams.forget(keep) {
            self.paths.release_ud(polypath_paths::PathId(path.0));
            let flow = self.flows.get_mut(path.0 as usize).and_then(Option::take);
            if let Some(Flow { handle: Some(handle), .. }) = flow {
                self.sender.close(handle);
            }
        }
    }

    /// Hands out a completion.
    #[inline]
    pub(crate) fn complete(&mut self, cq: &Arc<Cq>, completion: Completion) {
        self.completions += 1;
        match cq.push(completion, self.now) {
            Ok(None) => {}
            Ok(Some(at)) => self.holds.add(at, cq),
            Err(Overrun) => self.completion_lost(completion.qpn),
        }
    }

    /// A completion of this queue pair found its queue full.
    fn completion_lost(&mut self, qpn: u32) {
        // A queue pair that is flushed loses many at once.
        if self.bereft.last() != Some(&qpn) && self.bereft.len() < MAX_BEREFT {
            self.bereft.push(qpn);
        }
    }

    /// Remembers an error.
    pub(crate) fn explain(&mut self, text: String) {
        remember(&mut self.explanations, self.now, text);
    }

    /// Remembers what is no error.
    pub(crate) fn note(&mut self, text: String) {
        remember(&mut self.events, self.now, text);
    }
}

fn remember(list: &mut VecDeque<EventStatus>, now: Duration, text: String) {
    crate::log::line(&text);
    if list.len() == MAX_EXPLANATIONS {
        list.pop_front();
    }
    list.push_back(EventStatus { at_unix_ms: crate::clock::realtime_ns(now) / 1_000_000, text });
}

fn key_of(address: &PathAddress) -> FlowKey {
    FlowKey {
        local: address.local,
        remote: address.remote,
        ifindex: (address.ifindex != 0).then_some(address.ifindex),
        source_port: address.source_port,
        traffic_class: address.traffic_class,
        hop_limit: address.hop_limit,
    }
}

impl Resolved {
    /// What the path manager wants to know.
    pub(crate) fn options(&self) -> polypath_paths::PathOptions {
        polypath_paths::PathOptions {
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            multipath: self.multipath,
        }
    }
}
