//! Queue pairs of verbs. Each has a number on a lane.

mod alternate;
mod frozen;
mod lag;

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use polypath_paths::PathManager;
use polypath_transport::{PathId, PostError, QpConfig, SendWr, UdDestination};
use polypath_verbs::{
    Element, Error, PostFailure, QpAttr, QpAttrMask, QpRequest, QpState, QpType, QueuePair, RecvWr,
    Result, SendRequest, UdTarget,
};

use crate::address::{self, Resolved};
use crate::context_inner::ContextInner;
use crate::cq::Cq;
use crate::engine_inner::EngineInner;
use crate::lane::{Lane, LaneIo, QpResources, QpVisit, State};
use crate::limits::{MAX_INLINE, MAX_MCAST_PER_QP, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
use crate::memory::KeyCache;
use crate::notify::lock;
use crate::port;
use crate::srq::Srq;
use crate::xrc::target_state::TargetState;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    context: Arc<ContextInner>,
    lane: Arc<Lane>,
    qpn: u32,
    qp_type: QpType,
    pd: Option<u32>,
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    token: u64,
    groups: Mutex<Vec<IpAddr>>,
    destroyed: AtomicBool,
}

/// The completion queue of one side. It exists if, and only if, the queue pair has that side.
fn side(
    context: &ContextInner,
    cq: Option<&Arc<dyn polypath_verbs::CompletionQueue>>,
    wanted: bool,
) -> Result<Option<Arc<Cq>>> {
    match cq {
        _ if !wanted => Ok(None),
        None => Err(Error::invalid("the queue pair needs a completion queue")),
        Some(cq) => Cq::find(cq.as_ref(), &context.lanes).map(Some),
    }
}

impl Qp {
    /// Creates a queue pair, with this `number` if one is given. `target` is for XRC targets, see
    /// [`crate::xrc::target`].
    pub(crate) fn create(
        engine: &EngineInner,
        context: &Arc<ContextInner>,
        request: &QpRequest,
        number: Option<u32>,
        target: Option<TargetState>,
    ) -> Result<Self> {
        check_sizes(request)?;
        let is_target = request.qp_type == QpType::XrcRecv;
        if request.pd.is_none() != is_target {
            return Err(Error::invalid("all queue pairs but XRC targets have a protection domain"));
        }
        let send_cq = side(context, request.send_cq.as_ref(), !is_target)?;
        let recv_cq = side(context, request.recv_cq.as_ref(), !request.qp_type.is_xrc())?;
        let srq = request
            .srq
            .as_ref()
            .map(|s| {
                Srq::find(s.as_ref()).ok_or_else(|| {
                    Error::invalid("the shared receive queue belongs to another device")
                })
            })
            .transpose()?;
        if srq.as_ref().is_some_and(|srq| srq.is_xrc() || request.qp_type.is_xrc()) {
            return Err(Error::invalid(
                "XRC requests name their shared receive queue themselves; none belongs to a queue pair",
            ));
        }
        if let Some(pd) = request.pd {
            context.use_pd(pd)?;
        }
        let resources = QpResources {
            context: context.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: srq.clone(),
            target,
            token: request.token,
            pending_alternate: Cell::default(),
            last_error: Cell::default(),
            last_path: Cell::new(PathId::NONE),
            keys: KeyCache::new(),
        };
        let (lane, qpn) =
            Self::insert(engine, context, request, number, resources).inspect_err(|_| {
                if let Some(pd) = request.pd {
                    context.release_pd(pd);
                }
            })?;
        for cq in send_cq.iter().chain(&recv_cq) {
            cq.attach(lane.index);
        }
        if let Some(srq) = &srq {
            srq.attach();
        }
        Ok(Self {
            context: context.clone(),
            lane,
            qpn,
            qp_type: request.qp_type,
            pd: request.pd,
            send_cq,
            recv_cq,
            srq,
            token: request.token,
            groups: Mutex::default(),
            destroyed: AtomicBool::new(false),
        })
    }

