//! Applications that stop a send queue (SQD) and let it continue (IBTA 10.3.1.5).

use core::time::Duration;

use polypath_transport::{ModifyError, QpAttr, QpAttrMask, QpState, QueuePair};

use crate::judge::{Verdict, demand};
use crate::run::Simulation;

/// The time after which an application that finds its send queue not drained asks again.
const PATIENCE: Duration = Duration::from_millis(10);

impl Simulation {
    /// An application stops its send queue. With `notify`, it wants to be told when the queue is
    /// drained.
    pub(crate) fn drain(
        &mut self,
        pair: usize,
        e: usize,
        pause: Duration,
        notify: bool,
    ) -> Verdict {
        let mut attr = QpAttr::new(QpState::Sqd);
        attr.en_sqd_async_notify = notify;
        let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        let Some(state) = self.qp(pair, e).map(QueuePair::state) else { return Ok(()) };
        if state == QpState::Sqd {
            return Ok(());
        }
        let legal = state == QpState::Rts;
        if legal {
            self.oracle.pairs[pair].directions[e].drains(notify);
            self.resumes.push((self.now + pause, pair, e));
        }
        let done = self.modify(pair, e, &attr, mask);
        demand(done.is_ok() == legal, "only a queue pair in RTS can be drained", || {
            format!("from {state:?}: {done:?}")
        })?;
        self.check(self.oracle.pairs[pair].ends[e].host)
    }

    /// Lets the applications whose time has come continue, if their send queues are drained.
    pub(crate) fn resume(&mut self) -> Verdict {
        self.come_back()?;
        self.load_alternates()?;
        for (at, pair, e) in core::mem::take(&mut self.resumes) {
            if at > self.now {
                self.resumes.push((at, pair, e));
            } else if let Some(back) = self.away.until(pair, e) {
                self.resumes.push((back, pair, e));
            } else if let Some(qp) = self.qp(pair, e).filter(|qp| qp.state() == QpState::Sqd) {
                let draining = qp.query().sq_draining;
                self.note(format_args!("pair {pair}, end {e}, wants to send again"));
                let attr = QpAttr::new(QpState::Rts);
                let done = self.modify(pair, e, &attr, QpAttrMask::STATE);
                demand(
                    done.is_ok() != draining,
                    "a send queue goes on once it is drained",
                    || format!("draining: {draining}; {done:?}"),
                )?;
                let direction = &mut self.oracle.pairs[pair].directions[e];
                if draining {
                    self.resumes.push((self.now + PATIENCE, pair, e));
                    direction.still_draining()?;
                } else {
                    direction.goes_on()?;
                }
                self.check(self.oracle.pairs[pair].ends[e].host)?;
            }
        }
        Ok(())
    }

    /// Carries out what an application does to its queue pair.
    pub(crate) fn modify(
        &mut self,
        pair: usize,
        e: usize,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyError> {
        let end = &self.oracle.pairs[pair].ends[e];
        let host = &mut self.hosts[end.host];
        host.begin(self.now);
        host.with(end.qpn, |visit| visit.qp.modify(attr, mask, &mut visit.host)).unwrap_or(Ok(()))
    }
}
