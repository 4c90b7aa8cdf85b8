//! Freezing and thawing: a queue pair leaves its lane as bytes, and continues elsewhere.

use std::sync::Arc;

use polypath_transport::{QueuePair, ThawError};
use polypath_verbs::{Error, QpRequest, QpState, QpType, Result, ThawRequest};

use super::Qp;
use crate::address;
use crate::context_inner::ContextInner;
use crate::engine_inner::EngineInner;
use crate::lane::State;
use crate::notify::lock;

fn thaw_error(error: &ThawError) -> Error {
    match error {
        ThawError::NoMemory => Error::no_memory(error.to_string()),
        _ => Error::invalid(error.to_string()),
    }
}

impl Qp {
    /// Removes it from its lane, if everything that belongs to it can go along.
    pub(super) fn take(&self) -> Result<Vec<u8>> {
        if !lock(&self.groups).is_empty() {
            return Err(Error::busy("the queue pair has joined multicast groups: detach it first"));
        }
        if self.context.memory.has_windows_of(self.qpn) {
            return Err(Error::busy(
                "memory windows are bound to the queue pair, or binds are posted: invalidate them, \
                 and wait for the completions of binds",
            ));
        }
        self.lane.drain();
        let index = self.index();
        self.lane.enter(|State { core, io, .. }| {
            let entry = core.qps().get(index).ok_or_else(|| self.lane.gone())?;
            // The paths of datagrams belong to this lane.
            if entry.qp.datagrams().next().is_some() {
                return Err(Error::busy("datagrams have not left: wait for their completions"));
            }
            let (frozen, _) = core.take(index, io).ok_or_else(|| self.lane.gone())?;
            Ok(frozen)
        })
    }

    /// Continues a frozen queue pair.
    pub(crate) fn thaw(
        engine: &EngineInner,
        context: &Arc<ContextInner>,
        request: &ThawRequest,
        frozen: &[u8],
    ) -> Result<Self> {
        let config = QueuePair::frozen_config(frozen).map_err(|e| thaw_error(&e))?;
        if config.qp_type == QpType::XrcRecv {
            return Err(Error::unsupported(
                "an XRC target belongs to its domain and is not thawed",
            ));
        }
        if config.srq != request.srq.is_some() {
            let had = if config.srq { "one" } else { "none" };
            return Err(Error::invalid(format!(
                "the queue pair had {had}, and the request is different: a shared receive queue"
            )));
        }
        let mtu = context.spec().roce_mtu(&engine.table());
        let made = QpRequest {
            pd: Some(request.pd),
            qp_type: config.qp_type,
            send_cq: request.send_cq.clone(),
            recv_cq: request.recv_cq.clone(),
            srq: request.srq.clone(),
            xrcd: None,
            sq_sig_all: config.sq_sig_all,
            max_send_wr: config.max_send_wr,
            max_recv_wr: config.max_recv_wr,
            max_send_sge: config.max_send_sge,
            max_recv_sge: config.max_recv_sge,
            max_inline: config.max_inline,
            token: request.token,
        };
        let qp = Self::create(engine, context, &made, Some(config.qpn), None)?;
        match qp.resume(frozen, mtu) {
            Ok(()) => Ok(qp),
            Err(error) => {
                // It is empty again, and nobody has used it yet.
                polypath_verbs::QueuePair::destroy(&qp)?;
                Err(error)
            }
        }
    }

    /// Replaces this new queue pair with the frozen one.
    fn resume(&self, frozen: &[u8], mtu: u32) -> Result<()> {
        let spec = self.context.spec();
        self.with(|visit| {
            visit.thaw(frozen).map_err(|e| thaw_error(&e))?;
            visit.qp.set_port_mtu(mtu);
            let attr = visit.qp.query();
            let connected = self.qp_type != QpType::Ud
                && matches!(attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            if !connected {
                return Ok(());
            }
            let way = address::resolve(&spec, &attr.ah);
            if let Err(error) = way.and_then(|to| self.attach(visit, attr.dest_qpn, to)) {
                // It must leave no trace, because it will continue elsewhere.
                drop(visit.freeze());
                return Err(error);
            }
            self.reload(visit, &attr);
            visit.resume();
            Ok(())
        })?
    }
}