    fn insert(
        engine: &EngineInner,
        context: &ContextInner,
        request: &QpRequest,
        number: Option<u32>,
        resources: QpResources,
    ) -> Result<(Arc<Lane>, u32)> {
        let QpResources { send_cq, recv_cq, srq, .. } = &resources;
        let cqs = recv_cq.iter().chain(send_cq).map(|cq| cq.creator);
        let queues = srq.iter().map(|srq| srq.creator).chain(cqs);
        let (lane, _turn) = match number {
            None => engine.lane(context, queues)?,
            Some(number) => (engine.lane_of_number(number)?, None),
        };
        if lane.has_failed() {
            return Err(failed());
        }
        let has_srq = resources.srq.is_some();
        let (sends, receives) = own_queues(request);
        let sized = |own: bool, size: u32| if own { size } else { 0 };
        let config = |qpn| QpConfig {
            qpn,
            qp_type: request.qp_type,
            pd: request.pd.unwrap_or(0),
            sq_sig_all: request.sq_sig_all,
            srq: has_srq,
            max_send_wr: sized(sends, request.max_send_wr),
            max_recv_wr: sized(receives, request.max_recv_wr),
            max_send_sge: sized(sends, request.max_send_sge),
            max_recv_sge: sized(receives, request.max_recv_sge),
            max_inline: inline_room(request),
        };
        let mtu = context.spec().roce_mtu(&engine.table());
        let multipath = context.spec().kind.multipath;
        let qpn = lane.enter(|state| {
            if lane.is_closed() {
                return Err(lane.gone());
            }
            if request.qp_type == QpType::Ud {
                state.tell_header_fields()?;
            } else {
                state.tell_marks()?;
            }
            let qpn = state.number(number)?;
            let mut qp = polypath_transport::QueuePair::new(config(qpn));
            qp.set_port_mtu(mtu);
            state.core.insert(qp, resources);
            if request.qp_type == QpType::Ud && multipath {
                state.core.take_datagrams();
            }
            Ok(qpn)
        })?;
        Ok((lane, qpn))
    }

    /// Enters the lane with the queue pair.
    fn with<R>(&self, work: impl FnOnce(&mut QpVisit<'_>) -> R) -> Result<R> {
        let index = self.index();
        self.lane.enter(|State { core, io, .. }| {
            core.with(index, io, work).ok_or_else(|| self.lane.gone())
        })
    }

    /// The index of its lane.
    pub(crate) fn lane_index(&self) -> usize {
        self.lane.index
    }

    #[allow(clippy::cast_possible_truncation)]
    const fn index(&self) -> u16 {
        self.qpn as u16
    }

    /// Connects it with a peer.
    fn attach(&self, visit: &mut QpVisit<'_>, dest: u32, to: Resolved) -> Result<()> {
        // The multi-path header replaces only opcodes of RC.
        let multipath = to.multipath && !self.qp_type.is_xrc();
        let options = Resolved { multipath, ..to }.options();
        let attached = visit.attach(dest, to.local, to.remote, options);
        attached.map_err(|e| Error::no_memory(e.to_string()))
    }

    /// Converts a send work request for the transport, with the path of its datagram.
    #[inline]
    fn work_request<'a>(
        &self,
        visit: &mut QpVisit<'_>,
        index: usize,
        request: &SendRequest<'a>,
    ) -> core::result::Result<SendWr<'a>, PostFailure> {
        let destination = |target: &UdTarget<'_>| {
            if self.pd != Some(target.ah.pd) {
                return Ok(foreign(target));
            }
            let (paths, io) = visit.host.paths_and_out();
            ud_destination(&self.context, &self.lane, paths, io, target)
        };
        let ud = request.ud.as_ref().map(destination).transpose();
        let ud = ud.map_err(|error| PostFailure { index, error })?;
        let SendRequest { wr_id, op, flags, data, .. } = *request;
        Ok(SendWr { wr_id, op, flags, data, ud })
    }

    /// Checks that what the attributes name exists, before the state may change.
    fn check_attributes(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<Option<Resolved>> {
        if mask.contains(QpAttrMask::PORT) {
            port::of(&self.context.spec(), attr.port_num)?;
        }
        if mask.contains(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0 {
            return Err(Error::invalid("the P_Key table has one entry, index 0"));
        }
        if mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC)
            && u32::from(attr.max_rd_atomic) > MAX_RD_ATOMIC
            || mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC)
                && u32::from(attr.max_dest_rd_atomic) > MAX_RD_ATOMIC
        {
            return Err(Error::invalid(format!(
                "at most {MAX_RD_ATOMIC} READs and atomics in flight"
            )));
        }
        if !mask.contains(QpAttrMask::AV) {
            return Ok(None);
        }
        address::resolve(&self.context.spec(), &attr.ah).map(Some)
    }
}

