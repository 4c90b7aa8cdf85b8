//! What holds for the messages of migration at all times.

use core::time::Duration;
use std::collections::BTreeMap;

use polypath_wire::cm::{CmMad, CmMessage, Mraed};

use crate::judge::{Verdict, demand};

/// The least time between two LAPs or SAPs of one connection.
const DISTANCE: Duration = Duration::from_millis(100);
/// How often a message may be sent: once, and as many repetitions as the REQ allows.
const SENDS_MAX: u32 = 16;
/// The time for which an MRA has an active end wait: 4.096 µs · 2^18, rounded as in Linux, and twice a
/// packet's lifetime.
const PATIENCE: Duration = Duration::from_millis(1024 + 512);

/// The latest LAP or SAP of one end.
#[derive(Clone, Copy, Debug)]
struct Latest {
    at: Duration,
    tid: u64,
    sends: u32,
    /// When the first MRA came.
    postponed: Option<Duration>,
}

/// A LAP at the passive end.
#[derive(Clone, Copy, Debug, Default)]
struct Lap {
    arrivals: u32,
    is_answered: bool,
}

/// Watches what the hosts send.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    latest: BTreeMap<(usize, u32), Latest>,
    ended: BTreeMap<(usize, u32), Duration>,
    /// The LAPs that came to the passive end, by its communication id and the transaction.
    laps: BTreeMap<(u32, u64), Lap>,
    /// The number of different LAPs and SAPs.
    pub(super) asked: u64,
    /// The number of LAPs for which an MRA was sent.
    pub(super) postponed: u64,
}

impl Watcher {
    /// Notes a message that comes to a host.
    pub(super) fn arrived(&mut self, now: Duration, host: usize, mad: &CmMad) {
        match (&mad.message, host) {
            (CmMessage::Lap(m), 1) => {
                self.laps.entry((m.remote_comm_id, mad.tid)).or_default().arrivals += 1;
            }
            (CmMessage::Mra(m), 0) if m.mraed == Mraed::Lap => {
                let latest = self.latest.get_mut(&(host, m.remote_comm_id));
                if let Some(latest) = latest.filter(|latest| latest.tid == mad.tid) {
                    latest.postponed.get_or_insert(now);
                }
            }
            _ => {}
        }
    }

    /// Checks one MAD. Host 0 is the active end of every connection.
    pub(super) fn sent(&mut self, now: Duration, host: usize, mad: &CmMad) -> Verdict {
        let what = || format!("host {host}: {mad}");
        let id = match &mad.message {
            CmMessage::Lap(m) => {
                demand(host == 0, "only the active end loads paths", what)?;
                m.local_comm_id
            }
            CmMessage::Sap(m) => {
                demand(host == 1, "only the passive end suggests paths", what)?;
                m.local_comm_id
            }
            CmMessage::Dreq(m) => {
                self.ended.insert((host, m.local_comm_id), now);
                return Ok(());
            }
            CmMessage::Mra(m) if m.mraed == Mraed::Lap => {
                return self.mra(host, m.local_comm_id, mad);
            }
            CmMessage::Apr(m) => {
                if let Some(lap) = self.laps.get_mut(&(m.local_comm_id, mad.tid)) {
                    lap.is_answered = true;
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        demand(
            !self.ended.contains_key(&(host, id)),
            "a connection that ends is left alone",
            what,
        )?;
        let latest = self.latest.get(&(host, id)).copied();
        let next = match latest {
            Some(latest) if latest.tid == mad.tid => {
                let is_patient = latest.postponed.is_none_or(|since| since + PATIENCE <= now);
                demand(is_patient, "an MRA gives the answer time", what)?;
                Latest { sends: latest.sends + 1, ..latest }
            }
            _ => {
                let is_far = latest.is_none_or(|latest| latest.at + DISTANCE <= now);
                demand(is_far, "paths are changed at a bounded rate", what)?;
                self.asked += 1;
                Latest { at: now, tid: mad.tid, sends: 1, postponed: None }
            }
        };
        demand(next.sends <= SENDS_MAX, "a message is repeated a bounded number of times", what)?;
        self.latest.insert((host, id), next);
        Ok(())
    }

    /// Checks an MRA of a LAP.
    fn mra(&mut self, host: usize, id: u32, mad: &CmMad) -> Verdict {
        let what = || format!("host {host}: {mad}");
        demand(host == 1, "only the passive end postpones an answer", what)?;
        let lap = self.laps.get(&(id, mad.tid)).copied().unwrap_or_default();
        demand(lap.arrivals > 1, "an MRA is sent only for a LAP that is repeated", what)?;
        demand(!lap.is_answered, "a LAP that was answered is not postponed", what)?;
        // Only the first of a LAP's MRAs comes with its first repetition.
        self.postponed += u64::from(lap.arrivals == 2);
        Ok(())
    }
}
