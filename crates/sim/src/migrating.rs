//! Queue pairs that migrate (automatic path migration): RC and UC ones with one path in use and another in
//! reserve, and RC ones with a path set, which moves them. Their programs load the path that was left after
//! each migration, and sometimes migrate.
//! They are a subject of their own, so that the seeds of the others keep their meaning.

use polypath_paths::PathOptions;
use polypath_transport::{AhAttr, MigState, QpAttr, QpAttrMask, QpState, QpType, QueuePair};
use polypath_wire::flow_label::is_another_port;

use crate::case::{Case, PairPlan};
use crate::datagram::address;
use crate::faults::{self, Change, Fault, When};
use crate::freeze::any_step;
use crate::judge::{Verdict, demand};
use crate::rng::Rng;
use crate::run::Simulation;

const MS: core::time::Duration = core::time::Duration::from_millis(1);

impl Case {
    /// Draws the case with migrating queue pairs that this seed means.
    pub fn draw_migrating(seed: u64) -> Self {
        let mut case = Self::draw(seed);
        let rng = &mut Rng::new(seed ^ 0x6d69_6772_6174_6521);
        if case.links.len() < 2 {
            case.links.push(case.links[0]);
        }
        let links = case.links.len();
        // Plain queue pairs make hardly any progress where every packet overtakes every other.
        case.links.iter_mut().for_each(|link| link.reorders = false);
        for pair in &mut case.pairs {
            let stays = !matches!(pair.service, QpType::Rc | QpType::Uc) || rng.chance(150);
            let is_set = pair.service == QpType::Rc && pair.multipath;
            let drawn = (!stays).then(|| {
                let link = rng.below(links as u64) as usize;
                let alternate = (link + 1 + rng.below(links as u64 - 1) as usize) % links;
                (link, alternate, if rng.chance(700) { 18 } else { 14 })
            });
            if is_set && (stays || pair.ends[0].qpn & 3 == 0) {
                // Its path set moves it, and its programs follow that.
                pair.alternate = Some((pair.link + 1) % links);
            } else if let Some((link, alternate, timeout)) = drawn {
                pair.multipath = false;
                (pair.link, pair.alternate) = (link, Some(alternate));
                // Those that are ARMED use up the retries of both paths before they fail.
                (pair.timeout, pair.retry_cnt) = (timeout, 7);
            }
        }
        case.attacks.clear();
        let is_kept = |fault: &Fault| matches!(fault, Fault::Drain { .. } | Fault::Error { .. });
        case.faults.retain(|(_, fault)| is_kept(fault));
        if rng.chance(850) {
            let time = MS * (200 + rng.below(1500) as u32);
            let drawn = faults::draw(rng, case.hosts, links, time, true);
            case.faults.extend(drawn.into_iter().map(|(when, fault)| match fault {
                // The programs know the first addresses only.
                Fault::Address { host, link, change: Change::Other } => {
                    (when, Fault::Address { host, link, change: Change::Gone })
                }
                fault => (when, fault),
            }));
        }
        for _ in 0..rng.below(8) {
            let pair = rng.below(case.pairs.len() as u64) as usize;
            let end = rng.below(2) as usize;
            case.faults.push((any_step(rng), Fault::Migrate { pair, end }));
            if rng.chance(300) {
                // Both at once.
                let when = case.faults[case.faults.len() - 1].0;
                case.faults.push((when, Fault::Migrate { pair, end: 1 - end }));
            }
        }
        add_labels(seed, &mut case);
        case
    }
}

/// The link and the flow label of a path.
type Way = (usize, u32);

impl PairPlan {
    /// The path in use and the other one, after so many migrations.
    fn paths(&self, count: u64) -> Option<[Way; 2]> {
        let [first, second] = [(self.link, self.labels[0]), (self.alternate?, self.labels[1])];
        Some(if count.is_multiple_of(2) { [first, second] } else { [second, first] })
    }

    /// How its queue pairs are connected.
    pub(crate) fn options(&self) -> PathOptions {
        PathOptions {
            multipath: self.multipath,
            flow_label: self.labels[0],
            ..PathOptions::default()
        }
    }
}

/// Lets some of the pairs have both paths on one link, told apart by their flow labels, and links lose what
/// takes some of their ways. It is drawn from a stream of its own, so that the rest of a seed's meaning stays
/// as it was.
fn add_labels(seed: u64, case: &mut Case) {
    let rng = &mut Rng::new(seed ^ 0x6c61_6265_6c73);
    let mut links = Vec::new();
    for pair in &mut case.pairs {
        if pair.multipath || pair.alternate.is_none() || !rng.chance(250) {
            continue;
        }
        let mut label = || 1 + rng.below(0xf_ffff) as u32;
        pair.labels = [label(), label()];
        while !is_another_port(pair.labels[1], pair.labels[0]) {
            pair.labels[1] = label();
        }
        pair.alternate = Some(pair.link);
        links.push(pair.link);
    }
    for link in links {
        for _ in 0..rng.below(4) {
            let ways = 1 + rng.below(255) as u8;
            let lossy = |ways, loss| Fault::Ways { link, ways, loss };
            let end = rng.time(MS * 2000);
            let loss = if rng.chance(800) { 1000 } else { rng.below(1000) };
            case.faults.push((any_step(rng), lossy(ways, loss)));
            case.faults.push((When::At(end), lossy(0, 0)));
        }
    }
}