/// The failure of the work request at `index`.
#[cold]
fn refused(index: usize, error: &PostError) -> PostFailure {
    PostFailure { index, error: Error::new(error.errno(), error.to_string()) }
}

fn failed() -> Error {
    Error::new(libc::EIO, "an internal error has ended all queue pairs of this lane")
}

/// Whether the queue pair has a send queue, and a receive queue. Sizes of one that it has not got mean
/// nothing (ibv_create_qp(3)).
fn own_queues(request: &QpRequest) -> (bool, bool) {
    let sends = request.qp_type != QpType::XrcRecv;
    (sends, request.srq.is_none() && !request.qp_type.is_xrc())
}

fn check_sizes(request: &QpRequest) -> Result<()> {
    let too_many = |what, most| Err(Error::invalid(format!("at most {most} {what}")));
    let (sends, receives) = own_queues(request);
    let exceeds = |send, recv, most| (sends && send > most) || (receives && recv > most);
    if exceeds(request.max_send_wr, request.max_recv_wr, MAX_QP_WR) {
        return too_many("work requests in a queue", MAX_QP_WR);
    }
    if exceeds(request.max_send_sge, request.max_recv_sge, MAX_SGE) {
        return too_many("scatter/gather elements", MAX_SGE);
    }
    if sends && request.max_inline > MAX_INLINE {
        return too_many("bytes of inline data", MAX_INLINE);
    }
    Ok(())
}

/// The inline data that fit into the space of the scatter/gather elements. This space is available
/// in any case, as with adapters and with Linux' rxe, and some programs use it without asking for
/// it (`rdma_xclient`).
fn inline_room(request: &QpRequest) -> u32 {
    const ELEMENT: u32 = 16;
    let (sends, _) = own_queues(request);
    if !sends {
        return 0;
    }
    request.max_inline.max(request.max_send_sge.saturating_mul(ELEMENT).min(MAX_INLINE))
}

/// What the transport is told of an address handle of another protection domain. The work request
/// fails with [`WcStatus::LocQpOpErr`](polypath_verbs::WcStatus::LocQpOpErr), as on Linux rxe.
#[cold]
fn foreign(target: &UdTarget<'_>) -> UdDestination {
    UdDestination { path: PathId::NONE, twin: PathId::NONE, qpn: target.qpn, qkey: target.qkey }
}

/// The lane's name for the path of an address handle.
fn ud_destination(
    context: &ContextInner,
    lane: &Lane,
    paths: &mut PathManager,
    io: &mut LaneIo,
    target: &UdTarget<'_>,
) -> Result<UdDestination> {
    // The address handle remembers its path until the lane forgets that.
    let known = io.datagrams.recall(lane.index, target.ah.resolved.load(Ordering::Relaxed));
    let path = match known {
        Some(path) => path,
        None => {
            let path =
                io.datagram_path(paths, &address::resolve(&context.spec(), &target.ah.attr)?)?;
            target.ah.resolved.store(io.datagrams.name(lane.index, path), Ordering::Relaxed);
            path
        }
    };
    let routed = paths.ud_route_to(io.now, path, target.qpn);
    let [path, twin] = paths.ud_twins(path, target.qpn).unwrap_or([routed, PathId::NONE]);
    Ok(UdDestination { path, twin, qpn: target.qpn, qkey: target.qkey })
}

