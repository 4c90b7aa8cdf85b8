//! Queue pairs that are frozen, taken out for a while, and thawed on a lane that knows nothing of them,
//! as when a machine moves. Packets that come meanwhile are lost, as if the adapter were absent. They
//! are drawn from a stream of their own, so that the rest of a seed's meaning stays as it was.

use core::time::Duration;

use polypath_transport::{QpState, QpType, QueuePair};

use crate::case::{Case, PairPlan};
use crate::datagram::address;
use crate::faults::Fault;
use crate::freeze::any_step;
use crate::judge::{Verdict, demand};
use crate::rng::Rng;
use crate::run::Simulation;
use crate::under_way::Away;

/// The time within which queue pairs that were taken out come back.
const TIME: Duration = Duration::from_millis(40);
/// The number of cases in a thousand that have queue pairs that are taken out for a while.
const SHARE: u64 = 150;

/// The least time for which an end's peer asks again before it gives up.
fn patience(plan: &PairPlan) -> Duration {
    Duration::from_nanos(4096 << plan.timeout) * u32::from(plan.retry_cnt)
}

/// Adds to a case the queue pairs that its seed takes out for a while.
pub(crate) fn add(seed: u64, case: &mut Case) {
    let rng = &mut Rng::new(seed.rotate_left(23) ^ 0x6177_6179_6177_6179);
    if !rng.chance(SHARE) {
        return;
    }
    for _ in 0..=rng.below(6) {
        let pair = rng.below(case.pairs.len() as u64) as usize;
        let end = rng.below(2) as usize;
        let time = rng.time(TIME);
        let when = any_step(rng);
        let plan = &case.pairs[pair];
        if plan.service == QpType::Rc && patience(plan) > 4 * time {
            case.faults.push((when, Fault::Away { pair, end, time }));
        }
    }
}

impl Simulation {
    /// Freezes a queue pair and takes it out of its lane for `time`.
    pub(crate) fn leave(&mut self, pair: usize, e: usize, time: Duration) -> Verdict {
        let end = &self.oracle.pairs[pair].ends[e];
        let number = end.host;
        let host = &mut self.hosts[number];
        host.begin(self.now);
        if let Some(bytes) = host.take(end.qpn) {
            self.away.add(Away { until: self.now + time, pair, end: e, bytes });
        }
        self.check(number)
    }

    /// Whether a process has the queue pair of an end now.
    pub(crate) fn is_there(&self, pair: usize, e: usize) -> bool {
        !self.oracle.pairs[pair].ends[e].gone && self.away.until(pair, e).is_none()
    }

    /// Brings back the queue pairs whose time has come.
    pub(crate) fn come_back(&mut self) -> Verdict {
        while let Some(away) = self.away.take_due(self.now) {
            self.note(format_args!("end {} of pair {} is thawed", away.end, away.pair));
            self.put(&away)?;
        }
        Ok(())
    }

    /// Brings a queue pair back before its time, because something is to happen to it.
    pub(crate) fn bring_back_for(&mut self, fault: Fault) -> Verdict {
        match fault {
            Fault::Error { pair, end }
            | Fault::Drain { pair, end, .. }
            | Fault::Freeze { pair, end } => match self.away.take(pair, end) {
                Some(away) => self.put(&away),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Forgets the frozen queue pairs of a host whose process has ended.
    pub(crate) fn forget_away(&mut self, host: usize) {
        let pairs = &self.oracle.pairs;
        self.away.retain(|pair, end| pairs[pair].ends[end].host != host);
    }

    fn put(&mut self, away: &Away) -> Verdict {
        let plan = &self.case.pairs[away.pair];
        let [own, peer] = [away.end, 1 - away.end].map(|e| &plan.ends[e]);
        let (qpn, number) = (own.qpn, own.host);
        let host = &mut self.hosts[number];
        host.begin(self.now);
        let config = QueuePair::frozen_config(&away.bytes);
        demand(config.is_ok(), "a frozen queue pair can be thawed", || {
            format!("{qpn:#x}: {config:?}")
        })?;
        if let Ok(config) = config {
            host.lane.insert(QueuePair::new(config), qpn);
        }
        self.oracle.pairs[away.pair].ends[away.end].thawed_at = self.now;
        let thawed = host.with(qpn, |visit| visit.thaw(&away.bytes)).unwrap_or(Ok(()));
        demand(thawed.is_ok(), "a frozen queue pair can be thawed", || {
            format!("{qpn:#x}: {thawed:?}")
        })?;
        let state = host.qp(qpn).map(QueuePair::state);
        if !matches!(state, Some(QpState::Reset | QpState::Init | QpState::Err)) {
            let [local, remote] = [own, peer].map(|end| address(plan.link, end.host, self.case.v6));
            host.attach(qpn, peer.qpn, local, remote, plan.options());
            host.with(qpn, |visit| {
                visit.resume();
            });
        }
        self.check(number)
    }
}
