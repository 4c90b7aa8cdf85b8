//! Ends a lane in which a thread panicked. The state that the thread was changing is inconsistent,
//! so nothing is sent or received any more, and the program is told the same as when an adapter
//! fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use polypath_verbs::{AsyncEvent, AsyncKind, Element};

use crate::context_inner::ContextInner;
use crate::events::Raise;
use crate::lane::sleeper::Sleeper;
use crate::lane::{Lane, State};

/// Wakes the lane's thread if a panic unwinds through a thread that is in the lane.
pub(super) struct Alarm<'a>(pub(super) &'a Sleeper);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

impl Lane {
    /// Whether a thread panicked in the lane.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.state.is_poisoned()
    }

    /// Ends a lane that has failed, once: queue pairs enter the error state, posted requests are
    /// flushed, and the devices raise `IBV_EVENT_DEVICE_FATAL`.
    #[cold]
    pub(super) fn end(&self, state: &mut State) {
        self.ended.call_once(|| {
            eprintln!(
                "polypath: an internal error has ended the queue pairs of process {} (lane {}); please \
                 report it, with what the program writes if POLYPATH_LOG=1 is set",
                std::process::id(),
                self.index
            );
            let indexes: Vec<u16> = state.core.qps().iter().map(|(index, _)| index).collect();
            for index in indexes {
                let State { core, io, .. } = &mut *state;
                // Even if this panics, the other queue pairs must be flushed.
                let _ = catch_unwind(AssertUnwindSafe(|| core.fail(index, io)));
            }
            let mut told: Vec<*const ContextInner> = Vec::new();
            for (_, entry) in state.core.qps().iter() {
                let context = &entry.own.context;
                if !told.contains(&Arc::as_ptr(context)) {
                    told.push(Arc::as_ptr(context));
                    let kind = AsyncKind::DeviceFatal;
                    context.raise(AsyncEvent { kind, element: Element::Device });
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use polypath_topology::{MP, Selection};
    use polypath_transport::{QpAttr, QpAttrMask as M, QpState, QpType, RecvWr};
    use polypath_verbs::{Context, CqRequest, QpRequest, WcStatus};

    use super::*;
    use crate::context::OpenDevice;
    use crate::devices;
    use crate::engine_inner::EngineInner;

    /// A lane that no other test uses.
    fn device() -> (Arc<Lane>, Arc<OpenDevice>) {
        let lane = Lane::still(9).unwrap();
        let engine = EngineInner::alone(crate::fuzz::table(), Selection::of(MP), lane.clone());
        (lane, devices::first(&engine))
    }

    #[test]
    fn a_panic_in_a_lane_flushes_its_queue_pairs_and_is_a_fatal_error_of_the_device() {
        let (lane, context) = device();
        let pd = context.alloc_pd().unwrap();
        let request = CqRequest { cqe: 16, channel: None, token: 1, ignore_overrun: false };
        let cq = context.create_cq(&request).unwrap();
        let request = QpRequest {
            pd: Some(pd),
            qp_type: QpType::Rc,
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            srq: None,
            xrcd: None,
            sq_sig_all: true,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            token: 2,
        };
        let qp = context.create_qp(&request).unwrap();
        let mut attr = QpAttr::new(QpState::Init);
        attr.port_num = 1;
        qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
        let receive = |wr_id| RecvWr { wr_id, sges: [].into_iter().collect() };
        qp.post_recv(&[receive(1), receive(2), receive(3)]).unwrap();

        let inside = lane.clone();
        let panicked = std::thread::spawn(move || inside.enter(|_| panic!("on purpose"))).join();
        assert!(panicked.is_err());

        let mut flushed = Vec::new();
        cq.poll(16, &mut |wc| flushed.push((wc.completion.wr_id, wc.completion.status))).unwrap();
        if flushed.is_empty() {
            // Polling drives the lane only if there are no completions.
            cq.poll(16, &mut |wc| flushed.push((wc.completion.wr_id, wc.completion.status)))
                .unwrap();
        }
        assert_eq!(flushed, [1, 2, 3].map(|wr_id| (wr_id, WcStatus::WrFlushErr)));
        assert_eq!(qp.query().unwrap().state, QpState::Err);
        let events: Vec<_> = std::iter::from_fn(|| context.take_async_event()).collect();
        let fatal = events.iter().filter(|e| e.kind == AsyncKind::DeviceFatal);
        assert_eq!(fatal.count(), 1, "{events:?}");
        assert_eq!(qp.post_recv(&[receive(4)]).unwrap_err().error.errno, libc::EIO);
        assert_eq!(context.create_qp(&request).unwrap_err().errno, libc::EIO);
        qp.destroy().unwrap();
    }
}