impl QueuePair for Qp {
    fn number(&self) -> u32 {
        self.qpn
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let address = self.check_attributes(attr, mask)?;
        let attr = &mut attr.clone();
        let alternate = self.resolve_alternate(attr, mask)?;
        let connected = self.qp_type != QpType::Ud;
        let stops = matches!(attr.state, QpState::Err | QpState::Reset);
        if stops && mask.contains(QpAttrMask::STATE) {
            self.lane.drain();
        }
        self.with(|visit| {
            let before = visit.qp.state();
            let refused = |e| Error::invalid(format!("queue pair {:#x}: {e}", self.qpn));
            // Do what can fail first, so that a failure changes nothing.
            let (address, alternate) =
                (address.filter(|_| connected), alternate.filter(|_| connected));
            if address.is_some() || alternate.is_some() {
                visit.qp.check_modify(attr, mask).map_err(refused)?;
            }
            if let Some(to) = address {
                let named = mask.contains(QpAttrMask::DEST_QPN);
                let dest = if named { attr.dest_qpn } else { visit.qp.query().dest_qpn };
                self.attach(visit, dest, to)?;
            }
            if let Some(to) = alternate {
                Self::load(visit, to).inspect_err(|_| {
                    if before == QpState::Init {
                        visit.detach();
                    }
                })?;
            }
            visit.qp.modify(attr, mask, &mut visit.host).map_err(refused)?;
            let state = visit.qp.state();
            if state == QpState::Rts && before != QpState::Rts {
                self.load_waiting(visit);
            }
            if state == QpState::Reset && before != QpState::Reset {
                visit.detach();
                visit.host.own.pending_alternate.set(None);
                for cq in self.send_cq.iter().chain(&self.recv_cq) {
                    cq.purge(self.qpn);
                }
            }
            Ok(())
        })?
    }

    fn query(&self) -> Result<QpAttr> {
        self.with(|visit| {
            let mut attr = visit.qp.query();
            self.show_set(visit, &mut attr);
            attr
        })
    }

    fn post_send(
        &self,
        list: &[SendRequest<'_>],
        all_or_nothing: bool,
    ) -> core::result::Result<(), PostFailure> {
        if self.lane.has_failed() {
            return Err(PostFailure { index: 0, error: failed() });
        }
        let addresses = if self.qp_type == QpType::Ud { list.len() } else { 0 };
        let index = self.index();
        // A thread that waits for an event will not poll soon.
        let sleeps = [&self.send_cq, &self.recv_cq].into_iter().flatten().any(|cq| cq.is_awaited());
        let bytes = (!sleeps).then(|| list.iter().map(|request| request.data.size()).sum());
        let work = |visit: &mut QpVisit<'_>| {
            if all_or_nothing && visit.qp.send_room() < list.len() {
                let error = Error::no_memory("the send queue has no room for the whole list");
                return Err(PostFailure { index: 0, error });
            }
            // A request that is rejected must not leave those before it posted.
            if all_or_nothing && list.len() > 1 {
                for (index, request) in list.iter().enumerate() {
                    let wr = self.work_request(visit, index, request)?;
                    let srqn = if self.qp_type == QpType::XrcSend { request.xrc_srqn } else { 0 };
                    visit.qp.check_send(&wr, srqn).map_err(|e| refused(index, &e))?;
                }
            }
            for (index, request) in list.iter().enumerate() {
                let wr = self.work_request(visit, index, request)?;
                let posted = if self.qp_type == QpType::XrcSend {
                    visit.qp.post_xrc_send(&wr, request.xrc_srqn)
                } else {
                    visit.qp.post_send(&wr)
                };
                posted.map_err(|e| refused(index, &e))?;
            }
            Ok(())
        };
        let all = self.lane.post(bytes, |state| {
            state.make_room_for_datagrams(addresses);
            let State { core, io, .. } = state;
            core.with(index, io, work)
        });
        all.ok_or_else(|| PostFailure { index: 0, error: self.lane.gone() })?
    }