impl Simulation {
    /// A program migrates, if it may.
    pub(crate) fn migrate(&mut self, pair: usize, e: usize) -> Verdict {
        if self.case.pairs[pair].alternate.is_none() {
            return Ok(());
        }
        let sends = |qp: &&QueuePair| matches!(qp.state(), QpState::Rts | QpState::Sqd);
        let Some(qp) = self.qp(pair, e).filter(sends) else { return Ok(()) };
        let state = qp.migration().state;
        let mut attr = QpAttr::new(QpState::Rts);
        attr.path_mig_state = MigState::Migrated;
        let done = self.modify(pair, e, &attr, QpAttrMask::PATH_MIG_STATE);
        demand(
            done.is_ok() == (state != MigState::Rearm),
            "who is ARMED may migrate, who is in REARM may not",
            || format!("{state:?}: {done:?}"),
        )?;
        self.check(self.oracle.pairs[pair].ends[e].host)
    }

    /// Programs load the path that is not in use: at first, and after each migration, some of them at once.
    pub(crate) fn load_alternates(&mut self) -> Verdict {
        for pair in 0..self.case.pairs.len() {
            for e in 0..2 {
                let number = self.oracle.pairs[pair].ends[e].host;
                if !self.alive[number] || self.hosts[number].paused_until > self.now {
                    continue;
                }
                let plan = &self.case.pairs[pair];
                let qpn = plan.ends[e].qpn;
                // This time does not divide the interval of probes: who looks only then would wait for ever.
                let waits = qpn & 1 == 1 && self.now.as_millis() / 11 % 2 == 1;
                let Some(qp) = self.qp(pair, e) else { continue };
                let migration = qp.migration();
                let agreed = qp.is_multipath() == plan.multipath;
                let rts = qp.state() == QpState::Rts && agreed;
                let due = rts && migration.state == MigState::Migrated;
                let paths = plan.paths(migration.count).filter(|_| due && !waits);
                let Some([_, (other, flow_label)]) = paths else { continue };
                let peer = plan.ends[1 - e].host;
                let [local, remote] = [number, peer].map(|h| address(other, h, self.case.v6));
                let mut attr = QpAttr::new(QpState::Rts);
                attr.alt_ah =
                    AhAttr { is_global: true, port_num: 1, flow_label, ..AhAttr::default() };
                (attr.alt_port_num, attr.alt_timeout) = (1, plan.timeout);
                attr.path_mig_state = MigState::Rearm;
                let host = &mut self.hosts[number];
                host.begin(self.now);
                let loaded = host.with(qpn, |visit| {
                    let mask = QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE;
                    let done = visit.qp.modify(&attr, mask, &mut visit.host);
                    let options = PathOptions { flow_label, ..PathOptions::default() };
                    let set = visit.set_alternate(local, remote, options);
                    done.is_ok() && set.is_ok()
                });
                demand(loaded != Some(false), "an alternate path can be loaded", || {
                    format!("pair {pair}, end {e}")
                })?;
                self.check(number)?;
            }
        }
        Ok(())
    }

    /// How often queue pairs have migrated, all together.
    pub(crate) fn migrations(&self) -> u64 {
        let qps = self.hosts.iter().flat_map(|h| h.lane.qps().iter());
        qps.map(|(_, entry)| entry.qp.counters().migrations).sum()
    }

    /// The pairs of RC queue pairs that still work and whose ends are not both ARMED, on the same path if
    /// they have no path set and their paths have different addresses. (By a source port, packets are handled
    /// whichever of the two paths it belongs to, so ends that have missed a migration need not notice.)
    pub(crate) fn apart(&self) -> Vec<String> {
        let pairs = self.case.pairs.iter().enumerate();
        let migrating = pairs.filter(|(_, p)| p.service == QpType::Rc && p.alternate.is_some());
        migrating
            .filter_map(|(i, plan)| {
                let ends = &self.oracle.pairs[i].ends;
                if ends.iter().any(|end| end.gone || end.ended.is_some()) {
                    return None;
                }
                let [a, b] = [0, 1].map(|e| self.qp(i, e).map(|qp| (qp.state(), qp.migration())));
                let ((a_state, a), (b_state, b)) = (a?, b?);
                let sends = [a_state, b_state].iter().all(|s| *s == QpState::Rts);
                let armed = a.state == MigState::Armed && b.state == MigState::Armed;
                let by_port = plan.alternate == Some(plan.link);
                let same = plan.multipath || by_port || plan.paths(a.count) == plan.paths(b.count);
                let together = armed && same;
                (sends && !together).then(|| format!("pair {i}: {a:?}, {b:?}"))
            })
            .collect()
    }
}