    fn post_recv(&self, list: &[RecvWr]) -> core::result::Result<(), PostFailure> {
        if self.lane.has_failed() {
            return Err(PostFailure { index: 0, error: failed() });
        }
        let all = self.lane.visit(self.index(), |entry| {
            for (index, wr) in list.iter().enumerate() {
                entry.qp.post_recv(wr.clone()).map_err(|e| refused(index, &e))?;
            }
            Ok(())
        });
        all.ok_or_else(|| PostFailure { index: 0, error: self.lane.gone() })?
    }

    fn attach_multicast(&self, gid: [u8; 16]) -> Result<()> {
        let group = self.check_group(gid)?;
        let mut groups = lock(&self.groups);
        if groups.contains(&group) {
            return Ok(());
        }
        if groups.len() >= MAX_MCAST_PER_QP {
            return Err(Error::no_memory(format!(
                "a queue pair joins at most {MAX_MCAST_PER_QP} groups"
            )));
        }
        let members = self.context.spec().members().collect::<Vec<_>>();
        let index = self.index();
        self.lane.enter(|state| state.join(group, index, &members))?;
        groups.push(group);
        Ok(())
    }

    fn detach_multicast(&self, gid: [u8; 16]) -> Result<()> {
        let group = self.check_group(gid)?;
        let mut groups = lock(&self.groups);
        let at = groups
            .iter()
            .position(|g| *g == group)
            .ok_or_else(|| Error::invalid("the queue pair is not attached to this group"))?;
        groups.remove(at);
        let index = self.index();
        self.lane.enter(|state| state.leave(group, index));
        Ok(())
    }

    fn set_lag_port(&self, port: u8) -> Result<()> {
        self.keep_to_member(port)
    }

    fn lag_ports(&self) -> Result<(u8, u8)> {
        self.members_in_use()
    }

    fn destroy(&self) -> Result<()> {
        if self.destroyed.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid("the queue pair has been destroyed"));
        }
        self.lane.drain();
        let index = self.index();
        let groups = core::mem::take(&mut *lock(&self.groups));
        self.lane.enter(|state| {
            for group in groups {
                state.leave(group, index);
            }
            state.core.remove(index, &mut state.io);
            state.core.paths_mut().keep_to(crate::clock::now(), self.qpn, None);
        });
        self.context.memory.forget_qp(self.qpn);
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.detach(self.qpn);
        }
        self.context.forget_events(Element::Qp(self.token));
        self.release();
        Ok(())
    }

    fn freeze(&self) -> Result<Vec<u8>> {
        if self.qp_type == QpType::XrcRecv {
            return Err(Error::unsupported(
                "an XRC target belongs to its domain and is not frozen",
            ));
        }
        if self.lane.has_failed() {
            return Err(failed());
        }
        if self.destroyed.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid("the queue pair has been destroyed"));
        }
        let frozen = self.take();
        match &frozen {
            Ok(_) => {
                for cq in self.send_cq.iter().chain(&self.recv_cq) {
                    cq.remove_user();
                }
                self.release();
            }
            Err(_) => self.destroyed.store(false, Ordering::Relaxed),
        }
        frozen
    }
}

impl Qp {
    /// Releases everything but the completion queues after the queue pair has left its lane.
    fn release(&self) {
        if let Some(srq) = &self.srq {
            srq.detach();
        }
        if let Some(pd) = self.pd {
            self.context.release_pd(pd);
        }
    }

    fn check_group(&self, gid: [u8; 16]) -> Result<IpAddr> {
        if self.qp_type != QpType::Ud {
            return Err(Error::invalid("only UD queue pairs join multicast groups"));
        }
        let group = address::ip_of(gid);
        if !group.is_multicast() {
            return Err(Error::invalid(format!("{group} is no multicast address")));
        }
        Ok(group)
    }
}

#[cfg(test)]
mod tests;
